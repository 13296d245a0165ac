"""Progress and report of an ingestion."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import PurePath
from typing import Any, Literal, TypeVar

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.contextualizer.base import ChunkFailure, Contextualized
from llama_index_contextual.contextualizer.cost import MARGIN, Bill, Spending, money, round_up
from llama_index_contextual.errors import Remedy
from llama_index_contextual.readers import FileWarning, SkippedFile
from llama_index_contextual.readers.files import CONVERT, SPLIT
from llama_index_contextual.readers.pdf.pages import NO_PASSWORD

T = TypeVar("T")

_LONGEST_ERROR = 1_000

MOST_SKIPPED = 10
"""Maximum number of skipped files listed individually; if there are more, they are grouped by type and reason."""

# Parts that may differ in messages of the same kind: numbers and ids, except HTTP status codes, and file names.
_PARTICULAR = re.compile(
    r"(?<![\w.-])(?![45]\d\d(?!\w|[.,]\d))[\w.,-]*\d[\w.,-]*|(?:(?<=same content as )|(?<=same file as )).*"
)
_RAW_BODY = re.compile(r"(?:\s*[-:])?\s*\{.*?['\"]message['\"]:\s*(['\"])(.*?)(?:\1\s*[,}].*|$)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class IngestProgress:
    """Progress of an ingestion.

    Attributes:
        stage: "batch" while waiting for the provider's batches, then "ingest", "publish" while the version is written
            and synced, and "done".
        documents_read: Number of documents read so far, including unreadable ones.
        documents_done: Number of finished documents.
        documents_total: Number of documents that need work.
        document: Name of the file that is being read, or an empty string.
        pages_done: Number of pages of this file that have been read.
        pages_total: Number of pages of this file; 0 if it has no pages, or none has been read yet.
        writes_contexts: Whether an LLM writes the contexts.
        chunks_total: Number of chunks in the documents read so far.
        chunks_done: Number of chunks that have a context.
        chunks_embedded: Number of chunks that have a vector, if there is a semantic index.
        bytes_done: Bytes of finished documents, and of other documents in proportion to their finished chunks.
        bytes_total: Bytes of the documents that need work.
        batch_done: Number of answered requests in the provider's batches.
        batch_total: Number of all requests in the provider's batches.
        dollars: Cost of the run so far at list prices, or None if a price is unknown.
    """

    stage: Literal["batch", "ingest", "publish", "done"]
    documents_read: int = 0
    documents_done: int = 0
    documents_total: int = 0
    document: str = ""
    pages_done: int = 0
    pages_total: int = 0
    writes_contexts: bool = False
    chunks_total: int = 0
    chunks_done: int = 0
    chunks_embedded: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    batch_done: int = 0
    batch_total: int = 0
    dollars: float | None = 0.0


ReportProgress = Callable[[IngestProgress], None]


@dataclass(frozen=True, kw_only=True)
class IngestReport:
    """Report of an ingestion.

    Attributes:
        version: Name of the version that is now live.
        added: Ids of new documents.
        updated: Ids of documents whose content has changed.
        renamed: Mapping of former ids to new ids for documents whose file has a new name or location.
        unchanged: Ids of documents of this call that were copied from the previous version; documents that are not
            among its inputs are left out.
        rebuilt: Ids of documents processed again because settings changed or chunks had failed.
        removed: Ids of documents that are no longer in the version.
        missing: Ids of documents whose file no longer exists in a folder of the call; they are kept unless `replace` is
            set.
        skipped: Files and empty Documents that were not read, each with the reason.
        warnings: Warnings about files that were read.
        failures: Chunks for which the LLM wrote no context; they have the structural context.
        short_contexts: Ids of chunks whose context has fewer than 15 words, although the LLM was asked twice.
        chunks: Number of chunks in the version.
        contexts_paid: Number of contexts requested from a provider in this run.
        seconds: Duration of the run.
        estimated: Expected calls, tokens and dollars; None unless an LLM writes the contexts.
        paid: Actual calls, tokens and dollars, including the amount booked for calls of unknown cost; None if nothing
            was charged.
        prices: Name and release of the price table.
        retry_max_cost: Limit with which `retry_failed` also requests the contexts that are held back, which are those
            that the LLM refused or whose reply in a batch cannot be read. None if there are none or a price is unknown.
        notices: Other notices, such as the number of chunks that were embedded in windows.
    """

    version: str | None
    added: Sequence[str] = ()
    updated: Sequence[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    unchanged: Sequence[str] = ()
    rebuilt: Sequence[str] = ()
    removed: Sequence[str] = ()
    missing: Sequence[str] = ()
    skipped: Sequence[SkippedFile] = ()
    warnings: Sequence[FileWarning] = ()
    failures: Sequence[ChunkFailure] = ()
    short_contexts: Sequence[str] = ()
    chunks: int = 0
    contexts_paid: int = 0
    seconds: float = 0.0
    estimated: Bill | None = None
    paid: Bill | None = None
    prices: str | None = None
    retry_max_cost: float | None = None
    notices: Sequence[str] = ()

    def completed(self, result: Contextualized) -> IngestReport:
        """Return the report with the results of the contextualizer."""
        return replace(
            self, failures=tuple(result.failures), contexts_paid=result.paid, short_contexts=tuple(result.thin)
        )

    def with_receipt(self, spending: Spending, *, writes: bool) -> IngestReport:
        """Return the report with the cost of the run, and the expected cost if an LLM writes the contexts."""
        estimated = spending.estimated if writes else None
        dollars = spending.held_back.dollars if any(failure.is_held_back for failure in self.failures) else None
        limit = None if dollars is None else round_up(MARGIN * dollars)
        return replace(
            self, estimated=estimated, paid=spending.booked, prices=spending.prices.version, retry_max_cost=limit
        )

    @property
    def cache_hit_rate(self) -> float:
        """Fraction of the input tokens that came from the provider's cache."""
        return 0.0 if self.paid is None else self.paid.contexts.cache_hit_rate

    def summary(self) -> str:
        """Return the counts on one line; counts of zero are left out, except the number of added documents."""
        counts = [f"{len(self.added)} added"]
        for name in ("updated", "renamed", "unchanged", "rebuilt", "removed", "missing", "skipped"):
            if number := len(getattr(self, name)):
                counts.append(f"{number} {name}")
        return f"{', '.join(counts)}; {pluralize(self.chunks, 'chunk')}"

    def receipt(self) -> str:
        """Return the actual and expected cost of the run on one line, or an empty string if nothing was charged."""
        paid, expected = self.paid, self.estimated
        if paid is None or not (paid.contexts.calls or paid.embedding_tokens or paid.unsettled_calls):
            return ""
        parts = []
        if paid.contexts.calls:
            names = ("calls", "input_tokens", "cached_tokens", "output_tokens")
            for name in names:
                estimated = "" if expected is None else f" (estimated {getattr(expected.contexts, name):,})"
                noun = name.replace("_", " ").removesuffix("s")
                parts.append(f"{pluralize(getattr(paid.contexts, name), noun)}{estimated}")
            parts.append(f"cache hit rate {self.cache_hit_rate:.0%}")
        if paid.embedding_tokens:
            parts.append(f"{pluralize(paid.embedding_tokens, 'token')} embedded")
        estimated = "" if expected is None else f" (estimated {money(expected.dollars)})"
        unsettled = paid.describe_unsettled()
        price = f"{money(paid.dollars)}{estimated} by {self.prices}"
        return "; ".join([*([", ".join(parts)] if parts else []), f"{price}, {unsettled}" if unsettled else price])

    def advice(self) -> list[Remedy]:
        """Return the advice on skipped files and warnings that differs between Python and the command line."""
        return advice_on([*(file.reason for file in self.skipped), *(one.message for one in self.warnings)])

    def failure_lines(self) -> list[str]:
        """Return one line for each kind of failure, with the number of chunks, an example and the error."""
        lines = []
        for group in _group(self.failures, lambda failure: _kind(condense(failure.error))):
            documents = len({failure.doc_id for failure in group})
            place = group[0].doc_id if documents == 1 else f"{documents:,} documents, such as {group[0].doc_id}"
            lines.append(f"{pluralize(len(group), 'chunk')} of {place}: {condense(group[0].error)}")
        return lines

    def retry_advice(self, retry: str, with_limit: str) -> list[tuple[str, str]]:
        """Return instructions for requesting failed contexts again, as pairs of a sentence and a call or command.

        Args:
            retry: The call or command.
            with_limit: The call or command with a limit, which replaces "{}".
        """
        advice = []
        held_back = sum(failure.is_held_back for failure in self.failures)
        if len(self.failures) > held_back:
            which = "the others" if held_back else "it"
            advice.append((f"These chunks have the structural context. To request {which} again", retry))
        if held_back:
            limit = self.retry_max_cost
            cost = f"at most {money(limit)}" if limit is not None else "which is unknown (see the setting 'prices')"
            chunks = pluralize(held_back, "context")
            advice.append(
                (
                    f"{chunks} refused or not read from a batch: requested again only if you accept the cost, {cost}",
                    with_limit.format("DOLLARS" if limit is None else str(limit)),
                )
            )
        return advice

    def to_dict(self) -> dict[str, object]:
        """Return the complete report as JSON values, with each file and chunk listed."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"Version {self.version}: {self.summary()}."]
        lines += [f"  {receipt}." for receipt in [self.receipt()] if receipt]
        lines += [f"  renamed {former} to {doc_id}" for former, doc_id in self.renamed.items()]
        lines += [f"  {notice}" for notice in self.notices]
        lines += [f"  missing {doc_id}" for doc_id in self.missing]
        lines += [f"  skipped {line}" for line in skipped_lines(self.skipped)]
        lines += [f"  {warning.path}: {warning.message}" for warning in self.warnings]
        lines += [f"  {remedy.python}" for remedy in self.advice()]
        if short := len(self.short_contexts):
            what = "context has" if short == 1 else "contexts have"
            lines.append(f"  {short:,} {what} fewer than 15 words, although the LLM was asked twice")
        lines += [f"  no LLM context for {line}" for line in self.failure_lines()]
        advice = self.retry_advice("project.retry_failed()", "project.retry_failed(max_cost={})")
        lines += [f"  {sentence}: {call}" for sentence, call in advice]
        return "\n".join(lines)

    __repr__ = __str__


def skipped_lines(skipped: Sequence[SkippedFile]) -> list[str]:
    """Return one line for each skipped file or, if there are more than ten, for each type and reason.

    Example:
        >>> skipped_lines([SkippedFile(f"inbox/{n}.docx", "has the type .docx") for n in range(200)])
        ['200 .docx files, such as inbox/0.docx: has the type .docx']
    """
    if len(skipped) <= MOST_SKIPPED:
        return [f"{file.path}: {file.reason}" for file in skipped]
    lines = []
    for group in _group(skipped, lambda file: (PurePath(file.path).suffix.lower(), _kind(file.reason))):
        suffix = PurePath(group[0].path).suffix.lower()
        count = f"{len(group):,} {suffix} files, such as ".replace("  ", " ") if len(group) > 1 else ""
        lines.append(f"{count}{group[0].path}: {group[0].reason}")
    return lines


IF_MOVED = "; unless that file was moved here"
"""End of the warning that an id already belongs to another document."""

_ADVICE = (
    (
        IF_MOVED,
        Remedy(
            "If files were moved: project.ingest(..., moved=True)",
            "If files were moved, run the command again with --moved.",
        ),
    ),
    (
        NO_PASSWORD,
        Remedy(
            "To open encrypted PDFs: project.ingest(..., passwords={'FILE': 'PASSWORD'})",
            "To open encrypted PDFs, add --password [FILE=]PASSWORD, or --password - to type it.",
        ),
    ),
    (CONVERT, Remedy("Files of other types can be loaded with LlamaIndex's readers and passed as Documents.", "")),
    (SPLIT, Remedy("To raise a limit: project.ingest(..., limits=ReadLimits(...))", "")),
)


def advice_on(messages: Iterable[str]) -> list[Remedy]:
    """Return the advice on skipped files and warnings that differs between Python and the command line."""
    text = "\n".join(messages)
    return [remedy for words, remedy in _ADVICE if words in text]


def condense(error: str) -> str:
    """Return an error on one line, with the raw body of a provider's answer reduced to its message.

    Example:
        >>> condense("'m' failed: Error code: 400 - {'error': {'message': 'Too long.', 'param': None}}")
        "'m' failed: Error code: 400: Too long."
    """
    return " ".join(_RAW_BODY.sub(r": \2", error[:_LONGEST_ERROR]).split())


def _kind(text: str) -> str:
    """Remove the parts of a message that differ between messages of the same kind."""
    return _PARTICULAR.sub("#", text)


def _group(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Group the items by key, and return the groups, largest first."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return sorted(groups.values(), key=len, reverse=True)


class ProgressCounter:
    """Thread-safe progress counter that calls `report` at the start and after each step.

    Args:
        report: Callback, or None.
        start: The progress at the start.

    Attributes:
        spent: Returns the cost of the run so far in dollars.
        bytes_read: Bytes of the documents read so far.
    """

    def __init__(self, report: ReportProgress | None, start: IngestProgress) -> None:
        self._report, self._state = report, start
        self._lock = threading.Lock()
        self.bytes_read = 0
        self.spent: Callable[[], float | None] = float
        self.set()

    def set(self, **values: Any) -> None:
        """Set fields of the progress."""
        self._update({}, values)

    def add(self, **numbers: int) -> None:
        """Add to fields of the progress."""
        self._update(numbers, {})

    def _update(self, numbers: Mapping[str, int], values: Mapping[str, Any]) -> None:
        with self._lock:
            sums = {name: getattr(self._state, name) + number for name, number in numbers.items()}
            self._state = replace(self._state, **sums, **values)
            if self._report is not None:
                self._state = replace(self._state, dollars=self.spent())
                self._report(self._state)

    def reading(self, document: str) -> None:
        """Set the name of the file that is being read."""
        self.set(document=document, pages_done=0, pages_total=0)

    def read(self, documents: int, *, size: int = 0) -> None:
        """Count documents that have just been read, including unreadable ones, and the bytes of the readable ones."""
        self.bytes_read += size
        self._update({"documents_read": documents}, {"document": "", "pages_done": 0, "pages_total": 0})

    @property
    def planned_share(self) -> float:
        """Fraction of the bytes that belong to documents read so far."""
        return min(1.0, self.bytes_read / self._state.bytes_total) if self._state.bytes_total else 0.0

    def enter(self, stage: Literal["ingest", "publish", "done"]) -> None:
        """Enter a stage; after "ingest", all documents count as done, including unreadable ones."""
        done = self._state.bytes_done if stage == "ingest" else self._state.bytes_total
        self.set(stage=stage, bytes_done=done)


@contextmanager
def progress_bar() -> Iterator[ReportProgress]:
    """Show the phase and a progress bar on standard error if it is a terminal or a notebook.

    The bar appears with the first report. After an error or an interruption, it is removed from the screen.
    """
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Bar(Progress):
        phase = ""

        def get_renderables(self) -> Iterable[RenderableType]:
            yield from [Text(self.phase, no_wrap=True, overflow="ellipsis")] if self.phase else []
            yield from super().get_renderables()

    console = Console(stderr=True, emoji=False)
    # The terminal shows Ctrl-C as "^C" at the end of the last line; without this margin, it would start a new line.
    console.width = max(20, console.width - 3)
    bar = Bar(
        BarColumn(bar_width=None),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
        expand=True,
        disable=not (console.is_terminal or console.is_jupyter),
    )
    task = bar.add_task("", total=None, left="")
    has_ended = False

    def report(state: IngestProgress) -> None:
        if not state.documents_total or has_ended:
            return
        seconds = bar.tasks[0].elapsed or 0.0
        bar.phase = _phase(state)
        bar.update(
            task,
            description=_describe(state, seconds),
            left=_time_left(state, seconds),
            completed=_share_done(state),
            total=1.0,
        )
        bar.start()

    try:
        yield report
    except BaseException:
        bar.live.transient = True
        raise
    finally:
        # Threads that are still reading must not restart the bar.
        has_ended = True
        if bar.live.is_started:  # rich before 14 prints an empty line otherwise
            bar.stop()


def _phase(state: IngestProgress) -> str:
    """Describe the current activity; return an empty string at the end."""
    if state.stage == "done":
        return ""
    if state.stage == "publish":
        return "Publishing the version"
    if state.stage == "batch":
        return "Waiting for batches of the provider (Ctrl-C leaves them running)"
    of_all = f"{min(state.documents_read + 1, state.documents_total):,} of {state.documents_total:,}"
    if state.document:
        pages = f" ({state.pages_done:,} of {pluralize(state.pages_total, 'page')})" if state.pages_total else ""
        return f"Reading {of_all}{pages}: {state.document}"
    if state.chunks_done < state.chunks_total:
        return "Requesting contexts" if state.writes_contexts else "Adding contexts"
    if state.chunks_embedded < state.chunks_total or state.documents_read == state.documents_total:
        return f"Embedding {state.chunks_embedded:,} of {pluralize(state.chunks_total, 'chunk')}"
    return f"Reading {of_all}"


def _describe(state: IngestProgress, seconds: float) -> str:
    if state.stage == "batch":
        return f"{state.batch_done:,}/{pluralize(state.batch_total, 'request')} answered"
    parts = [f"{state.documents_read:,}/{pluralize(state.documents_total, 'document')}"]
    if state.writes_contexts and state.stage == "ingest":
        parts.append(f"{state.chunks_done:,}/{pluralize(state.chunks_total, 'context')}")
    else:
        parts.append(pluralize(max(state.chunks_total, state.chunks_done), "chunk"))
    if state.chunks_done and seconds >= 1 and state.stage == "ingest":
        parts.append(f"{state.chunks_done / seconds:,.0f}/s")
    if state.dollars:
        parts.append(money(state.dollars))
    return " · ".join(parts)


def _share_done(state: IngestProgress) -> float:
    """Return the finished fraction of the work: reading, contexts and embedding, and publishing as the last 2 %.

    Reading takes about half of the time without an LLM, and a small part of it with an LLM.
    """
    if state.stage == "done":
        return 1.0
    reading = 0.05 if state.writes_contexts else 0.5
    read = state.documents_read / state.documents_total if state.documents_total else 1.0
    finished = state.bytes_done / state.bytes_total if state.bytes_total else 1.0
    return 0.98 * (reading * max(read, finished) + (1 - reading) * finished)


def _time_left(state: IngestProgress, seconds: float) -> str:
    """Return the time left at the mean rate so far; a moving average would be distorted by bursts of documents."""
    share = _share_done(state)
    if not share or seconds < 1 or state.stage in ("done", "batch"):
        return ""
    return f"{timedelta(seconds=round(seconds / share - seconds))} left"
