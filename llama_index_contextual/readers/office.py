"""Read Word, PowerPoint and Excel files, CSV, mail and HTML pages.

`read_office` runs in the child process. Office files are ZIP archives of XML; `_check_package` measures them before a
library opens them. Macros are never run, and links to other files and pages are never followed.

Cells are read unchanged. Converters that use pandas turn 007 into 7, "NA" into nothing and 1,234,567.891 into
1.234568e+06; Markdown tables lose the text after a | in a cell.
"""

from __future__ import annotations

import csv
import datetime
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message
from email.parser import BytesParser
from email.policy import Compat32
from email.utils import parsedate_to_datetime
from io import BytesIO, StringIO
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any
from xml.parsers.expat import ExpatError

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.base import FileAccount, ParsedFile, ReadLimits, has_text
from llama_index_contextual.readers.builder import DocumentBuilder, cleaned, split_blocks
from llama_index_contextual.readers.discovery import (
    MARKDOWN_SUFFIXES,
    OFFICE_SUFFIXES,
    PDF_SUFFIXES,
    TEXT_SUFFIXES,
    missing_extra,
    one_line,
    printable,
    read_limited,
    suffix_reason,
)
from llama_index_contextual.readers.html import add_html, parse_html, read_html
from llama_index_contextual.readers.markdown import parse_markdown
from llama_index_contextual.readers.pdf.reader import parse_pdf
from llama_index_contextual.readers.pdf.title import sensible_title
from llama_index_contextual.readers.text import decode_bytes, parse_text

MAX_PARTS = 20_000
"""Files in an archive."""
_PIECE = 1 << 20
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"

# Errors that zipfile, lxml, mammoth, openpyxl and python-pptx raise for a damaged file.
_DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ExpatError,
    LookupError,
    NotImplementedError,
    OSError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


# Errors of the libraries that are not subclasses of these.
_LIBRARY_ERRORS = (
    ("lxml.etree", "LxmlError"),
    ("pptx.exc", "PythonPptxError"),
    ("openpyxl.utils.exceptions", "CellCoordinatesException"),
    ("openpyxl.utils.exceptions", "InvalidFileException"),
    ("openpyxl.utils.exceptions", "NamedRangeException"),
    ("openpyxl.utils.exceptions", "SheetTitleException"),
)


def _damage() -> tuple[type[Exception], ...]:
    """Return the errors that a damaged file can cause, including those of the libraries that are loaded."""
    errors = (getattr(sys.modules[module], name) for module, name in _LIBRARY_ERRORS if module in sys.modules)
    return (*_DAMAGE, *errors)


def read_office(path: Path, *, limits: ReadLimits = ReadLimits()) -> ParsedFile:  # noqa: B008
    """Read a file with one of the `OFFICE_SUFFIXES`, according to its extension.

    Raises:
        ReadError: The file is damaged, is encrypted, has another type, or exceeds a limit.
    """
    data, digest = read_limited(path, limits)
    return parse_office(path, data, account=FileAccount(path, len(data), limits), digest=digest)


def parse_office(path: Path, data: bytes, *, account: FileAccount, digest: str = "") -> ParsedFile:
    """Read the bytes of a file as `read_office` does; `path` is used for its extension and for error messages."""
    if not data.strip():
        raise ReadError(str(path), "is empty")
    suffix = path.suffix.lower()
    if suffix not in _PACKAGES:
        return READERS[suffix](path, data, account=account, digest=digest)
    builder = DocumentBuilder(account)
    builder.warnings += _check_package(path, data, account)
    try:
        title = _PACKAGES[suffix](builder, path, data)
        title = sensible_title(title or _stated_title(data))
    except RecursionError as error:
        nested = "has elements nested too deeply, such as tables in tables: save it as PDF"
        raise ReadError(str(path), nested) from error
    except _damage() as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise ReadError(
            str(path), f"is damaged and cannot be read ({reason}): open it, repair it and save it"
        ) from error
    return builder.parsed(title=title, digest=digest, outlines=suffix in (".docx", ".docm"))


