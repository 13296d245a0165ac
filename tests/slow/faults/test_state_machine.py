"""A project compared with a plain dictionary, for any sequence of operations and interruptions."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError, NoVersionError
from llama_index_contextual.index.versions import leftovers
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.slow.faults.cases import attempt
from tests.slow.faults.system import FAULTS, Fault, FaultySystem
from tests.support.models import CountingEmbedding

SEQUENCES = int(os.environ.get("CONTEXTUAL_SEQUENCES", "40"))
CONFIG = ProjectConfig.local(context="none", keep_versions=3)
NAMES = ("apple", "birch", "cedar")
WORDS = ("red", "green", "blue", "grey")

Content = dict[str, str]
names = st.sampled_from(NAMES)
words = st.sampled_from(WORDS)
faults = st.one_of(st.none(), st.tuples(st.integers(0, 60), st.sampled_from(FAULTS), st.booleans()))


class ProjectMachine(RuleBasedStateMachine):
    """The dictionary is `content`; `history` has that of each version that was ever acknowledged or may be."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = Path(tempfile.mkdtemp(prefix="machine"))
        self.project: Project | None = None
        self.content: Content | None = None
        self.history: dict[str, Content] = {}

    def teardown(self) -> None:
        if self.project is not None:  # after one more version, nothing is left over
            self.project.ingest([Document(id_="last", text="The end.")])
            assert leftovers(self.project.directory) == []
        self.project = None
        shutil.rmtree(self.disk)

    @initialize()
    def create(self) -> None:
        ProjectManager(self.disk).create("p", CONFIG, embed_model=CountingEmbedding())
        self.reopen()

    @rule()
    def reopen(self) -> None:
        self.project = ProjectManager(self.disk).load("p", embed_model=CountingEmbedding())

    @rule(given=st.dictionaries(names, words, min_size=1), replace=st.booleans(), fault=faults)
    def ingest(self, given: Content, replace: bool, fault: tuple[int, Fault, bool] | None) -> None:
        documents = [Document(id_=name, text=f"{name} is {word}.") for name, word in given.items()]
        after = dict(given) if replace else {**(self.content or {}), **given}
        self._write(lambda project: project.ingest(documents, replace=replace), after, fault)

    @precondition(lambda self: self.content)
    @rule(name=names, fault=faults)
    def remove(self, name: str, fault: tuple[int, Fault, bool] | None) -> None:
        if name not in (self.content or {}):
            with pytest.raises(InputError):
                self._loaded.remove([name])
            return
        after = {key: word for key, word in (self.content or {}).items() if key != name}
        self._write(lambda project: project.remove([name]), after, fault)

    @precondition(lambda self: self.content is not None)
    @rule(data=st.data(), fault=faults)
    def rollback(self, data: st.DataObject, fault: tuple[int, Fault, bool] | None) -> None:
        to = data.draw(st.sampled_from([version.name for version in self._loaded.versions()]))
        self._write(lambda project: project.rollback(to), self.history[to], fault)

    @precondition(lambda self: self.content is not None)
    @rule(fault=faults)
    def forget(self, fault: tuple[int, Fault, bool] | None) -> None:
        self._write(lambda project: project.forget(), dict(self.content or {}), fault)
        if fault is None:
            assert [version.live for version in self._loaded.versions()] == [True]

    @precondition(lambda self: self.content is not None)
    @rule(top_k=st.integers(3, 9), fault=faults)
    def update_config(self, top_k: int, fault: tuple[int, Fault, bool] | None) -> None:
        self._write(lambda project: project.update_config(top_k=top_k), dict(self.content or {}), fault)

    @invariant()
    def answers_are_those_of_the_dictionary(self) -> None:
        if self.project is None:
            return
        assert self._seen() == self.content
        if self.content:
            best = next(iter(self.content))
            assert self.project.retrieve(best)[0].source.doc_id == best

    @invariant()
    def every_version_is_sound_and_holds_what_it_held(self) -> None:
        if self.project is not None:
            assert self.project.verify().sound
            assert {version.name for version in self.project.versions()} <= set(self.history)

    @property
    def _loaded(self) -> Project:
        assert self.project is not None
        return self.project

    def _seen(self) -> Content | None:
        try:
            response = self._loaded.retrieve(" ".join((*NAMES, *WORDS)), top_k=9)
        except NoVersionError:
            return None
        return {str(c.source.doc_id): c.text.rstrip(".").rpartition(" ")[2] for c in response}

    def _write(self, run: object, after: Content, fault: tuple[int, Fault, bool] | None) -> None:
        at, kind, late = fault or (None, "exit", False)
        project = self._loaded
        error = attempt(lambda _disk: run(project), self.disk, FaultySystem(at, kind, after=late))  # type: ignore[operator]
        if error is None:
            self.content = after
        elif fault is None:
            raise error
        else:
            self.reopen()
            recorded = self._seen()
            assert recorded in (self.content, after)
            self.content = recorded
        live = next((version.name for version in self._loaded.versions() if version.live), None)
        if live is not None and self.content is not None:
            self.history[live] = self.content
        if error is None:
            assert leftovers(self._loaded.directory) == []


