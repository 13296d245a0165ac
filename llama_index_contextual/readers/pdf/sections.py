"""Find the headings of a PDF in its bookmarks, typography and numbering.

A heading can usually be recognised by one of three features: letters that are larger or bolder than the body text, a
number or keyword in sequence with other headings ("Item 7.", "3.2"), or an entry in the table of contents. Style and
numbering are the features that Budhiraja and Mago ("A Supervised Learning Approach For Heading Detection", arXiv
1809.01477) and Bentabet et al. ("Table-Of-Contents Generation on Contemporary Documents", arXiv 1911.08836) found to be
decisive. They are implemented here as rules, because the style of the body text and of the numbering can be measured in
each document. To determine levels, the kinds of headings are ordered once for the whole document, and numbering takes
precedence over size. All functions depend only on the lines and their positions, and take linear time.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

from llama_index_contextual.metadata import Heading
from llama_index_contextual.readers.lines import Line
from llama_index_contextual.readers.pdf.pages import OutlineEntry, usual_size

MAX_HEADINGS = 100_000

Pages = Sequence[Sequence[Line]]


def headings(outline: Iterable[OutlineEntry], pages: Pages, *, title: Heading | None = None) -> list[Heading]:
    """Return the headings of a document, in the order of the text.

    Args:
        outline: The bookmarks, which are used unless most of their titles are page numbers or file names. If far more
            headings are detected in the text, they are added below the bookmarks.
        pages: The lines of each page.
        title: The title of the document, if it is on the first pages. It is added as the first heading, unless another
            heading precedes it.
    """
    detected = _detect(pages, title)
    marks = bookmarks(outline, pages)
    if not marks:
        return detected
    return _supplement(marks, detected) if len(detected) > FEWER * len(marks) else marks


# ---- bookmarks -----------------------------------------------------------------------------------------------------

MAX_LINES = 3  # maximum number of lines in a heading
MIN_RATIO = 0.6
MAX_COMPARED = 200  # maximum number of lines of a page that are compared letter by letter

_PAGE_MARK = re.compile(r"(?i)(?:(?:page|p|slide|folie|seite|página|sheet)\W*)?[\divxlc]{1,6}(?:\s+of\s+\d+)?")
_FILE_MARK = re.compile(r"(?i)\S.*\.(?:pdf|docx?|xlsx?|pptx?|html?|txt|rtf|indd)|\d{10}-\d\d-\d{6}.*")
FEWER = 3  # if the ratio of headings to bookmarks is higher, the bookmarks cover only parts of the document


def _supplement(marks: Sequence[Heading], detected: Sequence[Heading]) -> list[Heading]:
    """Combine the bookmarks with the headings detected in the text, which get lower levels than the bookmarks.

    Detected headings that have a bookmark are omitted. Headings before the first bookmark keep their levels.
    """
    at = {mark.start for mark in marks}
    titles = {letters(mark.title) for mark in marks}
    deepest = max(mark.level for mark in marks)
    added = [
        replace(heading, level=deepest + heading.level)
        for heading in detected
        if heading.start >= marks[0].start and heading.start not in at and letters(heading.title) not in titles
    ]
    before = [heading for heading in detected if heading.start < marks[0].start]
    return sorted([*before, *marks, *added], key=lambda heading: heading.start)


def bookmarks(outline: Iterable[OutlineEntry], pages: Sequence[Sequence[Line]]) -> list[Heading]:
    """Return the bookmarks as headings, in the order of the text.

    The result is empty if most of their titles are page numbers or file names. On the page to which a bookmark points,
    the heading begins at the line with the bookmark's title; if there is no such line, it begins at the most similar
    line, at the line below the position of the bookmark, or at the top of the page.
    """
    entries = []
    for entry in outline:
        title = " ".join(entry.title.split())[:MAX_LETTERS]
        if title and 0 <= entry.page < len(pages) and pages[entry.page]:
            entries.append(entry._replace(title=title))
    useless = sum(bool(_PAGE_MARK.fullmatch(entry.title) or _FILE_MARK.fullmatch(entry.title)) for entry in entries)
    if 2 * useless > len(entries):
        return []
    headings = [
        Heading(_locate(entry.title, entry.top, pages[entry.page]).start, entry.level, entry.title) for entry in entries
    ]
    return sorted(headings, key=lambda heading: heading.start)


def _locate(title: str, top: float | None, lines: Sequence[Line]) -> Line:
    target = letters(title)
    exact = [at for at in range(len(lines)) if target and _begins(target, lines[at : at + MAX_LINES])]
    if exact:
        return lines[min(exact, key=lambda at: _distance(top, lines[at].y))]
    similar = max(lines[:MAX_COMPARED], key=partial(_similarity, SequenceMatcher(b=target)))
    if target and _similarity(SequenceMatcher(b=target), similar) >= MIN_RATIO:
        return similar
    below = [line for line in lines if top is not None and line.y <= top]
    return max(below, key=lambda line: line.y, default=lines[0])


def _similarity(matcher: SequenceMatcher[str], line: Line) -> float:
    matcher.set_seq1(letters(line.text)[:MAX_LETTERS])
    return matcher.ratio() if matcher.real_quick_ratio() >= MIN_RATIO <= matcher.quick_ratio() else 0.0


def _begins(target: str, lines: Sequence[Line]) -> bool:
    """Return whether the joined lines begin with the `target` title, comparing only letters and digits."""
    joined = accumulate(letters(line.text) for line in lines)
    return bool(letters(lines[0].text)) and any(text.startswith(target) for text in joined)


def _distance(top: float | None, y: float) -> float:
    """Return the distance between a line and the position of the bookmark, which is usually slightly above the line."""
    if top is None or math.isnan(y):
        return 0.0
    return top - y if y <= top else 3 * (y - top)


# ---- numbering -----------------------------------------------------------------------------------------------------

_ROMAN = r"(?=[IVXLC])(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
_COUNT = (
    "ONE|TWO|THREE|FOUR|FIVE|SIX|SEVEN|EIGHT|NINE|TEN|ELEVEN|TWELVE|THIRTEEN|FOURTEEN|FIFTEEN|SIXTEEN|SEVENTEEN"
    "|EIGHTEEN|NINETEEN|TWENTY(?:-(?:ONE|TWO|THREE|FOUR|FIVE|SIX|SEVEN|EIGHT|NINE))?|THIRTY"
    "|FIRST|SECOND|THIRD|FOURTH|FIFTH|SIXTH|SEVENTH|EIGHTH|NINTH|TENTH"
)
_ATTACHED = ("EXHIBIT", "SCHEDULE", "ANNEX", "APPENDIX", "ATTACHMENT", "ADDENDUM", "ENCLOSURE", "ANLAGE")
_PARTS = ("PART", "BOOK", "TEIL", "PARTIE", "PARTE")
_CHAPTERS = ("ITEM", "ARTICLE", "CHAPTER", "ARTIKEL", "KAPITEL", "CHAPITRE", "CAPÍTULO", "ARTÍCULO")
_SECTIONS = ("NOTE", "SECTION", "CLAUSE", "ABSCHNITT", "SECCIÓN", "CLÁUSULA")
_FAMILIES = {
    **dict.fromkeys(_ATTACHED, "attachment"),
    **dict.fromkeys(_PARTS, "part"),
    **dict.fromkeys(_CHAPTERS, "chapter"),
    **dict.fromkeys(_SECTIONS, "section"),
}
_KEYWORDS = "|".join(spelled for word in _FAMILIES for spelled in (word, word.title()))
_KEYWORD = re.compile(
    rf"(?P<word>{_KEYWORDS}|§)[ ]+(?P<number>\d{{1,3}}(?:\.\d{{1,3}})*\.?[A-Z]?(?:\(\w{{1,3}}\))?|{_ROMAN}"
    rf"|[A-Z](?:-?\d{{1,2}})?|(?i:{_COUNT}))(?![\w'’/-])(?P<mark>[ ]?[.:—–-]+)?(?:[ ]*(?P<title>\S.*))?$"
)
_NUMBERED = re.compile(
    rf"(?:(?P<decimal>\d{{1,3}}(?:\.\d{{1,3}}){{0,4}})(?P<dot>[.)])?|(?P<roman>{_ROMAN})\.|(?P<letter>[A-Z])\."
    rf"|\((?P<inner>[a-z]{{1,4}}|[A-Z]|\d{{1,2}})\))(?:[ ]+|(?<=[.)])(?=[A-Z][A-Za-z]))(?P<title>\S.*)$"
)
_DIGITS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}


class Label(NamedTuple):
    """The numbering at the beginning of a heading.

    Attributes:
        family: Kind of numbering: "part", "chapter", "section", "attachment", "decimal", "roman", "letter" or "inner".
        numbers: The keyword, if there is one, and the numbers; the last number increases from heading to heading.
        depth: Number of parts in a decimal number, otherwise 1.
        title: The text after the numbering.
    """

    family: str
    numbers: tuple[str, ...]
    depth: int
    title: str

    @property
    def is_keyword(self) -> bool:
        """Whether the label begins with a word such as "Item" or "Exhibit"."""
        return self.family in ("part", "chapter", "section", "attachment")


def label_in(text: str) -> Label | None:
    """Return the numbering at the beginning of a line, or None if the line has none.

    Example:
        >>> tuple(label_in("Item 7. Risk factors"))
        ('chapter', ('ITEM', '7'), 1, 'Risk factors')
    """
    if match := _KEYWORD.match(text):
        number, word = match["number"].rstrip("."), match["word"].upper()
        parts = tuple(_as_digits(part) for part in number.upper().split("."))
        title = match["title"] or ""
        return Label(_FAMILIES.get(word, "section"), (word, *parts), len(parts), title)
    if match := _NUMBERED.match(text):
        if match["decimal"]:
            parts = tuple(match["decimal"].split("."))
            if len(parts) == 1 and not match["dot"]:
                return Label("bare", parts, 1, match["title"]) if len(parts[0]) < 3 else None
            return Label("decimal", parts, len(parts), match["title"])
        for family in ("roman", "letter", "inner"):
            if match[family]:
                value = _as_digits(match[family]) if family == "roman" else match[family]
                return Label(family, (value,), 1, match["title"])
    return None


def without_label(text: str) -> str:
    """Return the line without the numbering at its beginning."""
    label = label_in(text)
    return label.title if label else text


def _as_digits(text: str) -> str:
    """Return a Roman numeral as digits, and anything else unchanged."""
    return str(roman_value(text)) if text and all(char in _DIGITS for char in text) else text


def roman_value(numeral: str) -> int:
    """Return the value of a Roman numeral in capitals."""
    values = [_DIGITS[digit] for digit in numeral]
    return sum(-a if a < b else a for a, b in pairwise([*values, 0]))


# ---- titles --------------------------------------------------------------------------------------------------------

MAX_LETTERS = 200
MAX_WORDS = 16
MAX_RUN_IN_WORDS = 10

SMALL = frozenset({"a", "an", "and", "as", "at", "by", "for", "from", "in", "of", "on", "or", "the", "to", "with"})
VERB = re.compile(r"(?i)\b(?:shall|will|must|may(?! \d)|can|is|are|was|were|has|have|had|be|been|agrees?|means?)\b")
_SENTENCE = re.compile(r"[^\W\d_]{3}(?<!Inc)(?<!Corp)(?<!Ltd)(?<!Mrs)[.!?;] +[A-Z]")
RUN_IN = re.compile(r"(?P<title>[A-Z“\"'‘(][^.;:]{1,90}?)(?P<mark>\.[”\"’]?|:|[ ]?[–—]| -)(?:\s+(?P<rest>\S.*)|\s*$)")
_BULLETS = "[\\|{#~^_•●▪■◦·–—-*☐☒%&+/=<>"
MONTH = "january|february|march|april|may|june|july|august|september|october|november|december"
_NO_TITLE = re.compile(
    r"(?i)(?:by|name|title|its|date|dated|attn|attention|tel|telephone|phone|fax|facsimile|e-?mail|address|signed|to"
    r"|re|witness|print(?:ed)? name)\s*:"  # a form, a letter or a signature
    r"|/s/|_{3}|.*(?:_{4}|\.{4}|…)|\[.*\]$|\*"
    r"|.*@|https?:|www\.|.*\b(?:\d{5}(?:-\d{4})?|[A-Z]{2} \d{5})$"  # an address
    r"|.*\b(?:inc\.|l\.?l\.?c\.?|ltd\.?|corp\.|l\.p\.),?$|(?:inc|llc|ltd)\.?$|by and between|between$"  # a party
    rf"|(?:{MONTH})\s+\d|dated\b|as of\b"
    r"|\(?\$|\((?:in|dollars?|amounts?|continued|unaudited|thousands|millions|u\.?s)\b|total\b|and$|or$|none\.?$"
    r"|(?:by|name|title|its|date|page)$|not applicable|-?\s*\d+\s*-?$|page\b|continued|table of contents$|\d+ u\.?s\.?c"
)
_BEFORE_CONTINUED = " \t\n\u00a0(,–—-"
CONTINUED = re.compile(r"(?i)(?<![^\W\d_])(?:continued|cont[’'.]?d?\.?)\s*\)?\.?$")


def is_title_case(text: str) -> bool:
    """Return whether most significant words begin with a capital letter."""
    words = [word for word in re.findall(r"[^\W\d_][\w’'&.-]*", text) if word.casefold() not in SMALL]
    return bool(words) and words[0][0].isupper() and 4 * sum(word[0].isupper() for word in words) >= 3 * len(words)


def is_plain_title(text: str, *, words: int = MAX_WORDS) -> bool:
    """Return whether the text may be a title: not a sentence, table row, address, date or blank line of a form."""
    tokens = text.split()
    if not tokens or len(tokens) > words or len(text) > MAX_LETTERS or _NO_TITLE.match(text):
        return False
    first = next((char for char in text if char.isalnum()), "")
    count = sum(map(str.isalpha, text))
    if not first or first.islower() or text[0] in _BULLETS or count < 3 or 2 * count < len(text) - 4:
        return False
    is_closed = all(text.count(a) == text.count(b) for a, b in ("()", "[]", "“”"))
    return text[-1] not in ",;" and is_closed and (text.isupper() or not _SENTENCE.search(text))


# ---- detection -----------------------------------------------------------------------------------------------------

LARGER = 1.09  # times the size of the body text
MIN_PROSE = 80  # minimum number of characters in a line or paragraph of running text
MIN_ENTRIES = 4  # minimum number of entries on one page of a table of contents
EDGE = 0.05  # share of the long lines that may extend beyond the left edge or the right edge
SIGNING = 4  # number of lines below a heading that are searched for a signature


@dataclass(slots=True)
class _Candidate:
    """A line that may be a heading.

    Attributes:
        page: Index of the page.
        start: Offset in the document.
        title: The text of the heading.
        label: The numbering of the heading.
        size: Font size.
        bold: Whether the line is bolder than the body text.
        sure: Whether the style or the table of contents confirms that the line is a heading.
        centred: Whether the heading is centred; known only for headings without numbering.
        run_in: Whether the paragraph continues on the same line after the heading.
        lines: Number of lines that the heading occupies.
        gap: Number of characters between the previous heading on the page and this heading.
    """

    page: int
    start: int
    title: str
    label: Label | None
    size: float
    bold: bool
    sure: bool
    centred: bool = False
    run_in: bool = False
    lines: int = 1
    gap: int = 1_000


@dataclass(frozen=True, slots=True)
class _BodyStyle:
    """Style of the running text of a document.

    Attributes:
        size: The most frequent font size.
        bold: Whether most of the text is bold.
        step: Usual line spacing.
        left: Left edge of the text.
        right: Right edge of the text.
    """

    size: float
    bold: bool
    step: float
    left: float
    right: float

    def is_bolder(self, line: Line) -> bool:
        """Return whether a line is bold and running text is not."""
        return line.bold and not self.bold

    def is_larger(self, line: Line) -> bool:
        """Return whether a line has larger letters than running text."""
        return line.size >= LARGER * self.size > 0

    def is_centred(self, line: Line) -> bool:
        """Return whether a line is centred."""
        width = self.right - self.left
        if width <= 0 or line.x0 < self.left + 0.1 * width:
            return False
        return abs((line.x0 + line.x1) / 2 - (self.left + self.right) / 2) < 0.05 * width


@dataclass(slots=True)
class _Contents:
    """The lines of the tables of contents, and the titles in them, normalised by `letters`."""

    lines: set[int] = field(default_factory=set)  # offsets
    titles: set[str] = field(default_factory=set)


def _detect(pages: Pages, title: Heading | None) -> list[Heading]:
    style = _style(pages)
    contents = _contents(pages)
    first = title.start if title else -1
    prose = next((line.start for lines in pages for line in lines if line.start > first and _is_prose(line)), 0)
    cover = next((number for number, lines in enumerate(pages) if lines and lines[-1].start >= first), 0)
    candidates: list[_Candidate] = []
    for number, lines in enumerate(pages):
        page = _Page(number, lines, _of_page(style, lines), contents)
        candidates.extend(page.candidates(prose, is_cover=number <= cover))
        if len(candidates) > MAX_HEADINGS:
            break
    return _leveled(_without_repeated(_in_sequence(_without_lists(candidates))), style, title)


def _is_prose(placed: Line) -> bool:
    return placed.end == " " or len(placed.text) > MIN_PROSE


def _style(pages: Pages) -> _BodyStyle:
    lines = [line for page in pages for line in page if line.upright]
    gaps = ((a.y - b.y, a.size or 1) for page in pages for a, b in pairwise(page))
    steps = Counter(round(gap / size, 1) for gap, size in gaps if 0 < gap < 3 * size)
    long_lines = [line for line in lines if len(line.text) >= MIN_PROSE]
    return _BodyStyle(
        size=usual_size(lines)[0],
        bold=sum(len(line.text) if line.bold else -len(line.text) for line in lines) > 0,
        step=steps.most_common(1)[0][0] if steps else 1.2,
        left=_quantile([round(line.x0) for line in long_lines], EDGE),
        right=_quantile([round(line.x1) for line in long_lines], 1 - EDGE),
    )


def _quantile(values: Sequence[int], share: float) -> float:
    return float(sorted(values)[max(0, math.ceil(share * len(values)) - 1)]) if values else 0.0


def _of_page(style: _BodyStyle, lines: Sequence[Line]) -> _BodyStyle:
    """Return the body style for a page, with the font size of the page if its running text is larger than usual."""
    size, weight = usual_size([line for line in lines if len(line.text) >= MIN_PROSE // 2])
    return replace(style, size=size) if weight >= 3 * MIN_PROSE and size > style.size else style


_PAGE = re.compile(r"(?<![\w,.$%-])(?:[A-Z]{1,2}-?\d{1,3}|\d{1,4}|[ivxlc]{1,6})$")
_LEADER = " \t.…·_"
_CONTENTS = re.compile(r"(?i)(?:table of )?contents|index|inhalt(?:sverzeichnis)?|sommaire|table des matières|índice")


def _contents(pages: Pages) -> _Contents:
    """Find the tables of contents, whose entries end with page numbers."""
    out = _Contents()
    for lines in pages:
        entries: list[tuple[int, str, str]] = []
        for at, placed in enumerate(lines):
            page = _PAGE.search(placed.text[-7:]) if len(placed.text) <= 300 else None
            text = placed.text[: -len(page.group())].rstrip(_LEADER) if page else ""
            has_gap = page and (placed.cells > 1 or len(placed.text) - len(text) - len(page.group()) > 3)
            if page and has_gap and sum(map(str.isalpha, text)) > 2:
                entries.append((at, text, page.group()))
        has_heading = any(_CONTENTS.fullmatch(placed.text) for placed in lines[:10])
        if len(entries) < (2 if has_heading else MIN_ENTRIES) or not _is_contents(lines, entries):
            continue
        first, last = entries[0][0], entries[-1][0]
        while first > 0 and (len(above := lines[first - 1].text) <= 12 or _CONTENTS.fullmatch(above)):
            first -= 1
        out.lines.update(placed.start for placed in lines[first : last + 1])
        for _, text, _ in entries:
            out.titles |= {letters(text), letters(without_label(text))} - {""}
    return out


def _is_contents(lines: Sequence[Line], entries: Sequence[tuple[int, str, str]]) -> bool:
    """Return whether the entries, which are lines that end with a page number, form a table of contents."""
    numbers = {int(page) for _, _, page in entries if page.isdecimal()}
    has_heading = any(_CONTENTS.fullmatch(placed.text) for placed in lines[: entries[0][0] + 1])
    labelled = sum(label_in(text) is not None for _, text, _ in entries)
    digits = sum(any(map(str.isdigit, without_label(text))) for _, text, _ in entries)
    share = len(entries) / (entries[-1][0] - entries[0][0] + 1)
    if has_heading or share <= 0.5:
        return has_heading and share > 0.3
    return 4 * digits <= len(entries) and (2 * labelled >= len(entries) or len(numbers) >= 6)


_UNITS = re.compile(
    r"(?i)(?:weeks?|months?|years?|days?|hours?|quarters?|million|billion|thousand|percent|shares?|units?|basis points"
    rf"|U\.?S\.?C?|{MONTH})\b|%"
)


_DATE_WORDS = frozenset(
    f"{MONTH.replace('|', ' ')} jan feb mar apr jun jul aug sep sept oct nov dec as of for the at in on year years "
    "month months quarter quarters week weeks day days fiscal period periods ended ending three six nine twelve first "
    "second third fourth and to vs versus compared with through from".split()
)


def _is_date(text: str) -> bool:
    """Return whether the text is only a date or time period, such as "Years Ended December 31, 2022 and 2021"."""
    words = re.findall(r"\w+", text.casefold())
    return any(map(str.isdigit, words)) and all(word.isdigit() or word in _DATE_WORDS for word in words)


_REGISTRANT = re.compile(r"(?i)\(?\s*exact\s+name\s+of\s+(?:the\s+)?registrant")


def _is_row(placed: Line) -> bool:
    return placed.cells > 1 and (placed.cells > 2 or any(char.isdigit() for char in placed.text[-8:]))


@dataclass(frozen=True, slots=True)
class _Page:
    """A page to be searched for headings.

    Attributes:
        number: Index of the page.
        lines: The lines of the page.
        style: Style of the running text on the page.
        contents: The tables of contents of the document.
    """

    number: int
    lines: Sequence[Line]
    style: _BodyStyle
    contents: _Contents

    def candidates(self, prose: int, *, is_cover: bool) -> Iterator[_Candidate]:
        """Yield the lines of the page that may be headings.

        Args:
            prose: Offset of the first running text of the document.
            is_cover: Whether the page belongs to the cover, on which unnumbered lines before `prose` are not headings.
        """
        is_form = any(_REGISTRANT.match(line.text) for line in self.lines)
        signing = False
        at, gap = 0, 1_000
        while at < len(self.lines):
            line = self.lines[at]
            is_front = line.start < prose
            if line.start in self.contents.lines:
                pass
            elif line.text.upper().startswith("IN WITNESS W"):
                title = "In Witness Whereof"
                yield _Candidate(self.number, line.start, title, None, math.inf, bold=True, sure=True)
                signing = True
            elif (
                candidate := self._candidate(at, is_free=not ((is_front and is_cover) or signing or is_form))
            ) and not (
                is_front and candidate.label and candidate.label.family == "attachment"  # number of this exhibit
            ):
                signing = signing and candidate.label is None
                candidate.gap, gap = gap, 0
                yield candidate
                at += candidate.lines
                continue
            else:
                gap += len(line.text)
            at += 1

    def _candidate(self, at: int, *, is_free: bool) -> _Candidate | None:
        line, before = self.lines[at], self.lines[at - 1] if at else None
        if not 3 <= len(line.text) <= 2_000 or not line.upright:
            return None
        bold, larger = self.style.is_bolder(line), self.style.is_larger(line)
        if before is not None and before.end == " ":  # the line is in the middle of a paragraph
            alike = before.bold == line.bold and abs(before.size - line.size) < 0.5
            if alike or not (larger or bold):
                return None
        label = label_in(line.text)
        is_first = label is not None and label.numbers == ("1",) and (bold or larger)
        if label is not None and (is_free or is_first or label.family != "bare"):
            numbered = self._numbered(at, label)
            if numbered is not None or label.family != "bare":
                return numbered
        return self._styled(at) if is_free and line.cells == 1 else None

    def _numbered(self, at: int, label: Label) -> _Candidate | None:
        """Return the heading on the line with index `at` if it begins with a number or keyword, or None."""
        line, title = self.lines[at], label.title
        bold, larger = self.style.is_bolder(line), self.style.is_larger(line)
        is_keyword = label.is_keyword
        make = partial(_Candidate, self.number, line.start, label=label, size=line.size, bold=bold)
        centred = self.style.is_centred(line)
        if not title:
            upper = line.text.isupper()
            if not is_keyword or not (bold or larger or centred or upper or len(line.text) < 16):
                return None
            if line.text[-1] == "." and not (bold or centred or upper):
                return None
            text, count = self._with_line_below(at)
            return make(title=text, sure=True, lines=count)
        if label.family == "bare" and (not (bold or larger) or _UNITS.match(title)):
            return None
        run_in = RUN_IN.match(title)
        rest = run_in["rest"] if run_in else None
        if run_in and (rest or (run_in["mark"] and line.end == " ")):
            name = run_in["title"].strip(" “”\"'‘’")
            ok = is_plain_title(name, words=MAX_RUN_IN_WORDS) and not VERB.search(name)
            if ok and (is_title_case(name) or (bold and not rest)):
                prefix = line.text[: len(line.text) - len(title)].strip()
                return make(title=f"{prefix} {name}", sure=bold or larger, run_in=True)
            if not (bold or larger):
                return None
        text, count = self._wrapped(at)
        body = text[len(line.text) - len(title) :]
        listed = letters(text) in self.contents.titles or letters(body) in self.contents.titles
        if not is_plain_title(body, words=40 if listed or bold else MAX_WORDS):
            return None
        is_short = line.end == "\n" and len(body.split()) <= 10
        strong = bold or larger or listed or (body.isupper() and (is_keyword or is_short))
        is_title = is_title_case(body) or (label.family == "decimal" and label.depth == 1 and len(body.split()) <= 6)
        if not strong and (VERB.search(body) or not is_title or line.end == " " or len(body) > 90):
            return None
        if (line.cells > 2 and not listed) or (
            line.cells == 2 and re.search(r"\d[%)]?$", body) and not listed and not is_keyword
        ):
            return None
        if label.family == "inner" and not bold and not larger and not listed:
            return None
        return make(title=text.strip(), sure=strong or is_keyword, lines=count)

    def _with_line_below(self, at: int) -> tuple[str, int]:
        """Join a number or keyword on its own line with a title below it, and return the text and the line count."""
        line = self.lines[at]
        following = self.lines[at + 1] if at + 1 < len(self.lines) else line
        same = abs(following.size - line.size) < 0.25 * line.size and following.cells == 1 and following.end != " "
        near = 0 < line.y - following.y < 4 * (line.size or 1.0)
        prominent = following.bold or following.text.isupper() or self.style.is_centred(following)
        is_title = same and near and prominent and not label_in(following.text)
        if not is_title or not is_plain_title(following.text) or not is_title_case(following.text):
            return line.text, 1
        text, count = self._wrapped(at + 1)
        return f"{line.text} {text}", 1 + count

    def _wrapped(self, at: int) -> tuple[str, int]:
        """Join the first line of a heading with its continuation lines, and return the text and the line count."""
        placed = self.lines[at]
        parts = [placed.text]
        for index in range(at + 1, min(len(self.lines), at + MAX_LINES)):
            before, line = self.lines[index - 1], self.lines[index]
            same = line.bold == before.bold and abs(line.size - before.size) < 0.05 * before.size
            gap = before.y - line.y
            close = 0 < gap <= 1.45 * max(before.size, 1.0)
            marked = (
                (before.bold and not self.style.bold)
                or before.size >= LARGER * self.style.size
                or (before.text.isupper() and line.text.isupper())
            )
            full = (
                before.x1 > self.style.left + 0.6 * (self.style.right - self.style.left)
                or before.text.split()[-1].casefold() in SMALL
            )
            centred = self.style.is_centred(before) and self.style.is_centred(line)
            if not (same and close and marked and (full or centred)) or line.cells > 1 or label_in(line.text):
                break
            if parts[-1].endswith((".", ":")) and not parts[-1].endswith(("Inc.", "Corp.", "Co.")):
                break
            parts.append(line.text)
        return " ".join(parts), len(parts)

    def _styled(self, at: int) -> _Candidate | None:
        """Return a heading that is recognised by its style alone, or because it is in the table of contents."""
        line = self.lines[at]
        bold, larger = self.style.is_bolder(line), self.style.is_larger(line)
        text, count = self._wrapped(at)
        listed = letters(text) in self.contents.titles
        caps = text.isupper() and sum(char.isalpha() for char in text) >= 5
        centred = self.style.is_centred(line)
        if not (bold or larger or caps or listed) or (line.end == " " and count == 1 and not (bold or larger)):
            return None
        run_in = RUN_IN.match(text)
        if run_in and run_in["rest"] and not larger:
            return None  # the bold beginning of a paragraph
        bare = text.rstrip(":").rstrip()
        if not is_plain_title(bare) or (text[-1] == "." and not caps and not listed):
            return None
        if self._is_signed(at) or _is_date(text) or self._is_beside(at, count):
            return None
        if not (larger or listed):
            if self._in_table(at, count) or self._is_stacked(at, count):
                return None
            if caps and not bold and len(text.split()) > 12:
                return None
        return _Candidate(self.number, line.start, bare, None, line.size, bold, sure=True, centred=centred, lines=count)

    def _is_signed(self, at: int) -> bool:
        """Return whether a signature is near, so that the line is probably the name of a party."""
        near = [placed.text for placed in self.lines[at + 1 : at + 1 + SIGNING]]
        return any(re.match(r"(?i)(?:by|name|title|its)\s*:|/s/|.*(?:/s/|_{6})", text) for text in near)

    def _is_beside(self, at: int, count: int) -> bool:
        """Return whether there is other text next to a heading of `count` lines, as in column headers."""
        lines, size = self.lines, self.lines[at].size or 1.0
        before = lines[at - 1].y - lines[at].y if at else size
        after = lines[at + count - 1].y - lines[at + count].y if at + count < len(lines) else size
        return abs(before) < 0.5 * size or -6 * size < before < 0 or -12 * size < after < 0.5 * size

    def _is_stacked(self, at: int, count: int) -> bool:
        """Return whether a similar line is directly above or below a heading of `count` lines, as in column headers."""
        lines, last = self.lines, at + count - 1
        above = zip(lines[max(0, at - 1) : at], lines[at : at + 1], strict=False)
        below = zip(lines[last : last + 1], lines[last + 1 : last + 2], strict=False)
        return any(
            one.bold == other.bold
            and one.cells == other.cells == 1
            and abs(one.size - other.size) < 0.1 * one.size
            and 0 < one.y - other.y < 1.35 * one.size
            for one, other in [*above, *below]
        )

    def _in_table(self, at: int, count: int) -> bool:
        """Return whether a line is probably in a table, because it is next to table rows or begins far to the right."""
        line, last, style = self.lines[at], self.lines[at + count - 1], self.style
        near = 2.2 * style.step * (line.size or 1.0)
        centred = style.is_centred(line)
        above = any(_is_row(row) and row.y - line.y < near for row in self.lines[max(0, at - 1) : at])
        below = any(_is_row(row) and last.y - row.y < near for row in self.lines[at + count : at + count + 1])
        if below and not above and (line.text.isupper() or centred) and len(line.text.split()) > 2:
            return False
        return above or below or (line.x0 > style.left + 0.45 * (style.right - style.left) and not centred)


# ---- choice --------------------------------------------------------------------------------------------------------


def _without_lists(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Remove the items of numbered lists without text between the items, such as lists of exhibits."""
    kept: list[_Candidate] = []
    run: list[_Candidate] = []
    for each in [*candidates, None]:
        if run and each is not None and _is_next(run[-1], each):
            run.append(each)
            continue
        if len(run) < 3:
            kept += run
        run = [each] if each is not None else []
    return kept


