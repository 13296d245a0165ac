"""Interrupted commands on a small project, and the checks afterwards."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ContextualError, InputError, NoVersionError, ProjectExistsError
from llama_index_contextual.index import files, kvstore, ledger_lines
from llama_index_contextual.index.files import NEW
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger, LedgerEntry, content_key
from llama_index_contextual.index.verify import LEFTOVER, OUTDATED
from llama_index_contextual.index.versions import leftovers
from llama_index_contextual.index.writer import MAX_SMALL_PARTS
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.slow.faults.system import Crash, RecordingSystem, installed
from tests.support.editions import make_outdated
from tests.support.models import CountingEmbedding, ScriptedLLM

NAME = "p"
ROOT = "knowledge"
EXPORT = "export"
LINES = 400
"""Contexts that are imported: several pages of the ledger."""
CONFIG = ProjectConfig.local(context="llm", chunk_size=40, chunk_overlap=4, keep_versions=2)
QUERIES = ("alpha report", "mark2")
SECRET = "Quincunx"

State = Any
Run = Callable[[Path], object]


def documents(mark: int, count: int = 3) -> list[Document]:
    """Return documents whose every chunk carries a mark."""
    return [
        Document(id_=f"doc{n}", text=f"mark{mark} alpha report number {n}. mark{mark} beta.", metadata={"mark": mark})
        for n in range(count)
    ]


def load(disk: Path) -> Project:
    """Open the project with models that cost nothing."""
    return manager(disk).load(NAME, llm=ScriptedLLM(), embed_model=CountingEmbedding())


def manager(disk: Path) -> ProjectManager:
    """Return the projects on a disk."""
    return ProjectManager(disk / ROOT)


def state(disk: Path) -> State:
    """Return what can be seen of the project: nothing, or its settings and its answers."""
    exported = [(p.name, files.xxh3(p)) for p in files.walk(disk / EXPORT) if p.suffix != NEW]
    if NAME not in manager(disk).list():
        return None, exported
    project = load(disk)
    try:
        responses = [project.retrieve(query) for query in QUERIES]
    except NoVersionError:
        return (project.config, None), exported
    answers = tuple(tuple((c.node_id, c.text, c.context, round(c.score, 6)) for c in r) for r in responses)
    return (project.config, answers, tuple(d.doc_id for d in project.documents())), exported


@dataclass(frozen=True)
class Scenario:
    """A command, from a state that earlier commands have led to.

    Attributes:
        name: What it does.
        before: Commands that lead to the state.
        run: The command.
        between: A state that may be seen in between, as commands.
        done: Errors of `run` that say that it was done before.
        gone: What is in no file any more when `run` has returned.
    """

    name: str
    before: Sequence[Run]
    run: Run
    between: Sequence[Run] = ()
    done: tuple[type[Exception], ...] = ()
    gone: bytes = b""


def create(disk: Path) -> None:
    manager(disk).create(NAME, CONFIG, llm=ScriptedLLM(), embed_model=CountingEmbedding())


def ingest(mark: int, count: int = 3, *, replace: bool = False) -> Run:
    return lambda disk: load(disk).ingest(documents(mark, count), replace=replace)


def ingest_one(number: int) -> Run:
    """Add a single document, in a part of its own."""
    text = f"mark2 alpha report of part {number}. mark2 beta."
    return lambda disk: load(disk).ingest([Document(id_=f"one{number}", text=text)])


def remove(disk: Path) -> None:
    load(disk).remove(["doc1"])


def sync(mark: int) -> Run:
    """Return a command that syncs a folder, which lies next to the disks and is the same for all cases."""

    def run(disk: Path) -> None:
        folder = disk.parent.parent / "synced"
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        (folder / "kept.md").write_text("# Kept\n\nThe text of a file that stays.")
        (folder / "changed.md").write_text(f"# Changed\n\nThe text of a file, number {mark}.")
        (folder / f"moved{mark}.md").write_text("# Moved\n\nThe text of a file that gets another name.")
        (folder / f"new{mark}.md").write_text(f"# New {mark}\n\nThe text of a new file, number {mark}.")
        load(disk).sync_folders([folder])

    return run


def ingest_secret(disk: Path) -> None:
    """Add a document whose context is in the ledger, and told apart."""
    project = manager(disk).load(NAME, llm=ScriptedLLM(default=SECRET), embed_model=CountingEmbedding())
    project.ingest([Document(id_="secret", text=f"{SECRET} alpha report.")])


def leave_a_comparison(disk: Path) -> None:
    """Be killed while variants of the documents are compared."""
    left = disk / ROOT / f".{NAME}.compare" / "1"
    left.mkdir(parents=True)
    (left / "docstore.sqlite").write_text(f"{SECRET} alpha report.")


def remove_for_good(disk: Path) -> None:
    """Remove a document, or go on where that was interrupted."""
    project = load(disk)
    # Some builds of SQLite overwrite by default what was removed; it is not to be relied on.
    pragmas = (*kvstore._PRAGMAS["durable"], "PRAGMA secure_delete = OFF")
    with mock.patch.dict(kvstore._PRAGMAS, durable=pragmas):
        if any(record.doc_id == "secret" for record in project.documents()):
            project.remove("secret", forget=True)
        else:
            project.forget()


def rollback(to: str) -> Run:
    return lambda disk: load(disk).rollback(to)


def update_config(disk: Path) -> None:
    load(disk).update_config(top_k=2)


def delete(keep_ledger: bool) -> Run:
    return lambda disk: manager(disk).delete(NAME, keep_ledger=keep_ledger)


def export(disk: Path) -> None:
    load(disk).export(disk / EXPORT)


def export_ledger(disk: Path) -> None:
    ledger_lines.export_ledger(load(disk).directory, disk / EXPORT / "contexts.jsonl")


def write_ledger_lines(disk: Path) -> None:
    (disk / EXPORT).mkdir()
    with (disk / EXPORT / "contexts.jsonl").open("w", encoding="utf-8") as file:
        for number in range(LINES):
            line = {"key": content_key(str(number)), "context": f"Context {number}. " * 12, "model": "m"}
            file.write(json.dumps(line) + "\n")


def import_ledger(disk: Path) -> None:
    ledger_lines.import_ledger(load(disk).directory, disk / EXPORT / "contexts.jsonl")


def ingest_without_contexts(disk: Path) -> None:
    silent = manager(disk).load(NAME, llm=ScriptedLLM(default=""), embed_model=CountingEmbedding())
    silent.ingest(documents(1))


def retry(disk: Path) -> None:
    load(disk).retry_failed()


def change_chunk_size(disk: Path) -> None:
    load(disk).update_config(chunk_size=30)


def rebuild(disk: Path) -> None:
    load(disk).rebuild()


def outdate(disk: Path) -> None:
    """Let an earlier release have made the derived data."""
    make_outdated(load(disk).directory)


def rebuild_derived(disk: Path) -> None:
    load(disk).rebuild(derived=True)


_THREE = (create, ingest(1), ingest(2), ingest(3))
SCENARIOS = (
    Scenario("create", (), create, done=(ProjectExistsError,)),
    Scenario("ingest, first", (create,), ingest(1)),
    Scenario("ingest, update", (create, ingest(1)), ingest(2)),
    Scenario("ingest, third, prunes", (create, ingest(1), ingest(2)), ingest(3)),
    Scenario("ingest, after a rollback", (*_THREE, rollback("v000002")), ingest(4)),
    Scenario("ingest, replace", (create, ingest(1)), ingest(2, 1, replace=True)),
    Scenario("sync", (create, ingest(1), sync(1)), sync(2)),
    Scenario("remove", (create, ingest(1)), remove, done=(InputError,)),
    Scenario("remove, from a part that is kept", (create, ingest(1, 12)), remove, done=(InputError,)),
    Scenario("ingest, merges parts", (create, *map(ingest_one, range(MAX_SMALL_PARTS + 1))), ingest_one(99)),
    Scenario(
        "remove, for good",
        (create, ingest(1), ingest_secret, leave_a_comparison),
        remove_for_good,
        gone=SECRET.encode(),
    ),
    Scenario("rollback", _THREE, rollback("v000002")),
    Scenario("update_config", (create, ingest(1)), update_config),
    Scenario(
        "delete",
        (*_THREE, leave_a_comparison),
        delete(False),
        between=(create,),
        done=(ContextualError,),
        gone=b"alpha report",
    ),
    Scenario("delete, ledger kept", _THREE, delete(True), between=(create,), done=(ContextualError,)),
    Scenario("create, after delete", (create, ingest(1), delete(True)), create, done=(ProjectExistsError,)),
    Scenario("ledger export", (create, ingest(1), lambda disk: (disk / EXPORT).mkdir()), export_ledger),
    Scenario("ledger import", (create, ingest(1), write_ledger_lines), import_ledger),
    Scenario("rebuild", (create, ingest(1), change_chunk_size), rebuild),
    Scenario("rebuild, derived", (create, ingest(1), ingest_one(1), outdate), rebuild_derived),
    Scenario("ingest, outdated derived data", (create, ingest(1), ingest_one(1), outdate), ingest_one(2)),
    Scenario("retry", (create, ingest_without_contexts), retry),
    Scenario("export", (create, ingest(1)), export, done=(InputError,)),
)


@dataclass
class Bench:
    """Prepares scenarios once and runs them, each case in a folder of its own.

    Attributes:
        folder: Where everything happens.
    """

    folder: Path
    _templates: dict[str, tuple[Path, list[State], int]] = field(default_factory=dict)
    _number: int = 0

    def disk(self, scenario: Scenario) -> Path:
        """Return a fresh folder in the state before the command."""
        template, _, _ = self._template(scenario)
        self._number += 1
        disk = self.folder / f"case{self._number}" / "disk"
        shutil.copytree(template, disk)
        return disk

    def states(self, scenario: Scenario) -> list[State]:
        """Return what may be seen: before, after, and in between."""
        return self._template(scenario)[1]

    def operations(self, scenario: Scenario) -> int:
        """Return the number of operations of the command."""
        return self._template(scenario)[2]

    def _template(self, scenario: Scenario) -> tuple[Path, list[State], int]:
        if scenario.name not in self._templates:
            disk = self.folder / f"template-{len(self._templates)}" / "disk"
            disk.mkdir(parents=True)
            for command in scenario.before:
                command(disk)
            probe = disk.with_name("probe")
            shutil.copytree(disk, probe)
            states = [state(probe)]
            with installed(system := RecordingSystem()):
                scenario.run(probe)
            states.append(state(probe))
            for number, command in enumerate(scenario.between):
                other = disk.with_name(f"between{number}")
                other.mkdir()
                command(other)
                states.append(state(other))
            self._templates[scenario.name] = disk, states, len(system.log)
        return self._templates[scenario.name]


@contextlib.contextmanager
def acknowledged() -> Iterator[list[LedgerEntry]]:
    """Collect the contexts whose commit was acknowledged."""
    entries: list[LedgerEntry] = []
    real = Ledger.add_contexts

    def add(self: Ledger, given: Any) -> None:
        rows = list(given)
        real(self, rows)
        entries.extend(rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "add_contexts", add)
        yield entries


def attempt(run: Run, disk: Path, system: files.System) -> BaseException | None:
    """Run a command on a system, and return what it raised, if a fault may raise it."""
    with installed(system):
        try:
            run(disk)
        except (OSError, ContextualError, Crash) as error:
            return _without_frames(error)
    return None


def _without_frames(error: BaseException) -> BaseException:
    """Return an exception whose chain keeps no frames, and so no objects of the interrupted command, alive."""
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is not None and link.__traceback__ is not None:
            link.__traceback__ = None
            chain += [link.__cause__, link.__context__]
    return error


def violations(
    bench: Bench, scenario: Scenario, disk: Path, paid: Sequence[LedgerEntry], *, finished: bool
) -> list[str]:
    """Return what does not hold after an interruption; empty when all is well.

    Args:
        bench: Knows the states that may be seen.
        scenario: The command.
        disk: The folder that the interruption has left.
        paid: Contexts that were acknowledged.
        finished: Whether the command returned, so that nothing but the state after it may be seen.
    """
    results: list[str] = []
    try:
        _check(bench, scenario, disk, paid, finished, results)
    except Exception as error:  # noqa: BLE001 - whatever is raised here is a violation
        results.append(f"{type(error).__name__}: {error}")
    if still_open := open_below(disk):
        gc.collect()  # an exception may hold what was open; it is slow, hence only now
        still_open = open_below(disk)
    results.extend(f"{name} is open" for name in still_open)
    shutil.rmtree(disk.parent)
    return results


def _check(
    bench: Bench, scenario: Scenario, disk: Path, paid: Sequence[LedgerEntry], finished: bool, found: list[str]
) -> None:
    before, after, *between = bench.states(scenario)
    recorded = state(disk)
    if recorded not in ([after] if finished else [before, after, *between]):
        found.append("what is seen is neither the state before nor the one after")
    _check_sound(disk, found, paid)
    if finished:
        _check_gone(disk, scenario.gone, found)
    try:
        scenario.run(disk)
    except scenario.done as error:
        if recorded != after:
            found.append(f"it cannot be run again: {error}")
    if state(disk) != after:
        found.append("run again, it does not lead to the state after it")
    _check_sound(disk, found, paid if after[0] is not None else ())
    _check_gone(disk, scenario.gone, found)
    project_dir = disk / ROOT / NAME
    if left := leftovers(project_dir):
        found.append(f"left behind: {left}")
    if after[0] is not None and any(problem.message == OUTDATED for problem in load(disk).verify().problems):
        found.append("derived data are outdated")
    if strange := [path.name for path in disk.iterdir() if path.name not in (ROOT, EXPORT)]:
        found.append(f"left behind outside: {strange}")
    if after[0] is not None:
        load(disk).ingest(documents(9))
        answered = load(disk).retrieve("alpha report")
        if any("mark9" not in chunk.text for chunk in answered if chunk.source.doc_id in ("doc0", "doc1", "doc2")):
            found.append("the next ingest has no effect")


def _check_gone(disk: Path, gone: bytes, found: list[str]) -> None:
    if gone:
        found.extend(f"{path.name} holds what is gone" for path in files.walk(disk) if gone in path.read_bytes())


def _check_sound(disk: Path, found: list[str], paid: Sequence[LedgerEntry]) -> None:
    if NAME not in manager(disk).list():
        return
    project = load(disk)
    report = project.verify()
    # Also of versions that are not live: what an interruption leaves is whole, or to be cleared away.
    known = [p for p in report.problems if p.message in (LEFTOVER, OUTDATED)]
    if damage := [(p.file, p.message) for p in report.problems if p not in known]:
        found.append(f"verify: {damage}")
    project.versions()
    path = project.directory / LEDGER_FILE
    if paid:
        with contextlib.closing(Ledger(path)) as ledger:
            found.extend(f"context {e.key} is lost" for e in paid if ledger.contexts([e.key]).get(e.key) != e.context)


def open_below(folder: Path) -> list[str]:
    """Return the files below a folder that this process has open; none where the system does not tell."""
    listing = Path("/proc/self/fd")
    if not listing.is_dir():
        return []
    targets = []
    for number in os.listdir(listing):
        with contextlib.suppress(FileNotFoundError):  # another thread has closed it
            targets.append(os.readlink(listing / number))
    return sorted(target for target in targets if target.startswith(f"{os.path.realpath(folder)}{os.sep}"))