# Archives


def _check_package(path: Path, data: bytes, account: FileAccount) -> list[str]:
    """Check an Office file before it is opened, and return warnings.

    Raises:
        ReadError: It is not an Office file, is encrypted, is too large when unpacked, or declares XML entities.
    """
    if data.startswith(_OLE):
        if "EncryptedPackage".encode("utf-16-le") in data:
            raise ReadError(str(path), "is encrypted: save a copy without password")
        raise ReadError(str(path), f"is an old Office file with a new extension: open it and save it as {path.suffix}")
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            parts = archive.infolist()
            if len(parts) > MAX_PARTS:
                raise ReadError(str(path), f"consists of {len(parts):,} parts, more than the limit of {MAX_PARTS:,}")
            if any(part.flag_bits & 1 for part in parts):
                raise ReadError(str(path), "is encrypted: save a copy without password")
            account.unpack(sum(part.file_size for part in parts))
            return _check_parts(path, archive, parts)
    except _DAMAGE as error:
        kind = path.suffix.removeprefix(".").upper()
        if not data.startswith(b"PK"):
            raise ReadError(str(path), f"is not a {kind} file: give it the extension of its type") from error
        raise ReadError(str(path), f"is damaged or truncated ({error}): copy or save it again") from error


def _check_parts(path: Path, archive: zipfile.ZipFile, parts: Iterable[zipfile.ZipInfo]) -> list[str]:
    """Unpack each XML part in pieces and reject document types, which can define entities; Office writes none."""
    unknown = 0
    for part in parts:
        if not part.filename.lower().endswith((".xml", ".rels", ".vml")):
            continue
        is_sheet = part.filename.startswith("xl/worksheets/")
        before = b""
        with archive.open(part) as file:
            while piece := file.read(_PIECE):
                window = before + piece
                if _DECLARATION.search(window.replace(b"\0", b"")):
                    where = f"declares XML entities in {one_line(part.filename)!r}"
                    raise ReadError(str(path), f"{where}, which no Office program does: it may be made to do harm")
                if is_sheet:
                    unknown += len(_NO_VALUE.findall(window)) - len(_NO_VALUE.findall(before))
                before = window[-64:]
    if not unknown:
        return []
    return [f"has {pluralize(unknown, 'formula')} without stored values, left blank: open it in Excel and save it"]


_DECLARATION = re.compile(rb"<!(?:DOCTYPE|ENTITY)")
_NO_VALUE = re.compile(rb"</f>(?:<v */>|<v></v>)?</c>")


def _stated_title(data: bytes) -> str | None:
    """Return the title in the properties of an Office file."""
    from lxml import etree

    with zipfile.ZipFile(BytesIO(data)) as archive:
        if "docProps/core.xml" not in archive.namelist():
            return None
        root = etree.fromstring(archive.read("docProps/core.xml"), etree.XMLParser(resolve_entities=False))
    title: str | None = root.findtext("{http://purl.org/dc/elements/1.1/}title")
    return title


# Word


def _read_word(builder: DocumentBuilder, path: Path, data: bytes) -> str | None:
    """Add a Word document without headers, footers, comments and deleted text."""
    import mammoth

    converted = mammoth.convert_to_html(
        _prepared(data),
        style_map="p[style-name='Title'] => h1:fresh",
        include_embedded_style_map=False,
        convert_image=mammoth.images.img_element(lambda image: {}),
    )
    root = parse_html(path, converted.value)
    for link in root.xpath("//a[starts-with(@href, '#footnote-ref') or starts-with(@href, '#endnote-ref')]"):
        link.text = ""  # an arrow back to the text
    add_html(builder, root)
    titles = root.xpath("//h1")
    return builder.headings[0].title if titles and builder.headings and builder.headings[0].start == 0 else None


_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_OPERATORS = {"den": "/", "sup": "^", "sub": "_"}


