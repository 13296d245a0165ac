"""Commands that ingest, sync, list and remove the documents of a project, and estimate the cost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_index_contextual import errors
from llama_index_contextual._utils.redaction import scrub
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli import common
from llama_index_contextual.cli.common import Commands, Name, err, safe, say
from llama_index_contextual.readers.files import is_url

if TYPE_CHECKING:
    from rich.console import Console

    from llama_index_contextual.config import ProjectConfig
    from llama_index_contextual.index.manifest import DocumentRecord
    from llama_index_contextual.index.verify import ForgetReport
    from llama_index_contextual.ingestion.estimate import CostEstimate
    from llama_index_contextual.ingestion.report import IngestReport
    from llama_index_contextual.project.project import Project
    from llama_index_contextual.readers import SkippedFile

commands = Commands("Documents")

ALL_FILES = "*"  # key of the password for files without a password of their own
_FILE_AND_PASSWORD = re.compile(r"(?is)(.+?\.pdf)=(.*)")

Password = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[FILE=]PASSWORD",
        help="Password of all encrypted PDFs, or of the one with this path or name; `-` prompts for it. Repeatable.",
    ),
]
FactsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="JSON",
        help='Metadata of files, for filters and contexts: {"FILE or glob": {"kind": "report", "year": 2024}, …}.',
    ),
]
Batch = Annotated[
    bool, typer.Option("--batch", help="Request contexts in batches: half the price per token, within 24 hours.")
]
Reread = Annotated[bool, typer.Option("--reread", help="Also read files whose content has not changed.")]


def passwords_of(options: Sequence[str] | None) -> dict[str, str]:
    """Return a mapping of files to the passwords that were given with `--password`."""
    passwords = {}
    for option in options or ():
        of_one = _FILE_AND_PASSWORD.fullmatch(option)
        file, secret = of_one.groups() if of_one else (ALL_FILES, option)
        if secret == "-":
            name = "the encrypted PDFs" if file == ALL_FILES else file
            secret = typer.prompt(f"Password of {name}", hide_input=True, err=True)
        passwords[file] = secret
    return passwords


def facts_of(path: Path | None) -> Callable[[str], dict[str, Any]] | None:
    """Return a `file_metadata` function that returns the facts in the JSON file given with `--facts`.

    The JSON file contains an object with facts for each file name, path or glob. If several entries match a file, later
    entries override earlier entries.

    Raises:
        ConfigurationError: The file cannot be read, or it is not a JSON object.
        InputError: An entry is not an object.
    """
    from llama_index_contextual.search.filters import matches_doc_id

    if path is None:
        return None
    form = 'write {"report.pdf": {"kind": "report"}, "contracts/*": {"kind": "contract"}}'
    entries = common.read_object(path, form)
    if not all(isinstance(entry, dict) for entry in entries.values()):
        raise errors.InputError(f"--facts {path} is not an object of facts by file: {form}.", value=str(path))

    def facts(file: str) -> dict[str, Any]:
        matches = (entry for pattern, entry in entries.items() if matches_doc_id(pattern, PurePath(file).as_posix()))
        return {key: value for entry in matches for key, value in entry.items()}

    return facts


# ---- adding documents ------------------------------------------------------------------------------------------------


@commands.command()
def estimate(
    name: Name,
    paths: Annotated[list[str] | None, typer.Argument(metavar="FILES")] = None,
    llm: common.Llm = None,
    settings: common.Settings = None,
    reread: Reread = False,
    facts: FactsFile = None,
    password: Password = None,
    batch: Batch = False,
    retry: Annotated[bool, typer.Option("--retry")] = False,
    renew: Annotated[bool, typer.Option("--renew")] = False,
) -> None:
    """Show the cost of `ingest`, `rebuild` or `retry`, without sending or writing anything.

    Args:
        paths: Files as for `ingest`; without files, the estimate is for `rebuild`.
        retry: Include the chunks that `retry` processes again.
        renew: Include the contexts that `rebuild --renew` requests again.
    """
    expected = common.open_with(name, common.changed_settings(llm, settings)).estimate(
        list(paths or ()),
        reread=reread,
        retry_failed=retry,
        renew=renew,
        file_metadata=facts_of(facts),
        passwords=passwords_of(password),
        batch=batch,
    )
    common.say_result(expected.to_dict(), partial(show_estimate, expected))
    _exit_if_absent(expected.skipped)


@commands.command()
def ingest(
    name: Name,
    paths: Annotated[list[str], typer.Argument(metavar="FILES")],
    llm: common.Llm = None,
    settings: common.Settings = None,
    reread: Reread = False,
    facts: FactsFile = None,
    password: Password = None,
    max_cost: common.MaxCost = None,
    batch: Batch = False,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS")] = None,
    wait: common.Wait = 0.0,
    yes: common.Yes = False,
    quiet: common.Quiet = False,
) -> None:
    """Add and update documents, and publish a new version.

    On a terminal, the price of contexts by an LLM is shown and must be confirmed, unless --max-cost, --yes or --quiet
    is given.

    Args:
        paths: Files, folders, globs, URLs: PDF, Office, HTML, CSV, mail, text, images.
        ray: Read and embed on a Ray cluster: `auto` for this machine's cluster, HOST:PORT, or `local`.
    """
    project = common.open_to_build(name, llm, settings)
    options: dict[str, Any] = {
        "reread": reread,
        "file_metadata": facts_of(facts),
        "passwords": passwords_of(password),
        "batch": batch,
    }
    is_asked = common.has_terminal() and not (yes or quiet or max_cost is not None)
    if project.config.context == "llm" and is_asked:  # otherwise, the files are not read twice
        common.confirm_price(project.estimate(list(paths), **options), yes=yes, max_cost=max_cost)
    work = partial(
        project.ingest,
        list(paths),
        **options,
        max_cost=max_cost,
        ray=ray,
        wait=wait,
        show_progress=not quiet,
    )
    # Ray prints the log of a dead node to standard output, which is reserved for the report.
    with contextlib.redirect_stdout(sys.stderr) if ray is not None else contextlib.nullcontext():
        report = common.interruptible(project, work)
    _show_outcome(report, name)


def _show_outcome(report: IngestReport, name: str) -> None:
    """Print a report; exit with code 1 if a batch left contexts open, or if any of the given paths does not exist."""
    show_report(report, name)
    _exit_if_absent(report.skipped, is_incomplete=report.incomplete_batch is not None)


def _exit_if_absent(skipped: Sequence[SkippedFile], *, is_incomplete: bool = False) -> None:
    """Exit with code 1 if any of the given paths does not exist, or if work is left."""
    if is_incomplete or any(file.absent for file in skipped):
        raise typer.Exit(1)


def show_estimate(estimate: CostEstimate) -> None:
    """Print the expected cost of an ingestion."""
    _show_skipped(estimate.skipped)
    for line in str(estimate).splitlines():
        say(safe(line))
    if estimate.max_cost:
        say(f"[dim]To set a limit for the run: `ingest` or `rebuild` with --max-cost {estimate.max_cost:g}[/]")


def _show_skipped(skipped: Sequence[SkippedFile]) -> None:
    from llama_index_contextual.ingestion.report import skipped_lines

    for line in skipped_lines(skipped):
        say(f"[yellow]skipped[/] {safe(line)}", to=err)


def show_report(report: IngestReport, name: str) -> None:
    """Print an ingestion report as JSON, or as text with problems on standard error."""
    if common.wants_json():
        common.say_json(report.to_dict())
        return
    for label, text in report.details():
        say(f"[yellow]{label}[/] {safe(text)}", to=err)
    if report.failures:
        limit = " --max-cost DOLLARS" if report.is_held_back else ""
        say(f"{report.advice}:", to=err)
        say(safe(f"{common.suggested_command('retry', name)}{limit}"), to=err, indent=2)
        if report.incomplete_batch is not None:
            say(safe(f"{common.suggested_command('retry', name, '--batch')}{limit}"), to=err, indent=2)
    if report.version is None:
        say("There is no version yet: the folders contain no document that can be read.")
        return
    requests = f" {pluralize(report.contexts_paid, 'context')} requested;" if report.contexts_paid else ""
    say(f"Version [bold]{report.version}[/] is live: {report.summary()};{requests} {report.seconds:.1f} s.")
    if receipt := report.receipt():
        say(f"[dim]{safe(receipt)}.[/]")


@commands.command()
def rebuild(
    name: Name,
    derived: Annotated[bool, typer.Option("--derived")] = False,
    renew: Annotated[bool, typer.Option("--renew")] = False,
    llm: common.Llm = None,
    settings: common.Settings = None,
    max_cost: common.MaxCost = None,
    yes: common.Yes = False,
    quiet: common.Quiet = False,
) -> None:
    """Publish a version built from the stored documents with the current settings.

    Args:
        derived: Only make the lexical index again from the stored chunks, which costs nothing.
        renew: Request contexts again whose title or segment is read differently than when they were written.
    """
    project = common.open_to_build(name, llm, settings)
    if project.config.context == "llm" and not quiet and not derived:
        common.confirm_price(project.estimate(renew=renew), yes=yes, max_cost=max_cost)
    work = partial(project.rebuild, derived=derived, renew=renew, max_cost=max_cost, show_progress=not quiet)
    _show_outcome(common.interruptible(project, work), name)


@commands.command()
def retry(
    name: Name,
    llm: common.Llm = None,
    settings: common.Settings = None,
    max_cost: common.MaxCost = None,
    batch: Batch = False,
    yes: common.Yes = False,
    quiet: common.Quiet = False,
) -> None:
    """Request failed contexts from the LLM again, and embed chunks again that have no vector.

    With --max-cost, this includes contexts that the LLM refused to write, and contexts in a completed batch whose
    replies cannot be read but may be charged.
    """
    project = common.open_to_build(name, llm, settings)
    if project.config.context == "llm" and not quiet:
        expected = project.estimate(retry_failed=True, batch=batch)
        common.confirm_price(expected, yes=yes, max_cost=max_cost)
    work = partial(project.retry_failed, max_cost=max_cost, batch=batch, show_progress=not quiet)
    _show_outcome(common.interruptible(project, work), name)


# ---- synchronising with folders --------------------------------------------------------------------------------------

MOST_NAMES = 20
"""Maximum number of documents listed for each kind of change."""


@commands.command()
def sync(
    name: Name,
    folders: Annotated[list[str], typer.Argument(metavar="FOLDER")],
    llm: common.Llm = None,
    settings: common.Settings = None,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    yes: common.Yes = False,
    allow_empty: Annotated[bool, typer.Option("--allow-empty")] = False,
    allow_many: Annotated[bool, typer.Option("--allow-many")] = False,
    watch: Annotated[bool, typer.Option("--watch")] = False,
    facts: FactsFile = None,
    password: Password = None,
    max_cost: common.MaxCost = None,
    batch: Batch = False,
    wait: common.Wait = 0.0,
    quiet: common.Quiet = False,
) -> None:
    """Synchronise documents with folders: add, update, rename and remove documents, and publish one version.

    Documents from other places are never changed. Before documents are removed, they are listed and must be confirmed.
    With --watch, --max-cost limits the total cost of all syncs, and one line is printed for each version (with --json,
    a JSON object).

    Args:
        folders: Folders or their URLs, searched as by `ingest`.
        dry_run: Show what is new, changed, moved and gone, without changing anything.
        allow_empty: Remove the documents of a folder that is empty, as an unmounted drive is.
        allow_many: With --yes, allow a sync to remove more than a tenth of a folder's documents.
        watch: Keep running, and sync after every change; documents are removed with --yes.
    """
    project = (
        common.open_with(name, common.changed_settings(llm, settings))
        if dry_run
        else common.open_to_build(name, llm, settings)
    )
    reading: dict[str, Any] = {"file_metadata": facts_of(facts), "passwords": passwords_of(password)}
    options = {**reading, "batch": batch, "allow_empty": allow_empty, "allow_many": allow_many, "wait": wait}
    work = partial(project.sync_folders, folders, **options, show_progress=not quiet)
    if watch:
        _check_watch(project.config, dry_run=dry_run, is_limited=yes or max_cost is not None)
        watcher = Watch(project, folders, work, removes=yes, max_cost=max_cost)
        common.interruptible(project, watcher.start)
        return
    plan = project.sync_folders(folders, dry_run=True, allow_empty=allow_empty, **reading)
    if dry_run:
        common.say_result({**plan.to_dict(), "dry_run": True}, partial(_show_plan, plan, to=common.out, limit=None))
        return
    if plan.removed or not common.wants_json():
        _show_plan(plan, to=err, limit=MOST_NAMES)
    if project.config.context == "llm" and not quiet:
        say(safe(project.estimate(folders, batch=batch, **reading).summary()), to=err)
    if plan.removed:
        common.confirm(f"Remove {pluralize(len(plan.removed), 'document')} whose files are gone?", yes=yes)
    report = common.interruptible(project, partial(work, remove=yes or plan.removed, max_cost=max_cost))
    show_report(report, name)
    _exit_if_absent((), is_incomplete=report.incomplete_batch is not None)


def _check_watch(config: ProjectConfig, *, dry_run: bool, is_limited: bool) -> None:
    """Check that nothing has to be asked while the folders are watched."""
    from llama_index_contextual.money.price import FREE, Prices

    if dry_run:
        raise typer.BadParameter("--dry-run and --watch cannot be combined: omit one of them.")
    if config.context == "llm" and not is_limited and Prices(config.prices).price(config.llm or "") != FREE:
        raise errors.ConfigurationError(
            f"With --watch, contexts by {config.llm} would be paid for without confirmation: add --max-cost DOLLARS, a"
            " limit for all syncs together, or --yes, which sets no limit and also removes documents whose files are"
            " gone.",
            setting="context",
        )


def _show_plan(plan: IngestReport, *, to: Console, limit: int | None) -> None:
    """Print the changes that a sync would make, with the names of at most `limit` documents of each kind."""
    moves = [f"{former} to {doc_id}" for former, doc_id in plan.renamed.items()]
    kinds = (("new", plan.added), ("changed", plan.updated), ("moved", moves), ("gone", plan.removed))
    line = ", ".join(f"{len(names):,} {kind}" for kind, names in kinds if names) or "Nothing has changed"
    say(f"{line}; {len(plan.unchanged):,} unchanged.", to=to)
    for kind, names in kinds:
        lines = [*map(safe, names[:limit])]
        if limit is not None and len(names) > limit:
            lines.append(f"and {len(names) - limit:,} more; --dry-run lists all of them")
        for name in lines:
            say(f"[dim]{kind:<8}[/] {name}", to=to)
    if limit is None:
        _show_skipped(plan.skipped)


SETTLE = 1.0
"""Seconds for which a file must remain unchanged before `--watch` reads it."""

RESCAN = 300.0
"""Seconds after which `--watch` scans the folders even if no change was reported."""

POLL = 60.0
"""Seconds after which `--watch` lists folders at URLs again."""

SOON = 2.0
"""Seconds after which `--watch` syncs again if there is work left or another process is writing to the project."""

_TICK = 500  # milliseconds between checks of the clock


@dataclass
class Watch:
    """Watcher that syncs a project after every change in its folders.

    Attributes:
        project: The project.
        folders: The folders.
        work: `Project.sync_folders` with the folders and options.
        removes: Whether documents whose files no longer exist are removed.
        max_cost: Limit for the total cost of all syncs in dollars, or None.
        settle: Seconds for which a file must remain unchanged before it is read.
        stop: Event that ends `start` when it is set.
    """

    project: Project
    folders: Sequence[str]
    work: Callable[..., IngestReport]
    removes: bool = False
    max_cost: float | None = None
    settle: float = SETTLE
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._cost_before = self._document_cost()
        self._version: str | None = ""  # the last version that was printed, or an empty string at the start
        self._error = ""  # the error message of the last sync, or an empty string
        self._skipped: set[SkippedFile] = set()  # skipped files of the last sync
        self._missing: set[str] = set()  # documents that have been reported as missing
        self._local = [folder for folder in self.folders if not is_url(folder)]
        self._waiting: frozenset[str] = frozenset()  # documents of a refused removal whose files are still missing

    def _document_cost(self) -> float:
        """Return the cost so far in dollars, without answers, because the limit does not apply to them."""
        cost = self.project.cost()
        return cost.dollars - cost.answers

    def start(self) -> None:
        """Sync immediately, and again after every change outside the project's directory, until Ctrl-C is pressed."""
        say(f"Watching {safe(', '.join(self.folders))}. Ctrl-C ends it.", to=err)
        if not self.removes:
            common.say_note("Documents whose files are deleted are kept: start with --yes to remove them.")
        project_path, due = os.path.realpath(self.project.directory), time.monotonic()
        for changes in _changes(self._local, self.stop):
            if any(not Path(os.path.realpath(path)).is_relative_to(project_path) for path in changes):
                due = time.monotonic()
            if time.monotonic() >= due:
                wait = self.sync()
                if len(self._local) < len(self.folders):
                    wait = min(wait, POLL)
                due = time.monotonic() + wait

    def sync(self) -> float:
        """Sync once, print the changes, and return the seconds until the next sync if no file changes."""
        from llama_index_contextual.ingestion.plan import FOR_LATER

        try:
            report = self._publish()
        except errors.ConfigurationError:
            raise  # a change to a file cannot correct it
        except (errors.ContextualError, OSError) as error:
            self._show_error(error)
            return SOON if isinstance(error, errors.ProjectLockedError) else RESCAN
        retries = {file for file in report.skipped if file.reason in FOR_LATER}
        reports = {*retries, *self._skipped}
        skipped = tuple(file for file in report.skipped if file not in reports and not _is_temporary(file.path))
        missing = tuple(doc_id for doc_id in report.missing if doc_id not in self._missing)
        self._show(replace(report, skipped=skipped, missing=missing))
        self._version, self._error = report.version, ""
        self._skipped, self._missing = set(report.skipped), set(report.missing)
        if retries:
            return max(self.settle, 0.1)
        return SOON if self.removes and report.missing and not self._waiting else RESCAN

    def _publish(self) -> IngestReport:
        """Sync once and return the report.

        After a large removal has been refused, nothing is removed until the missing files are back.
        """
        limit = None
        if self.max_cost is not None:
            limit = max(0.0, self.max_cost + self._cost_before - self._document_cost())
        options = {"settle": self.settle, "watching": True, "unreadable": self._skipped, "max_cost": limit}
        if self.removes and not self._waiting:
            try:
                return self.work(**options, remove=True)
            except errors.LargeRemovalError as error:
                self._waiting = frozenset(error.documents)
                self._missing |= self._waiting
                command = common.suggested_command("sync", self.project.name, *self.folders, "--yes", "--allow-many")
                _log(
                    f"[yellow]kept[/] {pluralize(len(self._waiting), 'document')} whose files are gone, more than a"
                    f" tenth of a folder: {safe(_name_two(error.documents))}. Until the files are back, no document is"
                    f" removed. To remove them: {safe(command)}"
                )
        report = self.work(**options, remove=False)
        self._waiting &= frozenset(report.missing)
        return report

    def _show(self, report: IngestReport) -> None:
        """Print one line for the changes, and one for each new problem."""
        from llama_index_contextual.ingestion.report import describe_failed

        changes = _describe_changes(report)
        is_news = changes or self._error or report.version != self._version
        if common.wants_json():
            if is_news or report.skipped:
                typer.echo(json.dumps(report.to_dict()))  # echo flushes, so the reading program receives the line
            return
        if is_news:
            steps = Counter(failure.step for failure in report.failures)
            failed = f"{describe_failed(steps['context'], steps['embedding'])}, see `retry`"
            state = "in sync again" if self._error else "" if changes else "in sync"
            news = "; ".join(filter(None, (changes, failed if report.failures else "", state)))
            _log(f"[bold]{report.version or 'no version'}[/] {safe(news)}", to=common.out)
        for label, text in replace(report, renamed={}, missing=()).details():
            _log(f"[yellow]{label}[/] {safe(text)}")

    def _show_error(self, error: errors.ContextualError | OSError) -> None:
        """Print an error message unless the last sync has failed with the same message."""
        message = f"{common.cli_message(error)} The sync is repeated after the next change."
        if isinstance(error, errors.BudgetExceededError) and self.max_cost is not None:
            message = (
                f"The limit of --max-cost {self.max_cost:g} for all syncs is reached. Nothing is published until a sync"
                f" costs nothing, or the command is started with a higher limit; contexts that were paid for are kept."
            )
        if message != self._error:
            self._error = message
            _log(f"[red]error[/] {safe(scrub(message))}")


