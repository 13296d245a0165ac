"""Find the title of a PDF.

The title is on the first pages or in the file's metadata. Metadata often contains the title of a template, an earlier
document or a filing service, so the first pages take precedence. The title of a contract consists of its type, parties
and date. The title of any other document is its most prominent line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice, takewhile

from llama_index_contextual.metadata import Heading
from llama_index_contextual.readers.lines import Line
from llama_index_contextual.readers.pdf.pages import usual_size
from llama_index_contextual.readers.pdf.sections import SMALL, is_plain_title

FRONT = 3  # number of first pages that are searched for a title
HEAD = 6_000  # number of characters of the first page in which the numbers of a stored title must occur
OPENING = 4_500  # number of characters after the title of a contract that are searched for its parties
DATED = 700  # number of characters after the title of a contract that are searched for its date
PROMINENT = 1.2  # times the size of the running text: minimum size of a prominent title
TOP_LINES = 15  # number of first lines that are searched for a title without larger letters
MAX_TITLE = 200
MAX_PARTY = 80

_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|Jan\.?|Feb\.?|Mar\.?|Apr\.?|Jun\.?|Jul\.?|Aug\.?|Sept?\.?|Oct\.?|Nov\.?|Dec\.?)"
)
_DAY = (
    rf"(?:{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?(?:\s*+,)?\s+\d{{4}}"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\s+(?:day\s+of\s+)?{_MONTH}(?:\s*+,)?\s+\d{{4}})"
)
_DATED = re.compile(rf"{_DAY}|{_MONTH}\s+\d{{4}}(?!\d)|(?<=[Dd]ated )\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}")

_MADE = re.compile(r"(?i)\b(?:dated?|made|entered|effective|executed|as of|on)\b[^.;]*$|^[^a-z]*$")

_INSTRUMENT = re.compile(
    r"(?i)\b(?:agreement|contract|amendment|addendum|lease|licen[sc]e|deed|indenture|guarant(?:y|ee)|memorandum|covenant"
    r"|undertaking|assignment|settlement|terms\s+and\s+conditions|letter\s+of\s+intent|vertrag|vereinbarung|contrat"
    r"|contrato|convention)\b"
)
_BETWEEN = re.compile(r"(?i)\b(?:between|among)(?:\s+and\s+among)?:?\s+")
_ENTITY = (
    r"(?:Inc|Incorporated|Corp|Corporation|Co|Company|Ltd|Limited|LLC|L\.L\.C|LLP|L\.L\.P|LP|L\.P|PLC|plc|N\.?A|S\.?p\.?A"
    r"|S\.?A|AG|GmbH|B\.?V|N\.?V|Pty|Trust|Bank|Partnership|S\.?r\.?l|S\.?R\.?L|S\.?A\.?S|AB|A/S|Oy|KG|SE)"
)
_DEFINITION = re.compile(r"\((?:the\s+|hereinafter[^()]{0,40}|collectively[^()]{0,20})?[“\"'‘][^()]{1,80}\)")
_NOTE = re.compile(r"(?<!\s)\s*[(\[][^()\[\]]{0,200}[)\]]")
_JOINT = re.compile(r"(?i)(?:^|[\s,;.])(?:and|&)\s+(?-i:(?=[“\"(]?[A-Z0-9]))")
# Text that follows the name of a party: its description, another party, or another sentence.
_NAME_END = re.compile(
    rf",\s+(?!{_ENTITY}\b)|[;:“”\"]|\.\s+[A-Z][a-z]|\b(?:WITNESSETH|WHEREAS|RECITALS|Whereas|Recitals|THIS|This|TABLE)\b"
    r"|\s(?:an?|with|having|whose|located|organi[sz]ed|incorporated|formed|duly|acting|on\s+behalf|as|existing|established"
    r"|for\s+itself|herein\w*|individually|collectively|registered|together|both|each|dated|effective|of\s+\d|at\s+\d)\b"
)
_AND = re.compile(r"(?:,|(?<![\s,]))\s+(?:and|AND|And)\s+(?=[A-Z“\"])")
_AND_COMPANY = re.compile(rf"(?:,|(?<![\s,]))\s+(?:and|AND|And|&)\s+(?:[A-Z][\w.&’'-]*\s+){{1,4}}(?i:{_ENTITY})\b")

_ENDS = re.compile(r" ?(?:(?<!,),++|(?<!\.)\.++)(?=\s|$)")
_PROGRAM = re.compile(r"(?i)microsoft (?:office )?(?:word|powerpoint|excel) - ")
_NOT_A_TITLE = re.compile(
    r"(?i)(?:untitled|unnamed|no title|title|document|presentation|slide|layout|print|null|none|unknown)[\s\d._-]*"
    r"|.*\.(?:docx?|odt|rtf|pptx?|xlsx?|pdf|indd|qxd|tex|dvi|ps|txt|html?|p65|fm)"
    r"|(?:file|https?):.*|[A-Za-z]:\\.*|\S*/\S*"
)
Stated = tuple[str, Heading]  # a title, and the line where it begins


def document_title(pages: Sequence[Sequence[Line]], stored: str | None) -> tuple[str | None, Heading | None]:
    """Return the title of a document and a heading for the line where the title begins; either may be None.

    Args:
        pages: The lines of each page.
        stored: The title in the file's metadata, which is used if the first pages do not contain a different title.
    """
    upright = ([line for line in page if line.upright] for page in pages[:FRONT])
    front = [page for page in upright if page]
    stated = (_contract(front) or _prominent(front[0])) if front else None
    if stated is None:
        return stored, None
    title, heading = stated
    is_one_line = title.casefold() == heading.title.casefold()
    return (stored if stored and is_one_line and _agrees(stored, title, front[0]) else title[:MAX_TITLE]), heading


def sensible_title(title: str | None) -> str | None:
    """Remove a program name from a title, or return None for file names, paths, "Untitled" and the like."""
    text = _PROGRAM.sub("", " ".join((title or "").split()))
    if not any(char.isalpha() for char in text) or "\ufffd" in text or len(text) > 300 or _NOT_A_TITLE.fullmatch(text):
        return None
    return text


def _agrees(stored: str, stated: str, page: Sequence[Line]) -> bool:
    """Return whether the page contains all numbers in the stored title, and both titles share a long word."""
    words = re.findall(r"\w+", stored.casefold())
    there = set(re.findall(r"\w+", " ".join(line.text for line in page)[:HEAD].casefold()))
    if any(word not in there for word in words if any(map(str.isdigit, word))):
        return False
    return any(len(word) > 3 for word in {*words} & {*re.findall(r"\w+", stated.casefold())})


def _is_name(text: str) -> bool:
    return sum(map(str.isalpha, text)) >= 2 and len(text) <= MAX_PARTY and text[0] not in "(☒☐þ¨"


def _contract(front: Sequence[Sequence[Line]]) -> Stated | None:
    """Return the title of a contract: its type, its parties and its date."""
    page, line = next(((page, line) for page in front for line in page[:TOP_LINES] if _is_instrument(line)), ((), None))
    if line is None:
        return None
    text = " ".join(other.text for page in front for other in page if other.start >= line.start)[:OPENING]
    title = line.text.strip(' .*_“”"')
    parties = _cover_parties(page) or _parties(text)
    date = next((match for match in _DATED.finditer(text[:DATED]) if _MADE.search(text[: match.start()][-60:])), None)
    name = " ".join([_title_case(title), *(["between", " and ".join(parties)] if parties else [])])
    return f"{name}, {_date_line(date.group())}" if date else name, Heading(line.start, 1, title)


def _is_instrument(line: Line) -> bool:
    """Return whether a line is the title of a contract, such as "Lease Agreement"."""
    text = line.text.strip(' .*_“”"')
    if not _INSTRUMENT.search(text) or not is_plain_title(text, words=14):
        return False
    is_prominent = line.bold or text.isupper() or len(text.split()) <= 4
    return text[-1] not in ".,:;" and is_prominent


def _cover_parties(page: Sequence[Line]) -> list[str]:
    """Return the party names above and below a line on the cover that contains only "and".

    The result is an empty list if there is no such line.
    """
    for at, line in enumerate(page[1 : 2 * TOP_LINES], 1):
        if line.text.strip(" ,-–—").casefold() == "and" and at + 1 < len(page):
            names = [_spaced(page[at - 1].text.strip(" ,")), _spaced(page[at + 1].text.strip(" ,"))]
            are_names = all(_is_name(name) and name[0].isupper() and len(name.split()) <= 10 for name in names)
            return names if are_names else []
    return []


def _parties(text: str) -> list[str]:
    """Return the names of the first two parties in the opening of a contract, or an empty list."""
    for match in islice(_BETWEEN.finditer(text), 4):
        rest = text[match.end() : match.end() + 900]
        defined = _DEFINITION.search(rest)
        names = _pair(rest[: defined.start()], rest[defined.end() :]) if defined else []
        if not names:
            plain = _NOTE.sub("", rest)
            first = _name_end(plain, stops=(_NAME_END, _AND))
            names = _pair(plain[:first], plain[first:])
        if names:
            return names
    return []


def _pair(first: str, after: str) -> list[str]:
    """Return two names: the name at the beginning of `first` and the name after the first "and" in `after`.

    The result is an empty list if either name is missing.
    """
    joint = _JOINT.search(after[:400])
    if joint is None:
        return []
    second = _NOTE.sub("", after[joint.end() :])
    names = [_leading_name(_NOTE.sub("", first), (_NAME_END,)), _leading_name(second, (_NAME_END, _AND))]
    return names if all(names) else []


def _leading_name(text: str, stops: Sequence[re.Pattern[str]]) -> str:
    """Return the name at the beginning of the text, or "" if there is none."""
    text = text.lstrip(' ,“”"')
    name = _spaced(text[: _name_end(text, stops)].strip(" ,;“”\"'"))
    is_name = 2 < len(name) <= MAX_PARTY and len(name.split()) <= 10 and (name[0].isupper() or name[0].isdigit())
    return name if is_name else ""


def _name_end(text: str, stops: Sequence[re.Pattern[str]]) -> int:
    company = _AND_COMPANY.search(text)
    ends = [len(text)]
    for stop in stops:
        match = stop.search(text)
        if match and company and company.start() == match.start():
            match = stop.search(text, company.end())
        ends += [match.start()] if match else []
    return min(ends)


def _prominent(page: Sequence[Line]) -> Stated | None:
    """Return the largest text on the first page as the title of a document that is not a contract."""
    body, _ = usual_size(page)
    largest = max(line.size for line in page)
    if largest < PROMINENT * body or not largest:
        return None
    first = next(at for at, line in enumerate(page) if line.size >= 0.97 * largest)
    lines = takewhile(lambda line: line.size >= 0.97 * largest, page[first : first + 4])
    title = _spaced(" ".join(line.text for line in lines))
    return (title, Heading(page[first].start, 1, title)) if len(title) <= MAX_TITLE else None


def _title_case(title: str) -> str:
    """Convert a title in capitals to title case."""
    if not title.isupper():
        return title
    words = [word if any(map(str.isdigit, word)) else word.capitalize() for word in title.split()]
    return " ".join(word.lower() if at and word.casefold() in SMALL else word for at, word in enumerate(words))


def _date_line(text: str) -> str:
    """Normalise the white space in a date, and convert capitals to title case."""
    return _spaced(text.title() if text.isupper() else text)


def _spaced(text: str) -> str:
    """Collapse white space and repeated commas and full stops, and remove the white space before them."""
    return _ENDS.sub(lambda ends: ends[0][-1], " ".join(text.split()))