def _prepared(data: bytes) -> BytesIO:
    """Return a Word document without images, with formulas as text, and without styles that nothing can refer to."""
    from lxml import etree

    prepared = BytesIO()
    with zipfile.ZipFile(BytesIO(data)) as source, zipfile.ZipFile(prepared, "w") as target:
        for name in dict.fromkeys(source.namelist()):  # a name that is listed twice would be unpacked twice
            if not name.lower().endswith((".xml", ".rels")):
                continue
            content = source.read(name)
            if b"oMath" in content or name == "word/styles.xml":
                root = etree.fromstring(content, etree.XMLParser(resolve_entities=False))
                for formula in list(root.iter(f"{_MATH}oMath")):
                    _write_formula(formula)
                for style in root.findall(f"{_WORD}style"):
                    if style.get(f"{_WORD}styleId") is None:
                        root.remove(style)
                    elif style.get(f"{_WORD}type") is None:
                        style.set(f"{_WORD}type", "paragraph")
                content = etree.tostring(root)
            target.writestr(name, content)
    prepared.seek(0)
    return prepared


def _write_formula(formula: Any) -> None:
    """Replace a formula, which mammoth omits, with a run of text such as a/b."""
    from lxml import etree

    parts = []
    for element in formula.iter():
        if isinstance(element.tag, str) and element.tag.startswith(_MATH):
            name = element.tag.removeprefix(_MATH)
            parts.append(element.text or "" if name == "t" else _OPERATORS.get(name, ""))
    run = etree.Element(f"{_WORD}r")
    text = etree.SubElement(run, f"{_WORD}t")
    text.text = "".join(parts)
    run.tail = formula.tail
    parent = formula.getparent()
    if parent.tag == f"{_MATH}oMathPara":  # mammoth omits this element too
        parent.addprevious(run)
        parent.remove(formula)
    else:
        parent.replace(formula, run)


# PowerPoint


def _read_slides(builder: DocumentBuilder, path: Path, data: bytes) -> str | None:
    """Add the slides of a presentation with their notes."""
    from pptx import Presentation

    first = None
    for number, slide in enumerate(Presentation(BytesIO(data)).slides, 1):
        builder.page(str(number))
        title = slide.shapes.title
        heading = " ".join(cleaned(title.text_frame.text).split()) if title is not None and title.has_text_frame else ""
        builder.heading(1, heading or f"Slide {number}")
        first = first or heading
        for shape in _shapes(slide.shapes):
            if title is None or shape.shape_id != title.shape_id:
                _add_shape(builder, shape)
        notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
        if notes is not None and notes.text.strip():
            builder.heading(2, "Notes")
            builder.paragraph(notes.text)
    return first


def _shapes(shapes: Any) -> Iterator[Any]:
    """Yield the shapes from top to bottom, including the shapes in groups."""
    from pptx.enum.shapes import MSO_SHAPE_TYPE

    stack = [shapes]
    while stack:
        item = stack.pop()
        if hasattr(item, "shape_type") and item.shape_type != MSO_SHAPE_TYPE.GROUP:
            yield item
        else:
            inner = item.shapes if hasattr(item, "shape_type") else item
            stack += sorted(inner, key=lambda shape: (shape.top or 0, shape.left or 0), reverse=True)


def _add_shape(builder: DocumentBuilder, shape: Any) -> None:
    from pptx.enum.shapes import PP_PLACEHOLDER

    if shape.is_placeholder and shape.placeholder_format.type in (
        PP_PLACEHOLDER.SLIDE_NUMBER,
        PP_PLACEHOLDER.DATE,
        PP_PLACEHOLDER.FOOTER,
    ):
        return
    if shape.has_text_frame:
        builder.paragraph(shape.text_frame.text)
    elif getattr(shape, "has_table", False):
        builder.table([cell.text for cell in row.cells] for row in shape.table.rows)
    elif getattr(shape, "has_chart", False):
        _add_chart(builder, shape.chart)
    elif shape.element.tag.endswith("}graphicFrame"):
        _add_diagram(builder, shape)
    else:
        description = shape.element.xpath("string(.//p:cNvPr/@descr)")
        if " " in description.strip():  # a single word is a file name
            builder.paragraph(description)