def _is_temporary(path: str) -> bool:
    """Return whether the name of a file shows that it is hidden or temporary; such files are not reported."""
    name = PurePath(path).name
    return name.startswith((".", "~$")) or name.endswith((".tmp", ".part", ".crdownload"))


def _log(markup: str, *, to: Console = err) -> None:
    """Print a line with the date and time."""
    say(f"[dim]{time.strftime('%Y-%m-%d %H:%M:%S')}[/] {markup}", to=to)


def _describe_changes(report: IngestReport) -> str:
    """Return the numbers of changed documents, two of their names, and the cost, or "" if nothing has changed."""
    from llama_index_contextual.money.price import money

    moves = [f"{former} to {doc_id}" for former, doc_id in report.renamed.items()]
    kinds = [("+", report.added), ("~", report.updated), ("-", report.removed), ("moved ", moves)]
    kinds += [("rebuilt ", report.rebuilt), ("missing ", report.missing)]
    names = [name for _, ids in kinds for name in ids]
    if not names:
        return ""
    counts = " ".join(f"{sign}{len(ids):,}" for sign, ids in kinds if ids)
    receipt = report.paid if report.receipt() else None
    cost = "" if receipt is None else f"; {money(receipt.dollars, is_estimated=receipt.is_estimated)}"
    return f"{counts}: {_name_two(names)}{cost}"


