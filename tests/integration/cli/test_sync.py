"""The command `sync`: what it shows, asks and publishes, and what it does after each change while it watches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llama_index_contextual.cli.documents import RESCAN, SOON
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index.project_file import write_lock
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.cli.synced import CHANGED, REFILLED, change, ids, refill, synced_project, watch_of, write_folder
from tests.support.cli import at_a_terminal, run
from tests.support.trees import write

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three documents."""
    return write_folder(tmp_path / "files")


@pytest.fixture
def project(root: Path, folder: Path) -> Project:
    """Project "a" in step with the folder."""
    return synced_project(root, folder)


def versions(project: Project) -> list[str]:
    return [version.name for version in project.versions()]


PLAN = """1 new, 1 changed, 1 moved, 1 gone; 0 unchanged.
new      files/four.md
changed  files/three.md
moved    files/one.md to files/uno.md
gone     files/two.md
"""


# ---- once ------------------------------------------------------------------------------------------------------------


def test_a_dry_run_shows_every_change_and_changes_nothing(project: Project, folder: Path) -> None:
    change(folder)
    result = run("sync", "a", folder, "--dry-run")
    assert (result.code, result.out, result.err) == (0, PLAN, "")
    listed = run("sync", "a", folder, "--dry-run", "--json").json
    assert (listed["removed"], listed["renamed"]) == (["files/two.md"], {"files/one.md": "files/uno.md"})
    assert (listed["dry_run"], versions(project)) == (True, ["v000001"])


def test_without_a_terminal_nothing_is_removed_without_yes(project: Project, folder: Path) -> None:
    change(folder)
    result = run("sync", "a", folder)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"{PLAN}Error: Remove 1 document whose files are gone? There is no terminal for a con")
    assert "files/two.md" in ids(project)
    (folder / "two.md").write_text("# Back\n\nIt is back.")
    assert run("sync", "a", folder, "--quiet").code == 0, "without a removal there is nothing to confirm"


