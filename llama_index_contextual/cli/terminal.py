"""Output of the command line: escaped text, paragraphs, JSON, reports, and errors in one line."""

from __future__ import annotations

import json
import logging
import shlex
import sqlite3
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from llama_index_contextual._utils.redaction import scrub
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import ContextualError, PathNotFoundError, with_advice

if TYPE_CHECKING:
    from llama_index_contextual.cli.demo import DemoAnswer
    from llama_index_contextual.index.manifest import DocumentRecord
    from llama_index_contextual.index.receipts import ProjectCost
    from llama_index_contextual.ingestion.estimate import CostEstimate
    from llama_index_contextual.ingestion.report import IngestReport
    from llama_index_contextual.project.project import ProjectInfo
    from llama_index_contextual.search.results import RetrievedChunk
    from llama_index_contextual.settings import Setting

# Rich must not replace ":key:" in a document with an emoji, nor colour numbers.
out = Console(emoji=False, highlight=False)
err = Console(stderr=True, emoji=False, highlight=False)


_LOGS_OF_CALLS = ("contextualizer", "ingestion.pipeline")

running: ContextVar[Any] = ContextVar("running", default=None)
"""Context of the running command, with the values of its options."""


def root_option() -> list[str]:
    """Return the option `--root` of the running command, if it was given, for commands that are proposed."""
    context = running.get()
    source = None if context is None else context.get_parameter_source("root")
    if source is None or source.name != "COMMANDLINE":
        return []
    return ["--root", str(context.params["root"])]


def has_command(name: str) -> bool:
    """Return whether this installation of the program has a command."""
    context = running.get()
    return context is not None and name in context.find_root().command.commands


def safe(text: str) -> str:
    """Return text from documents or the user without control characters, for use within Rich markup."""
    # The readers import LlamaIndex, which `--help` and `--version` do not need.
    from llama_index_contextual.readers.discovery import printable

    # Names in messages and reports are escaped already: their backslashes must not be doubled again.
    return escape("\\".join(printable(part) for part in text.split("\\")))


def snippet(text: str, width: int) -> str:
    """Return the beginning of a document's text as one line of at most `width` characters, for use within markup."""
    from llama_index_contextual.readers.discovery import one_line

    return escape(one_line(text, width))


def say(markup: str = "", *, to: Console = out, indent: int = 0) -> None:
    """Print a paragraph: wrapped at words on a terminal, otherwise in one line for other programs."""
    if to.is_terminal and markup:
        to.print(Padding(Text.from_markup(markup, emoji=False), (0, 0, 0, indent), expand=False))
    else:
        to.print(f"{' ' * indent}{markup}", soft_wrap=True)


def say_with_details(markup: str, facts: str) -> None:
    """Print a name and dimmed facts about it, in one line, or in two if the terminal is too narrow."""
    if out.is_terminal and Text.from_markup(f"{markup}  {facts}", emoji=False).cell_len > out.width:
        say(markup)
        say(f"[dim]{facts}[/]", indent=4)
    else:
        say(f"{markup}  [dim]{facts}[/]")


def say_json(value: Any) -> None:
    """Print a value as JSON on standard output, with control characters escaped."""
    text = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in _dump(value, ascii_only=False))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = _dump(value, ascii_only=True)
    sys.stdout.write(f"{text}\n")


def _dump(value: Any, *, ascii_only: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_only, indent=2)


def say_error(message: str) -> None:
    """Print an error message in one line on standard error."""
    say(f"[red]Error:[/] {safe(scrub(message))}", to=err)