def _name_two(names: Sequence[str]) -> str:
    """Return at most two of the names, and the number of the others."""
    more = f" and {len(names) - 2:,} more" if len(names) > 2 else ""
    return f"{', '.join(names[:2])}{more}"


def _changes(folders: Iterable[str], stop: threading.Event) -> Iterator[set[str]]:
    """Yield sets of changed paths, or an empty set if nothing changes for a while, until `stop` is set.

    Events are also collected while the caller is busy. A folder that disappears is watched again when it reappears.
    """
    try:
        from watchfiles import Change, watch
    except ImportError as error:
        raise errors.ConfigurationError(
            '--watch needs watchfiles: pip install "llama-index-contextual[watch]"'
        ) from error
    while not stop.is_set():
        identities = {os.path.abspath(folder): _identity(folder) for folder in folders}
        present = [folder for folder, identity in identities.items() if identity is not None]
        if not present:
            stop.wait(_TICK / 1_000)
            yield set()
            continue
        batches = watch(
            *present,
            watch_filter=None,
            rust_timeout=_TICK,
            yield_on_timeout=True,
            stop_event=stop,
            ignore_permission_denied=True,
        )
        try:
            changed = set(present)  # they may have changed while they were not watched
            for changes in batches:
                yield changed | {path for _, path in changes}
                changed = set()
                # A new folder at the same path may have the same inode, but no events are reported for it.
                is_deleted = any(change is Change.deleted and path in present for change, path in changes)
                if is_deleted or any(_identity(folder) != identity for folder, identity in identities.items()):
                    break
        except FileNotFoundError:
            pass  # a folder was deleted before it could be watched
        except OSError as error:
            advice = "set WATCHFILES_FORCE_POLLING=true in the environment to compare the files instead"
            raise errors.ConfigurationError(f"The folders cannot be watched ({error}): {advice}.") from error
        yield set(present)


