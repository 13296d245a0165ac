"""The command `sync`, which updates documents from folders, either once or after every change (`--watch`)."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_index_contextual._utils.redaction import scrub
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli import common
from llama_index_contextual.cli.common import Commands, Name, Quiet, Yes
from llama_index_contextual.cli.documents import Batch, Facts, FactsFile, Moved, Password, passwords_of, show_report
from llama_index_contextual.cli.terminal import err, in_words, out, safe, say, say_error, say_json, wants_json
from llama_index_contextual.errors import ConfigurationError, ContextualError, LargeRemovalError, ProjectLockedError

if TYPE_CHECKING:
    from rich.console import Console

    from llama_index_contextual.ingestion.report import IngestReport
    from llama_index_contextual.project.project import Project
    from llama_index_contextual.readers import SkippedFile

MOST_NAMES = 20
"""Maximum number of documents listed for each kind of change."""

SETTLE = 1.0
"""Seconds for which a file must remain unchanged before `--watch` reads it."""

RESCAN = 300.0
"""Seconds after which `--watch` scans the folders even if no change was reported."""

LOCKED = 2.0
"""Seconds to wait before trying again if another process is writing to the project."""

commands = Commands("Documents")


@commands.command()
def sync(
    name: Name,
    folders: Annotated[list[str], typer.Argument(metavar="FOLDER", help="Folders, searched as by `ingest`.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is new, changed, moved and gone, without changing anything.")
    ] = False,
    yes: Yes = False,
    allow_empty: Annotated[
        bool,
        typer.Option(
            "--allow-empty", help="Remove the documents of a folder even if it is empty, such as an unmounted drive."
        ),
    ] = False,
    allow_many: Annotated[
        bool,
        typer.Option(
            "--allow-many",
            help="With --yes: remove even more than a tenth of the documents of a folder, and more than one, at once.",
        ),
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep running, and sync after every change.")] = False,
    poll: Annotated[
        bool, typer.Option("--poll", help="With --watch: compare the files every second, for network shares.")
    ] = False,
    rescan: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="With --watch: search the folders at least this often.")
    ] = RESCAN,
    settle: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Leave files for later that change within this time; by default 1 with --watch, otherwise 0.",
        ),
    ] = None,
    moved: Moved = False,
    facts: FactsFile = None,
    password: Password = None,
    max_cost: Annotated[
        float | None,
        typer.Option(
            metavar="DOLLARS",
            help="Stop before the run costs more than this; with --watch, all of its runs together.",
        ),
    ] = None,
    batch: Batch = False,
    quiet: Quiet = False,
) -> None:
    """Bring documents in step with folders: add, update, rename and remove them, and publish one version.

    Documents from elsewhere are never changed. Before documents are removed, they are listed, and a confirmation is
    asked for; with --watch, everything else is published in the meantime. With --watch and --json, every version is one
    line.
    """
    if watch:
        _require_watchfiles()
    project, file_metadata = common.open_project(name), Facts(facts) if facts else None
    reading: dict[str, Any] = {
        "moved": moved,
        "file_metadata": file_metadata,
        "passwords": passwords_of(password),
    }
    plan = project.sync_folders(folders, dry_run=True, allow_empty=allow_empty, **reading)
    needs_answer = bool(plan.removed) and not (yes or dry_run or watch)
    if dry_run and wants_json():
        say_json({**plan.to_dict(), "dry_run": True})
    elif dry_run or needs_answer or not (wants_json() or watch):
        _show_plan(plan, to=out if dry_run else err, all_names=dry_run)
        if project.config.context == "llm" and not quiet and (plan.added or plan.updated or plan.renamed):
            say(safe(project.estimate(folders, batch=batch, **reading).in_short()), to=err)
    if file_metadata is not None:
        file_metadata.warn_of_unused()
    if dry_run:
        return
    run = _Sync(
        project,
        folders,
        {**reading, "allow_empty": allow_empty, "batch": batch, "show_progress": not quiet},
        settle=settle if settle is not None else SETTLE if watch else 0.0,
        max_cost=max_cost,
        allow_many=allow_many,
        as_json=wants_json(),
        removes=yes,
        asks=common.has_terminal(),
    )
    if watch:
        common.interruptible(
            project, lambda: run.watch(poll=poll, rescan=rescan, ignored=os.path.realpath(common.root()))
        )
        return
    if needs_answer:
        common.require_answer(yes=yes)
        common.confirm(f"Remove {pluralize(len(plan.removed), 'document')} whose files are gone?", yes=yes)
    run.show(common.interruptible(project, partial(run.once, remove=yes or plan.removed)))


@dataclass
class _Sync:
    """Repeated syncs of a project with the same folders and options.

    Attributes:
        project: The project.
        folders: The folders.
        options: Other arguments of `Project.sync`.
        settle: Seconds for which a file must remain unchanged before it is read.
        max_cost: Limit for the total cost of all syncs in dollars, or None.
        as_json: Whether to print JSON.
        allow_many: Whether more than a tenth of a folder's documents may be removed in one sync.
        removes: Whether documents are removed without confirmation while watching.
        asks: Whether a person can confirm removals while watching.
        stop: Ends `watch` when it is set.
        answered: Set when a person has confirmed a removal.
    """

    project: Project
    folders: Sequence[str]
    options: dict[str, Any]
    settle: float
    max_cost: float | None
    as_json: bool = False
    allow_many: bool = False
    removes: bool = False
    asks: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._cost_before = 0.0 if self.max_cost is None else self._spent()
        self._last: object = None  # last version or error printed
        self._mentioned: dict[str, object] = {}  # printed state of each skipped file
        self._waiting: frozenset[str] = frozenset()  # documents in a large removal that has not been confirmed
        self._listed: frozenset[str] = frozenset()  # documents whose removal the user was asked to confirm
        self._confirmed: frozenset[str] = frozenset()

    def _spent(self) -> float:
        """Return the dollars spent on documents so far; the cost of answers does not count towards `--max-cost`."""
        cost = self.project.cost()
        return cost.dollars - cost.answers

    def once(self, *, remove: Collection[str] | bool, watching: bool = False) -> IngestReport:
        """Publish a version if anything has changed."""
        limit = None
        if self.max_cost is not None:
            limit = max(0.0, self.max_cost - (self._spent() - self._cost_before))
        return self.project.sync_folders(
            self.folders,
            remove=remove,
            allow_many=self.allow_many,
            settle=self.settle,
            watching=watching,
            max_cost=limit,
            **self.options,
        )

    def show(self, report: IngestReport, *, is_new: bool = True) -> None:
        """Print a report; see `show_report`."""
        if self.as_json:
            say_json(report.to_dict())
            return
        _show_missing(report)
        if report.version is None:
            for file in report.skipped:
                say(f"[yellow]skipped[/] {safe(file.path)}: {safe(file.reason)}", to=err)
            say("There is no version yet: the folders contain no document that can be read.")
        else:
            show_report(replace(report, missing=()), self.project.name, is_new=is_new)

    def watch(self, *, poll: bool, rescan: float, ignored: str) -> None:
        """Sync immediately and after every change, until Ctrl-C.

        Events are collected from before the first sync and during every sync, so that no change is missed. A folder
        that disappears is watched again as soon as it returns.

        Args:
            poll: Whether to compare the files instead of waiting for events.
            rescan: Seconds after which the folders are scanned even without an event.
            ignored: Folder whose changes are ignored because it contains the projects.
        """
        if not self.as_json:
            say(f"Watching {safe(', '.join(self.folders))}. Ctrl-C ends it.", to=err)
        if not self.removes and not self.asks:
            say("[yellow]note[/] Documents whose files are deleted are kept: start with --yes to remove them.", to=err)
        if self.asks:
            if hasattr(signal, "SIGTTIN"):
                # Otherwise, reading from the terminal would stop a background process.
                signal.signal(signal.SIGTTIN, signal.SIG_IGN)
            threading.Thread(target=self._listen, name="answers", daemon=True).start()
        due, watched = time.monotonic(), _identities(self.folders)
        while not self.stop.is_set():
            for changes in _events(self.folders, poll=poll, stop=self.stop):
                if (now := _identities(self.folders)) != watched:
                    due, watched = time.monotonic(), now
                    break  # a folder that was replaced no longer sends events
                if self.answered.is_set() or any(_matters(path, self.folders, ignored) for path in changes):
                    self.answered.clear()
                    due = time.monotonic()
                if time.monotonic() >= due:
                    due = time.monotonic() + min(self._batch(rescan), rescan)
            else:
                due = time.monotonic()

    def answer(self, line: str) -> None:
        """Handle a line of input: "y" confirms the removal of the listed documents."""
        if line.strip().lower() in ("y", "yes") and self._listed:
            self._confirmed = self._listed
            self.answered.set()

    def _listen(self) -> None:
        """Pass on lines typed at the terminal until it is closed."""
        while not self.stop.is_set():
            try:
                line = os.read(sys.stdin.fileno(), 1_024)
            except OSError:  # this is a background process
                self.stop.wait(0.5)
                continue
            if not line:
                return
            self.answer(line.decode(errors="replace"))

    def _batch(self, rescan: float) -> float:
        """Sync once, print any news, and return the seconds to wait if nothing changes."""
        from llama_index_contextual.ingestion.sync import FOR_LATER

        try:
            report = self._sync_unless_large()
        except ProjectLockedError as error:
            self._say_once(f"{in_words(error)} The sync is repeated as soon as possible.")
            return LOCKED
        except (ContextualError, OSError) as error:
            self._say_once(f"{in_words(error)} The sync is repeated after the next change.")
            return rescan
        new = replace(report, skipped=self._unmentioned(report.skipped, FOR_LATER))
        # The user may answer as soon as the documents are printed.
        former, self._listed = self._listed, frozenset(report.missing)
        unlisted = not self._listed <= former
        is_new = report.version != self._last
        is_other = is_new or bool(new.skipped)
        self._last = report.version
        if self.as_json and (is_other or unlisted):
            _say_line(new.to_dict())
        elif not self.as_json:
            if is_other:
                _show_changes(replace(report, renamed={}), to=out)
                self.show(replace(new, missing=()), is_new=is_new)
            if unlisted and (self.asks or not self._waiting):
                _show_missing(report)
        if unlisted and self.asks:
            what = pluralize(len(report.missing), "document")
            say(f"Remove {what} whose files are gone? Type y and Enter; otherwise they are kept.", to=err)
        if self.removes and report.missing and not self._waiting:
            return 0.1  # the files of a large removal have returned, so other documents can be removed again
        return max(self.settle, 0.1) if any(file.reason in FOR_LATER for file in report.skipped) else rescan

    def _sync_unless_large(self) -> IngestReport:
        """Sync; until a large removal is confirmed, no document is removed, but all other changes are published."""
        if self.removes and not self._waiting and not self._confirmed:
            try:
                return self.once(remove=True, watching=True)
            except LargeRemovalError as error:
                self._waiting = frozenset(error.documents)
                message = f"{in_words(error)} Until then, no document is removed; all other changes are published."
                say(f"[yellow]waiting[/] {safe(message)}", to=err)
                if self.as_json:
                    _say_line({"waiting": message})
        confirmed = self._confirmed
        report = self.once(remove=confirmed, watching=True)
        self._confirmed -= confirmed
        self._waiting &= frozenset(report.missing)
        return report

    def _unmentioned(self, skipped: Iterable[SkippedFile], for_later: Collection[str]) -> tuple[SkippedFile, ...]:
        """Return skipped files that have not been printed or have changed since; postponed files only once."""
        new = []
        for file in skipped:
            state = "later" if file.reason in for_later else (file.reason, _status(file.path, "st_size", "st_mtime_ns"))
            if self._mentioned.get(file.path) != state:
                self._mentioned[file.path] = state
                new.append(file)
        return tuple(new)

    def _say_once(self, message: str) -> None:
        """Print an error unless it is the same as the last message."""
        if self._last == (message,):
            return
        self._last = (message,)
        say_error(message)
        if self.as_json:
            _say_line({"error": scrub(message)})


def _status(path: str, *fields: str) -> tuple[int, ...] | None:
    """Return some `os.stat` fields of a file or folder, or None if it cannot be accessed."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return tuple(getattr(status, name) for name in fields)