class _Notices(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Print a record in one line; above a progress bar, which replaces `sys.stderr`."""
        sys.stderr.write(f"{Text.from_markup(safe(record.getMessage()), emoji=False).plain}\n")


@contextmanager
def notices() -> Iterator[None]:
    """Print what a run logs about calls to a provider: rate limits, batches, calls in flight after Ctrl-C."""
    handler = _Notices(logging.WARNING)
    loggers = [logging.getLogger(f"llama_index_contextual.{name}") for name in _LOGS_OF_CALLS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def say_traceback(error: BaseException) -> None:
    """Print a traceback on standard error, without API keys."""
    sys.stderr.write(scrub("".join(traceback.format_exception(error))))


def in_words(error: ContextualError | OSError) -> str:
    """Return the message of an error in the words of the command line, with commands that can be copied."""
    if not isinstance(error, ContextualError):
        return f"{error.filename}: {error.strerror}." if error.filename and error.strerror else f"{error}."
    if error.remedy is None:
        return str(error)
    context = running.get()
    name = str(context.params.get("name") or "NAME") if context is not None else "NAME"
    root = "".join(f" {shlex.quote(word)}" for word in root_option())
    advice = error.remedy.command_line.replace("{project}", f"{shlex.quote(name)}{root}").replace("{root}", root)
    return with_advice(error.problem, scrub(advice))


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Print errors of the input, the files or a model in one line, and exit.

    The exit code is 1, or 2 if a given path does not exist.
    """
    code = 1
    try:
        yield
    except BrokenPipeError:
        raise  # the program that reads the output has ended
    except PathNotFoundError as error:
        message, code = in_words(error), 2
    except (ContextualError, OSError) as error:
        message = in_words(error)
    except sqlite3.Error as error:
        message = f"SQLite: {error}."
    else:
        return
    say_error(message)
    raise typer.Exit(code)


def show_info(info: ProjectInfo) -> None:
    """Print the contents and settings of a project."""
    fallback = f"{pluralize(info.fallback_chunks, 'chunk')} without an LLM context (see `retry`)"
    pending = info.ledger.batched_requests
    rows = [
        ("project", info.name),
        ("live version", info.version or "none yet"),
        ("documents", f"{info.documents:,}"),
        ("chunks", f"{info.chunks:,} ({pluralize(info.tokens, 'token')})"),
        *([("fallback", fallback)] if info.fallback_chunks else []),
        ("on disk", f"{info.bytes / 1e6:,.1f} MB"),
        ("ledger", f"{pluralize(info.ledger.contexts, 'context')}, {pluralize(info.ledger.embeddings, 'embedding')}"),
        *([("in batches", f"{pluralize(pending, 'request')} pending")] if pending else []),
        *([("cost so far", _total_cost(info.cost))] if info.cost.runs else []),
        ("embedding", info.config.embed_model),
        ("context", info.config.context + (f" ({info.config.llm})" if info.config.context == "llm" else "")),
        ("mode", f"{info.config.mode}, top {info.config.top_k}"),
    ]
    for label, value in rows:
        say(f"[dim]{label:<14}[/]{safe(value)}")


def _total_cost(cost: ProjectCost) -> str:
    from llama_index_contextual.contextualizer.cost import money

    booked = f", of which {money(cost.booked)} for calls of unknown price" if cost.booked else ""
    unpriced = f", and {pluralize(cost.without_price, 'run')} without a known price" if cost.without_price else ""
    damaged = f"; {pluralize(cost.damaged, 'damaged receipt')} not counted" if cost.damaged else ""
    return f"{money(cost.dollars)} in {pluralize(len(cost.runs), 'run')}{booked}{unpriced}{damaged}"


def show_cost(cost: ProjectCost) -> None:
    """Print the cost of a project, by run and in total."""
    from llama_index_contextual.contextualizer.cost import money

    for run in cost.runs:
        day = datetime.fromtimestamp(run.started).strftime("%Y-%m-%d %H:%M")
        parts = [pluralize(run.calls, "call")] if run.calls else []
        parts += [f"tokens of {run.estimated_calls:,} of them estimated"] if run.estimated_calls else []
        parts += [f"{pluralize(run.embedding_tokens, 'token')} embedded"] if run.embedding_tokens else []
        if run.unsettled:
            calls = pluralize(run.unsettled_calls, "timed-out or interrupted call")
            parts.append(f"{money(run.unsettled)} booked for {calls}")
        if run.batches:
            parts.append(f"{money(sum(run.batches.values()))} booked for pending batches")
        if run.ended is None:
            parts.append(f"running or killed, {money(run.in_flight)} booked for calls in flight")
        models = " + ".join(name for name in (run.llm, run.embed_model) if name)
        say_with_details(f"{day}  {run.purpose:<8}{money(run.dollars)}", safe("; ".join([models, *parts])))
    say(f"total: {safe(_total_cost(cost))}; the embeddings of questions are not included")


def show_settings(settings: Sequence[Setting], *, by_environment: Collection[str] = ()) -> None:
    """Print all settings in the form FIELD=VALUE with their descriptions; changed values are highlighted."""
    for setting in settings:
        value = snippet(json.dumps(setting.value, ensure_ascii=False), 60)
        shown = value if setting.value == setting.default else f"[bold green]{value}[/]"
        mark = "rebuild" if setting.rebuild else "environment" if setting.name in by_environment else ""
        say(f"[bold]{setting.name}[/]={shown}{f'  [yellow]{mark}[/]' if mark else ''}")
        say(f"[dim]{safe(setting.description)}[/]", indent=4)
    say(
        "\nrebuild: a change takes effect with the next `rebuild` or `ingest`. To change settings: `create NAME --set"
        " FIELD=VALUE`, `configure NAME FIELD=VALUE`, or LLAMA_INDEX_CONTEXTUAL_FIELD in the environment or in a `.env`"
        " file, which `create` stores, and which overrides the project's setting if no rebuild is needed."
    )


def show_report(report: IngestReport, *, retry: str, as_json: bool = False, is_new: bool = True) -> None:
    """Print the report of an ingestion, as JSON or as text; as text, problems go to standard error.

    Args:
        report: The report.
        retry: The command that requests failed contexts again.
        as_json: Whether to print JSON.
        is_new: Whether its version was not printed before; otherwise only problems and costs are printed as text.
    """
    from llama_index_contextual.ingestion.report import skipped_lines

    if as_json:
        say_json(report.to_dict())
        return
    for former, doc_id in report.renamed.items():
        say(f"[dim]renamed[/] {safe(former)} to {safe(doc_id)}", to=err)
    for notice in report.notices:
        say(f"[yellow]note[/] {safe(notice)}", to=err)
    for doc_id in report.missing:
        advice = "its file no longer exists; the document is kept unless --replace is given"
        say(f"[yellow]missing[/] {safe(doc_id)}: {advice}", to=err)
    for line in skipped_lines(report.skipped):
        say(f"[yellow]skipped[/] {safe(line)}", to=err)
    for warning in report.warnings:
        say(f"[yellow]note[/] {safe(warning.path)}: {safe(warning.message)}", to=err)
    for advice in filter(None, (remedy.command_line for remedy in report.advice())):
        say(safe(advice), to=err)
    for line in report.failure_lines():
        say(f"[yellow]no LLM context[/] for {safe(line)}", to=err)
    for sentence, command in report.retry_advice(retry, f"{retry} --max-cost {{}}"):
        say(f"{safe(sentence)}:", to=err)
        say(safe(command), to=err, indent=2)
    requested = f" {pluralize(report.contexts_paid, 'context')} requested;" if report.contexts_paid else ""
    if is_new:
        say(f"Version [bold]{report.version}[/] is live: {report.summary()};{requested} {report.seconds:.1f} s.")
    if receipt := report.receipt():
        say(f"[dim]{safe(receipt)}.[/]")


def show_documents(records: Sequence[DocumentRecord]) -> None:
    """Print documents with their totals: as a table if their ids fit, otherwise with the facts below each id.

    An id is never cut or broken, so that it can be copied. Other programs get columns separated by tabs.
    """
    if not records:
        say("No documents yet.", to=err)
        return
    failed = sum(len(record.fallback_chunks) for record in records)
    if not out.is_terminal:
        for record in records:
            cells = [record.doc_id, f"{record.chunks}", f"{record.tokens}", f"{len(record.fallback_chunks)}"]
            # Rich would replace the tabs by spaces.
            cells = [Text.from_markup(safe(cell), emoji=False).plain for cell in [*cells, record.title or ""]]
            typer.echo("\t".join(cells))
        return
    has_titles = any(map(_has_title, records))
    beside = _WIDTH_WITH_TITLE if has_titles else _WIDTH_OF_NUMBERS
    if max(Text.from_markup(safe(record.doc_id), emoji=False).cell_len for record in records) <= out.width - beside:
        out.print(_documents_table(records, has_titles=has_titles, has_failures=bool(failed)))
    else:
        for record in records:
            out.print(f"[bold]{safe(record.doc_id)}[/]", soft_wrap=True)
            say(f"[dim]{_document_facts(record)}[/]", indent=4)
    chunks, tokens = sum(record.chunks for record in records), sum(record.tokens for record in records)
    totals = [pluralize(len(records), "document"), pluralize(chunks, "chunk"), pluralize(tokens, "token")]
    if failed:
        totals.append(f"[yellow]{pluralize(failed, 'chunk')} without an LLM context[/] (see `retry`)")
    say()
    say(", ".join(totals))


# Width that a table of documents needs next to the ids.
_WIDTH_OF_NUMBERS = 26
_WIDTH_WITH_TITLE = 46  # at least a legible part


def _documents_table(records: Sequence[DocumentRecord], *, has_titles: bool, has_failures: bool) -> Table:
    ids = max(Text.from_markup(safe(record.doc_id), emoji=False).cell_len for record in records)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("document", no_wrap=True, style="bold", min_width=ids)
    if has_titles:
        width = out.width - ids - _WIDTH_OF_NUMBERS
        table.add_column("title", no_wrap=True, overflow="ellipsis", max_width=width)
    for column in ("chunks", "tokens", *(["failed"] if has_failures else [])):
        table.add_column(column, no_wrap=True, justify="right", min_width=len(column))
    for record in records:
        failures = len(record.fallback_chunks)
        last = [f"[yellow]{failures:,}[/]" if failures else ""] if has_failures else []
        title = [_title(record, 200)] if has_titles else []
        table.add_row(safe(record.doc_id), *title, f"{record.chunks:,}", f"{record.tokens:,}", *last)
    return table


def _document_facts(record: DocumentRecord) -> str:
    failures = len(record.fallback_chunks)
    failed = [f"[yellow]{pluralize(failures, 'chunk')} without an LLM context[/]"] if failures else []
    facts = " · ".join([pluralize(record.chunks, "chunk"), pluralize(record.tokens, "token"), *failed])
    title = _title(record, max(20, out.width - 8 - Text.from_markup(facts).cell_len))
    return f"{title} · {facts}" if title else facts


def _has_title(record: DocumentRecord) -> bool:
    return record.title not in (None, "", record.doc_id, record.file_name)


def _title(record: DocumentRecord, width: int) -> str:
    return snippet(record.title or "", width) if _has_title(record) else ""


def show_estimate(estimate: CostEstimate) -> None:
    """Print the expected cost of an ingestion, with a row for each way to request contexts."""
    from llama_index_contextual.ingestion.estimate import CHOSEN
    from llama_index_contextual.ingestion.report import skipped_lines

    for line in skipped_lines(estimate.skipped):
        say(f"[yellow]skipped[/] {safe(line)}", to=err)
    for line in str(estimate).splitlines():
        if line.startswith(("  ", CHOSEN)):  # a row: wrapping words would collapse its columns
            out.print(f"[bold]{escape(line)}[/]" if line.startswith(CHOSEN) else escape(line), soft_wrap=True)
        else:
            say(safe(line))
    if estimate.max_cost:
        say(f"[dim]To set a limit for the run: `ingest` or `rebuild` with --max-cost {estimate.max_cost:g}[/]")


def show_answer(answer: DemoAnswer, *, top_k: int) -> None:
    """Print the rank of the answer to a demo question, without and with contexts."""
    say("")
    say(f"[bold]{safe(answer.question)}[/]")
    lines = Table.grid(padding=(0, 2))
    lines.add_row("without contexts", _rank(answer.rank_without, top_k))
    if answer.rank_without != 1 and answer.first_without is not None:
        lines.add_row("  first result", safe(_place(answer.first_without)))
    lines.add_row("with contexts", _rank(answer.rank_with, top_k))
    if answer.hit is not None:
        lines.add_row("  passage", safe(_place(answer.hit)))
        lines.add_row("  its context", f"[italic dim]{safe(answer.hit.written_context or '')}[/]")
    lines.add_row("  answer", f"… {snippet(answer.evidence, 160)} …")
    out.print(lines)


def _place(chunk: RetrievedChunk) -> str:
    first, last = chunk.source.page_start, chunk.source.page_end
    pages = "" if first is None else f", page {first}" if first == last else f", pages {first}–{last}"
    return f"{chunk.source.file_name}{pages}"


def _rank(rank: int | None, top_k: int) -> str:
    return f"[red]not in the first {top_k}[/]" if rank is None else f"[green]rank {rank}[/]"