def _identity(folder: str) -> tuple[int, int] | None:
    """Return the device and inode of a folder, or None if it cannot be accessed."""
    try:
        status = os.stat(folder)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


# ---- listing and removing documents ----------------------------------------------------------------------------------


@commands.command()
def documents(
    name: Name,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE")] = None,
) -> None:
    """List the documents of the live version with their ids, titles, chunks, tokens and languages.

    Args:
        files: Only these: ids, file names or globs.
    """
    records = common.open_root().load(name).documents()
    if files:
        from llama_index_contextual.search.filters import documents_named

        matches = [record for pattern in files for record in documents_named(pattern, records)]
        records = list({record.doc_id: record for record in matches}.values())
    common.say_result(list(records), partial(_show_documents, records))


def _show_documents(records: Sequence[DocumentRecord]) -> None:
    """Print documents with titles and totals. Ids are never truncated or wrapped, so that they can be copied."""
    for record in records:
        title = "" if record.title in (None, "", record.doc_id, record.file_name) else record.title or ""
        sizes = _sizes(record.chunks, record.tokens, len(record.fallback_chunks), len(record.unembedded_chunks))
        words = (common.snippet(title, 60), sizes, record.language.capitalize(), record.source)
        facts = " · ".join(filter(None, words))
        common.out.print(f"[bold]{safe(record.doc_id)}[/]  [dim]{facts}[/]", soft_wrap=True)
    numbers = (
        (record.chunks, record.tokens, len(record.fallback_chunks), len(record.unembedded_chunks)) for record in records
    )
    totals = _sizes(*map(sum, zip(*numbers, strict=True))) if records else "none yet"
    say(f"\n{pluralize(len(records), 'document')}: {totals}")