def _add_chart(builder: DocumentBuilder, chart: Any) -> None:
    """Add the title and the values of a chart, with its series as columns."""
    if chart.has_title and chart.chart_title.has_text_frame:
        builder.paragraph(chart.chart_title.text_frame.text)
    for plot in chart.plots:
        series = list(plot.series)
        values = [list(one.values) for one in series]
        labels = [" ".join(map(str, labels)) for labels in plot.categories.flattened_labels]
        rows = [["", *(one.name for one in series)]]
        for at in range(max(map(len, values), default=0)):
            numbers = (_number(column[at], "General") if at < len(column) else "" for column in values)
            rows.append([labels[at] if at < len(labels) else "", *numbers])
        builder.table(rows, has_head=True)


def _add_diagram(builder: DocumentBuilder, shape: Any) -> None:
    """Add the text of a SmartArt diagram."""
    from lxml import etree

    for rid in shape.element.xpath(".//*[local-name()='relIds']/@*[local-name()='dm']"):
        root = etree.fromstring(shape.part.related_part(rid).blob, etree.XMLParser(resolve_entities=False))
        for point in root.xpath("//*[local-name()='pt']"):
            builder.paragraph("".join(point.xpath(".//*[local-name()='t']/text()")), follows=True)


# Excel


MAX_ROWS = 1_048_576
"""Rows in a sheet; the limit of Excel."""
MAX_FORMAT = 255
"""Characters in a number format; the limit of Excel."""


def _read_sheets(builder: DocumentBuilder, path: Path, data: bytes) -> str | None:
    """Add the visible sheets of a workbook, with the values as Excel shows them."""
    from openpyxl import load_workbook

    workbook = load_workbook(BytesIO(data), read_only=True, data_only=True, keep_links=False)
    for sheet in workbook.worksheets:
        if sheet.sheet_state != "visible":
            builder.warnings.append(f"sheet {sheet.title!r} is hidden and left out: show it in Excel to have it read")
            continue
        builder.page(sheet.title)
        builder.heading(1, sheet.title)
        sheet.reset_dimensions()  # the file may state a wrong size
        rows = ([_shown(cell) for cell in row] for row in islice(sheet.rows, MAX_ROWS))
        head = ""
        for block in split_blocks(rows):
            head = builder.table(block, head_before=head)
    return None


def _shown(cell: Any) -> str:
    """Return the value of a cell as Excel shows it."""
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, str):
        return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value) if "_x" in value else value
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        return _number(value, cell.number_format)
    if isinstance(value, datetime.datetime):
        midnight = value.time() == datetime.time()
        return value.date().isoformat() if midnight else value.isoformat(" ", "seconds").removesuffix(":00")
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)


_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_CODE = re.compile(r'"([^"]*)"|\\(.)|\[\$([^\]-]*)[^\]]*\]|\[[^\]]*\]|[_*].|(.)')
_SPECIAL = re.compile(r"[0#?],+(?![#0?,])|[Ee/@]")  # scaled by a thousand, exponents, fractions, text
_CONDITION = re.compile(r"\[[<>=]")
_DIGITS = re.compile(r"(?P<prefix>[^#0?]*)(?P<whole>[#0?,]+)(?:\.(?P<decimals>[#0?]*))?(?P<suffix>[^#0?]*)")


