"""The commands `search`, `ask` and `chat`, which answer questions, and their terminal output."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack, cast

import typer
from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.text import Text

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli import common
from llama_index_contextual.cli.common import Commands, Name
from llama_index_contextual.cli.terminal import err, in_words, out, safe, say, say_error, say_json, wants_json
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ContextualError, ModelError
from llama_index_contextual.metadata import context_parts

if TYPE_CHECKING:
    from llama_index_contextual.answering.chat_engine import GroundedChatEngine
    from llama_index_contextual.answering.response import GroundedResponse, GroundedStream
    from llama_index_contextual.index.analysis import Analyzer
    from llama_index_contextual.project.project import Project
    from llama_index_contextual.search.response import Passage, SearchResponse, Source

commands = Commands("Questions")

TOP_K_WITHOUT_LLM = 3
_CHAT_COMMANDS = "/reset clears the conversation; /quit, exit, :q or Ctrl-D ends it; /help shows this line."
_LAST_LINES = frozenset({"exit", "quit", ":q", "/exit", "/quit", "/q"})


@commands.command()
def search(
    name: Name,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="Words or a question to search for.")],
    mode: common.SearchMode = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k",
            "-k",
            metavar="NUMBER",
            rich_help_panel=common.SEARCH,
            help="Number of results; by default the project's `top_k`, of which a terminal shows those that fit.",
        ),
    ] = None,
    conditions: common.Filters = None,
    files: common.Files = None,
    full: Annotated[bool, typer.Option("--full", help="Show whole passages with their contexts.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain the ranks of these passages, and of the next ones.")
    ] = False,
) -> None:
    """Show the passages that answer a question best."""
    # Imported here because other commands do not need it.
    from llama_index_contextual.index.project_file import read_config
    from llama_index_contextual.project.lookup import existing_project, search_locally

    directory = existing_project(common.root(), name)
    config = common.with_environment(read_config(directory), os.environ)
    response: SearchResponse | None = None
    if not (conditions or files):
        response = search_locally(directory, config, question, mode=mode, top_k=top_k, explain=explain)
    if response is None:
        project = common.open_project(name)
        filters = _parse_filters(project, conditions, files)
        response = project.retrieve(question, mode=mode, top_k=top_k, filters=filters, explain=explain)
    if wants_json():
        say_json(response.to_dict())
        return
    fit = top_k is None and not (full or explain)
    show_response(response, config.language, full=full, next_step=common.proposed("serve", name), fit=fit)
    if not response.results:
        _hint_at_patterns(conditions)


def _parse_filters(project: Project, conditions: Sequence[str] | None, files: Sequence[str] | None) -> Any:
    from llama_index_contextual.tools.filters import parse_conditions

    return parse_conditions(project, conditions, files)


def _hint_at_patterns(conditions: Sequence[str] | None) -> None:
    """Suggest an alternative to a filter that compares values with a pattern such as `X*`."""
    from llama_index_contextual.tools.filters import field_and_pattern

    for field, pattern in filter(None, map(field_and_pattern, conditions or ())):
        part = max(pattern.replace("?", "*").split("*"), key=len)
        by_file = f', or --file "{pattern}" for names of files' if field == "file_name" else ""
        hint = (
            f"--filter {field}={pattern} compares the whole value, in which `*` and `?` are ordinary characters:"
            f' use --filter "{field}~{part}" for a part of it{by_file}.'
        )
        say(f"[yellow]note[/] {safe(hint)}", to=err)


# ---- answers of an LLM -----------------------------------------------------------------------------------------------


def _open_to_answer(name: str, options: common.AnswerOptions) -> tuple[Project, dict[str, Any]]:
    """Return a project with the settings overridden by options, and the arguments for its engines."""
    from llama_index_contextual.models import missing_for

    project = common.open_project(name)
    changes: dict[str, Any] = {
        field: value for field, value in options.items() if field in ProjectConfig.model_fields and value is not None
    }
    if options["answer_llm"] is not None:
        # Raises an error if this is not the name of a model.
        missing_for(options["answer_llm"], setting="answer_llm", option="--llm")
    if options["llm_intents"]:
        changes["intents"] = "llm"
    elif options["intents"] and project.config.intents:  # the project's own intents, or its LLM
        del changes["intents"]
    if project.config.answer_cache is None:
        changes.setdefault("answer_cache", True)
    project.state.config = project.config.changed(**changes)
    filters = _parse_filters(project, options["conditions"], options["files"])
    return project, {"filters": filters, "system_prompt": options["system_prompt"]}


@commands.command()
@common.takes_answer_options
def ask(
    name: Name,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question.")],
    **options: Unpack[common.AnswerOptions],
) -> None:
    """Answer a question from the documents, with sources; without an LLM, show the best passages."""
    project, arguments = _open_to_answer(name, options)
    try:
        engine = project.as_query_engine(**arguments, streaming=not wants_json())
    except ModelError as error:
        if not wants_json():
            say(f"[yellow]No LLM answer: {safe(in_words(error))} These are the best passages.[/]", to=err)
        passages = _passages(project, question, arguments["filters"])
        if wants_json():
            say_json({**passages, "error": in_words(error)})
        return
    response = engine.query(question)
    if wants_json():
        answer = cast("GroundedResponse", response)
        say_json(answer.to_dict())
    else:
        stream = cast("GroundedStream", response)
        _show_pieces(stream.response_gen)
        answer = stream.get_response()
        _show_findings(answer)
    if not answer.response:
        raise typer.Exit(1)


@commands.command()
@common.takes_answer_options
def chat(
    name: Name,
    follow_ups: Annotated[
        Literal["blend", "condense", "simple"],
        typer.Option(
            metavar="WAY",
            rich_help_panel=common.SEARCH,
            help="Search of follow-up questions: blend (with the conversation), condense (rewritten by the LLM), or"
            " simple (unchanged).",
        ),
    ] = "blend",
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to load the conversation from and save it to.")
    ] = None,
    **options: Unpack[common.AnswerOptions],
) -> None:
    """Answer questions from standard input, one per line, as a conversation; /help lists the commands."""
    from llama_index_contextual.index.files import require_folder

    project, arguments = _open_to_answer(name, options)
    engine: GroundedChatEngine | None = None
    try:
        engine = project.as_chat_engine(mode=follow_ups, **arguments)
    except ModelError as error:
        if not wants_json():
            say(f"[yellow]{safe(in_words(error))} Showing the best passages instead.[/]", to=err)
    if engine is not None and history is not None:
        require_folder(history)
        if history.exists():
            engine.load(history)
    if sys.stdin.isatty():
        say(f"[dim]One question per line. {_CHAT_COMMANDS}[/]", to=err)
    turns = []
    try:
        for line in typed_lines():
            if line == "/reset":
                if engine is not None:
                    engine.reset()
                say("[dim]The conversation was cleared.[/]", to=err)
            elif re.fullmatch(r"/\w+", line):
                unknown = "" if line in ("/help", "/h") else f"There is no command {safe(line)}. "
                say(f"[dim]{unknown}{_CHAT_COMMANDS}[/]", to=err)
            else:
                turns.append(_turn(project, engine, line, arguments["filters"]))
            if engine is not None and history is not None:
                engine.save(history)
    except KeyboardInterrupt:
        _end_line()
        raise typer.Exit(130) from None
    if wants_json():
        say_json(turns)


def typed_lines() -> Iterator[str]:
    """Yield the lines of standard input that are not blank, until one ends the conversation."""
    while True:
        try:
            line = err.input("[bold cyan]?[/] " if sys.stdin.isatty() else "").strip()
        except EOFError:
            _end_line()
            return
        if line.lower() in _LAST_LINES:
            return
        if line:
            yield line


def _end_line() -> None:
    """End the line of a prompt that was left unanswered."""
    if sys.stdin.isatty():
        err.print()


def _turn(project: Project, engine: GroundedChatEngine | None, question: str, filters: Any) -> dict[str, Any]:
    """Answer one line; errors are printed, and the conversation continues."""
    try:
        if engine is None:
            return {"question": question, **_passages(project, question, filters)}
        if wants_json():
            answer = cast("GroundedResponse", engine.chat(question).grounded)
        else:
            stream = engine.stream_chat(question)
            _show_pieces(stream.response_gen)
            answer = cast("GroundedResponse", stream.grounded)
            _show_findings(answer)
        return {"question": question, **answer.to_dict()}
    except ContextualError as error:
        if not wants_json():
            say_error(in_words(error))
        return {"question": question, "answer": None, "error": in_words(error)}


def _passages(project: Project, question: str, filters: Any) -> dict[str, Any]:
    """Return the best passages as JSON values, and print them unless the output is JSON."""
    response = project.retrieve(question, top_k=TOP_K_WITHOUT_LLM, filters=filters)
    if not wants_json():
        show_response(response, project.config.language)
    return {"answer": None, "retrieval": response.to_dict()}


def _show_pieces(pieces: Iterable[str]) -> None:
    """Print an answer as it arrives, rendered as Markdown on a terminal and unchanged otherwise."""
    harmless = (_harmless(piece, "\n\t") for piece in pieces)
    text = ""
    if out.is_terminal:
        with Live(get_renderable=lambda: _last_lines(text), console=out, transient=True):
            for piece in harmless:
                text += piece
        # No clickable links, because the target of a link in an answer must be visible.
        out.print(Markdown(text, hyperlinks=False))
        return
    for piece in harmless:
        out.print(piece, end="", markup=False, soft_wrap=True)
        text += piece
    if text:
        out.print()


def _last_lines(text: str) -> Segments:
    """Return the last lines of a Markdown text that fit on the terminal."""
    lines = out.render_lines(Markdown(text, hyperlinks=False), pad=False)
    return Segments(segment for line in lines[1 - out.height :] for segment in (*line, Segment.line()))


def _harmless(text: str, kept: str) -> str:
    """Replace control characters in a text, except those in `kept`, with spaces."""
    return "".join(sign if sign.isprintable() or sign in kept else " " for sign in text)


def _show_findings(answer: GroundedResponse) -> None:
    """Print the sources of an answer, its usage, and warnings about it."""
    retrieval, report, verdict = answer.retrieval, answer.citations, answer.verdict or {}
    if not answer.response:
        say_error(f"There is no answer. {answer.partial}")
    warnings = list(retrieval.warnings) if retrieval else []
    if answer.found and retrieval and (doubt := retrieval.doubt()):
        warnings.append(doubt)
    if answer.partial and answer.response:
        warnings.append(f"The answer is incomplete: {answer.partial}")
    if "error" in verdict:
        warnings.append(f"Not judged: {verdict['error']}")
    elif verdict and "original" in (answer.metadata or {}):
        warnings.append("The judge withheld the answer: the passages do not support it.")
    if report is not None:
        for number in dict.fromkeys(report.invalid):
            warnings.append(f"A citation of Source {number}, which does not exist, was removed.")
        for quotation in report.quotations:
            if quotation.status != "verified":
                warnings.append(f"Quotation {quotation.status.replace('_', ' ')}: {' '.join(quotation.text.split())}")
        if report.unsupported:
            warnings.append(f"Not in any cited passage: {', '.join(figure.text for figure in report.unsupported)}")
    for warning in warnings:
        say(f"[yellow]{safe(warning)}[/]", to=err)
    if answer.from_cache:
        say("[dim]From the cache: no tokens sent for this answer.[/]", to=err)
    if retrieval is not None and retrieval.searched != retrieval.query:
        say(f"[dim]Searched for: {safe(retrieval.searched)}[/]", to=err)
    for number, source in answer.shown_sources:
        say(f"[dim]\\[Source {number}][/] {safe(str(source))}")
    if answer.usage is not None:
        say(f"[dim]{safe(str(answer.usage))}[/]", to=err)
        if answer.usage.problem:
            say(f"[yellow]{safe(answer.usage.problem)}[/]", to=err)


# ---- results of a search ---------------------------------------------------------------------------------------------

MEASURE = 110
"""Maximum length of a line in characters; longer lines are hard to read, even on a wide terminal."""

EXCERPT_LINES = 3
PLAIN_WIDTH = 320  # characters of an excerpt for other programs, which may not wrap lines

LEAST_SHOWN = 3
"""Minimum number of results to print on a terminal, even if few lines fit."""

_INDENT = 4
_LINES_AROUND = 6  # the command, the headline with an empty line, the number of remaining results, the hint, the prompt
_COLOURS = {"high": "green", "medium": "cyan", "low": "yellow"}


def show_response(
    response: SearchResponse, language: str, *, full: bool = False, next_step: str = "", fit: bool = False
) -> None:
    """Print the results of a search.

    Args:
        response: The results.
        language: Language of the lexical index, which determines how terms are highlighted.
        full: Whether to print whole passages with their contexts.
        next_step: Command that shows the passages in their documents; printed only on a terminal.
        fit: Whether to print, on a terminal, only as many results as fit, so that the best one stays visible.
    """
    from llama_index_contextual.index.analysis import Analyzer

    for warning in response.warnings:
        say(f"[yellow]{safe(warning)}[/]", to=err)
    if not response.results:
        say("No results.")
    else:
        say(_headline(response))
        say()
    analyzer = Analyzer(language, has_periods=True)
    room = out.height - _LINES_AROUND if fit and out.is_terminal else None
    for number, chunk in enumerate(response.results):
        with out.capture() if room is not None else contextlib.nullcontext() as shown:
            _show_result(chunk, response.query, analyzer, full=full)
            for reason in response.explanations[chunk.rank - 1 : chunk.rank]:
                _show_lines(str(reason).splitlines()[1:])
            say()
        if room is None or shown is None:
            continue
        room -= shown.get().count("\n")
        if room < 0 and number >= LEAST_SHOWN:
            left = len(response.results) - number
            say(f"[dim]{left} more: repeat the search with -k {len(response.results)} to see all[/]")
            break
        out.file.write(shown.get())
    if response.near_misses:
        say("[bold]Near misses[/]")
        for reason in response.near_misses:
            _show_lines(str(reason).splitlines())
    if response.results and next_step and out.is_terminal:
        say(f"[dim]To see the passages in their documents: {safe(next_step)}[/]")


def _headline(response: SearchResponse) -> str:
    """Return the number of results and their confidence as markup."""
    count = f"[bold]{pluralize(len(response.results), 'result')}[/]"
    colour = _COLOURS.get(response.confidence_level or "")
    return f"{count}. [{colour}]{response.verdict()}[/]" if colour else count


def _show_result(chunk: Passage, question: str, analyzer: Analyzer, *, full: bool) -> None:
    say(f"[bold cyan]{chunk.rank:>2}.[/] [bold]{safe(_place(chunk.source))}[/]")
    if section := _section(chunk.source):
        say(f"[cyan]{safe(section)}[/]", indent=_INDENT)
    measure = min(out.width, MEASURE) - _INDENT
    if full:
        structure, written = context_parts(chunk.metadata)
        texts = [("Structure: ", structure, "dim"), ("Context: ", written, "italic dim")]
        texts += [("Table head: ", chunk.table_head or "", "dim"), ("", chunk.text, "")]
    else:
        width = EXCERPT_LINES * measure if out.is_terminal else PLAIN_WIDTH
        context = " ".join((chunk.written_context or "").split())
        texts = [
            ("Context: ", _cut(context, 2 * measure if out.is_terminal else PLAIN_WIDTH), "italic dim"),
            ("", _cut(chunk.excerpt(question, width), width), ""),
        ]
    terms = chunk.lexical.matched_terms if chunk.lexical else analyzer.query_terms(question)
    for label, text, style in texts:
        if text or not label:
            _show_text(label, text, terms, analyzer, style=style)


def _place(source: Source) -> str:
    """Return the document's id and the pages; file names are not used because they need not be unique."""
    name = source.doc_id if source.file_name and source.doc_id else source.file_name
    return str(replace(source, file_name=name, section=None))


