"""Simulate a watched folder for 24 hours, and compare the project with one ingest of the final folder.

    python -m tests.benchmarks.watching --changes 2000 --seed 1 --log watching.log

Files are created, edited, moved, deleted, saved atomically, written in parts, damaged and repaired, in bursts and with
pauses. The folder is unmounted, another program holds the lock, an event is lost, and a person adds documents, confirms
large removals and rolls back. `Watch.start` runs as in `sync --watch`, but its events and its clock are simulated, so a
day takes a few minutes, and the same seed leads to the same log. The exit code is 1 if a promise in the guide is
broken.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from llama_index_contextual.cli import documents
from llama_index_contextual.cli.documents import RESCAN, Watch
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index.manifest import read_manifest
from llama_index_contextual.index.project_file import write_lock
from llama_index_contextual.index.versions import version_directory
from llama_index_contextual.ingestion import plan
from llama_index_contextual.ingestion.report import IngestProgress, IngestReport
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.readers import SkippedFile
from tests.support.changes import RandomChanges, differences

HOURS = 24
KEEP = 6
MIDNIGHT = 1_800_000_000 // 86_400 * 86_400
SCANS = ("scan 1.pdf", "scan 2.pdf", "2024/scan 3.pdf")
NEVER = ("never.pdf", "blank.md", "pipe.md")
"""Files that never become documents."""

_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
_VERSION = re.compile(r"v\d+ |no version ")


class Clock:
    """A clock that runs the actions that are due when it advances."""

    def __init__(self) -> None:
        self.now = 0.0
        self._actions: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Run an action at a time."""
        self._actions.append((when, len(self._actions), action))
        self._actions.sort(key=lambda entry: entry[:2], reverse=True)

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        end = self.now + seconds
        while self._actions and self._actions[-1][0] <= end:
            self.now, _, action = self._actions.pop()
            action()
        self.now = end

    def strftime(self, form: str) -> str:
        """Format the simulated date and time."""
        return time.strftime(form, time.gmtime(MIDNIGHT + self.now))


class DayOfChanges(RandomChanges):
    """Random changes as in `RandomChanges`, and files that are broken, mended, or written in several steps."""

    def change(self) -> None:
        """Make one change."""
        draw = self._random.random()
        if draw < 0.06:
            self._write_scan(self._random.choice(SCANS), is_broken=self._random.random() < 0.5)
        elif draw < 0.08:
            self._write_unusable(self._random.choice(NEVER))
        else:
            super().change()

    def finish(self) -> None:
        """Complete all files that can be documents."""
        super().finish()
        for name in SCANS:
            self._write_scan(name, is_broken=False)

    def edit(self) -> None:
        """Edit a text file."""
        self._random.choice(self.files()).write_text(self._text(), encoding="utf-8")

    def _write_scan(self, name: str, *, is_broken: bool) -> None:
        self.log.append(f"{'break' if is_broken else 'mend'} {name}")
        path = self.folder / name
        if path.parent.is_file():
            return
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(f"%PDF-1.7 broken {self._random.random()}".encode() if is_broken else _pdf(self._text()))

    def _write_unusable(self, name: str) -> None:
        self.log.append(f"write {name}")
        path = self.folder / name
        if name == "never.pdf":
            path.write_text(f"not a PDF {self._random.random()}")
        elif name == "blank.md":
            path.write_text(" " * self._random.randint(1, 9))
        elif path.exists():
            path.unlink()
        else:
            os.mkfifo(path)

    def files(self) -> list[Path]:
        """Return the documents in the folder, without the files that are never documents."""
        return [path for path in super().files() if path.name not in NEVER]


def _pdf(text: str) -> bytes:
    from fpdf import FPDF

    pdf = FPDF()
    pdf.set_font("Helvetica", size=12)
    pdf.add_page()
    pdf.multi_cell(0, text=text)
    return bytes(pdf.output())