def _is_next(one: _Candidate, other: _Candidate) -> bool:
    return (
        one.label is not None
        and other.label is not None
        and not one.run_in
        and not other.run_in
        and _kind(one) == _kind(other)
        and one.page == other.page
        and other.gap == 0
    )


def _in_sequence(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Remove listed exhibits, and doubtful candidates whose number is not in sequence with other numbers."""
    kept: set[int] = set()
    last: dict[tuple[str, int, tuple[str, ...]], tuple[int, int]] = {}
    in_exhibits = False
    exhibits: set[int] = set()
    for at, each in enumerate(candidates):
        if each.label is None or each.label.is_keyword:
            in_exhibits = _EXHIBITS.search(each.title) is not None
        elif in_exhibits or (each.label.family == "bare" and re.match(r"(?i)exhibits?\b", each.label.title)):
            exhibits.add(at)
        if each.label is None:
            continue
        key = (each.label.family, each.label.depth, each.label.numbers[:-1])
        value = _ordinal(each.label)
        previous = last.get(key)
        if previous is not None and previous[1] < value <= previous[1] + 2:
            kept.update((at, previous[0]))
        last[key] = (at, value)
    return [each for at, each in enumerate(candidates) if (each.sure or at in kept) and at not in exhibits]


_EXHIBITS = re.compile(r"(?i)\bexhibits\b|\bexhibit index\b")


def _ordinal(label: Label) -> int:
    last = label.numbers[-1]
    if last.isdecimal():
        return int(last)
    return 0 if not last else ord(last[0].upper()) - 64


def _without_repeated(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Remove candidates that repeat the heading of an open section, such as "Note 5 (continued)"."""
    kept: list[_Candidate] = []
    numbered: dict[str, tuple[str, ...]] = {}
    last = ""
    for each in candidates:
        mark = CONTINUED.search(each.title)
        base = (each.title[: mark.start()].rstrip(_BEFORE_CONTINUED) if mark else each.title).strip()
        folded = letters(base)
        is_continued = base != each.title
        if each.label is not None:
            if numbered.get(each.label.family) == each.label.numbers and (is_continued or folded == last):
                continue
            numbered[each.label.family] = each.label.numbers
        elif folded == last:
            continue
        each.title = base
        last = folded
        kept.append(each)
    return kept


# ---- levels --------------------------------------------------------------------------------------------------------


def _leveled(candidates: Sequence[_Candidate], style: _BodyStyle, title: Heading | None) -> list[Heading]:
    """Return the headings with their levels. Headings of the same kind have the same level in the whole document.

    The title is added before the headings, unless a heading begins at or before it.
    """
    sizes: dict[str, list[float]] = defaultdict(list)
    first: dict[str, int] = {}
    for at, each in enumerate(candidates):
        kind = _kind(each)
        first.setdefault(kind, at)
        if each.label is not None and not each.run_in:
            sizes[kind].append(each.size)
    typical = {kind: sorted(values)[len(values) // 2] for kind, values in sizes.items()}
    keys = [_level_key(each, typical, first, style) for each in candidates]
    levels = {key: level for level, key in enumerate(sorted(set(keys)), 1)}
    out = [
        Heading(each.start, levels[key], each.title[:MAX_LETTERS], is_marked=False)
        for each, key in zip(candidates, keys, strict=True)
    ]
    if title is not None and not any(each.start <= title.start for each in candidates):
        level = out[0].level if out else 1
        out.insert(0, replace(title, level=level, is_marked=False))
    return out


def _kind(each: _Candidate) -> str:
    if each.label is None:
        return ""
    family, depth = each.label.family, each.label.depth
    return "decimal:1" if family == "bare" else f"{family}:{depth}"


def _level_key(
    each: _Candidate, typical: dict[str, float], first: dict[str, int], style: _BodyStyle
) -> tuple[int, float, int, int]:
    """Return a sort key for the level of a heading, in which numbering takes precedence over font size."""
    body = style.size or 1.0
    if each.label is None:
        if each.size == math.inf:
            return (0, 0, 0, 0)
        size = each.size if each.size >= LARGER * body else body
        is_caps = each.title.isupper() and (" " in each.title or (len(each.title) > 6 and each.title.isalpha()))
        look = 0 if is_caps and (each.bold or each.centred) else 1 if each.bold or size > body else 2
        return (2, -round(size / body, 1), 40 + look, 0)
    family, depth = each.label.family, each.label.depth
    if family in ("attachment", "part"):
        return (0, 0, 0, 0)
    if family == "chapter":
        return (1, 0, 0, 0)
    if family == "inner":
        return (3, 0, 60, 0)
    size = typical.get(_kind(each), body)
    size = size if size >= LARGER * body else body
    if family == "section":
        return (2, -round(size / body, 1), 10, depth)
    order = sorted(("decimal:1", "roman:1", "letter:1"), key=lambda kind: first.get(kind, 1 << 30))
    if depth == 1:
        return (2, -round(size / body, 1), 20 + order.index(_kind(each)), 0)
    parent = typical.get("decimal:1", size)
    parent = parent if parent >= LARGER * body else body
    return (2, -round(min(size, parent) / body, 1), 30, depth)


def letters(text: str) -> str:
    """Return the letters and digits of the text in lower case, for comparisons."""
    return "".join(char for char in text.casefold() if char.isalnum())
