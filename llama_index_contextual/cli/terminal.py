"""Output of the command line: escaped text, paragraphs, JSON, reports, and errors in one line."""

from __future__ import annotations

import json
import sqlite3
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
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
from llama_index_contextual.errors import ContextualError, PathNotFoundError

if TYPE_CHECKING:
    from llama_index_contextual.cli.demo import DemoAnswer
    from llama_index_contextual.ingestion.estimate import CostEstimate
    from llama_index_contextual.ingestion.report import IngestReport
    from llama_index_contextual.project.info import ProjectInfo
    from llama_index_contextual.retrievers.response import RetrievalResponse, RetrievedChunk
    from llama_index_contextual.settings import Setting
    from llama_index_contextual.storage.receipts import ProjectCost

# Rich must not replace ":key:" in a document with an emoji, nor colour numbers.
out = Console(emoji=False, highlight=False)
err = Console(stderr=True, emoji=False, highlight=False)


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


def say(markup: str, *, to: Console = out, indent: int = 0) -> None:
    """Print a paragraph: wrapped at words on a terminal, otherwise in one line for other programs."""
    if to.is_terminal:
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


def say_traceback(error: BaseException) -> None:
    """Print a traceback on standard error, without API keys."""
    sys.stderr.write(scrub("".join(traceback.format_exception(error))))


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
        message, code = str(error), 2
    except ContextualError as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}." if error.filename and error.strerror else f"{error}."
    except sqlite3.Error as error:
        message = f"SQLite: {error}."
    else:
        return
    say_error(message)
    raise typer.Exit(code)


def show_info(info: ProjectInfo) -> None:
    """Print the contents and settings of a project."""
    fallback = f"{pluralize(info.fallback_chunks, 'chunk')} without an LLM context (`retry` requests it again)"
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
    say(f"total: {safe(_total_cost(cost))}; questions and answers are not included")


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


def show_report(report: IngestReport, *, retry: str, as_json: bool = False) -> None:
    """Print the report of an ingestion, as JSON or as text; as text, problems go to standard error.

    Args:
        report: The report.
        retry: The command that requests failed contexts again.
        as_json: Whether to print JSON.
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
    for line in report.failure_lines():
        say(f"[yellow]no LLM context[/] for {safe(line)}", to=err)
    if report.failures:
        say("These chunks have the structural context. To request it from the LLM again:", to=err)
        say(safe(retry), to=err, indent=2)
    requested = f" {pluralize(report.contexts_paid, 'context')} requested;" if report.contexts_paid else ""
    say(f"Version [bold]{report.version}[/] is live: {report.summary()};{requested} {report.seconds:.1f} s.")
    if receipt := report.receipt():
        say(f"[dim]{safe(receipt)}.[/]")


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


def show_response(response: RetrievalResponse) -> None:
    """Print the results of a search."""
    for warning in response.warnings:
        say(f"[yellow]{safe(warning)}[/]", to=err)
    if doubt := response.doubt():
        say(f"[yellow]{safe(doubt)}[/]", to=err)
    if not response.results:
        say("No results.")
    for chunk in response.results:
        legs = (("semantic", chunk.semantic), ("lexical", chunk.lexical), ("document", chunk.document))
        ranks = " · ".join(f"{leg} {evidence.rank}" for leg, evidence in legs if evidence is not None)
        say_with_details(f"[bold cyan]{chunk.rank:>2}.[/] [bold]{safe(str(chunk.source))}[/]", ranks)
        if context := chunk.written_context or chunk.context:
            say(f"[italic dim]{snippet(context, 200)}[/]", indent=4)
        say(snippet(chunk.excerpt(response.query, 320), 320), indent=4)
        for reason in response.explanations[chunk.rank - 1 : chunk.rank]:
            say_lines(str(reason).splitlines()[1:])
        say("")
    if response.near_misses:
        say("[bold]Near misses[/]")
        for reason in response.near_misses:
            say_lines(str(reason).splitlines())


def say_lines(lines: Sequence[str]) -> None:
    """Print lines unchanged, dimmed."""
    for line in lines:
        say(f"[dim]{safe(line.strip())}[/]", indent=4)


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