@dataclass
class Simulation:
    """A simulated day of a watched folder.

    Attributes:
        directory: An empty directory.
        changes: Number of changes of files.
        seed: Seed of the random numbers.
        allow_many: Whether large removals need no confirmation.
        faults: Descriptions of broken promises.
        counts: Numbers for the summary.
    """

    directory: Path
    changes: int
    seed: int
    allow_many: bool = False
    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.clock, self.random = Clock(), random.Random(self.seed)
        self.folder, self.pinned = self.directory / "files", self.directory / "pinned"
        self.folder.mkdir()
        self.pinned.mkdir()
        self.manager = ProjectManager(self.directory / "knowledge")
        self.project = self.manager.create("watched", ProjectConfig.local(keep_versions=KEEP))
        self.day = DayOfChanges(self.folder, self.seed)
        self.reports: list[IngestReport | str] = []
        self.published: list[tuple[str, bool]] = []
        self.delayed: list[Callable[[], None]] = []
        self.is_mounted, self.has_event, self.has_change = True, True, True
        self.read: set[tuple[int, str]] = set()
        self.log = io.StringIO()

    # ---- what happens ------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Distribute the changes over bursts, and schedule everything else that happens."""
        draw, end = self.random, HOURS * 3_600.0 - 1_200
        left = self.changes
        while left:
            burst = min(left, draw.choice((1, 1, 1, 2, 3, 5, 8, 20, 60)))
            when, left = draw.uniform(0, end), left - burst
            self.counts["bursts"] += 1
            for _ in range(burst):
                when += draw.choice((0, 0, 0.2, 1, 4))
                self.clock.at(when, self.change)
        for number, hour in enumerate((3.5, 9.25, 15.75)):
            self.clock.at(hour * 3_600 + 7, partial(self.unmount, becomes_empty=number == 1))
            self.clock.at(hour * 3_600 + draw.uniform(60, 2_400), self.mount)
        for hour in (6, 12, 18):
            self.clock.at(hour * 3_600, self.visit)
            self.clock.at(hour * 3_600 + 1_800, partial(self.roll_back, automatic=hour != 12))
        self.clock.at(10.5 * 3_600, self.hold_lock)
        self.clock.at(end + 60, self.day.finish)
        self.clock.at(end + 60, self.touch)
        self.clock.at(end + 120, self.visit)

    def touch(self) -> None:
        """Note that a file has changed, which the operating system reports."""
        self.has_event = self.has_change = True

    def change(self) -> None:
        """Change a file, or do so later if the folder is not mounted. One event in twenty is lost."""
        if not self.is_mounted:
            self.delayed.append(self.change)
            return
        self.counts["changes"] += 1
        self.day.change()
        self.has_change = True
        self.has_event |= self.random.random() > 0.05

    def unmount(self, *, becomes_empty: bool) -> None:
        """Unmount the folder; an empty mount point may remain."""
        self.counts["unmounts"] += 1
        self.ids = self.document_ids()
        self.folder.rename(self.directory / "away")
        if becomes_empty:
            self.folder.mkdir()
        self.is_mounted = False
        self.touch()

    def mount(self) -> None:
        """Mount the folder again, and make the delayed changes."""
        if self.document_ids() != self.ids:
            self.faults.append("documents changed while the folder was not mounted")
        if self.folder.exists():
            self.folder.rmdir()
        (self.directory / "away").rename(self.folder)
        self.is_mounted = True
        self.touch()
        delayed, self.delayed = self.delayed, []
        for action in delayed:
            action()

    def visit(self) -> None:
        """Ingest a document from another folder, and confirm a large removal with the command in the log."""
        self.counts["visits"] += 1
        path = self.pinned / f"pinned {self.counts['visits']}.md"
        path.write_text(f"# Pinned\n\nThe number of this document is {self.counts['visits']}.")
        self.publish(lambda: self.project.ingest([path]), automatic=False)
        if "kept " in self.log.getvalue():
            self.publish(lambda: self.project.sync_folders([self.folder], allow_many=True), automatic=False)
        self.has_change = True

    def hold_lock(self) -> None:
        """Let another writer hold the lock for a minute."""
        stack = contextlib.ExitStack()
        stack.enter_context(write_lock(self.project.directory))
        self.clock.at(self.clock.now + 60, stack.close)
        self.touch()

    def roll_back(self, *, automatic: bool) -> None:
        """Roll back to the last version published by hand, or to the first automatic version after it."""
        last = max(at for at, (_, by_watcher) in enumerate(self.published) if not by_watcher)
        kept = {version.name for version in self.project.versions()}
        targets = [name for name, by_watcher in self.published[last:] if by_watcher is automatic and name in kept]
        if targets:
            self.counts["rollbacks"] += 1
            self.project.rollback(targets[0])
            self.touch()

    # ---- what the watcher does ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Watch the folder for a day."""
        self.schedule()
        work = partial(
            self.project.sync_folders, [str(self.folder)], allow_many=self.allow_many, progress=self.interfere
        )
        watch = Watch(self.project, [str(self.folder)], partial(self.work, work), removes=True)
        sync, wait = watch.sync, RESCAN

        def observed() -> float:
            nonlocal wait
            is_idle = not self.has_change and wait == RESCAN
            self.has_change = False
            before = (self.log.tell(), self.files_of_project()) if is_idle else None
            wait = sync()
            self.counts["syncs"] += 1
            if is_idle and not self.has_change:
                self.counts["idle"] += 1
                if before != (self.log.tell(), self.files_of_project()):
                    self.faults.append(f"a sync without changes wrote something at {self.clock.strftime('%H:%M:%S')}")
            return wait

        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(watch, "sync", observed))
            stack.enter_context(mock.patch.object(documents, "_changes", self.events))
            clock = SimpleNamespace(monotonic=lambda: self.clock.now, strftime=self.clock.strftime)
            stack.enter_context(mock.patch.object(documents, "time", clock))
            stack.enter_context(mock.patch.object(plan, "time", SimpleNamespace(sleep=self.clock.advance)))
            stack.enter_context(contextlib.redirect_stdout(self.log))
            stack.enter_context(contextlib.redirect_stderr(self.log))
            watch.start()

    def events(self, _folders: object, _stop: object) -> Iterator[set[str]]:
        """Yield the changed folder, or nothing, every second until the day is over."""
        while self.clock.now < HOURS * 3_600:
            has_event, self.has_event = self.has_event, False
            yield {str(self.folder)} if has_event else set()
            self.clock.advance(1.0)

    def interfere(self, progress: IngestProgress) -> None:
        """Edit a file now and then while a text file is read; PDFs are read in other threads, in any order."""
        key = (len(self.reports), progress.document)
        if not progress.document.endswith((".md", ".txt")) or key in self.read:
            return
        self.read.add(key)
        if self.is_mounted and self.random.random() < 0.03:
            self.counts["changes while reading"] += 1
            self.day.edit()
            self.touch()

    def work(self, work: Callable[..., IngestReport], **options: Any) -> IngestReport:
        """Sync, and note the report or the error."""
        try:
            report = self.publish(partial(work, **options), automatic=True)
        except Exception as error:
            self.reports.append(type(error).__name__)
            raise
        self.reports.append(report)
        return report

    def publish(self, work: Callable[[], IngestReport], *, automatic: bool) -> IngestReport:
        """Call a function, and note the version that it publishes."""
        report = work()
        names = [name for name, _ in self.published]
        if report.version is not None and report.version not in names and (names or report.added):
            self.published.append((report.version, automatic))
        return report

    def document_ids(self) -> set[str]:
        """Return the ids of the documents."""
        return {record.doc_id for record in self.project.documents()}

    def files_of_project(self) -> dict[Path, tuple[int, int]]:
        """Return the time of modification and the size of each file of the project."""
        paths = filter(Path.is_file, self.project.directory.rglob("*"))
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}

    # ---- what is checked ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare the project with a single ingest, the versions with the rule, and the log with the events."""
        fresh = self.manager.create("fresh", ProjectConfig.local())
        fresh.ingest([self.folder, *sorted(self.pinned.iterdir())])
        self.counts["documents"] = len(fresh.documents())
        self.counts["chunks"] = sum(record.chunks for record in fresh.documents())
        self.faults += differences(self.project, fresh)
        self._check_versions()
        self._check_log()

    def _check_versions(self) -> None:
        groups = [[name for name, automatic in self.published if automatic is kind] for kind in (True, False)]
        self.counts["automatic versions"], self.counts["versions by hand"] = map(len, groups)
        kept = {name for names in groups for name in names[-KEEP:]}
        manifests = (read_manifest(version_directory(self.project.directory, name)) for name in kept)
        expected = sorted({*kept, *(manifest.keeps for manifest in manifests if manifest.keeps is not None)})
        versions = {version.name: version.automatic for version in self.project.versions()}
        self.counts["kept by hand"] = len(versions) - sum(versions.values())
        if not self.allow_many and sorted(versions) != expected:
            self.faults.append(f"the versions are {sorted(versions)} instead of {expected}")
        if any(name not in versions or versions[name] for name in groups[1][-KEEP:]):
            self.faults.append("a version published by hand is not kept, or is marked as automatic")
        if not self.project.verify().sound:
            self.faults.append("the project is damaged")

    def _check_log(self) -> None:
        _, *lines = self.log.getvalue().splitlines()
        self.faults += [f"a line without a time: {line}" for line in lines if not _LINE.match(line)]
        if lines != sorted(lines, key=lambda line: line[:19]):
            self.faults.append("the times in the log are not in order")
        counts = self.counts
        counts["lines"] = len(lines)
        counts["lines of changes"] = sum(bool(_VERSION.match(line[20:])) for line in lines)
        counts["lines of problems"] = counts["lines"] - counts["lines of changes"]
        reports = [report for report in self.reports if isinstance(report, IngestReport)]
        errors = [key for key, _ in groupby(r if isinstance(r, str) else "" for r in self.reports) if key]
        skips = [{file for file in report.skipped if file.reason not in plan.FOR_LATER} for report in reports]
        skipped = sum(len(new - old) for old, new in pairwise(skips))
        missing = sum(bool(set(new.missing) - set(old.missing)) for old, new in pairwise(reports))
        counts["errors"], counts["skipped"] = len(errors), skipped
        warnings = sum(len(report.warnings) for report in reports)
        recoveries = sum(line.endswith("in sync again") for line in lines)
        # One line for the first sync, for each version, recovery and sync with deleted files whose documents are kept,
        # and for each lasting error, newly skipped file and warning.
        versions = len(self.published) + counts["rollbacks"]
        if counts["lines of changes"] > 1 + versions + recoveries + missing:
            self.faults.append(f"{counts['lines of changes']} lines of changes")
        if counts["lines of problems"] > len(errors) + len(skips[0]) + skipped + warnings:
            self.faults.append(f"{counts['lines of problems']} lines of problems")
        texts = [line[20:] for line in lines]
        repeated = [text for text, next_text in pairwise(texts) if text == next_text and not text.startswith("skipped")]
        self.faults += [f"a repeated line: {text}" for text in repeated]
        for text, mentions in Counter(text for text in texts if text.startswith("skipped")).items():
            changes = sum(bool(new - old) for old, new in pairwise([set(), *(_named(text, files) for files in skips)]))
            if mentions > changes:
                self.faults.append(f"mentioned {mentions} times instead of {changes}: {text}")