def _sizes(chunks: int, tokens: int, fallbacks: int, unembedded: int) -> str:
    from llama_index_contextual.ingestion.report import describe_failed

    problem = describe_failed(fallbacks, unembedded)
    failed = f" · [yellow]{problem} (see `retry`)[/]" if problem else ""
    return f"{pluralize(chunks, 'chunk')} · {pluralize(tokens, 'token')}{failed}"


@commands.command()
def remove(
    name: Name,
    doc_ids: Annotated[list[str], typer.Argument(metavar="ID")],
) -> None:
    """Remove documents, and publish a new version; `forget` then removes them from earlier versions too.

    Args:
        doc_ids: Document ids, as listed by `documents`.
    """
    show_report(common.open_root().load(name).remove(list(doc_ids)), name)


@commands.command()
def forget(
    name: Name,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    yes: common.Yes = False,
) -> None:
    """Permanently remove all data outside the live version: other versions and their paid contexts.

    Args:
        dry_run: Show what would be removed, without removing it.
    """
    project = common.open_root().load(name)
    if not dry_run and not yes:
        _show_removal(project.forget(dry_run=True), to=err)
        common.confirm("Remove them? This cannot be undone.", yes=yes)
    report = project.forget(dry_run=dry_run)
    common.say_result(
        {**asdict(report), "dry_run": dry_run}, partial(_show_removal, report, to=common.out, is_done=not dry_run)
    )


def _show_removal(report: ForgetReport, *, to: Console, is_done: bool = False) -> None:
    """Print the data that `forget` will remove or has removed."""
    names = f" ({', '.join(report.versions)})" if report.versions else ""
    rows = [pluralize(len(report.versions), "version") + names, pluralize(report.contexts, "context")]
    rows.append(pluralize(report.embeddings, "embedding"))
    if report.batched_requests:
        requests = pluralize(report.batched_requests, "request")
        rows.append(f"{requests} in batches, which the provider may still process and charge")
    say(f"{'Permanently removed' if is_done else '`forget` permanently removes'}: {', '.join(rows)}.", to=to)
