"""Commands that answer questions: `search`, `ask` and `chat`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment, Segments

from llama_index_contextual.cli.commands import Commands
from llama_index_contextual.cli.narrowing import Files, Filters, hint_at_patterns, parse_filters
from llama_index_contextual.cli.options import (
    DEFAULT_ROOT,
    QUESTIONS,
    SEARCH,
    AnswerLLM,
    BetweenTokens,
    ByIntent,
    Cached,
    CallTimeout,
    Confidence,
    Day,
    FirstToken,
    FollowUps,
    Guard,
    Json,
    Judged,
    LLMIntents,
    Name,
    Root,
    SearchMode,
    Style,
    SystemPrompt,
    open_project,
    open_to_answer,
    proposed,
)
from llama_index_contextual.cli.results import show_response
from llama_index_contextual.cli.terminal import (
    err,
    errors_in_one_line,
    has_command,
    in_words,
    out,
    safe,
    say,
    say_error,
    say_json,
)
from llama_index_contextual.config import Mode
from llama_index_contextual.errors import ContextualError, ModelError
from llama_index_contextual.settings import with_environment

if TYPE_CHECKING:
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.answering.chat_engine import GroundedChatEngine
    from llama_index_contextual.answering.response import GroundedResponse, GroundedStream
    from llama_index_contextual.answering.usage import AnswerUsage
    from llama_index_contextual.project.project import Project
    from llama_index_contextual.search.response import SearchResponse
    from llama_index_contextual.search.results import RetrievalResponse

answering = Commands()

TOP_K_WITHOUT_LLM = 3

_BLANK_LINES = re.compile(r"\n[ \t]*\n+(?=\S)")
_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
_LIST_ITEM = re.compile(r"(?:[-*+]|\d{1,9}[.)])[ \t]")


@answering.command(rich_help_panel=QUESTIONS)
def search(
    name: Name,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="Words or a question to search for.")],
    mode: SearchMode = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k",
            "-k",
            metavar="NUMBER",
            rich_help_panel=SEARCH,
            help="Number of results; by default the project's `top_k`, of which a terminal shows those that fit.",
        ),
    ] = None,
    conditions: Filters = None,
    files: Files = None,
    full: Annotated[bool, typer.Option("--full", help="Show whole passages with their contexts.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain the ranks of these passages, and of the next ones.")
    ] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Show the passages that answer a question best."""
    # Imported here, because the other commands need none of it.
    from llama_index_contextual.index.project_file import read_config
    from llama_index_contextual.project.lookup import existing_project, search_locally

    with errors_in_one_line():
        directory = existing_project(root, name)
        config = with_environment(read_config(directory), os.environ)
        response: SearchResponse | None = None
        if not (conditions or files):
            response = search_locally(directory, config, question, mode=mode, top_k=top_k, explain=explain)
        if response is None:
            project = open_project(root, name)
            filters = parse_filters(project, conditions, files)
            response = project.retrieve(question, mode=mode, top_k=top_k, filters=filters, explain=explain)
        if as_json:
            say_json(response.to_dict())
        else:
            next_step = (
                proposed("serve", name) if has_command("serve") else proposed("inspect", name, "--query", question)
            )
            show_response(
                response,
                config.language,
                full=full,
                next_step=next_step,
                fit=top_k is None and not (full or explain),
            )
            if not response.results:
                hint_at_patterns(conditions)


