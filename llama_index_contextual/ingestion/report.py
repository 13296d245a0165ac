"""Progress and report of an ingestion."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from llama_index_contextual._utils.locks import Lock
from llama_index_contextual._utils.text import parse_json, pluralize
from llama_index_contextual.contextualizer.base import (
    MAX_CONTEXT_TOKENS,
    MIN_CONTEXT_TOKENS,
    THIN_TOKENS,
    ChunkFailure,
)
from llama_index_contextual.contextualizer.checks import Finding
from llama_index_contextual.contextualizer.sending import IncompleteBatch
from llama_index_contextual.index import files
from llama_index_contextual.money.price import money
from llama_index_contextual.money.receipt import Receipt
from llama_index_contextual.readers import FileWarning, SkippedFile

SKIPPED_FILE = "skipped.json"

_LONGEST_ERROR = 300

_WITHOUT_CONTEXT = "These chunks have the structural context. To request their contexts again"
_WITHOUT_VECTOR = "These chunks are found by their words only. To embed them again"
_WITHOUT_EITHER = "These chunks have the structural context, or are found by their words only. To process them again"

_FINDINGS: dict[Finding, str] = {
    "unsupported": "with names or numbers that are not in the segment: they are left out",
    "repetition": "that repeated the chunk: the repetition is left out",
    "keywords": "in the form of a list of keywords",
    "self_reference": "that speak of “this chunk”",
    "language": "in another language than the document",
    "missing_line": "without a line in each of the other `context_languages`",
}

MOST_SKIPPED = 10
"""Maximum number of skipped files listed individually; if there are more, they are grouped by reason."""


@dataclass(frozen=True, kw_only=True)
class IngestProgress:
    """Progress of an ingestion.

    Attributes:
        stage: "batch" while waiting for the provider's batches, then "ingest", "publish" while the version is written
            and synced, and "done".
        documents_read: Number of documents read so far, including unreadable documents.
        documents_done: Number of finished documents.
        documents_total: Number of documents that need work.
        document: Name of the file that is being read, or an empty string.
        pages_done: Number of pages of this file that have been read.
        pages_total: Number of pages of this file; 0 if the file has no pages or no page has been read yet.
        writes_contexts: Whether an LLM writes the contexts.
        chunks_total: Number of chunks in the documents read so far.
        chunks_done: Number of chunks that have a context.
        chunks_embedded: Number of chunks that have a vector, if there is a semantic index.
        batch_done: Number of answered requests in the provider's batches.
        batch_total: Total number of requests in the provider's batches.
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
    batch_done: int = 0
    batch_total: int = 0
    dollars: float | None = 0.0

    @property
    def share_read(self) -> float:
        """Fraction of the documents that have been read."""
        return self.documents_read / self.documents_total if self.documents_total else 0.0

    @property
    def share_done(self) -> float:
        """Fraction of the work that is finished: reading, contexts, embedding and, as the last 2 %, publishing.

        Reading counts as half of the work without an LLM, and as a twentieth of the work with an LLM. The pages of the
        current file count in proportion.
        """
        if self.stage == "done":
            return 1.0
        reading = 0.05 if self.writes_contexts else 0.5
        chunks = (self.chunks_done + self.chunks_embedded) / (2 * self.chunks_total) if self.chunks_total else 0.0
        current = self.pages_done / self.pages_total / self.documents_total if self.pages_total else 0.0
        return 0.98 * (self.share_read * (reading + (1 - reading) * chunks) + current * reading)


ReportProgress = Callable[[IngestProgress], None]


@dataclass(frozen=True)
class ContextLengths:
    """Lengths of contexts that an LLM wrote, without structural lines, compared with the target of 50 to 200 tokens.

    Attributes:
        mean: Mean number of tokens.
        below: Fraction of the contexts with fewer than 50 tokens.
        above: Fraction of the contexts with more than 200 tokens, which are shortened.

    Example:
        >>> print(ContextLengths.measure([40, 60, 80, 100]))
        70 tokens on average; 25 % have fewer than 50, and 0 % had more than 200 and are shortened
    """

    mean: float
    below: float
    above: float

    @property
    def is_off_target(self) -> bool:
        """Whether more than a tenth of the contexts are outside the target."""
        return self.below + self.above > 0.1

    @classmethod
    def measure(cls, lengths: Sequence[int]) -> ContextLengths:
        """Return the mean and the fractions for contexts with these numbers of tokens."""
        below = sum(length < MIN_CONTEXT_TOKENS for length in lengths)
        above = sum(length > MAX_CONTEXT_TOKENS for length in lengths)
        return cls(sum(lengths) / len(lengths), below / len(lengths), above / len(lengths))

    def __str__(self) -> str:
        return (
            f"{self.mean:.0f} tokens on average; {100 * self.below:.0f} % have fewer than {MIN_CONTEXT_TOKENS}, and"
            f" {100 * self.above:.0f} % had more than {MAX_CONTEXT_TOKENS} and are shortened"
        )


