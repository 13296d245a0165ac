"""Read PDF files: text in reading order, pages, printed page numbers, headings and title."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, Final, TypeVar

from llama_index_contextual.errors import ReadError
from llama_index_contextual.figures import Figure
from llama_index_contextual.metadata import RUNNING_LINES, DocumentMap
from llama_index_contextual.readers.files import FileSource, ParsedFile, has_text
from llama_index_contextual.readers.lines import HANGUL, NO_SPACE, Line, joint
from llama_index_contextual.readers.pdf.figures import Box, DrawnPage, find_figures
from llama_index_contextual.readers.pdf.pages import PageContent, PageSource, PdfEngine
from llama_index_contextual.readers.pdf.running import strip_running
from llama_index_contextual.readers.pdf.scans import covered_note, no_text_note, page_content, with_own_lines
from llama_index_contextual.readers.pdf.sections import headings
from llama_index_contextual.readers.pdf.title import document_title, sensible_title
from llama_index_contextual.readers.tables import pdf_tables

T = TypeVar("T")

END = 1024  # number of bytes at each end of the file that are searched for the header or the end marker
NO_PAGE = PageContent((), False, (0.0, 0.0))
SCANNED = "has no text layer; run OCR on it, e.g. ocrmypdf, and ingest it again"
NO_TEXT = "has no text; unless its pages are blank, run OCR on it, e.g. ocrmypdf, and ingest it again"
MAX_LABEL = 200


def parse_pdf(
    file: FileSource,
    *,
    password: str | None = None,
    engine: PdfEngine = "pdfium",
    scans: Mapping[int, Mapping[str, Any]] | None = None,
    on_page: Callable[[int, int], None] | None = None,
    figures: bool = True,
) -> ParsedFile:
    """Read the bytes of a PDF in this process.

    Running headers and footers are removed from the text and stored in the metadata as "running_header" and
    "running_footer". `limits.max_seconds` is checked only between pages; `ParserProcess` also enforces it while a page
    is being read.

    Args:
        file: The file.
        password: Password of the PDF; ignored if the PDF is not encrypted.
        engine: "pdfium", or "pypdf", which is pure Python.
        scans: Mapping of page numbers, starting at 1, to pages that were read by OCR (see `readers.ocr`). Other pages
            without text are listed in the `scanned` field of the result, and cause neither an error nor a warning. None
            if OCR is not available.
        on_page: Called after each page with the number of pages that have been read, and the total number of pages.
            Pages that need OCR are not counted as read.
        figures: Whether to look for figures. Their pictures are not drawn here, but by `DocumentReader`.

    Returns:
        The text, with pages joined by line feeds, and a map that assigns each character to a page.

    Raises:
        ReadError: The file cannot be read or exceeds a limit; `reason` states the cause.
    """
    path, data = file.path, file.data
    if not data:
        raise file.error("the file is empty (0 bytes)")
    if b"%PDF-" not in data[:END]:
        raise file.error("this is not a PDF: it does not begin with %PDF-")
    notes = [] if b"%%EOF" in data[-END:] else ["the file has no end mark: it may be truncated"]
    if engine == "pdfium":
        from llama_index_contextual.readers.pdf.pdfium import PdfiumSource

        return read_source(PdfiumSource(path, data, password, figures=figures), file, notes, scans, on_page)
    from pypdf import apply_configuration

    from llama_index_contextual.readers.pdf.pypdf import CONFIGURATION, PypdfSource

    with apply_configuration(CONFIGURATION):
        return read_source(PypdfSource(path, data, password), file, notes, scans, on_page)


def read_source(
    source: PageSource,
    file: FileSource,
    notes: list[str],
    scans: Mapping[int, Mapping[str, Any]] | None = None,
    on_page: Callable[[int, int], None] | None = None,
) -> ParsedFile:
    """Read an open PDF or another source of pages, and close it; see `parse_pdf` for arguments and errors."""
    try:
        if not source.page_count:
            raise file.error("the PDF has no pages")
        file.account.add_pages(source.page_count)
        pages, warnings, scanned, covered = _read_pages(source, file, scans, on_page)
        parsed = _assemble(pages, notes + warnings, source)
        parsed = replace(parsed, scanned=scanned, covered=covered, digest=file.digest)
        if not has_text(parsed.text) and not scanned and not scans:
            raise file.error(SCANNED if any(page.is_drawn for page in pages) else NO_TEXT)
        return parsed
    finally:
        source.close()


def _read_pages(
    source: PageSource,
    file: FileSource,
    scans: Mapping[int, Mapping[str, Any]] | None,
    on_page: Callable[[int, int], None] | None,
) -> tuple[list[PageContent], list[str], tuple[int, ...], tuple[int, ...]]:
    """Return the pages, warnings about them, and the numbers of the pages that the caller should read by OCR.

    These are the pages without text, and the pages with hardly any text that a picture covers.
    """
    seconds = file.account.limits.max_seconds
    deadline = time.monotonic() + seconds
    pages: list[PageContent] = []
    failed: list[str] = []
    scanned: list[int] = []
    covered: list[int] = []
    blank: list[int] = []
    for number in range(1, source.page_count + 1):
        if time.monotonic() >= deadline:
            raise file.error(f"parsing took longer than {seconds:g} seconds and was stopped")
        try:
            page = source.page(number - 1)
        except ReadError as error:
            failed.append(f"page {number} was left out: {error.reason}")
            page = NO_PAGE
        else:
            if (not page.lines or page.is_covered) and scans is not None and number in scans:
                page = with_own_lines(page_content(scans[number]), page.lines)
            cleaned = (replace(line, text=clean(line.text).strip()) for line in page.lines)
            page = page._replace(lines=[line for line in cleaned if line.text])
            if not page.lines:
                (scanned if page.is_drawn else blank).append(number)
            elif page.is_covered:
                covered.append(number)
        pages.append(page)
        file.account.add_text(sum(len(line.text) + 1 for line in page.lines))
        if on_page is not None:
            on_page(number - len(scanned) - len(covered), source.page_count)
    if len(failed) == len(pages):
        raise file.error(f"no page could be read; {failed[0]}")
    to_read = () if scans is None else tuple(number for number in scanned if number not in scans)
    notes = [no_text_note(scanned)] if scanned and scans is None else []
    notes += [covered_note(covered)] if covered and scans is None else []
    notes += [no_text_note(blank, " unless blank")] if blank else []
    return pages, [*failed, *notes], to_read, () if scans is None else tuple(covered)


def _assemble(content: Sequence[PageContent], warnings: list[str], source: PageSource) -> ParsedFile:
    running = strip_running(content)
    pages = _place_lines(running.pages)
    labels = _optional(source.labels, warnings) or running.labels
    outline = _optional(source.outline, warnings) or []
    warnings += _optional(source.notes, warnings) or []
    marks = [entry._replace(title=clean(entry.title)) for entry in outline]
    drawn = [
        DrawnPage(number, lines, page.graphics, Box(*page.box), start)
        for number, (lines, page, start) in enumerate(zip(pages, content, _page_starts(pages), strict=True))
    ]
    title, front = document_title(pages, sensible_title(clean(_optional(source.title, warnings) or "")))
    section_headings = headings(marks, pages, title=front)
    text = _text(pages, {heading.start for heading in section_headings})
    return ParsedFile(
        text=text,
        map=DocumentMap(
            page_starts=_page_starts(pages),
            page_labels=tuple(clean(label[:MAX_LABEL]) for label in labels) if any(labels) else (),
            headings=tuple(section_headings),
            tables=tuple(pdf_tables(pages)),
            figures=tuple(
                Figure(
                    id=str(number),
                    kind=region.kind,
                    caption=text[region.start : region.end],
                    start=region.start,
                    end=region.end,
                    page=region.page + 1,
                    box=source.displayed(region.page, region.box),
                )
                for number, region in enumerate(find_figures(drawn), 1)
            ),
        ),
        title=title,
        warnings=tuple(warnings),
        metadata={key: text for key, text in zip(RUNNING_LINES, (running.header, running.footer), strict=True) if text},
    )


def _place_lines(pages: Sequence[Sequence[Line]]) -> list[list[Line]]:
    """Rejoin hyphenated words and return the lines of each page with document offsets and separators.

    The separator (`Line.end`) is a space within a paragraph, and a line feed at the end of a paragraph.
    """
    separator = _hangul_separator(pages)
    joiner = HyphenJoiner([[line.text for line in page] for page in pages])
    placed: list[list[Line]] = []
    start = 0
    for page in pages:
        lines: list[Line] = []
        texts = joiner.join([line.text for line in page])
        for line, text, flows in zip(page, texts, continuations(page), strict=True):
            end = " " if flows else "\n"
            if (
                text
                and lines
                and lines[-1].end == " "
                and not (separator(lines[-1], line) and joint(lines[-1].text, text))
            ):
                lines[-1] = replace(lines[-1], text=lines[-1].text + text, end=end)
                start += len(text)
            elif text:
                lines.append(replace(line, text=text, start=start, end=end))
                start += len(text) + 1
            elif lines:
                lines[-1] = replace(lines[-1], end=end)
        start += not lines
        placed.append(lines)
    return placed


def _hangul_separator(pages: Sequence[Sequence[Line]]) -> Callable[[Line, Line], str]:
    """Return a function that returns the separator between two lines of a paragraph, one of which may be Korean.

    Korean lines may end inside a word. If the file stores spaces between some lines, there is no space between the
    others. If it stores none, there is none if the lines are full to the last letter.
    """
    breaks = [
        (line, following, max(other.x1 for other in page))
        for page in pages
        for line, following in pairwise(page)
        if HANGUL.match(line.text[-1:]) and HANGUL.match(following.text[:1])
    ]
    stores_spaces = any(following.spaced for _line, following, _edge in breaks)
    full = sum(edge - line.x1 < FULL_LINE * line.size for line, _following, edge in breaks)
    is_full = full >= MIN_FULL_LINES * len(breaks)

    def separator(line: Line, following: Line) -> str:
        if not (HANGUL.match(line.text[-1:]) and HANGUL.match(following.text[:1])):
            return " "
        return " " if following.spaced or not (stores_spaces or is_full) else ""

    return separator


def _text(pages: Sequence[Sequence[Line]], heads: set[int]) -> str:
    """Return the text of the document, with pages joined by line feeds and each heading on a new line."""
    return "\n".join(_page_text(page, heads) for page in pages)


def _page_text(page: Sequence[Line], heads: set[int]) -> str:
    parts: list[str] = []
    for line, following in pairwise(page):
        parts += (line.text, "\n" if following.start in heads else line.end)
    return "".join([*parts, *(line.text for line in page[-1:])])


def _page_starts(pages: Sequence[Sequence[Line]]) -> tuple[int, ...]:
    lengths = (sum(len(line.text) + 1 for line in page) or 1 for page in pages)
    return tuple(accumulate(lengths, initial=0))[:-1]


def _optional(get: Callable[[], T | None], warnings: list[str]) -> T | None:
    """Return the result of `get`; if it raises `ReadError`, add a warning and return None."""
    try:
        return get()
    except ReadError as error:
        warnings.append(error.reason)
        return None


# ---- Paragraphs ------------------------------------------------------------------------------------------------------
#
# The lines of a paragraph are joined with spaces, because line feeds cost tokens and split sentences. Rows of tables,
# entries in tables of contents, list items, headings and short lines remain separate lines.

STEP = 1.3  # times the usual line spacing: a larger distance starts a new paragraph
SAME_SIZE = 0.1  # times the font size: maximum difference in size between lines of one paragraph
MAX_SHIFT = 6.0  # times the font size: maximum distance between the left ends of lines of one paragraph
INDENT = 1.0  # times the font size: a line that is indented further starts a paragraph
MIN_CHARACTERS = 28  # minimum length of a line that can continue on the next line
MIN_WIDE = 10  # minimum length of a Chinese, Japanese or Korean line that can continue on the next line
WIDE_STEP = 3  # Chinese and Japanese lines may be this many letters short, because of rules for punctuation
NEAR_EDGE = 8.0  # times the font size: maximum distance of a line end from the right edge
FULL_LINE = 0.7  # times the font size: maximum distance of a line end from the right edge if lines end inside words
MIN_FULL_LINES = 0.7  # minimum share of such lines
MIN_NEAR_EDGE = 1 / 3  # minimum share of lines that end near the edge; if it is lower, the block is a list

_ITEM = re.compile(r"(?:[•●▪■◦‣·–—*o-]|\(?(?:\d{1,3}|[A-Za-z]|[ivxlc]{1,5})[.)]|\d{1,3}(?:\.\d{1,3})+\.?|§+)(?=\s|$)")
_LEADER = re.compile(r"(?:[._…-]\s?){4}\s*\S{0,8}$")  # dot leader of a table of contents, or a blank to fill in
_LETTER = re.compile(r"[^\W_]")


def continuations(lines: Sequence[Line]) -> list[bool]:
    """For each line, return whether its paragraph continues on the next line."""
    out = [False] * len(lines)
    for first, last in _line_blocks(lines):
        block = lines[first:last]
        edge = max(line.x1 for line in block)
        near = sum(edge - line.x1 <= NEAR_EDGE * line.size for line in block)
        if near >= MIN_NEAR_EDGE * len(block):
            for at, (line, following) in enumerate(pairwise(block), first):
                out[at] = _is_full(line, following, edge) and not _begins_paragraph(line, following)
    return out


def _line_blocks(lines: Sequence[Line]) -> Iterator[tuple[int, int]]:
    """Yield the start and the end (exclusive) of each block of evenly spaced lines."""
    steps = sorted(_distance(a, b) for a, b in pairwise(lines) if _distance(a, b) > 0.8)
    largest = STEP * steps[len(steps) // 4] if steps else 0.0
    first = 0
    for at in range(1, len(lines) + 1):
        if at == len(lines) or not _evenly_set(lines[at - 1], lines[at], largest):
            yield first, at
            first = at


def _distance(line: Line, following: Line) -> float:
    """Return the distance to the next line as a multiple of the font size, or NaN if a position is unknown."""
    return (line.y - following.y) / (line.size or 1.0)


def _evenly_set(line: Line, following: Line, largest: float) -> bool:
    size = max(line.size, following.size)
    return (
        line.cells == following.cells == 1
        and abs(line.size - following.size) <= SAME_SIZE * size
        and abs(line.x0 - following.x0) <= MAX_SHIFT * size
        and 0 < _distance(line, following) <= largest
    )


def _is_full(line: Line, following: Line, edge: float) -> bool:
    """Return whether the first word of the next line would not have fitted on this line."""
    is_wide = NO_SPACE.match(following.text) is not None
    word = WIDE_STEP if is_wide else len(following.text.split(maxsplit=1)[0]) + 1
    width = word * (following.x1 - following.x0) / len(following.text)
    minimum = MIN_WIDE if is_wide or HANGUL.match(following.text) else MIN_CHARACTERS
    return len(line.text) >= minimum and line.x1 + width > edge


def _begins_paragraph(line: Line, following: Line) -> bool:
    is_indented = following.x0 - line.x0 > INDENT * line.size and not _ITEM.match(line.text)
    is_end = line.text.endswith(":") or _LEADER.search(line.text) is not None
    is_rule = not _LETTER.search(following.text)
    return is_indented or is_end or is_rule or _ITEM.match(following.text) is not None


# ---- Repairs of extracted text ---------------------------------------------------------------------------------------

SOFT_HYPHEN: Final = "\u00ad"
_HYPHENS: Final = ("-", "\u2010", SOFT_HYPHEN)
LIGATURES: Final = {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"}
_CONTROLS: Final = dict.fromkeys([*range(9), 11, *range(14, 32), *range(127, 160), 0xFEFF, 0xFFFE, 0xFFFF])
_SURROGATES: Final = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
_CHARACTERS: Final = str.maketrans({**LIGATURES, "\u00a0": " "}) | _CONTROLS | _SURROGATES

_WORD = re.compile(r"[^\W\d_]+(?:[-\u2010][^\W\d_]+)*")
_HEAD = re.compile(r"(?<![^\W_])([^\W\d_]+)([-\u2010\u00ad])$")
_TAIL = re.compile(r"([^\W\d_]+)(?:-[^\W\d_]+)*(?:-$|[^\w\s]*)")
_MIN_CUTS = 3  # if fewer words are certainly hyphenated, doubtful words are not rejoined


def clean(text: str) -> str:
    """Replace ligatures with letters, remove control characters, and replace lone surrogates."""
    return text.translate(_CHARACTERS)


class HyphenJoiner:
    """Rejoin words that are hyphenated at the end of a line.

    The hyphen is removed if the joined word occurs elsewhere in the document ("agree-ment"), and kept if the hyphenated
    word occurs elsewhere ("long-term"). If neither occurs, the hyphen is removed only if other words in the document
    are certainly hyphenated at line ends and the two halves are not words themselves.

    Args:
        pages: The lines of the whole document.
    """

    def __init__(self, pages: Iterable[Sequence[str]]) -> None:
        self._words: set[str] = set()
        cuts = []
        for lines in pages:
            for at, line in enumerate(lines):
                words = _WORD.findall(line.lower())
                start = 1 if at and lines[at - 1].endswith(_HYPHENS) else 0
                self._words.update(words[start : -1 if line.endswith(_HYPHENS) else None])
                cuts.append(_halves(line, lines[at + 1]) if at + 1 < len(lines) else None)
        self._cuts_words = sum(cut is not None and self._is_joined(*cut) for cut in cuts) >= _MIN_CUTS

    def join(self, lines: Sequence[str]) -> list[str]:
        """Rejoin hyphenated words on one page and return its lines, some of which may be empty as a result."""
        out = list(lines)
        for at in range(len(out) - 1):
            cut = _halves(out[at], out[at + 1])
            if cut is None:
                continue
            tail = _TAIL.match(out[at + 1])
            end = tail.end() if tail else 0
            head = out[at][:-1] if self._is_one_word(out[at][-1], *cut) else out[at]
            out[at], out[at + 1] = head + out[at + 1][:end], out[at + 1][end:].lstrip()
        return [line.replace(SOFT_HYPHEN, "") for line in out]

    def _is_one_word(self, mark: str, first: str, second: str) -> bool:
        if mark == SOFT_HYPHEN or self._is_joined(first, second):
            return True
        halves = first in self._words and second in self._words
        return self._cuts_words and not halves and f"{first}-{second}" not in self._words

    def _is_joined(self, first: str, second: str) -> bool:
        return first + second in self._words and f"{first}-{second}" not in self._words


def _halves(line: str, following: str) -> tuple[str, str] | None:
    """Return the lower-case halves of a word that seems to be hyphenated at the end of a line, or None."""
    if not line.endswith(_HYPHENS):
        return None
    head, tail = _HEAD.search(line), _TAIL.match(following)
    if head is None or tail is None:
        return None
    is_one_word = tail[1][0].islower() or (head[1].isupper() and tail[1].isupper() and len(tail[1]) > 1)
    return (head[1].lower(), tail[1].lower()) if is_one_word else None