def _number(value: float | None, code: str) -> str:
    """Format a number with an Excel number format; fractions, scaled numbers and the like are shown as "General".

    Example:
        >>> _number(0.1234, "0.0%"), _number(-1234567.8, "#,##0.00"), _number(7, "000")
        ('12.3%', '-1,234,567.80', '007')
    """
    if value is None:
        return ""
    if len(code) > MAX_FORMAT:
        code = "General"
    sections = code.split(";")
    is_negative = value < 0 and len(sections) > 1
    plain = "".join(map("".join, _CODE.findall(sections[1 if is_negative else 0]))).strip()
    parts = _DIGITS.fullmatch(plain)
    if parts is None or _SPECIAL.search(plain) or _CONDITION.search(code):
        return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.15g}"
    prefix, suffix, places = parts["prefix"], parts["suffix"], parts["decimals"] or ""
    number = f"{abs(value) * 100 ** suffix.count('%'):,.{len(places)}f}"
    whole, point, decimals = (number if "," in parts["whole"] else number.replace(",", "")).partition(".")
    optional = len(places) - len(places.rstrip("#"))
    kept = decimals[: len(places) - optional] + decimals[len(places) - optional :].rstrip("0")
    sign = "-" if value < 0 and not is_negative else ""
    return f"{sign}{prefix}{whole.zfill(parts['whole'].count('0'))}{point if kept else ''}{kept}{suffix}".strip()


# CSV

DELIMITERS = ",;\t|"
MAX_FIELD = 10_000_000
"""Characters in a cell; a longer cell means that a quotation mark was not closed."""
_SAMPLE = 200_000


def _read_csv(path: Path, data: bytes, *, account: FileAccount, digest: str) -> ParsedFile:
    decoded = decode_bytes(path, data)
    builder = DocumentBuilder(account)
    builder.warnings += decoded.warnings
    delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(decoded.text[:_SAMPLE])
    csv.field_size_limit(MAX_FIELD)
    reader = csv.reader(StringIO(decoded.text, newline=""), delimiter=delimiter)
    try:
        builder.table(reader)
    except csv.Error as error:
        reason = f"cannot be read as CSV: {error} in line {reader.line_num:,}; a quotation mark may not be closed"
        raise ReadError(str(path), reason) from error
    return builder.parsed(digest=digest)


def _delimiter(sample: str) -> str:
    """Return the delimiter that gives most of the first rows the same number of cells, preferring more cells."""
    lines = sample.splitlines(keepends=True)[:100]

    def score(delimiter: str) -> tuple[float, int]:
        try:
            widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        except csv.Error:
            return 0.0, 0
        usual = max(set(widths), key=widths.count, default=1)
        return (round(widths.count(usual) / len(widths), 1), usual) if usual > 1 else (0.0, 0)

    return max(DELIMITERS, key=score)


# Mail

MAX_MAILS = 5
"""Nesting depth of mails that are attached to mails."""
MAX_MAIL_PARTS = 10_000
MAX_HEADER = 20_000
"""Characters of a header that are read; a header with parameters may not be longer."""
_MAX_LISTED = 20
_HEADERS = ("From", "To", "Cc", "Date")
_SIGNATURES = ("application/pkcs7-signature", "application/x-pkcs7-signature", "application/pgp-signature")
_ENCRYPTED = ("application/pkcs7-mime", "application/x-pkcs7-mime", "multipart/encrypted")
_SUFFIXES = {"text/plain": ".txt", "text/html": ".html", "text/csv": ".csv", "message/rfc822": ".eml"}


def _read_mail(path: Path, data: bytes, *, account: FileAccount, digest: str = "", depth: int = 1) -> ParsedFile:
    """Read a mail with its attachments; `depth` - 1 mails enclose it.

    The text is the plain text version, or the HTML version if there is no other. The attachments become sections of the
    document, so that a hit in one shows both the mail and the attachment. They are read in memory, and their names are
    only displayed.
    """
    try:
        message = BytesParser(policy=_BoundedHeaders()).parsebytes(data)
        if not any(name in message for name in ("From", "Subject", "Date", "Received", "Content-Type")):
            raise ReadError(str(path), "is not a mail: it has no headers such as From and Subject")
        return _read_message(message, path, account, digest, depth)
    except HeaderParseError as error:
        raise ReadError(str(path), str(error)) from error
    except RecursionError as error:
        raise ReadError(str(path), "has parts nested too deeply: save its text from the mail program") from error


