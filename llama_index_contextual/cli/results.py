"""Results of a search on the terminal: the confidence in words, sources, excerpts with highlighted terms."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli.terminal import err, out, safe, say
from llama_index_contextual.metadata import context_parts

if TYPE_CHECKING:
    from llama_index_contextual.index.analysis import Analyzer
    from llama_index_contextual.search.response import Passage, SearchResponse, Source

MEASURE = 110
"""Maximum length of a line in characters: longer lines are hard to read, however wide the terminal is."""

EXCERPT_LINES = 3
PLAIN_WIDTH = 320  # characters of an excerpt for other programs, which wrap lines themselves or not at all

_INDENT = 4
_LINES_AROUND = 6  # the command, the headline with an empty line, the number of further results, the advice, the prompt
_COLOURS = {"high": "green", "medium": "cyan", "low": "yellow"}


LEAST_SHOWN = 3
"""Minimum number of results on a terminal, however low it is."""


def show_response(
    response: SearchResponse, language: str, *, full: bool = False, next_step: str = "", fit: bool = False
) -> None:
    """Print the results of a search.

    Args:
        response: The results.
        language: Language of the lexical index, by whose rules terms are highlighted.
        full: Print whole passages with their contexts.
        next_step: Command that shows the passages in their documents; printed on a terminal only.
        fit: On a terminal, print only as many results as fit, so that the best one stays visible.
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
    """Return the number of results and the verdict on them, as markup."""
    count = f"[bold]{pluralize(len(response.results), 'result')}[/]"
    colour = _COLOURS.get(response.confidence_level or "")
    return f"{count}. [{colour}]{response.verdict()}[/]" if colour else count


def _show_result(chunk: Passage, question: str, analyzer: Analyzer, *, full: bool) -> None:
    terms = chunk.lexical.matched_terms if chunk.lexical else analyzer.query_terms(question)
    say(f"[bold cyan]{chunk.rank:>2}.[/] [bold]{safe(_place(chunk.source))}[/]")
    if section := _section(chunk.source):
        say(f"[cyan]{safe(section)}[/]", indent=_INDENT)
    if not full:
        if context := chunk.written_context:
            _show_text("Context: ", _shortened(context, 2), terms, analyzer, style="italic dim")
        _show_text("", _excerpt(chunk, question), terms, analyzer)
        return
    structure, written = context_parts(chunk.metadata)
    if structure:
        _show_text("Structure: ", structure, terms, analyzer, style="dim")
    if written:
        _show_text("Context: ", written, terms, analyzer, style="italic dim")
    if chunk.table_head:
        _show_text("Table head: ", chunk.table_head, terms, analyzer, style="dim")
    _show_text("", chunk.text, terms, analyzer)


def _place(source: Source) -> str:
    """Return the id of the document and the pages; the id, because several files can have the same name."""
    name = source.doc_id if source.file_name and source.doc_id else source.file_name
    return str(replace(source, file_name=name, section=None))


def _section(source: Source) -> str:
    """Return the path of headings, without the title of the document at its beginning."""
    section, title = source.section or "", source.title or ""
    if title and section.startswith(title):
        section = section[len(title) :].removeprefix(" > ")
    return section


def _excerpt(chunk: Passage, question: str) -> str:
    width = EXCERPT_LINES * (min(out.width, MEASURE) - _INDENT) if out.is_terminal else PLAIN_WIDTH
    return _cut(chunk.excerpt(question, width), width)


def _shortened(text: str, lines: int) -> str:
    return _cut(" ".join(text.split()), lines * (min(out.width, MEASURE) - _INDENT) if out.is_terminal else PLAIN_WIDTH)


def _cut(text: str, width: int) -> str:
    """Return the beginning of a text, up to the end of a word."""
    if len(text) <= width:
        return text
    end = text.rfind(" ", 0, width - 1)
    return f"{text[: end if end > width // 2 else width - 2]} …"


def _show_text(
    label: str, text: str, terms: Sequence[str], analyzer: Analyzer, *, style: str = "", indent: int = _INDENT
) -> None:
    """Print a text of a document with its terms highlighted, without characters that control the terminal."""
    from llama_index_contextual.index.analysis import match_spans

    harmless = "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)
    for number, line in enumerate(harmless.split("\n")):
        shown = Text(line, style=style)
        for start, end in match_spans(line, terms, analyzer):
            shown.stylize("bold not italic not dim yellow", start, end)
        if number == 0 and label:
            shown = Text.assemble((label, "dim"), shown)
        if out.is_terminal:
            out.print(Padding(shown, (0, 0, 0, indent), expand=False), width=min(out.width, MEASURE))
        else:
            out.print(Text(" " * indent) + shown, soft_wrap=True)


def _show_lines(lines: Sequence[str]) -> None:
    """Print lines unchanged, dimmed."""
    for line in lines:
        say(f"[dim]{safe(line.strip())}[/]", indent=_INDENT)