def _say_line(value: object) -> None:
    typer.echo(json.dumps(value))  # echo flushes, so the reading program receives the line


def _show_plan(plan: IngestReport, *, to: Console, all_names: bool) -> None:
    """Print the changes that a sync would make."""
    counts = ((plan.added, "new"), (plan.updated, "changed"), (plan.renamed, "moved"), (plan.removed, "gone"))
    line = ", ".join(f"{len(ids):,} {kind}" for ids, kind in counts if ids) or "Nothing has changed"
    say(f"{line}; {len(plan.unchanged):,} unchanged.", to=to)
    _show_changes(plan, to=to, limit=None if all_names else MOST_NAMES)
    _show_missing(plan)
    if all_names:
        from llama_index_contextual.ingestion.report import skipped_lines

        for skipped in skipped_lines(plan.skipped):
            say(f"[yellow]skipped[/] {safe(skipped)}", to=err)


def _show_changes(report: IngestReport, *, to: Console, limit: int | None = MOST_NAMES) -> None:
    """Print the names of the documents that change."""
    moved = [f"{former} to {doc_id}" for former, doc_id in report.renamed.items()]
    kinds = (("new", report.added), ("changed", report.updated), ("moved", moved), ("gone", report.removed))
    for kind, names in kinds:
        colour = "red" if kind == "gone" else "dim"
        for name in names[:limit]:
            say(f"[{colour}]{kind:<8}[/] {safe(name)}", to=to)
        if limit is not None and len(names) > limit:
            say(f"[{colour}]{kind:<8}[/] and {len(names) - limit:,} more; --dry-run lists all of them", to=to)