def _read_attachment(path: Path, data: bytes, account: FileAccount, depth: int) -> ParsedFile:
    suffix = path.suffix.lower()
    if not data:
        raise ReadError(str(path), "is empty")
    if suffix == ".eml":
        if depth == MAX_MAILS:
            raise ReadError(str(path), f"is attached to {MAX_MAILS} mails that are attached to one another")
        return _read_mail(path, data, account=account, depth=depth + 1)
    if suffix in PDF_SUFFIXES:
        return parse_pdf(path, data, account=account)
    if suffix in (*MARKDOWN_SUFFIXES, *TEXT_SUFFIXES):
        decoded = decode_bytes(path, data)
        account.add_text(len(decoded.text))
        return (parse_markdown if suffix in MARKDOWN_SUFFIXES else parse_text)(decoded)
    if reason := missing_extra(suffix) if suffix in OFFICE_SUFFIXES else suffix_reason(suffix):
        raise ReadError(str(path), reason)
    return parse_office(path, data, account=account)


class _BoundedHeaders(Compat32):
    """Policy that rejects long headers with parameters, because they take quadratic time to parse."""

    def header_source_parse(self, sourcelines: Sequence[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(list(sourcelines))
        if len(value) > MAX_HEADER and name.lower().startswith("content-"):
            limit = f"a {one_line(name)} header of more than {MAX_HEADER:,} characters"
            raise HeaderParseError(f"has {limit}: save its text from the mail program")
        return name, value


def _read_message(message: Message, path: Path, account: FileAccount, digest: str, depth: int) -> ParsedFile:
    builder = DocumentBuilder(account)
    subject = _header(message, "Subject")
    lines = [f"{name}: {text}" for name in _HEADERS if (text := _header(message, name))]
    builder.paragraph("\n".join([f"Subject: {subject}", *lines] if subject else lines))
    attachments = []
    for number, part in enumerate(_parts(message)):
        if number == MAX_MAIL_PARTS:
            raise ReadError(str(path), f"has more than {MAX_MAIL_PARTS:,} parts")
        if part.get_content_type() in _ENCRYPTED:
            raise ReadError(str(path), "is encrypted: decrypt it in the mail program and save its text")
        if _is_attachment(part):
            attachments.append(part)
        else:
            _add_text(builder, part, path)
    added = (_add_attachment(builder, part, path, account, depth) for part in attachments)
    unread = [reason for reason in added if reason]
    builder.warnings += unread[:_MAX_LISTED]
    if len(unread) > _MAX_LISTED:
        builder.warnings.append(f"{len(unread) - _MAX_LISTED:,} more attachments were left out")
    facts = {"mail_from": _header(message, "From"), "mail_to": _header(message, "To"), "mail_date": _date(message)}
    return builder.parsed(title=subject, digest=digest, metadata={key: text for key, text in facts.items() if text})


def _header(message: Message, name: str) -> str:
    """Return a header on one line."""
    value = message.get(name)
    return one_line(_decoded("" if value is None else str(value)[:MAX_HEADER]), 1_000)


def _decoded(value: str) -> str:
    """Decode the encoded words of a header; a malformed header is returned unchanged."""
    try:
        return str(make_header(decode_header(value)))
    except (HeaderParseError, LookupError, ValueError):
        return value


def _date(message: Message) -> str:
    """Return the date in ISO format with its time zone; empty if the mail has no date."""
    try:
        date = parsedate_to_datetime(_header(message, "Date"))
    except (ValueError, TypeError, IndexError, OverflowError):
        return ""
    return date.isoformat()


# Parts


def _parts(message: Message) -> Iterator[Message]:
    """Yield the leaf parts; of alternatives, only the preferred one and the attachments of the others."""
    stack: list[tuple[Message, bool]] = [(message, True)]
    while stack:
        part, is_chosen = stack.pop()
        inner: Any = part.get_payload()
        if part.get_content_type() in _ENCRYPTED:
            yield part
        elif part.get_content_maintype() == "multipart" and isinstance(inner, list):
            chosen = _preferred(inner) if part.get_content_type() == "multipart/alternative" else None
            stack += [(one, is_chosen and chosen in (None, one)) for one in reversed(inner)]
        elif is_chosen or _filename(part):
            yield part


def _preferred(parts: list[Message]) -> Message | None:
    """Return the plain text alternative, or the last one if there is none."""
    for part in parts:
        texts = [leaf for leaf in part.walk() if leaf.get_content_type() == "text/plain" and not _filename(leaf)]
        if any(has_text(_payload(leaf).decode("latin-1")) for leaf in texts):
            return part
    return parts[-1] if parts else None


def _is_attachment(part: Message) -> bool:
    is_text = part.get_content_type() in ("text/plain", "text/html")
    return not is_text or part.get_content_disposition() == "attachment" or bool(_filename(part))


def _payload(part: Message) -> bytes:
    inner: Any = part.get_payload()
    if part.get_content_type() == "message/rfc822" and isinstance(inner, list):
        return b"".join(one.as_bytes() for one in inner)
    payload: Any = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _add_text(builder: DocumentBuilder, part: Message, path: Path) -> None:
    data = _payload(part)
    if not data.strip():
        return
    try:
        decoded = decode_bytes(path, data, charset=part.get_content_charset())
    except ReadError as error:
        builder.warnings.append(f"a part of its text was left out: it {error.reason}")
        return
    builder.warnings += [f"its text {warning}" for warning in decoded.warnings]
    if part.get_content_type() == "text/html":
        add_html(builder, parse_html(path, decoded.text))
    else:
        builder.paragraph(decoded.text, keeps_space=True)


def _add_attachment(
    builder: DocumentBuilder, part: Message, path: Path, account: FileAccount, depth: int
) -> str | None:
    """Add an attachment as a section, or return why it was omitted; signatures and inline images are ignored."""
    kind = part.get_content_type()
    if kind in _SIGNATURES or (part.get_content_maintype() == "image" and part.get("Content-ID")):
        return None
    name = _name(part)
    suffix = PurePosixPath(name).suffix or _SUFFIXES.get(kind, "")
    try:
        named = path.with_name(PurePosixPath(name).stem + suffix)
        parsed = _read_attachment(named, _payload(part), account, depth)
    except ReadError as error:
        return f"attachment {name!r} was left out: it {error.reason}"
    if not has_text(parsed.text):
        return f"attachment {name!r} was left out: it has no text"
    builder.warnings += [f"attachment {name!r}: {warning}" for warning in parsed.warnings]
    builder.embed(f"Attachment: {name}", parsed)
    return None


def _name(part: Message) -> str:
    """Return the file name of an attachment, or the subject of an attached mail, without folders and safe to print."""
    inner: Any = part.get_payload()
    name = _filename(part).replace("\\", "/").rpartition("/")[2]
    if not name and part.get_content_type() == "message/rfc822" and isinstance(inner, list) and inner:
        name = _header(inner[0], "Subject").replace("/", " ")
        name = f"{name}.eml" if name else "mail.eml"
    return one_line(printable(name.replace("\0", "")), 150).strip(". ") or "unnamed"


def _filename(part: Message) -> str:
    try:
        return _decoded(part.get_filename() or "")
    except (LookupError, ValueError, TypeError):  # its encoding is unknown or damaged
        return "unnamed"


_PACKAGES: dict[str, Callable[[DocumentBuilder, Path, bytes], str | None]] = {
    ".docx": _read_word,
    ".docm": _read_word,
    ".pptx": _read_slides,
    ".pptm": _read_slides,
    ".xlsx": _read_sheets,
    ".xlsm": _read_sheets,
}
READERS: dict[str, Callable[..., ParsedFile]] = {
    ".eml": _read_mail,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".html": read_html,
    ".htm": read_html,
    ".xhtml": read_html,
}