PLACES = ("a", "b", "b/a")
FILES = ("x.txt", "y.txt", "z.txt")


class FileMachine(RuleBasedStateMachine):
    """Files in folders of one name, written, renamed, removed and moved, against a dictionary of path -> text.

    Every text is written once, so that it says which file it came from. The dictionary is what the project must hold:
    for each file that was ever ingested its last text, until it is renamed (then under its new path) or replaced.
    """

    def __init__(self) -> None:
        super().__init__()
        self.disk = Path(os.path.realpath(tempfile.mkdtemp(prefix="files")))
        manager = ProjectManager(self.disk / "projects")
        self.project = manager.create("p", CONFIG.changed(indexes="lexical", mode="lexical"))
        self.held: dict[Path, str] = {}
        self.written = 0
        for place in PLACES:
            (self.disk / place / "docs").mkdir(parents=True)

    def teardown(self) -> None:
        shutil.rmtree(self.disk)

    @rule(place=st.sampled_from(PLACES), old=st.sampled_from(FILES), new=st.sampled_from(FILES))
    def rename(self, place: str, old: str, new: str) -> None:
        folder = self.disk / place / "docs"
        if (folder / old).exists() and not (folder / new).exists():
            (folder / old).rename(folder / new)

    @rule(place=st.sampled_from(PLACES), name=st.sampled_from(FILES))
    def delete(self, place: str, name: str) -> None:
        (self.disk / place / "docs" / name).unlink(missing_ok=True)

    @rule(
        place=st.sampled_from(PLACES),
        written=st.lists(st.sampled_from(FILES), max_size=2),
        name=st.one_of(st.none(), st.sampled_from(FILES)),
        replace=st.integers(0, 4).map(lambda number: number == 4),
    )
    def write_and_ingest(self, place: str, written: list[str], name: str | None, replace: bool) -> None:
        folder = self.disk / place / "docs"
        for file in written:
            self.written += 1
            (folder / file).write_text(f"Text number {self.written}.", encoding="utf-8")
        inputs = sorted(folder.iterdir()) if name is None else [folder / name]
        inputs = [path for path in inputs if path.exists()]
        if not inputs:
            return
        before = dict(self.held)
        report = self.project.ingest([folder] if name is None else inputs, replace=replace)
        copies = {
            path
            for path in inputs
            for former, text in before.items()
            if path not in before and former.exists() and former not in inputs and text == path.read_text("utf-8")
        }
        assert {Path(one.path) for one in report.skipped} == (set() if replace else copies)
        inputs = [path for path in inputs if replace or path not in copies]
        after = {} if replace else dict(before)
        for path in inputs:
            former = next((old for old, text in before.items() if text == path.read_text("utf-8")), path)
            if former != path and path not in before and not former.exists():
                after.pop(former, None)
            after[path] = path.read_text("utf-8")
        self.held = after
        assert self.project.ingest([folder] if name is None else inputs, replace=replace).version == report.version
        assert len(report.unchanged) <= len(inputs)

    @invariant()
    def every_document_is_there_once_under_the_name_of_its_file(self) -> None:
        if not self.held:
            return
        ids = {self.project.read(record.doc_id): record.doc_id for record in self.project.documents()}
        assert len(ids) == len(self.project.documents())
        assert {text: doc_id.rpartition("/")[2] for text, doc_id in ids.items()} == {
            text: path.name for path, text in self.held.items()
        }
        for path, text in self.held.items():
            assert path.as_posix().endswith(ids[text])


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


ProjectMachine.TestCase.settings = settings(max_examples=SEQUENCES, stateful_step_count=6)
TestProject = ProjectMachine.TestCase
FileMachine.TestCase.settings = settings(max_examples=SEQUENCES // 2, stateful_step_count=10)
TestFiles = FileMachine.TestCase
