"""The `search`, `ask` and `chat` commands, which answer questions, and their terminal output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, cast

import typer
from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli import common
from llama_index_contextual.cli.common import Commands, Name, err, safe, say
from llama_index_contextual.config import LOCAL, SPOTLIGHT, Mode, Prefixes, ProjectConfig
from llama_index_contextual.errors import ContextualError, ModelError
from llama_index_contextual.metadata import context_parts

if TYPE_CHECKING:
    from llama_index_contextual.answering.chat_engine import GroundedChatEngine
    from llama_index_contextual.answering.response import GroundedResponse, GroundedStream
    from llama_index_contextual.index.analysis import Analyzer
    from llama_index_contextual.project.project import Project
    from llama_index_contextual.search.live import SearchableVersion
    from llama_index_contextual.search.response import BaseHit, SearchResponse

commands = Commands("Questions")

TOP_K_WITHOUT_LLM = 3
FEW = 5
"""Number of results that `search` shows, unless a number is given."""
_CHAT_COMMANDS = "/reset clears the conversation; /quit, exit, :q or Ctrl-D ends it."
_LAST_LINES = frozenset({"exit", "quit", ":q", "/exit", "/quit", "/q"})


@commands.command()
def search(
    name: Name,
    question: Annotated[str, typer.Argument(metavar="QUESTION")],
    mode: Annotated[Mode | None, typer.Option(metavar="MODE", rich_help_panel=common.SEARCH)] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", "-n", "-k", metavar="NUMBER", rich_help_panel=common.SEARCH)
    ] = None,
    conditions: common.Filters = None,
    files: common.Files = None,
    full: Annotated[bool, typer.Option("--full")] = False,
    explain: Annotated[bool, typer.Option("--explain")] = False,
    why_not: Annotated[str | None, typer.Option("--why-not", metavar="DOCUMENT")] = None,
) -> None:
    """Show the passages that best answer a question.

    Args:
        question: Words or a question to search for.
        mode: Indexes to search: semantic, lexical or hybrid; by default the project's `mode`.
        top_k: Number of results to show; by default at most 5 that are likely to answer the question.
        full: Show whole passages with their contexts.
        explain: Explain the ranks of the results and of the next hits.
        why_not: Instead of the results, show the rank of this document, and what it lacks to be one of them.
    """
    # Imported here because other commands do not need these functions.
    from llama_index_contextual.index.project_file import existing_project, read_config

    directory = existing_project(common.root(), name)
    config = common.with_environment(read_config(directory), os.environ)
    response: SearchResponse | None = None
    if why_not is None and not (conditions or files):
        response = _search_locally(directory, config, question, mode=mode, top_k=top_k, explain=explain)
    if response is None:
        project = common.open_project(name)
        filters = project.state.live.parse_filters(conditions, files)
        if why_not is not None:
            standing = project.why_not(question, why_not, mode=mode, top_k=top_k, filters=filters)
            common.say_result(asdict(standing), "\n".join(map(safe, str(standing).splitlines())))
            return
        response = project.retrieve(
            question, mode=mode, top_k=top_k, filters=filters, min_relevance="auto", explain=explain
        )
    show = partial(show_response, response, full=full, most=FEW if top_k is None else None)
    common.say_result(response.to_dict(), show)


def _search_locally(
    directory: Path,
    config: ProjectConfig,
    question: str,
    *,
    mode: Mode | None,
    top_k: int | None,
    explain: bool,
) -> SearchResponse | None:
    """Search like `Project.retrieve`, but without importing LlamaIndex.

    Args:
        directory: Directory of the project.
        config: Settings of the project.
        question: The question.
        mode: Indexes to search; None uses `config.mode`.
        top_k: Number of results; None uses `config.top_k`.
        explain: Whether to explain the ranks of the results.

    Returns:
        The response, or None if the reranker or the embedding model needs LlamaIndex.

    Raises:
        InputError: The question is empty, or `top_k` is not positive.
        NoVersionError: Nothing has been ingested yet.
    """
    from llama_index_contextual.embeddings.words import WordEmbedder
    from llama_index_contextual.search.live import LiveIndexes, LiveVersions
    from llama_index_contextual.search.response import mark_superseded
    from llama_index_contextual.search.search import (
        Query,
        SearchSettings,
        complete_response,
        limit_text,
        require_positive,
        search,
    )

    if config.rerank not in (None, SPOTLIGHT):
        return None
    text, notes = limit_text(question)
    settings = SearchSettings.of(
        config,
        mode=mode or config.mode,
        k=require_positive(config.top_k if top_k is None else top_k),
        filters=None,
        min_relevance="auto",
        explain=explain,
    )

    def run(version: SearchableVersion) -> SearchResponse | None:
        manifest = version.manifest
        embeds = version.has_semantic and (settings.mode != "lexical" or not version.has_lexical)
        if embeds and {manifest.embed_model, manifest.config["embed_model"]} != {LOCAL}:
            return None
        embedder = WordEmbedder() if embeds else None
        found = search(Query.of(text), version.index, settings, embedder=embedder, version=version.name)
        return mark_superseded(found, version.docstore.superseded)

    response = LiveIndexes(LiveVersions(directory, directory.name, _no_model)).run(run)
    return None if response is None else complete_response(response, question, notes)


def _no_model(setting: str, name: str, prefixes: Prefixes) -> NoReturn:
    raise AssertionError(f"{name!r} is not loaded here")  # pragma: no cover


# ---- LLM answers -----------------------------------------------------------------------------------------------------


def _open_to_answer(name: str, llm: str | None, settings: Sequence[str] | None) -> Project:
    """Open a project, and override its settings with the `--llm` and `--set` options.

    Answers are cached unless the `answer_cache` setting has a value.
    """
    project = common.open_with(name, common.changed_settings(llm, settings, answers=True))
    if project.config.answer_cache is None:
        project.state.config = project.config.changed(answer_cache=True)
    return project


@commands.command()
def ask(
    name: Name,
    question: Annotated[str, typer.Argument(metavar="QUESTION")],
    llm: common.Llm = None,
    settings: common.Settings = None,
    conditions: common.Filters = None,
    files: common.Files = None,
) -> None:
    """Answer a question from the documents, with sources; without an LLM, show the best passages.

    Args:
        question: The question.
    """
    project = _open_to_answer(name, llm, settings)
    filters = project.state.live.parse_filters(conditions, files)
    try:
        engine = project.as_query_engine(filters=filters, streaming=not common.wants_json())
    except ModelError as error:
        if not common.wants_json():
            say(f"[yellow]No LLM answer: {safe(common.cli_message(error))} These are the best passages.[/]", to=err)
        passages = _passages(project, question, filters)
        if common.wants_json():
            common.say_json({**passages, "error": common.cli_message(error)})
        return
    response = engine.query(question)
    if common.wants_json():
        answer = cast("GroundedResponse", response)
        common.say_json(answer.to_dict())
    else:
        stream = cast("GroundedStream", response)
        answer = _show_answer(stream.response_gen, stream.get_response)
    if answer.is_missing:
        raise typer.Exit(1)


@commands.command()
def chat(
    name: Name,
    follow_ups: Annotated[
        Literal["blend", "condense", "simple"], typer.Option(metavar="WAY", rich_help_panel=common.SEARCH)
    ] = "blend",
    llm: common.Llm = None,
    settings: common.Settings = None,
    conditions: common.Filters = None,
    files: common.Files = None,
) -> None:
    """Answer questions from standard input, one per line, as a conversation; /help lists the commands.

    Args:
        follow_ups: How follow-up questions are searched: blend (with the conversation), condense (rewritten by the LLM)
            or simple (unchanged).
    """
    project = _open_to_answer(name, llm, settings)
    filters = project.state.live.parse_filters(conditions, files)
    engine: GroundedChatEngine | None = None
    try:
        engine = project.as_chat_engine(mode=follow_ups, filters=filters)
    except ModelError as error:
        if not common.wants_json():
            say(f"[yellow]{safe(common.cli_message(error))} Showing the best passages instead.[/]", to=err)
    if sys.stdin.isatty():
        say(f"[dim]One question per line. {_CHAT_COMMANDS}[/]", to=err)
    turns = []
    try:
        for line in _typed_lines():
            if line.startswith("/"):
                if line == "/reset" and engine is not None:
                    engine.reset()
                say(f"[dim]{'The conversation was cleared.' if line == '/reset' else _CHAT_COMMANDS}[/]", to=err)
            else:
                turns.append(_turn(project, engine, line, filters))
    except KeyboardInterrupt:
        err.print()
        raise typer.Exit(130) from None
    if common.wants_json():
        common.say_json(turns)


def _typed_lines() -> Iterator[str]:
    """Yield the non-blank lines of standard input, up to its end or to a line that ends the conversation."""
    while True:
        try:
            line = err.input("[bold cyan]?[/] " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        if line.lower() in _LAST_LINES:
            return
        if line:
            yield line


def _turn(project: Project, engine: GroundedChatEngine | None, question: str, filters: Any) -> dict[str, Any]:
    """Answer one line of a conversation, print the answer or the error, and return it as JSON values."""
    try:
        if engine is None:
            return {"question": question, **_passages(project, question, filters)}
        if common.wants_json():
            answer = cast("GroundedResponse", engine.chat(question).grounded)
        else:
            stream = engine.stream_chat(question)
            answer = _show_answer(stream.response_gen, lambda: cast("GroundedResponse", stream.grounded))
        return {"question": question, **answer.to_dict()}
    except ContextualError as error:
        if not common.wants_json():
            common.say_error(common.cli_message(error))
        return {"question": question, "answer": None, "error": common.cli_message(error)}


def _passages(project: Project, question: str, filters: Any) -> dict[str, Any]:
    """Return the best passages as JSON values, and print them unless the output is JSON."""
    response = project.retrieve(question, top_k=TOP_K_WITHOUT_LLM, filters=filters, min_relevance="auto")
    if not common.wants_json():
        show_response(response)
    return {"answer": None, "retrieval": response.to_dict()}


def _show_answer(pieces: Iterator[str], finish: Callable[[], GroundedResponse]) -> GroundedResponse:
    """Print an answer as it arrives, and then its sources and warnings; an answer that is missing is an error."""
    first = list(islice(pieces, 2))
    if len(first) == 2 or not finish().is_missing:
        _show_pieces(chain(first, pieces))
    answer = finish()
    if answer.is_missing:
        common.say_error(f"There is no answer. {answer.partial}")
    _show_findings(answer)
    return answer


def _show_pieces(pieces: Iterable[str]) -> None:
    """Print an answer as it arrives, rendered as Markdown on a terminal and as plain text otherwise."""
    text = ""
    if common.out.is_terminal:
        # The targets of links in an answer must be visible, so links are not clickable.
        with Live(get_renderable=lambda: Markdown(text, hyperlinks=False), console=common.out):
            for piece in pieces:
                text += _harmless(piece, "\n\t")
        return
    for piece in pieces:
        text = _harmless(piece, "\n\t")
        common.out.print(text, end="", markup=False, soft_wrap=True)
    if text:
        common.out.print()


def _harmless(text: str, exceptions: str) -> str:
    """Replace control characters, except the characters in `exceptions`, with spaces."""
    return "".join(sign if sign.isprintable() or sign in exceptions else " " for sign in text)


def _show_findings(answer: GroundedResponse) -> None:
    """Print the sources and usage of an answer, and any warnings about it."""
    # Imported here because searches do not need it.
    from llama_index_contextual.answering.findings import findings_of

    usage = answer.usage
    for finding in findings_of(answer):
        if finding.kind == "note" or (finding.kind == "bad" and not answer.is_missing):
            quotations = "; ".join(" ".join(text.split()) for text in finding.quotations)
            say(f"[yellow]{safe(f'{finding.text} {quotations}'.rstrip())}[/]", to=err)
    if usage is not None and usage.problem:
        say(f"[yellow]{safe(usage.problem)}[/]", to=err)
    if answer.from_cache:
        say("[dim]From the cache: no tokens sent for this answer.[/]", to=err)
    for number, source in answer.cited_sources if answer.found else ():
        say(f"[dim]\\[Source {number}][/] {safe(str(source))}")
    for figure in answer.figures if answer.found else ():
        say(f"[dim]▣ {safe(figure.line())}[/]")
    if sources := answer.read_sources:
        say("[dim]Read, but not cited:[/]")
    for number, source in sources:
        say(f"[dim]  {number}. {safe(str(source))}[/]")
    if answer.citations is not None and answer.citations.statements:
        say("[dim]Statements and the sentences that support them:[/]")
        for statement in answer.citations.statements:
            say(f"[dim]  {safe(str(statement))}[/]")
    if usage is not None:
        say(f"[dim]{safe(str(usage))}[/]", to=err)


# ---- search results --------------------------------------------------------------------------------------------------

MEASURE = 110
"""Maximum length of a line in characters; longer lines are hard to read, even on a wide terminal."""

EXCERPT_LINES = 3
"""Maximum number of lines in a passage excerpt, and in the context above it."""

_INDENT = 4
_COLOURS = {"high": "green", "medium": "cyan", "low": "yellow"}


def show_response(response: SearchResponse, *, full: bool = False, most: int | None = None) -> None:
    """Print search results.

    Args:
        response: The results.
        full: Whether to print whole passages with their contexts.
        most: Maximum number of results to print, of those that are likely to answer the question and do not repeat a
            sentence; None prints all hits.
    """
    from llama_index_contextual.index.languages import analyzer_of
    from llama_index_contextual.search.response import without_repetitions

    for warning in response.warnings:
        say(f"[yellow]{safe(warning)}[/]", to=err)
    results, folded = response.results, response.folded
    if most is not None:
        results, folded = without_repetitions(results)[:most], ()
    colour = _COLOURS.get(response.confidence_level or "", "default") if results else "yellow"
    heading = [f"[bold]{pluralize(len(response.results), 'result')}[/]"] if results else []
    heading += [f"[{colour}]{safe(verdict)}[/]"] if (verdict := response.verdict()) else []
    say(f"{'. '.join(heading)}\n")
    if response.explanations and response.reranker is not None:
        say(f"[dim]{safe(str(response.reranker))}[/]\n")
    analyzer = analyzer_of(response.languages)
    for number_of_hit, chunk in enumerate([*results, *folded]):
        if number_of_hit == len(results):
            say("[bold]Less likely[/]\n")
        _show_result(chunk, response.query, analyzer, full=full)
        for reason in response.explanations[chunk.rank - 1 : chunk.rank]:
            _show_lines(str(reason).splitlines()[1:])
        say()
    others = len(response.results) - len(results), len(response.folded) - len(folded)
    if any(others):
        parts = [f"{others[0]} more"] if others[0] else []
        parts += [f"{others[1]} less likely"] if others[1] else []
        say(f"[dim]{' and '.join(parts)}: -n {len(response.results) + len(response.folded)} shows all[/]")
    if response.near_misses:
        say("[bold]Near misses[/]")
        for reason in response.near_misses:
            _show_lines(str(reason).splitlines())


def _show_result(chunk: BaseHit, question: str, analyzer: Analyzer, *, full: bool) -> None:
    from llama_index_contextual.readers.files import one_line

    # File names need not be unique, so the document's id is shown instead.
    source = replace(chunk.place, file_name=chunk.source.doc_id or chunk.source.file_name)
    newer = f" [yellow]({safe(note)})[/]" if (note := chunk.newer_note) else ""
    say(f"[bold cyan]{chunk.rank:>2}.[/] [bold]{safe(str(source))}[/]{newer}")
    structure, context = context_parts(chunk.metadata)
    if full:
        texts = [("Structure: ", structure, "dim"), ("Context: ", context, "italic dim")]
        texts += [("Table head: ", chunk.table_head or "", "dim"), ("", chunk.text, "")]
    else:
        width = EXCERPT_LINES * (min(common.out.width, MEASURE) - _INDENT)
        texts = [("Context: ", one_line(context, width), "italic dim")]
        texts += [("", one_line(chunk.row or chunk.excerpt(question, width), width), "")]
    terms = chunk.lexical.matched_terms if chunk.lexical else analyzer.query_terms(question)
    for label, text, style in texts:
        if text or not label:
            _show_text(label, Text(_harmless(text, "\n"), style=style), terms, analyzer)
    _show_lines([f"▣ {line}" for line in chunk.figure_lines()])


def _show_text(label: str, text: Text, terms: Sequence[str], analyzer: Analyzer) -> None:
    """Print a label and text from a document, and highlight the words that match the given terms."""
    from llama_index_contextual.index.analysis import match_spans

    for start, end in match_spans(text.plain, terms, analyzer):
        text.stylize("bold not italic not dim yellow", start, end)
    content = Text.assemble((label, "dim"), text)
    if common.out.is_terminal:
        common.out.print(Padding(content, (0, 0, 0, _INDENT), expand=False), width=min(common.out.width, MEASURE))
    else:
        for line in content.split("\n", allow_blank=True):
            common.out.print(Text(" " * _INDENT) + line, soft_wrap=True)


def _show_lines(lines: Sequence[str]) -> None:
    """Print lines in a dim style."""
    for line in lines:
        say(f"[dim]{safe(line.strip())}[/]", indent=_INDENT)