@dataclass(frozen=True, kw_only=True)
class IngestReport:
    """Report of an ingestion.

    Attributes:
        version: Name of the version that is now live.
        added: Ids of new documents.
        updated: Ids of documents whose content has changed.
        renamed: Mapping of former ids to new ids for documents whose file has a new name or location.
        unchanged: Ids of documents of this call that were copied from the previous version; documents that are not
            among the inputs are omitted.
        rebuilt: Ids of documents that were processed again because settings had changed or chunks had failed.
        removed: Ids of documents that are no longer in the version.
        missing: Ids of documents whose file no longer exists in a folder of the call; they are kept unless `replace` is
            set.
        skipped: Files and empty Documents that were not read, each with the reason.
        warnings: Warnings about files that were read.
        failures: Chunks without a context from the LLM, which have the structural context instead, and chunks without
            a usable vector, which are found by their words only.
        short_contexts: Ids of chunks whose context has fewer than 15 tokens.
        incomplete_batch: Requests that batches left without a usable reply, with the cost of a retry, or None.
        context_lengths: Lengths of the contexts that an LLM wrote in this run, or None if it wrote none.
        context_findings: Numbers of contexts with each kind of fault (see `contextualizer.checks.Finding`). Sentences
            with names or numbers that are not in the segment, and repetitions of the chunk, were removed.
        chunks: Number of chunks in the version.
        contexts_paid: Number of contexts requested from a provider in this run.
        contexts_kept: Number of chunks of unchanged files that kept their contexts, although the title or other text of
            their segment is read differently now. `rebuild(renew=True)` requests these contexts again.
        seconds: Duration of the run.
        estimated: Expected calls, tokens and dollars; None unless an LLM writes the contexts.
        paid: Actual calls, tokens and dollars, including the amount recorded for calls of unknown cost; None if nothing
            was charged.
        prices: Name and release of the price table.
        unknown_languages: Message about languages of the documents that the embedding model does not know, or None.
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
    incomplete_batch: IncompleteBatch | None = None
    short_contexts: Sequence[str] = ()
    context_lengths: ContextLengths | None = None
    context_findings: Mapping[Finding, int] = field(default_factory=dict)
    chunks: int = 0
    contexts_paid: int = 0
    contexts_kept: int = 0
    seconds: float = 0.0
    estimated: Receipt | None = None
    paid: Receipt | None = None
    prices: str | None = None
    unknown_languages: str | None = None

    @property
    def cache_hit_rate(self) -> float:
        """Fraction of the input tokens that came from the provider's cache."""
        return 0.0 if self.paid is None else self.paid.contexts.cache_hit_rate

    def summary(self) -> str:
        """Return the counts on one line, omitting zeros except for the number of added documents."""
        counts = [f"{len(self.added)} added"]
        for name in ("updated", "renamed", "unchanged", "rebuilt", "removed", "missing", "skipped"):
            if number := len(getattr(self, name)):
                counts.append(f"{number} {name}")
        return f"{', '.join(counts)}; {pluralize(self.chunks, 'chunk')}"

    def receipt(self) -> str:
        """Return the actual and expected cost of the run on one line, or an empty string if nothing was charged."""
        actual, estimate = self.paid, self.estimated
        if actual is None or not (actual.calls or actual.embedding_tokens or actual.unsettled_calls):
            return ""
        parts = []
        about = "about " if actual.estimated_calls else ""
        if actual.calls:
            names = ("calls", "input_tokens", "cached_tokens", "output_tokens")
            for name in names:
                estimated = "" if estimate is None else f" (estimated {getattr(estimate, name):,})"
                noun = name.replace("_", " ").removesuffix("s")
                prefix = "" if name == "calls" else about
                parts.append(f"{prefix}{pluralize(getattr(actual, name), noun)}{estimated}")
            parts.append(f"cache hit rate {self.cache_hit_rate:.0%}")
        if actual.embedding_tokens:
            about = "about " if actual.estimated_embedding_tokens else ""
            parts.append(f"{about}{pluralize(actual.embedding_tokens, 'token')} embedded")
        estimated = "" if estimate is None else f" (estimated {money(estimate.dollars)})"
        price = f"{money(actual.dollars, is_estimated=actual.is_estimated)}{estimated} by {self.prices}"
        price = ", ".join(filter(None, (price, actual.describe_unsettled())))
        return "; ".join(filter(None, (", ".join(parts), price, actual.describe_estimated())))

    @property
    def advice(self) -> str:
        """State of the failed chunks, and the beginning of a sentence that ends with the command for a retry."""
        steps = {failure.step for failure in self.failures}
        if len(steps) > 1:
            return _WITHOUT_EITHER
        return _WITHOUT_VECTOR if "embedding" in steps else _WITHOUT_CONTEXT

    @property
    def is_held_back(self) -> bool:
        """True if `retry_failed` requires `max_cost` to request some of the failed contexts again."""
        return any(failure.is_held_back for failure in self.failures)

    def details(self) -> list[tuple[str, str]]:
        """Return the details to show below the summary, as pairs of a label and a line."""
        short, lengths = pluralize(len(self.short_contexts), "context"), self.context_lengths
        failed: dict[str, list[tuple[str, str]]] = {"context": [], "embedding": []}
        for failure in self.failures:
            failed[failure.step].append((failure.doc_id, failure.error))
        return [
            *(("renamed", f"{former} to {doc_id}") for former, doc_id in self.renamed.items()),
            *(("missing", doc_id) for doc_id in self.missing),
            *(("skipped", line) for line in skipped_lines(self.skipped)),
            *(("note", f"{warning.path}: {warning.message}") for warning in self.warnings),
            *([("kept", kept_contexts(self.contexts_kept))] if self.contexts_kept else []),
            *([("note", f"{short} with fewer than {THIN_TOKENS} tokens")] if self.short_contexts else []),
            *([("note", f"contexts: {lengths}")] if lengths and lengths.is_off_target else []),
            *(("note", f"{pluralize(number, 'context')} {fault}") for number, fault in self._findings()),
            *([("note", f"{self.unknown_languages}: see `doctor`")] if self.unknown_languages else []),
            *([("note", f"{self.incomplete_batch}")] if self.incomplete_batch is not None else []),
            *(("no LLM context for", line) for line in _in_groups(failed["context"], "chunk")),
            *(("no vector for", line) for line in _in_groups(failed["embedding"], "chunk")),
        ]

    def _findings(self) -> Iterator[tuple[int, str]]:
        """Yield the number of contexts with each kind of fault, and its description, in a fixed order."""
        for kind, description in _FINDINGS.items():
            if number := self.context_findings.get(kind):
                yield number, description

    def to_dict(self) -> dict[str, object]:
        """Return the complete report as JSON values, with each file and chunk listed."""
        receipts = {"estimated": self.estimated, "paid": self.paid}
        return {**asdict(self), **{name: receipt and receipt.to_dict() for name, receipt in receipts.items()}}

    def __str__(self) -> str:
        lines = [f"Version {self.version}: {self.summary()}."]
        lines += [f"  {receipt}." for receipt in [self.receipt()] if receipt]
        lines += [f"  {label} {text}" for label, text in self.details()]
        if self.failures:
            limit = ["max_cost=..."] if self.is_held_back else []
            calls = [f"project.retry_failed({', '.join(limit)})"]
            if self.incomplete_batch is not None:
                calls.append(f"project.retry_failed({', '.join([*limit, 'batch=True'])})")
            lines.append(f"  {self.advice}: {' or '.join(calls)}")
        return "\n".join(lines)

    __repr__ = __str__