@answering.command(rich_help_panel=QUESTIONS)
def ask(
    name: Name,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question.")],
    llm: AnswerLLM = None,
    style: Style = None,
    system_prompt: SystemPrompt = None,
    mode: SearchMode = None,
    conditions: Filters = None,
    files: Files = None,
    min_confidence: Confidence = None,
    guard: Guard = None,
    judge: Judged = None,
    cache: Cached = None,
    intents: ByIntent = None,
    llm_intents: LLMIntents = False,
    reference_date: Day = None,
    first_token_timeout: FirstToken = None,
    between_tokens_timeout: BetweenTokens = None,
    call_timeout: CallTimeout = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Answer a question from the documents, with sources; without an LLM, show the best passages."""
    with errors_in_one_line():
        project = open_to_answer(
            root,
            name,
            answer_llm=llm,
            style=style,
            min_confidence=min_confidence,
            guards=guard,
            judge=judge,
            answer_cache=cache,
            intents="llm" if llm_intents else intents,
            reference_date=reference_date,
            first_token_timeout=first_token_timeout,
            between_tokens_timeout=between_tokens_timeout,
            call_timeout=call_timeout,
        )
        filters = parse_filters(project, conditions, files)
        try:
            engine = project.as_query_engine(
                mode=mode, filters=filters, system_prompt=system_prompt, streaming=not as_json
            )
        except ModelError as error:
            _show_passages(project, question, mode, filters, error, as_json=as_json)
            return
        if as_json:
            answer = cast("GroundedResponse", engine.query(question))
            say_json(answer.to_dict())
        else:
            stream = cast("GroundedStream", engine.query(question))
            _show_pieces(stream.response_gen)
            answer = stream.get_response()
            _show_findings(answer)
        if not answer.response:
            raise typer.Exit(1)


@answering.command(rich_help_panel=QUESTIONS)
def chat(
    name: Name,
    llm: AnswerLLM = None,
    style: Style = None,
    system_prompt: SystemPrompt = None,
    mode: SearchMode = None,
    conditions: Filters = None,
    files: Files = None,
    min_confidence: Confidence = None,
    guard: Guard = None,
    judge: Judged = None,
    cache: Cached = None,
    intents: ByIntent = None,
    llm_intents: LLMIntents = False,
    reference_date: Day = None,
    first_token_timeout: FirstToken = None,
    between_tokens_timeout: BetweenTokens = None,
    call_timeout: CallTimeout = None,
    follow_ups: FollowUps = "blend",
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to load the conversation from and save it to.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Answer questions from standard input, one per line, as a conversation; /help lists the commands."""
    with errors_in_one_line():
        from llama_index_contextual.index.files import require_folder

        project = open_to_answer(
            root,
            name,
            answer_llm=llm,
            style=style,
            min_confidence=min_confidence,
            guards=guard,
            judge=judge,
            answer_cache=cache,
            intents="llm" if llm_intents else intents,
            reference_date=reference_date,
            first_token_timeout=first_token_timeout,
            between_tokens_timeout=between_tokens_timeout,
            call_timeout=call_timeout,
        )
        filters = parse_filters(project, conditions, files)
        try:
            engine: GroundedChatEngine | None = project.as_chat_engine(
                mode=follow_ups, search_mode=mode, filters=filters, system_prompt=system_prompt
            )
        except ModelError as error:
            engine = None
            say(
                f"[yellow]{safe(in_words(error))} Showing the best passages instead.[/]", to=err
            ) if not as_json else None
        if engine is not None and history is not None:
            require_folder(history)
            if history.exists():
                engine.load(history)
        if sys.stdin.isatty():
            say(f"[dim]One question per line. {_COMMANDS}[/]", to=err)
        turns = []
        try:
            for line in typed_lines():
                if line == "/reset":
                    _forget(engine, as_json=as_json)
                elif re.fullmatch(r"/\w+", line):
                    unknown = "" if line in ("/help", "/h") else f"There is no command {safe(line)}. "
                    say(f"[dim]{unknown}{_COMMANDS}[/]", to=err)
                else:
                    turns.append(_turn(project, engine, line, mode, filters, as_json=as_json))
                if engine is not None and history is not None:
                    engine.save(history)
        except KeyboardInterrupt:
            _end_line()
            raise typer.Exit(130) from None
        if as_json:
            say_json(turns)


_COMMANDS = "/reset clears the conversation; /quit, exit, :q or Ctrl-D ends it; /help shows this line."
_LAST_LINES = frozenset({"exit", "quit", ":q", "/exit", "/quit", "/q"})


def typed_lines() -> Iterator[str]:
    """Yield the lines of standard input that are not blank, up to one that ends the conversation."""
    while True:
        if sys.stdin.isatty():
            err.print("[bold cyan]?[/] ", end="")
        line = sys.stdin.readline()
        if not line:
            _end_line()
        if not line or line.strip().lower() in _LAST_LINES:
            return
        if line.strip():
            yield line.strip()


def _end_line() -> None:
    """End the line of an unanswered prompt."""
    if sys.stdin.isatty():
        err.print()


def _forget(engine: GroundedChatEngine | None, *, as_json: bool) -> None:
    if engine is not None:
        engine.reset()
    if not as_json:
        say("[dim]The conversation was cleared.[/]", to=err)


def _turn(
    project: Project,
    engine: GroundedChatEngine | None,
    question: str,
    mode: Mode | None,
    filters: MetadataFilters | None,
    *,
    as_json: bool,
) -> dict[str, Any]:
    """Answer one line; an error is printed, and the conversation continues."""
    try:
        if engine is None:
            response = project.retrieve(question, mode=mode, top_k=TOP_K_WITHOUT_LLM, filters=filters)
            if not as_json:
                show_response(response, project.config.language)
            return {"question": question, **_passages(response)}
        if as_json:
            answer = cast("GroundedResponse", engine.chat(question).grounded)
        else:
            stream = engine.stream_chat(question)
            _show_pieces(stream.response_gen)
            answer = cast("GroundedResponse", stream.grounded)
            _show_findings(answer)
        return {"question": question, **answer.to_dict()}
    except ContextualError as error:
        if not as_json:
            say_error(in_words(error))
        return {"question": question, "answer": None, "error": in_words(error)}


def _show_passages(
    project: Project,
    question: str,
    mode: Mode | None,
    filters: MetadataFilters | None,
    error: ModelError,
    *,
    as_json: bool,
) -> None:
    response = project.retrieve(question, mode=mode, top_k=TOP_K_WITHOUT_LLM, filters=filters)
    if as_json:
        say_json({**_passages(response), "error": in_words(error)})
        return
    say(f"[yellow]No LLM answer: {safe(in_words(error))} These are the best passages.[/]", to=err)
    show_response(response, project.config.language)


def _passages(response: RetrievalResponse) -> dict[str, Any]:
    return {"answer": None, "retrieval": response.to_dict()}


def _show_pieces(pieces: Iterable[str]) -> None:
    """Print an answer as it arrives: rendered as Markdown on a terminal, otherwise unchanged."""
    harmless = ("".join(sign if sign.isprintable() or sign in "\n\t" else " " for sign in piece) for piece in pieces)
    if out.is_terminal:
        _render(harmless)
        return
    shown = False
    for text in harmless:
        out.print(text, end="", markup=False, soft_wrap=True)
        shown = shown or bool(text)
    if shown:
        out.print()


def _render(pieces: Iterable[str]) -> None:
    """Print each block of a Markdown text when it is complete; below them stands the beginning of the next one."""
    open_block, first = "", True
    with Live(console=out, transient=True, vertical_overflow="ellipsis") as live:
        for piece in pieces:
            complete, open_block = split_blocks(open_block + piece)
            for block in complete:
                live.console.print(_rendered(block, first=first), end="")
                first = False
            live.update(_rendered(open_block, first=first) if open_block.strip() else "")
    if open_block.strip():
        out.print(_rendered(open_block, first=first))


def _rendered(block: str, *, first: bool) -> Segments:
    """Return a block after a blank line, unless it is the first one; Rich's own blank lines differ between blocks."""
    # Without links that can be clicked: the address of a link in an answer has to be visible.
    lines = out.render_lines(Markdown(block, hyperlinks=False), pad=False)
    texts = ["".join(segment.text for segment in line).strip() for line in lines]
    written = [at for at, text in enumerate(texts) if text]
    shown = lines[written[0] : written[-1] + 1] if written else []
    before = [] if first else [Segment.line()]
    return Segments([*before, *(segment for line in shown for segment in (*line, Segment.line()))])


def split_blocks(text: str) -> tuple[list[str], str]:
    """Return the complete blocks of a Markdown text that arrives in pieces, and its rest.

    A block ends at a blank line before text that is not indented, outside fenced code. The items of a list are one
    block, so that their numbers go on.

    Example:
        >>> split_blocks("Two steps:\\n\\n1. Close it.\\n\\n2. Wait.\\n\\nThen op")
        (['Two steps:', '1. Close it.\\n\\n2. Wait.'], 'Then op')
    """
    blocks, start = [], 0
    for blank in _BLANK_LINES.finditer(text):
        block, after = text[start : blank.start()], text[blank.end() :]
        if len(_FENCE.findall(block)) % 2 or (_LIST_ITEM.match(block) and _may_be_item(after)):
            continue
        if block.strip():
            blocks.append(block)
        start = blank.end()
    return blocks, text[start:]


def _may_be_item(text: str) -> bool:
    """Return whether a line may turn out to be an item of a list when the rest of it has arrived."""
    return _LIST_ITEM.match(text) is not None or re.fullmatch(r"[-*+]|\d+[.)]?", text) is not None


def _show_findings(answer: GroundedResponse) -> None:
    """Print the sources of an answer, and warnings about it."""
    report = answer.citations
    if not answer.response:
        say_error(f"There is no answer. {answer.partial}")
    for warning in answer.retrieval.warnings if answer.retrieval else ():
        say(f"[yellow]{safe(warning)}[/]", to=err)
    if answer.found and answer.retrieval and (doubt := answer.retrieval.doubt()):
        say(f"[yellow]{safe(doubt)}[/]", to=err)
    if answer.partial and answer.response:
        say(f"[yellow]The answer is incomplete: {safe(answer.partial)}[/]", to=err)
    if answer.verdict and "error" in answer.verdict:
        say(f"[yellow]Not judged: {safe(str(answer.verdict['error']))}[/]", to=err)
    elif answer.verdict and "original" in (answer.metadata or {}):
        say("[yellow]The judge withheld the answer: the passages do not support it.[/]", to=err)
    for number in dict.fromkeys(report.invalid if report else ()):
        say(f"[yellow]A citation of Source {number}, which does not exist, was removed.[/]", to=err)
    for quotation in report.quotations if report else ():
        if quotation.status != "verified":
            status = quotation.status.replace("_", " ")
            say(f"[yellow]Quotation {status}:[/] {safe(' '.join(quotation.text.split()))}", to=err)
    if report and report.unsupported:
        figures = ", ".join(figure.text for figure in report.unsupported)
        say(f"[yellow]Not in any cited passage:[/] {safe(figures)}", to=err)
    if answer.from_cache:
        say("[dim]From the cache: no tokens sent for this answer.[/]", to=err)
    if answer.retrieval is not None and answer.retrieval.searched != answer.retrieval.query:
        say(f"[dim]Searched for: {safe(answer.retrieval.searched)}[/]", to=err)
    for number, source in answer.shown_sources:
        say(f"[dim]\\[Source {number}][/] {safe(str(source))}")
    _show_usage(answer.usage)


def _show_usage(usage: AnswerUsage | None) -> None:
    """Print the tokens and the price of answers on standard error."""
    if usage is not None:
        say(f"[dim]{safe(str(usage))}[/]", to=err)
        if usage.problem:
            say(f"[yellow]{safe(usage.problem)}[/]", to=err)
