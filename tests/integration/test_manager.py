"""The root folder: names, and creating, loading, listing and deleting projects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import (
    ConfigurationError,
    FormatError,
    InputError,
    NoVersionError,
    ProjectError,
    ProjectExistsError,
    ProjectLockedError,
    ProjectNotFoundError,
)
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import Ledger, LedgerEntry
from llama_index_contextual.index.ledger_lines import export_ledger, import_ledger
from llama_index_contextual.index.project_file import MAX_NAME_BYTES, MAX_NAME_LENGTH, check_name, write_lock
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import run

GOOD_NAMES = [
    "contracts",
    "Contracts 2024-Q1_final",
    "v1.2",
    "7",
    "Verträge",
    "契約書",
    "हिन्दी",
    "x" * MAX_NAME_LENGTH,
]
BAD_NAMES = {
    "empty": "",
    "blank": "   ",
    "parent": "..",
    "here": ".",
    "path": "a/b",
    "windows path": "a\\b",
    "absolute": "/etc",
    "hidden": ".x",
    "two dots": "a..b",
    "dot at the end": "a.",
    "space at the end": "a ",
    "space at the front": " a",
    "option": "-rf",
    "underscore first": "_a",
    "NUL": "a\0b",
    "line break": "a\nb",
    "terminal escape": "a\x1b[31m",
    "right-to-left override": "a\u202eb",
    "lone surrogate": "a\udcff",
    "too long": "x" * (MAX_NAME_LENGTH + 1),
    "much too long": "x" * 300,
    "too many bytes": "\U00020000" * MAX_NAME_LENGTH,
    "wildcard": "a*",
    "drive": "c:",
    "zero-width space": "a\u200bb",
    "variation selector": "a\ufe0f",
    "invisible filler": "\u1160",
    "full width twin": "ｃontracts",
    "ligature twin": "ﬁles",
    "decomposed twin": "Vertra\u0308ge",
}
RESERVED_NAMES = ["con", "CON", "nul.txt", "com1", "Lpt9", "aux", "prn .x"]


def entries(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*"))


# ---- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_project_with_a_valid_name_is_listed_and_loaded(manager: ProjectManager, name: str) -> None:
    manager.create(name, ProjectConfig.local())
    assert manager.list() == [name]
    assert manager.load(name).name == name


@pytest.mark.parametrize("call", ["create", "load", "delete"])
@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_an_invalid_name_is_refused_and_changes_nothing(manager: ProjectManager, call: str, name: str) -> None:
    with pytest.raises(InputError, match=r"is not a valid project name: use letters|A project needs a name") as raised:
        getattr(manager, call)(name)
    assert raised.value.value == name
    assert len(str(raised.value)) < 600
    assert not manager.root.exists()


@pytest.mark.parametrize("name", RESERVED_NAMES)
def test_a_name_reserved_on_windows_is_refused_on_every_system(manager: ProjectManager, name: str) -> None:
    with pytest.raises(InputError, match="is reserved on Windows"):
        manager.create(name)


@pytest.mark.parametrize("name", [None, 7, Path("a")])
def test_a_name_that_is_not_a_string_is_refused(manager: ProjectManager, name: Any) -> None:
    with pytest.raises(InputError, match="A project needs a name"):
        manager.create(name)


@given(st.text(max_size=80))
def test_an_accepted_name_is_one_visible_component_of_a_path(name: str) -> None:
    try:
        check_name(name)
    except InputError:
        return
    assert Path("root", name).parent == Path("root")
    assert not {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"} & set(map(unicodedata.category, name))
    assert name == name.strip(" .")
    assert len(name.encode()) <= MAX_NAME_BYTES


# ---- create --------------------------------------------------------------------------------------------------------


def test_a_new_project_consists_of_its_settings_only(manager: ProjectManager) -> None:
    config = ProjectConfig.local(chunk_size=512)
    project = manager.create("a", config)
    assert project.config == config == manager.load("a").config
    assert set(entries(project.directory)) <= {"project.json", "CURRENT", ".lock"}
    written = json.loads((project.directory / "project.json").read_text(encoding="utf-8"))
    assert (written["format"], written["config"]) == (1, config.model_dump())


def test_creating_a_project_twice_fails_with_advice_and_keeps_the_first(manager: ProjectManager) -> None:
    manager.create("a", ProjectConfig.local())
    with pytest.raises(ProjectExistsError, match="load it, delete it, or choose another name") as raised:
        manager.create("a", ProjectConfig())
    assert raised.value.name == "a"
    assert manager.load("a").config == ProjectConfig.local()


def test_a_project_is_not_created_in_a_folder_with_other_files(manager: ProjectManager) -> None:
    precious = manager.root / "contracts" / "thesis.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work")
    with pytest.raises(InputError, match=r"contains other files \('thesis.txt'\): a project needs its own folder"):
        manager.create("contracts", ProjectConfig.local())
    assert entries(manager.root) == ["contracts", "contracts/thesis.txt"]


@pytest.mark.parametrize("taken", [".", "a"])
def test_a_file_instead_of_a_folder_is_named(manager: ProjectManager, taken: str) -> None:
    path = manager.root / taken
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("not a folder")
    with pytest.raises(InputError, match="is a file: choose another name or another root folder"):
        manager.create("a", ProjectConfig.local())
    assert manager.list() == []
    assert path.read_text() == "not a folder"


def test_leftovers_of_an_interrupted_deletion_do_not_reappear(manager: ProjectManager, text_folder: Path) -> None:
    project = manager.create("a", ProjectConfig.local())
    project.ingest([text_folder])
    (project.directory / "project.json").unlink()
    fresh = manager.create("a", ProjectConfig.local())
    assert fresh.documents() == ()
    with pytest.raises(NoVersionError):
        fresh.retrieve("error TS-999")


# ---- load, list ----------------------------------------------------------------------------------------------------


def test_the_list_is_sorted_and_contains_projects_only(manager: ProjectManager) -> None:
    assert manager.list() == []
    for name in ("b", "a", "C"):
        manager.create(name, ProjectConfig.local())
    (manager.root / "no project").mkdir()
    (manager.root / "file.txt").write_text("x")
    assert manager.list() == ["C", "a", "b"]


@pytest.mark.parametrize("call", ["load", "delete"])
def test_the_error_for_an_unknown_project_lists_the_existing_ones(manager: ProjectManager, call: str) -> None:
    with pytest.raises(ProjectNotFoundError, match=r"There is no project 'a' in .*: projects there: none yet"):
        getattr(manager, call)("a")
    manager.create("b", ProjectConfig.local())
    with pytest.raises(ProjectNotFoundError, match="projects there: b") as raised:
        getattr(manager, call)("a")
    assert raised.value.name == "a"
    assert not (manager.root / "a").exists()


DAMAGED = {
    "cut": b'{"format": 1, "conf',
    "empty": b"",
    "a list": b"[]",
    "a number": b"7",
    "without its format": b'{"config": {}}',
    "without its settings": b'{"format": 1}',
    "format as text": b'{"format": "1", "config": {}}',
    "settings as a list": b'{"format": 1, "config": [1]}',
    "not UTF-8": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_settings_are_named_with_a_solution(manager: ProjectManager, content: bytes) -> None:
    project = manager.create("a", ProjectConfig.local())
    (project.directory / "project.json").write_bytes(content)
    with pytest.raises(ProjectError, match=r"a/project.json is damaged \(\w+\): restore it, or .*create the project"):
        manager.load("a")
    assert manager.list() == ["a"]


def test_settings_of_a_newer_release_ask_for_an_upgrade(manager: ProjectManager) -> None:
    project = manager.create("a", ProjectConfig.local())
    (project.directory / "project.json").write_text('{"format": 2, "config": {}}')
    with pytest.raises(FormatError, match=r"a/project.json has format 2, this release reads up to 1: upgrade"):
        manager.load("a")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"chunk_sise": 5},
            r"a/project.json: Unknown setting 'chunk_sise'. Did you mean 'chunk_size'[?]",
        ),
        ({"chunk_size": -5}, r"a/project.json: Setting 'chunk_size' cannot be -5"),
        ({"__class__": "os.system"}, r"a/project.json: Unknown setting '__class__'"),
    ],
)
def test_an_invalid_setting_in_the_file_is_named(manager: ProjectManager, config: dict[str, Any], message: str) -> None:
    project = manager.create("a", ProjectConfig.local())
    (project.directory / "project.json").write_text(json.dumps({"format": 1, "config": config}))
    with pytest.raises(ProjectError, match=message) as raised:
        manager.load("a")
    assert raised.value.name == "a"


# ---- delete --------------------------------------------------------------------------------------------------------


def filled(manager: ProjectManager, folder: Path) -> Project:
    project = manager.create("a", ProjectConfig.local())
    project.ingest([folder])
    with contextlib.closing(Ledger(project.directory / "ledger.sqlite")) as ledger:
        ledger.add_contexts([LedgerEntry(key="k", context="A paid context.", model="openai:gpt-4.1")])
    return project


def test_a_deleted_project_leaves_nothing(manager: ProjectManager, text_folder: Path) -> None:
    filled(manager, text_folder)
    manager.create("b", ProjectConfig.local())
    manager.delete("a")
    assert manager.list() == ["b"]
    assert not (manager.root / "a").exists()
    assert (text_folder / "manual.txt").exists()


def test_a_kept_ledger_is_used_by_the_next_project_of_the_name(manager: ProjectManager, text_folder: Path) -> None:
    filled(manager, text_folder)
    manager.delete("a", keep_ledger=True)
    assert manager.list() == []
    assert entries(manager.root) == ["a", "a/ledger.sqlite"]
    assert manager.create("a", ProjectConfig.local()).info().ledger.contexts == 1
    manager.delete("a")
    assert entries(manager.root) == []
    assert manager.create("a", ProjectConfig.local()).info().ledger.contexts == 0


def test_deleting_keeps_other_files(manager: ProjectManager, text_folder: Path) -> None:
    project = filled(manager, text_folder)
    (project.directory / "notes.txt").write_text("mine")
    manager.delete("a")
    assert entries(manager.root) == ["a", "a/notes.txt"]


def test_a_damaged_project_can_be_deleted(manager: ProjectManager, text_folder: Path) -> None:
    project = filled(manager, text_folder)
    for name in ("project.json", "ledger.sqlite", "CURRENT"):
        (project.directory / name).write_bytes(b"junk")
    manager.delete("a")
    assert entries(manager.root) == []


def test_a_project_is_not_deleted_while_another_process_writes(manager: ProjectManager, text_folder: Path) -> None:
    project = filled(manager, text_folder)
    before = entries(project.directory)
    with (
        write_lock(project.directory),
        pytest.raises(ProjectLockedError, match="Another process is writing to project 'a'"),
    ):
        manager.delete("a")
    assert entries(project.directory) == before


def test_an_interrupted_deletion_can_be_repeated_and_shows_no_old_content(
    manager: ProjectManager, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = filled(manager, text_folder)
    real = files.system.remove_tree

    def interrupted(path: Path) -> None:
        raise OSError("interrupted")

    monkeypatch.setattr(files.system, "remove_tree", interrupted)
    with pytest.raises(OSError, match="interrupted"):
        manager.delete("a")
    assert manager.list() == ["a"]
    with pytest.raises(NoVersionError):
        project.retrieve("error TS-999")
    monkeypatch.setattr(files.system, "remove_tree", real)
    manager.delete("a")
    assert entries(manager.root) == []


MOVED: dict[str, Callable[[Project, Path], object]] = {
    "cost": lambda project, folder: project.cost(),
    "info": lambda project, folder: project.info(),
    "versions": lambda project, folder: project.versions(),
    "verify": lambda project, folder: project.verify(),
    "repair": lambda project, folder: project.verify(repair=True),
    "estimate": lambda project, folder: project.estimate([folder]),
    "documents": lambda project, folder: project.documents(),
    "chunks": lambda project, folder: project.chunks("a"),
    "read": lambda project, folder: project.read("a"),
    "retrieve": lambda project, folder: project.retrieve("pump"),
    "aretrieve": lambda project, folder: asyncio.run(project.aretrieve("pump")),
    "retrieve_many": lambda project, folder: project.retrieve_many(["pump"]),
    "as_retriever": lambda project, folder: project.as_retriever().retrieve("pump"),
    "only": lambda project, folder: project.only({"file_name": "a"}).retrieve("pump"),
    "rollback": lambda project, folder: project.rollback(),
    "forget": lambda project, folder: project.forget(),
    "dry forget": lambda project, folder: project.forget(dry_run=True),
    "export": lambda project, folder: project.export(folder / "exported"),
    "update_config": lambda project, folder: project.update_config(top_k=3),
    "ingest": lambda project, folder: project.ingest([folder]),
    "sync": lambda project, folder: project.sync_folders([folder]),
    "dry sync": lambda project, folder: project.sync_folders([folder], dry_run=True),
    "remove": lambda project, folder: project.remove("a"),
    "rebuild": lambda project, folder: project.rebuild(),
    "retry_failed": lambda project, folder: project.retry_failed(),
    "index": lambda project, folder: project.index,
    "storage_context": lambda project, folder: project.storage_context,
    "live_version": lambda project, folder: project.live_version,
    "search tool": lambda project, folder: project.document_tools().search("pump"),
    "export_ledger": lambda project, folder: export_ledger(project.directory, folder / "ledger.jsonl"),
    "import_ledger": lambda project, folder: import_ledger(project.directory, folder / "ledger.jsonl"),
}


def test_a_project_object_does_not_recreate_a_deleted_project(manager: ProjectManager, text_folder: Path) -> None:
    project = filled(manager, text_folder)
    manager.delete("a")
    for use in (lambda: project.ingest([text_folder]), lambda: project.retrieve("pump"), lambda: project.documents()):
        with pytest.raises(ProjectNotFoundError, match="'a' no longer exists: it was deleted or moved"):
            use()
    assert "0 documents" in project.document_tools().describe("search")
    assert entries(manager.root) == []


@pytest.mark.parametrize("name", MOVED)
def test_every_method_of_a_project_that_was_renamed_says_the_same_sentence(
    name: str, manager: ProjectManager, text_folder: Path, tmp_path: Path
) -> None:
    project = filled(manager, text_folder)
    assert project.retrieve("pump").results
    cost, versions = project.cost(), [version.name for version in project.versions()]
    project.directory.rename(manager.root / "b")
    with pytest.raises(ProjectNotFoundError, match=r"'a' no longer exists: it was deleted or moved; if it was renamed"):
        MOVED[name](project, text_folder)
    assert entries(manager.root)[0] == "b"
    renamed = manager.load("b")
    assert (renamed.cost(), [version.name for version in renamed.versions()]) == (cost, versions)
    assert renamed.retrieve("pump").results


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text on this system")
def test_a_root_folder_whose_name_is_not_valid_text_works(tmp_path: Path) -> None:
    root = tmp_path / os.fsdecode(b"caf\xe9")
    (root / "texts").mkdir(parents=True)
    for name in (b"pump.md", b"vanne-\xe9.md"):
        (root / "texts" / os.fsdecode(name)).write_text(f"# {name[:4].decode()}\n\nThe pump and the valve.")
    manager = ProjectManager(root / "knowledge")
    project = manager.create("p", ProjectConfig.local())
    report = project.ingest([root / "texts"])
    assert len(report.added) == 2
    loaded = manager.load("p")
    assert len(loaded.retrieve("pump", mode="semantic").results) == 2
    assert len(loaded.only({"file_name": "pump.md"}).retrieve("pump").results) == 1
    assert loaded.verify(repair=True).problems == []
    assert [record.doc_id for record in loaded.documents()] == ["texts/pump.md", r"texts/vanne-\udce9.md"]
    export_ledger(loaded.directory, root / "ledger.jsonl")
    loaded.export(tmp_path / "exported")
    with pytest.raises(InputError, match=r"caf\\udce9/exported cannot contain .* its path is not valid UTF-8"):
        loaded.export(root / "exported")
    with pytest.raises(ProjectNotFoundError) as raised:
        manager.load("q")
    assert str(raised.value).encode()  # can be printed
    assert run("search", "p", "pump", "--root", root / "knowledge").code == 0


# ---- rights --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="POSIX rights")
@pytest.mark.parametrize(("umask", "others"), [(0o077, 0o077), (0o027, 0o027), (0o000, 0o002)])
def test_the_umask_is_respected(manager: ProjectManager, text_folder: Path, umask: int, others: int) -> None:
    before = os.umask(umask)
    try:
        project = filled(manager, text_folder)
    finally:
        os.umask(before)
    paths = [manager.root, project.directory, *project.directory.rglob("*")]
    assert len(paths) > 10
    assert {path.name: oct(path.stat().st_mode & others) for path in paths if path.stat().st_mode & others} == {}


@pytest.mark.skipif(sys.platform == "win32" or (hasattr(os, "geteuid") and os.geteuid() == 0), reason="root may write")
def test_a_read_only_root_folder_is_an_operating_system_error(manager: ProjectManager) -> None:
    manager.root.mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        manager.create("a", ProjectConfig.local())


@pytest.mark.parametrize(
    ("setting", "name", "missing"),
    [
        ("embed_model", "openai:text-embedding-3-small", "needs OPENAI_API_KEY, which is not set"),
        ("answer_llm", "openai:gpt-4.1", "needs OPENAI_API_KEY, which is not set"),
        ("answer_llm", "anthropic:claude-sonnet-4-5", "pip install llama-index-llms-anthropic"),
        ("llm", "openai:gpt-4.1", None),  # not needed by a local project
        ("embed_model", "ollama:all-minilm", None),
    ],
)
def test_what_a_model_still_needs_is_said_when_a_project_is_created(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    name: str,
    missing: str | None,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    caplog.set_level("INFO", logger="llama_index_contextual")
    ProjectManager(tmp_path).create("a", ProjectConfig.local(**{setting: name}))
    ours = [record for record in caplog.records if record.name.startswith("llama_index_contextual")]
    assert [record.levelname for record in ours] == (["INFO"] if missing else [])
    assert (missing or "") in caplog.text


# ---- get_or_create ---------------------------------------------------------------------------------------------------


def test_a_project_is_created_once_and_opened_from_then_on(tmp_path: Path) -> None:
    manager = ProjectManager(tmp_path)
    first = manager.get_or_create("p", ProjectConfig.local(chunk_size=300))
    again = manager.get_or_create("p", ProjectConfig.local(chunk_size=300))
    assert (first.created, again.created) == (True, False)
    assert manager.get_or_create("p").config == first.config == again.config
    assert manager.load("p").created is False
    assert manager.create("q", ProjectConfig.local()).created is True
    assert manager.list() == ["p", "q"]


def test_other_settings_of_an_existing_project_are_named(tmp_path: Path) -> None:
    manager = ProjectManager(tmp_path)
    manager.create("p", ProjectConfig.local(chunk_size=300))
    with pytest.raises(ConfigurationError, match="chunk_size is 300, not 400, top_k is 20, not 7") as raised:
        manager.get_or_create("p", ProjectConfig.local(chunk_size=400, top_k=7))
    assert raised.value.setting is None
    with pytest.raises(ConfigurationError, match="update_config") as raised:
        manager.get_or_create("p", ProjectConfig.local(chunk_size=400))
    assert raised.value.setting == "chunk_size"
    assert manager.load("p").config.chunk_size == 300


def test_a_project_that_another_process_creates_meanwhile_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = ProjectManager(tmp_path)
    create = ProjectManager.create

    def overtaken(self: ProjectManager, name: str, *args: Any, **options: Any) -> Project:
        create(ProjectManager(tmp_path), name, *args, **options)
        return create(self, name, *args, **options)

    monkeypatch.setattr(ProjectManager, "create", overtaken)
    assert manager.get_or_create("p", ProjectConfig.local()).created is False