def kept_contexts(number: int) -> str:
    """Describe contexts that are kept although the title or other text of their segment is read differently.

    Example:
        >>> kept_contexts(412)
        'from before: 412 contexts, $0.00; a rebuild with `renew` requests new ones'
    """
    return f"from before: {pluralize(number, 'context')}, {money(0.0)}; a rebuild with `renew` requests new ones"


def describe_failed(contexts: int, vectors: int) -> str:
    """Describe numbers of failed chunks.

    Args:
        contexts: Number of chunks without a context from the LLM.
        vectors: Number of chunks without a usable vector.

    Example:
        >>> describe_failed(2, 0), describe_failed(1, 3)
        ('2 chunks without an LLM context', '1 chunk without an LLM context, 3 chunks without a vector')
    """
    kinds = ((contexts, "an LLM context"), (vectors, "a vector"))
    return ", ".join(f"{pluralize(number, 'chunk')} without {what}" for number, what in kinds if number)


def store_skipped(project_dir: Path, skipped: Sequence[SkippedFile]) -> None:
    """Store the files that the last ingestion skipped, for `read_skipped`."""
    path = project_dir / SKIPPED_FILE
    rows = json.dumps(sorted((file.path, file.reason) for file in skipped)).encode() if skipped else None
    if rows is None and path.is_file():
        files.remove(path)
    elif rows is not None and rows != _stored_skipped(path):
        files.replace(path, rows)


def _stored_skipped(path: Path) -> bytes | None:
    try:
        return files.read(path)
    except OSError:
        return None