def _show_missing(report: IngestReport) -> None:
    for doc_id in report.missing[:MOST_NAMES]:
        say(f"[yellow]missing[/] {safe(doc_id)}: its file is gone; its removal was not confirmed", to=err)
    if (more := len(report.missing) - MOST_NAMES) > 0:
        say(f"[yellow]missing[/] and {more:,} more", to=err)


# ---- waiting for changes ---------------------------------------------------------------------------------------------

_TICK = 500  # milliseconds between checks of the clock
_QUIET = 200  # milliseconds without an event after which changes are reported
_LONGEST = 2_000  # milliseconds after which changes are reported in any case


def _require_watchfiles() -> None:
    try:
        import watchfiles  # noqa: F401
    except ImportError as error:
        raise ConfigurationError('--watch needs watchfiles: pip install "llama-index-contextual[watch]"') from error


def _events(folders: Iterable[str], *, poll: bool, stop: threading.Event) -> Iterator[set[str]]:
    """Yield changed paths, or an empty set after a while; once the first set arrives, events are being collected."""
    from watchfiles import Change, watch

    present = [os.path.abspath(folder) for folder in folders if os.path.isdir(folder)]
    if not present:
        stop.wait(_TICK / 1_000)
        yield set()
        return
    batches = watch(
        *present,
        watch_filter=None,
        debounce=_LONGEST,
        step=_QUIET,
        rust_timeout=_TICK,
        yield_on_timeout=True,
        stop_event=stop,
        force_polling=poll or None,
        poll_delay_ms=1_000,
        ignore_permission_denied=True,
    )
    try:
        for changes in batches:
            yield {path for _, path in changes}
            if any(change is Change.deleted and path in present for change, path in changes):
                return  # a new folder at this path may have the same inode, but its events are not received
    except FileNotFoundError:  # a folder was deleted before it could be watched
        yield set()
    except OSError as error:
        raise ConfigurationError(
            f"The folders cannot be watched ({error}): add --poll to compare the files."
        ) from error


def _identities(folders: Iterable[str]) -> list[tuple[int, ...] | None]:
    return [_status(folder, "st_dev", "st_ino") for folder in folders]


def _matters(path: str, folders: Iterable[str], ignored: str) -> bool:
    """Return whether a change to a file or folder can affect a document."""
    from llama_index_contextual.readers.discovery import SUFFIXES

    changed = Path(os.path.realpath(path))
    if changed.is_relative_to(ignored):
        return False
    for folder in map(os.path.realpath, folders):
        if changed.is_relative_to(folder) and any(part.startswith(".") for part in changed.relative_to(folder).parts):
            return False
    # A path without one of these extensions may be a folder, possibly one that was deleted or moved away.
    return changed.suffix.lower() in SUFFIXES or not changed.is_file()