def test_the_removal_is_shown_asked_for_and_published_with_the_rest(
    project: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(monkeypatch)
    change(folder)
    declined = run("sync", "a", folder, "--quiet", answer="n\n")
    assert declined.code == 1
    assert "Remove 1 document whose files are gone? [y/N]" in declined.err
    assert versions(project) == ["v000001"]
    accepted = run("sync", "a", folder, "--quiet", answer="y\n")
    assert accepted.code == 0
    published = "Version v000002 is live: 1 added, 1 updated, 1 renamed, 1 removed; 3 chunks;"
    assert accepted.out.strip().removeprefix("y\n").startswith(published)
    assert ids(project) == CHANGED


def test_a_missing_or_empty_folder_is_refused_with_advice(project: Project, folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    empty = run("sync", "a", folder, "--yes")
    assert (empty.code, empty.out) == (1, "")
    assert "contains no file that can be read, but 3 documents came from it" in empty.err
    folder.rmdir()
    missing = run("sync", "a", folder, "--yes")
    assert (missing.code, missing.out) == (2, "")
    assert "does not exist: if it is on a drive or share that is not mounted, mount it" in missing.err
    assert len(ids(project)) == 3
    folder.mkdir()
    assert run("sync", "a", folder, "--yes", "--allow-empty").out.startswith("Version v000002 is live: 0 added, 3 rem")


def test_more_than_a_tenth_needs_a_word(project: Project, folder: Path) -> None:
    refill(folder)
    refused = run("sync", "a", folder, "--yes", "--quiet")
    assert (refused.code, refused.out) == (1, "")
    assert "2 of 3 documents" in refused.err
    assert "add --allow-many" in refused.err
    assert len(ids(project)) == 3
    assert run("sync", "a", folder, "--yes", "--quiet", "--allow-many").code == 0
    assert ids(project) == {"files/one.md", "files/new.md"}


def test_many_changes_are_listed_in_part_and_by_a_dry_run_completely(project: Project, folder: Path) -> None:
    for number in range(30):
        write(folder / f"new{number}.md", f"# New {number}\n\nThe text.")
    assert run("sync", "a", folder, "--dry-run").out.count("new      files/new") == 30
    result = run("sync", "a", folder, "--quiet")
    assert result.err.count("new      files/new") == 20
    assert "new      and 10 more; --dry-run lists all of them" in result.err


def test_an_empty_folder_of_a_new_project_is_no_error(root: Path, tmp_path: Path) -> None:
    ProjectManager(root).create("a", ProjectConfig.local())
    (tmp_path / "inbox").mkdir()
    result = run("sync", "a", "inbox", "--quiet")
    assert result.code == 0
    assert result.out.endswith("There is no version yet: the folders contain no document that can be read.\n")


def test_without_the_extra_watching_says_what_to_install(
    project: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    result = run("sync", "a", folder, "--watch")
    assert (result.code, result.out) == (1, "")
    assert 'pip install "llama-index-contextual[watch]"' in result.err.replace("\n", " ")


# ---- after each change; with real events in tests/slow/cli/test_watching.py ------------------------------------------


def test_a_folder_that_is_being_refilled_keeps_its_documents_and_publishes_the_others(
    project: Project, folder: Path, capsys: Printed
) -> None:
    refill(folder)
    watch = watch_of(project, folder, removes=True)
    watch.sync()
    assert ids(project) == REFILLED
    write(folder / "two.md", "# Back\n\nA slow restore.")
    (folder / "new.md").unlink()
    watch.sync()
    assert ids(project) == REFILLED, "while a large removal waits, not even one document is removed"
    write(folder / "three.md", "# Document three\n\nThe text of three.")
    assert watch.sync() == SOON, "the files are back: soon, the one that is gone can be removed"
    watch.sync()
    assert ids(project) == REFILLED - {"files/new.md"}
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("2 of 3 documents from") == 1
    assert "add --allow-many. Until then, no document is removed; all other changes are published." in said


def test_another_writer_is_waited_for(project: Project, folder: Path, capsys: Printed) -> None:
    change(folder)
    watch = watch_of(project, folder, removes=True)
    with write_lock(project.directory):
        assert [watch.sync(), watch.sync()] == [SOON, SOON]
    assert capsys.readouterr().err.count("is writing to project") == 1, "it is said once"
    assert watch.sync() == RESCAN
    assert ids(project) == CHANGED


def test_without_permission_documents_are_kept_which_is_said_at_the_start(
    project: Project, folder: Path, capsys: Printed
) -> None:
    watch = watch_of(project, folder)
    watch.stop.set()
    watch.start()
    said = " ".join(capsys.readouterr().err.split())
    assert "Ctrl-C ends it." in said
    assert "Documents whose files are deleted are kept: start with --yes to remove them." in said
    change(folder)
    watch.sync()
    watch.sync()
    assert ids(project) == CHANGED | {"files/two.md"}
    assert capsys.readouterr().err.count("missing files/two.md") == 1


def test_a_skipped_file_is_mentioned_once(project: Project, folder: Path, capsys: Printed) -> None:
    write(folder / "empty.md", " ")
    write(folder / "copy.md", (folder / "one.md").read_bytes())
    watch = watch_of(project, folder, removes=True)
    counts = []
    for number, name in enumerate(("four", "five", "six"), start=2):
        write(folder / f"{name}.md", f"# {name}\n\nThe text of {name}.")
        watch.sync()
        printed = capsys.readouterr()
        counts.append((printed.err.count("empty.md"), printed.err.count("copy.md")))
        new, summary = printed.out.splitlines()
        assert new == f"new      files/{name}.md"
        assert summary.startswith(f"Version v00000{number} is live: 1 added")
    assert counts == [(1, 1), (0, 0), (0, 0)]
    watch.sync()
    assert capsys.readouterr() == ("", ""), "nothing is new"
    assert versions(project)[-1] == "v000004"


def test_each_kind_of_change_is_one_line(project: Project, folder: Path, capsys: Printed) -> None:
    change(folder)
    watch_of(project, folder, removes=True).sync()
    printed = capsys.readouterr()
    *lines, summary = printed.out.splitlines()
    assert lines == ["new      files/four.md", "changed  files/three.md", "gone     files/two.md"]
    assert summary.startswith("Version v000002 is live: 1 added, 1 updated, 1 renamed, 1 removed; 3 chunks;")
    assert printed.err == "renamed files/one.md to files/uno.md\n"


def test_the_limit_of_costs_holds_for_all_syncs_together(
    project: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []
    spent = iter([1.0, 1.0, 2.5, 9.0])
    monkeypatch.setattr(Project, "cost", lambda self: type("Cost", (), {"dollars": next(spent) + 0.5, "answers": 0.5}))
    watch = watch_of(project, folder, max_cost=2.0, removes=True)
    watch.work = lambda **options: limits.append(options["max_cost"])  # type: ignore[assignment, func-returns-value]
    for _ in range(3):
        watch._publish()
    assert limits == [2.0, 0.5, 0.0]


def test_errors_while_watching_name_options(project: Project, folder: Path, capsys: Printed) -> None:
    for path in folder.iterdir():
        path.unlink()
    watch_of(project, folder, removes=True).sync()
    message = " ".join(capsys.readouterr().err.split())
    assert "add --allow-empty. The sync is repeated after the next change." in message