def read_skipped(project_dir: Path) -> list[SkippedFile]:
    """Return the files that the last ingestion skipped, or an empty result if the list is missing or damaged."""
    try:
        rows = parse_json(files.read(project_dir / SKIPPED_FILE))
        return [SkippedFile(str(path), str(reason)) for path, reason in rows]
    except (OSError, ValueError, TypeError):
        return []


def skipped_lines(skipped: Sequence[SkippedFile]) -> list[str]:
    """Return one line per skipped file or, if more than ten files are skipped, one line per reason.

    Example:
        >>> skipped_lines([SkippedFile(f"inbox/{n}.docx", "has the type .docx") for n in range(200)])
        ['200 files, such as inbox/0.docx: has the type .docx']
    """
    if len(skipped) <= MOST_SKIPPED:
        return [f"{file.path}: {file.reason}" for file in skipped]
    return _in_groups([(file.path, file.reason) for file in skipped], "file")


def _in_groups(items: Iterable[tuple[str, str]], noun: str) -> list[str]:
    """Group places by kind of reason, and return one line per group, largest group first.

    Args:
        items: Pairs of a place and a reason. Reasons of the same kind differ only in numbers and ids.
        noun: Noun for the places, such as "file".
    """
    groups: dict[str, list[str]] = {}
    for place, reason in items:
        line = " ".join(f"{place}: {reason[:_LONGEST_ERROR]}".split())
        # Reasons of the same kind differ only in numbers and ids.
        kind = " ".join("#" if any(map(str.isdecimal, word)) else word for word in reason.split())
        groups.setdefault(kind, []).append(line)
    return [
        lines[0] if len(lines) == 1 else f"{pluralize(len(lines), noun)}, such as {lines[0]}"
        for lines in sorted(groups.values(), key=len, reverse=True)
    ]


class ProgressCounter:
    """Thread-safe progress counter that calls `report` at the start and after each step.

    Args:
        report: Callback, or None.
        state: The progress at the start.

    Attributes:
        state: The progress so far.
        spent: Function that returns the cost of the run so far in dollars.
    """

    def __init__(self, report: ReportProgress | None, state: IngestProgress) -> None:
        self._report, self.state = report, state
        self._lock = Lock()
        self.spent: Callable[[], float | None] = float
        self.set()

    def set(self, **values: Any) -> None:
        """Set fields of the progress."""
        self._update({}, values)

    def add(self, **numbers: int) -> None:
        """Add numbers to fields of the progress."""
        self._update(numbers, {})

    def _update(self, numbers: Mapping[str, int], values: Mapping[str, Any]) -> None:
        with self._lock:
            sums = {name: getattr(self.state, name) + number for name, number in numbers.items()}
            self.state = replace(self.state, **sums, **values)
            if self._report is not None:
                self.state = replace(self.state, dollars=self.spent())
                self._report(self.state)

    def reading(self, document: str = "") -> None:
        """Set the name of the file that is being read."""
        self.set(document=document, pages_done=0, pages_total=0)


@contextmanager
def progress_bar() -> Iterator[ReportProgress]:
    """Show a progress bar if standard error is a terminal or a notebook, and remove it at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column

    console = Console(stderr=True, emoji=False)
    if not (console.is_terminal or console.is_jupyter):  # old versions of rich print a line even if disabled
        yield lambda state: None
        return
    with Progress(
        BarColumn(bar_width=12),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        console=console,
        transient=True,
        expand=True,  # gives the description the rest of the line, so that the times are not cut off
    ) as bar:
        task = bar.add_task("", total=1.0, visible=False)

        def report(state: IngestProgress) -> None:
            is_visible = bool(state.documents_total)
            bar.update(task, description=_describe(state), completed=state.share_done, visible=is_visible)

        yield report


def _describe(state: IngestProgress) -> str:
    """Return a line for the progress bar that describes the finished work and the current activity."""
    if state.stage == "batch":
        requests = f"{state.batch_done:,}/{pluralize(state.batch_total, 'request')} answered"
        return f"{requests} in batches of the provider (Ctrl-C leaves them running)"
    parts = [f"{state.documents_read:,}/{pluralize(state.documents_total, 'document')}"]
    if state.writes_contexts and state.stage == "ingest":
        parts.append(f"{state.chunks_done:,}/{pluralize(state.chunks_total, 'context')}")
    else:
        parts.append(pluralize(max(state.chunks_total, state.chunks_done), "chunk"))
    if state.dollars:
        parts.append(money(state.dollars))
    if state.document:
        pages = f"{state.pages_done:,}/{pluralize(state.pages_total, 'page')} of " if state.pages_total else ""
        parts.append(f"reading {pages}{state.document}")
    return " · ".join(parts)