def _named(text: str, files: set[SkippedFile]) -> set[SkippedFile]:
    """Return the files that a line of the log is about, or all if the line is about several files."""
    return {file for file in files if " files, such as " in text or f"{file.path}: {file.reason}" in text}


def simulate(directory: Path, *, changes: int, seed: int, allow_many: bool = False) -> Simulation:
    """Simulate a day and check what is promised."""
    simulation = Simulation(directory, changes, seed, allow_many)
    simulation.run()
    simulation.check()
    return simulation


def main() -> int:
    """Run the simulation and print its counts; the exit code is 1 if something is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--allow-many", action="store_true", help="remove many documents without a confirmation")
    parser.add_argument("--log", type=Path, help="write the log of the watcher to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        simulation = simulate(
            Path(directory), changes=arguments.changes, seed=arguments.seed, allow_many=arguments.allow_many
        )
    if arguments.log is not None:
        arguments.log.write_text(simulation.log.getvalue(), encoding="utf-8")
    print(f"seed {arguments.seed}: {', '.join(f'{number:,} {name}' for name, number in simulation.counts.items())}")
    for fault in simulation.faults:
        print(f"  {fault[:500]}")
    print(f"{len(simulation.faults)} faults")
    return int(bool(simulation.faults))


if __name__ == "__main__":
    sys.exit(main())