def _section(source: Source) -> str:
    """Return the path of headings without the document title at the beginning."""
    section, title = source.section or "", source.title or ""
    if title and section.startswith(title):
        section = section[len(title) :].removeprefix(" > ")
    return section


def _cut(text: str, width: int) -> str:
    """Return the beginning of a text, cut at the end of a word."""
    if len(text) <= width:
        return text
    end = text.rfind(" ", 0, width - 1)
    return f"{text[: end if end > width // 2 else width - 2]} …"


def _show_text(label: str, text: str, terms: Sequence[str], analyzer: Analyzer, *, style: str) -> None:
    """Print document text with highlighted terms and without control characters."""
    from llama_index_contextual.index.analysis import match_spans

    for number, line in enumerate(_harmless(text, "\n").split("\n")):
        shown = Text(line, style=style)
        for start, end in match_spans(line, terms, analyzer):
            shown.stylize("bold not italic not dim yellow", start, end)
        if number == 0 and label:
            shown = Text.assemble((label, "dim"), shown)
        if out.is_terminal:
            out.print(Padding(shown, (0, 0, 0, _INDENT), expand=False), width=min(out.width, MEASURE))
        else:
            out.print(Text(" " * _INDENT) + shown, soft_wrap=True)


def _show_lines(lines: Sequence[str]) -> None:
    """Print lines unchanged, dimmed."""
    for line in lines:
        say(f"[dim]{safe(line.strip())}[/]", indent=_INDENT)
