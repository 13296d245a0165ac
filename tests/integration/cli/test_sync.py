"""The command `sync`: what it shows, asks and publishes, and what it does after each change while it watches."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from llama_index_contextual.cli.documents import RESCAN, SOON, Watch
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.index.project_file import write_lock
from llama_index_contextual.money.price import money
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.cli.synced import CHANGED, REFILLED, change, ids, refill, synced_project, watch_of, write_folder
from tests.support.cli import at_a_terminal, run
from tests.support.documents import pdf_bytes
from tests.support.server import LoopbackProvider
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


def log(capsys: Printed) -> list[str]:
    """Return the lines that were printed with a date and time, without these: changes first, then problems."""
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d .", line) for line in lines)
    return [line[20:] for line in lines]


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
    *changes, kept = log(capsys)
    command = f"llama-index-contextual sync a {folder} --yes --allow-many"
    assert kept == (
        "kept 2 documents whose files are gone, more than a tenth of a folder: files/three.md, files/two.md. Until the"
        f" files are back, no document is removed. To remove them: {command}"
    )
    assert changes == [
        "v000002 +1: files/new.md",
        "v000003 ~1 missing 1: files/two.md, files/new.md",
        "v000004 -1: files/new.md",
    ]


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
    assert log(capsys) == ["v000002 +1 ~1 moved 1 missing 1: files/four.md, files/three.md and 2 more"]


def test_each_sync_is_one_line_and_a_skipped_file_is_mentioned_once(
    project: Project, folder: Path, capsys: Printed
) -> None:
    change(folder)
    write(folder / "empty.md", " ")
    write(folder / "copy.md", (folder / "four.md").read_bytes())
    watch = watch_of(project, folder, removes=True)
    watch.sync()
    first, *skipped = log(capsys)
    assert first == "v000002 +1 ~1 -1 moved 1: files/copy.md, files/three.md and 2 more"
    assert [line.partition(":")[0] for line in skipped] == [
        f"skipped {folder / name}" for name in ("four.md", "empty.md")
    ]
    for number in (3, 4):
        write(folder / f"{number}.md", f"# Document {number}\n\nThe text.")
        watch.sync()
        assert log(capsys) == [f"v00000{number} +1: files/{number}.md"]


def test_a_rescan_without_changes_writes_and_prints_nothing(project: Project, folder: Path, capsys: Printed) -> None:
    def state() -> dict[Path, tuple[int, bytes]]:
        paths = filter(Path.is_file, project.directory.rglob("*"))
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}

    write(folder / "broken.pdf", "not a PDF")
    write(folder / "copy.md", (folder / "one.md").read_bytes())
    watch = watch_of(project, folder, removes=True)
    watch.sync()
    assert len(log(capsys)) == 3
    before = state()
    assert [watch.sync() for _ in range(3)] == [RESCAN] * 3
    assert (log(capsys), state()) == ([], before)


def test_a_broken_file_is_read_and_reported_once_for_each_change(
    project: Project, folder: Path, capsys: Printed
) -> None:
    read: list[str] = []
    watch = watch_of(project, folder, removes=True)
    watch.work = partial(watch.work, progress=lambda state: read.append(state.document))
    write(folder / "broken.pdf", "not a PDF")
    write(folder / "one.pdf", (folder / "one.md").read_bytes())
    (folder / "one.md").unlink()  # the document is kept, because its only file is not a PDF
    for number, content in enumerate(("not a PDF", "not a PDF", "still not a PDF", pdf_bytes()), start=2):
        write(folder / "broken.pdf", content)
        write(folder / f"{number}.md", f"# Document {number}\n\nThe text.")
        watch.sync()
    assert [name for name in dict.fromkeys(read) if name.endswith(".pdf")] == ["broken.pdf", "one.pdf"]
    lines = log(capsys)
    assert lines[:4] == [
        *(f"v00000{n} +1: files/{n}.md" for n in (2, 3, 4)),
        "v000005 +2: files/5.md, files/broken.pdf",
    ]
    assert [line.partition(": ")[0] for line in lines[4:]] == [
        f"skipped {folder / name}" for name in ("broken.pdf", "one.pdf", "broken.pdf")
    ]
    assert "files/one.md" in ids(project)


@pytest.mark.parametrize("removes", [True, False])
def test_a_folder_that_disappears_removes_nothing_and_is_reported_once_as_is_its_return(
    project: Project, folder: Path, capsys: Printed, removes: bool
) -> None:
    watch = watch_of(project, folder, removes=removes)
    watch.sync()
    assert log(capsys) == ["v000001 in sync"]
    away = folder.rename(folder.with_name("away"))
    for gone in ("does not exist", "contains no file that can be read"):
        assert [watch.sync(), watch.sync()] == [RESCAN, RESCAN]
        [line] = log(capsys)
        assert line.startswith("error ")
        assert gone in line
        folder.mkdir(exist_ok=True)  # as the mount point of a drive
    assert len(ids(project)) == 3
    folder.rmdir()
    away.rename(folder)
    watch.sync()
    watch.sync()
    assert log(capsys) == ["v000001 in sync again"]


def test_nothing_is_asked_before_or_while_folders_are_watched(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Watch] = []
    monkeypatch.setattr(Watch, "start", lambda watch: started.append(watch))
    at_a_terminal(monkeypatch)
    ProjectManager(root).create("a", ProjectConfig(embed_model="local", llm="openai:gpt-4.1"))
    refused = run("sync", "a", folder, "--watch")
    assert (refused.code, refused.out) == (1, "")
    assert "contexts by openai:gpt-4.1 would be paid for without confirmation: add --max-cost DOLLARS" in refused.err
    assert run("sync", "a", folder, "--watch", "--dry-run", "--yes").code == 2
    assert started == []
    for permission in (["--yes"], ["--max-cost", "2"]):
        assert run("sync", "a", folder, "--watch", *permission).code == 0
    assert [(watch.removes, watch.max_cost) for watch in started] == [(True, None), (False, 2.0)]


def test_the_cost_is_in_the_line_and_the_limit_is_reported_once(
    root: Path, folder: Path, provider: LoopbackProvider, capsys: Printed
) -> None:
    config = ProjectConfig(embed_model="local", llm="openai:gpt-4.1")
    project = ProjectManager(root).create("a", config)
    watch = watch_of(project, folder, max_cost=100.0)
    watch.sync()
    [line] = log(capsys)
    assert line == f"v000001 +3: files/one.md, files/three.md and 1 more; {money(project.cost().dollars)}"
    assert project.cost().dollars > 0
    watch.max_cost = 0.0
    for number in range(3):
        write(folder / "new.md", f"# New\n\nEdition {number}.")
        watch.sync()
    assert log(capsys) == [
        "error The limit of --max-cost 0 for all syncs is reached. Nothing is published until a sync costs nothing,"
        " or the command is started with a higher limit; contexts that were paid for are kept."
    ]
    (folder / "new.md").unlink()
    watch.sync()
    assert log(capsys) == ["v000001 in sync again"]


def test_an_error_in_the_settings_ends_watching(root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    project = ProjectManager(root).create("a", ProjectConfig(embed_model="local", llm="openai:gpt-4.1"))
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        watch_of(project, folder, max_cost=1.0).sync()


def test_versions_of_a_watcher_are_marked_and_do_not_displace_others(
    project: Project, folder: Path, capsys: Printed
) -> None:
    watch = watch_of(project, folder, removes=True, allow_many=True)
    for number in range(8):
        write(folder / "one.md", f"# Document one\n\nEdition {number}.")
        watch.sync()
        if number == 4:
            project.ingest([write(folder.with_name("by hand.md"), "# By hand")])
    listed = {line.split()[0]: "automatic" in line for line in run("versions", "a").out.splitlines()}
    assert listed == {"v000001": False, "v000007": False, "v000008": True, "v000009": True, "v000010": True}
    assert {version.name for version in project.versions() if version.automatic} == {"v000008", "v000009", "v000010"}
    for name, edition in (("v000007", 4), ("v000009", 6)):
        assert project.rollback(name) == name
        assert project.read("files/one.md").endswith(f"Edition {edition}.")
    capsys.readouterr()
    watch.sync()
    assert log(capsys) == ["v000011 ~1: files/one.md"]


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
