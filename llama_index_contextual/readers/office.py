"""Read Word, PowerPoint, Excel, CSV, email and HTML files, which are parsed in a child process.

Office files are ZIP archives of XML, which `_check_package` checks before a library opens them. Macros are never run,
and links to other files and pages are never followed.

Cell values are formatted as they are displayed. Converters that use pandas turn 007 into 7, "NA" into a missing value
and 1,234,567.891 into 1.234568e+06, and converters to Markdown tables lose the text after a | in a cell.
"""

from __future__ import annotations

import csv
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message
from email.parser import BytesParser
from email.policy import Compat32
from email.utils import parsedate_to_datetime
from functools import partial
from io import BytesIO, StringIO
from itertools import groupby, islice, zip_longest
from mimetypes import guess_extension
from pathlib import PurePath
from typing import Any

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.builder import DocumentBuilder, clean_text
from llama_index_contextual.readers.files import (
    MARKDOWN_SUFFIXES,
    TEXT_SUFFIXES,
    FileSource,
    ParsedFile,
    one_line,
    printable,
    suffix_reason,
)
from llama_index_contextual.readers.html import add_html, parse_html, read_html
from llama_index_contextual.readers.pdf.reader import parse_pdf
from llama_index_contextual.readers.text import decode, parse_markdown, parse_text

MAX_PARTS = 20_000
"""Maximum number of files in an archive."""
_PIECE = 1 << 20
_DECLARATION = re.compile(rb"<!(?:DOCTYPE|ENTITY)")
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_INSTALL = 'pip install "llama-index-contextual[office]"'


def parse_office(source: FileSource) -> ParsedFile:
    """Read the bytes of a file whose extension is one of `OFFICE_SUFFIXES`, or of an email attachment.

    Raises:
        ReadError: The file is damaged, is encrypted, has another type, or exceeds a limit.
    """
    suffix = source.path.suffix.lower()
    if not source.data.strip():
        raise source.error("is empty")
    if suffix not in READERS:
        raise source.error(suffix_reason(suffix))
    try:
        return READERS[suffix](source)
    except (MemoryError, ReadError):
        raise
    except ModuleNotFoundError as error:
        raise source.error(f"needs further packages: {_INSTALL}") from error
    except RecursionError as error:
        raise source.error("has elements nested too deeply, such as tables in tables: save it as PDF") from error
    except Exception as error:  # the libraries raise various exceptions for damaged files
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise source.error(f"is damaged and cannot be read ({reason}): open it, repair it and save it") from error


# Archives


def _read_package(source: FileSource, add: Callable[[DocumentBuilder, FileSource], str | None]) -> ParsedFile:
    """Read an Office file with `add`, which adds its content to a document and returns the title, or None."""
    builder = DocumentBuilder(source.account)
    _check_package(source)
    return builder.parsed(add(builder, source), source.digest)


def _check_package(source: FileSource) -> None:
    """Check an Office file before it is opened.

    Raises:
        ReadError: The file is not an Office file, is encrypted, is too large when unpacked, or declares XML entities.
    """
    suffix = source.path.suffix
    if source.data.startswith(_OLE):
        if "EncryptedPackage".encode("utf-16-le") in source.data:
            raise source.error("is encrypted: save a copy without password")
        raise source.error(f"is an old Office file with a new extension: open it and save it as {suffix}")
    if not source.data.startswith(b"PK"):
        raise source.error(f"is not a {suffix.removeprefix('.').upper()} file: give it the extension of its type")
    with zipfile.ZipFile(BytesIO(source.data)) as archive:
        parts = archive.infolist()
        if len(parts) > MAX_PARTS:
            raise source.error(f"consists of {len(parts):,} parts, more than the limit of {MAX_PARTS:,}")
        source.account.unpack(sum(part.file_size for part in parts))
        for part in parts:
            if part.filename.lower().endswith((".xml", ".rels", ".vml")):
                _check_part(source, archive, part)


def _check_part(source: FileSource, archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> None:
    """Unpack an XML part piece by piece and reject document type declarations, because they can define entities.

    Office programs do not write such declarations.
    """
    before = b""
    with archive.open(part) as file:
        while piece := file.read(_PIECE):
            if _DECLARATION.search((before + piece).replace(b"\0", b"")):
                where = f"declares XML entities in {one_line(part.filename)!r}"
                raise source.error(f"{where}, which no Office program does: it may be made to do harm")
            before = piece[-64:]


# Word


def _add_word(builder: DocumentBuilder, source: FileSource) -> str | None:
    """Add a Word document without headers, footers, comments or deleted text."""
    import mammoth

    converted = mammoth.convert_to_html(
        BytesIO(source.data),
        style_map="p[style-name='Title'] => h1:fresh",
        include_embedded_style_map=False,
        convert_image=mammoth.images.img_element(lambda image: {}),
    )
    root = parse_html(source, converted.value)
    for link in root.xpath("//a[starts-with(@href, '#footnote-ref') or starts-with(@href, '#endnote-ref')]"):
        link.text = ""  # this link is an arrow that leads back to the text
    add_html(builder, root)
    titles = root.xpath("//h1")
    return builder.headings[0].title if titles and builder.headings and builder.headings[0].start == 0 else None


# PowerPoint


def _add_slides(builder: DocumentBuilder, source: FileSource) -> str | None:
    """Add the slides of a presentation with their notes."""
    from pptx import Presentation

    first = None
    for number, slide in enumerate(Presentation(BytesIO(source.data)).slides, 1):
        builder.page(str(number))
        title = slide.shapes.title
        has_title = title is not None and title.has_text_frame
        heading = " ".join(clean_text(title.text_frame.text).split()) if has_title else ""
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


def _shapes(shapes: Iterable[Any]) -> Iterator[Any]:
    """Yield the shapes, including shapes in groups, from top to bottom."""
    for shape in sorted(shapes, key=lambda shape: (shape.top or 0, shape.left or 0)):
        if hasattr(shape, "shapes"):
            yield from _shapes(shape.shapes)
        else:
            yield shape


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
        if " " in description.strip():  # a single word is probably a file name
            builder.paragraph(description)


def _add_chart(builder: DocumentBuilder, chart: Any) -> None:
    """Add the title and the values of a chart, with its series as columns."""
    if chart.has_title and chart.chart_title.has_text_frame:
        builder.paragraph(chart.chart_title.text_frame.text)
    for plot in chart.plots:
        series = list(plot.series)
        labels = [" ".join(map(str, labels)) for labels in plot.categories.flattened_labels]
        columns = ([_number_text(value, "General") for value in each.values] for each in series)
        rows = zip_longest(labels, *columns, fillvalue="")
        builder.table([["", *(each.name for each in series)], *rows])


def _add_diagram(builder: DocumentBuilder, shape: Any) -> None:
    """Add the text of a SmartArt diagram."""
    from lxml import etree

    for rid in shape.element.xpath(".//*[local-name()='relIds']/@*[local-name()='dm']"):
        root = etree.fromstring(shape.part.related_part(rid).blob, etree.XMLParser(resolve_entities=False))
        for point in root.xpath("//*[local-name()='pt']"):
            builder.paragraph("".join(point.xpath(".//*[local-name()='t']/text()")), follows=True)


# Excel


MAX_ROWS = 1_048_576
"""Maximum number of rows in a sheet, as in Excel."""
MAX_FORMAT = 255
"""Maximum length of a number format in characters, as in Excel."""


def _add_sheets(builder: DocumentBuilder, source: FileSource) -> None:
    """Add the visible sheets of a workbook, with the values formatted as in Excel."""
    from openpyxl import load_workbook

    workbook = load_workbook(BytesIO(source.data), read_only=True, data_only=True, keep_links=False)
    if formulas := _count_unknown(source.data):
        builder.warnings.append(
            f"the results of {pluralize(formulas, 'formula')} are not in the file: open it in Excel or LibreOffice, and"
            " save it"
        )
    for sheet in workbook.worksheets:
        if sheet.sheet_state != "visible":
            builder.warnings.append(f"sheet {sheet.title!r} is hidden and left out: show it in Excel to have it read")
            continue
        builder.page(sheet.title)
        builder.heading(1, sheet.title)
        sheet.reset_dimensions()  # the file may state a wrong size
        rows = ([_cell_text(cell) for cell in row] for row in islice(sheet.rows, MAX_ROWS))
        head = ""
        for is_filled, block in groupby(rows, key=any):
            if is_filled:
                head = builder.table(block, head_before=head)


_WITHOUT_RESULT = re.compile(
    rb'<c\b(?![^>]{0,200}\bt="str")[^>]{0,200}>\s*<f(?:[^>]*/>|[^<]*</f>)\s*(?:<v\s*/>|<v>\s*</v>)?\s*</c>'
)


def _count_unknown(workbook: bytes) -> int:
    """Return the number of formulas whose results are not in the file, because a program wrote only the formulas."""
    with zipfile.ZipFile(BytesIO(workbook)) as archive:
        sheets = [name for name in archive.namelist() if name.startswith("xl/worksheets/")]
        return sum(len(_WITHOUT_RESULT.findall(archive.read(name))) for name in sheets)


def _cell_text(cell: Any) -> str:
    """Return the value of a cell, formatted as in Excel, with dates in ISO format."""
    from openpyxl.utils.escape import unescape

    value = cell.value
    if value is None:
        return ""
    if isinstance(value, str):
        return str(unescape(value))
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        return _number_text(value, cell.number_format)
    return str(value).removesuffix(" 00:00:00")  # a date without a time


_CODE = re.compile(r'"([^"]*)"|\\(.)|\[\$([^\[\]-]*+)[^\[\]]*+\]|\[[^\[\]]*+\]|[_*].|(.)')
_SPECIAL = re.compile(r"[0#?],+(?![#0?,])|[Ee/@]")  # scaling by thousands, exponents, fractions, text
_CONDITION = re.compile(r"\[[<>=]")
_DIGITS = re.compile(r"(?P<prefix>[^#0?]*)(?P<whole>[#0?,]+)(?:\.(?P<decimals>[#0?]*))?(?P<suffix>[^#0?]*)")


def _number_text(value: float | None, code: str) -> str:
    """Format a number with an Excel number format; fractions, scaled numbers etc. are formatted as "General".

    Example:
        >>> _number_text(0.1234, "0.0%"), _number_text(-1234567.8, "#,##0.00"), _number_text(7, "000")
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
"""Maximum length of a cell in characters; a longer cell indicates that a quotation mark was not closed."""
_SAMPLE = 200_000


def _read_csv(source: FileSource) -> ParsedFile:
    text, warnings = decode(source)
    builder = DocumentBuilder(source.account)
    builder.warnings += warnings
    csv.field_size_limit(MAX_FIELD)
    delimiter = "\t" if source.path.suffix.lower() == ".tsv" else _delimiter(text[:_SAMPLE])
    builder.table(csv.reader(StringIO(text, newline=""), delimiter=delimiter))
    return builder.parsed(None, source.digest)


def _delimiter(sample: str) -> str:
    """Return the delimiter for which the most rows of a CSV sample have the same number of cells.

    In case of a tie, the delimiter with more cells per row is chosen.
    """
    lines = sample.splitlines(keepends=True)[:100]

    def score(delimiter: str) -> tuple[float, int]:
        widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        usual = max(set(widths), key=widths.count, default=1)
        return (round(widths.count(usual) / len(widths), 1), usual) if usual > 1 else (0.0, 0)

    return max(DELIMITERS, key=score)


# Email

MAX_MAILS = 5
"""Maximum nesting depth of emails attached to other emails."""
MAX_MAIL_PARTS = 1_000
MAX_HEADER = 20_000
"""Maximum number of characters that are read from a header. Longer headers are rejected if they have parameters."""
_HEADERS = ("From", "To", "Cc", "Date")
_ENCRYPTED = ("application/pkcs7-mime", "application/x-pkcs7-mime", "multipart/encrypted")


def _read_mail(source: FileSource) -> ParsedFile:
    """Read an email with its attachments.

    The plain text version of the email is used, or the HTML version if there is no plain text. Attachments become
    sections of the document, so that a search result from an attachment shows both the email and the attachment.
    They are read in memory, and their names are never used to open files.
    """
    if source.depth > MAX_MAILS:
        raise source.error(f"is attached to {MAX_MAILS} mails that are attached to one another")
    message = BytesParser(policy=_BoundedHeaders()).parsebytes(source.data)
    if not any(name in message for name in ("From", "Subject", "Date", "Received", "Content-Type")):
        raise source.error("is not a mail: it has no headers such as From and Subject")
    builder = DocumentBuilder(source.account)
    subject = _header(message, "Subject")
    lines = [f"{name}: {text}" for name in _HEADERS if (text := _header(message, name))]
    builder.paragraph("\n".join([f"Subject: {subject}", *lines] if subject else lines))
    parts = list(islice(_leaves(message), MAX_MAIL_PARTS + 1))
    if len(parts) > MAX_MAIL_PARTS:
        raise source.error(f"has more than {MAX_MAIL_PARTS:,} parts")
    if any(part.get_content_type() in _ENCRYPTED for part in (message, *parts)):
        raise source.error("is encrypted: decrypt it in the mail program and save its text")
    texts = list(filter(_is_text, parts))
    plain = [part for part in texts if part.get_content_subtype() == "plain" and _payload(part).strip()]
    for part in plain or texts:
        _add_text(builder, part, source)
    for part in parts:
        if part not in texts:
            _add_attachment(builder, part, source)
    facts = {"mail_from": _header(message, "From"), "mail_to": _header(message, "To"), "mail_date": _date(message)}
    metadata = {key: text for key, text in facts.items() if text}
    return builder.parsed(subject, source.digest, metadata)


class _BoundedHeaders(Compat32):
    """Policy that rejects long headers with parameters, because they take quadratic time to parse."""

    def header_source_parse(self, sourcelines: Any) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        if len(value) > MAX_HEADER and name.lower().startswith("content-"):
            raise ValueError(f"it has a header of more than {MAX_HEADER:,} characters")
        return name, value


def _header(message: Message, name: str) -> str:
    """Return an email header on one line. A malformed header is not decoded."""
    value = str(message.get(name, ""))[:MAX_HEADER]
    with suppress(HeaderParseError, LookupError, ValueError):
        value = str(make_header(decode_header(value)))
    return one_line(value, 1_000)


def _date(message: Message) -> str:
    """Return the date of an email in ISO format with its time zone, or an empty string if it has no date."""
    with suppress(ValueError, TypeError, IndexError, OverflowError):
        return parsedate_to_datetime(_header(message, "Date")).isoformat()
    return ""


def _leaves(message: Message) -> Iterator[Message]:
    """Yield the parts of an email that are not themselves divided into parts."""
    inner: Any = message.get_payload()
    if message.get_content_maintype() == "multipart" and isinstance(inner, list):
        for part in inner:
            yield from _leaves(part)
    else:
        yield message


def _payload(part: Message) -> bytes:
    inner: Any = part.get_payload()
    if part.get_content_type() == "message/rfc822" and isinstance(inner, list):
        return b"".join(message.as_bytes() for message in inner)
    payload: Any = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _add_text(builder: DocumentBuilder, part: Message, source: FileSource) -> None:
    data = _payload(part)
    if not data.strip():
        return
    try:
        text, warnings = decode(replace(source, data=data), part.get_content_charset())
    except ReadError as error:
        builder.warnings.append(f"a part of its text was left out: it {error.reason}")
        return
    builder.warnings += [f"its text {warning}" for warning in warnings]
    if part.get_content_type() == "text/html":
        add_html(builder, parse_html(source, text))
    else:
        builder.paragraph(text, keeps_space=True)


def _add_attachment(builder: DocumentBuilder, part: Message, source: FileSource) -> None:
    """Add an attachment as a section, or a warning if it cannot be read. Skip signatures and inline images."""
    kind = part.get_content_type()
    if kind.endswith("-signature") or (part.get_content_maintype() == "image" and part.get("Content-ID")):
        return
    name = _attachment_name(part)
    path = source.path.with_name(name if PurePath(name).suffix else name + (guess_extension(kind) or ""))
    try:
        parsed = parse_office(FileSource(path, _payload(part), source.account, depth=source.depth + 1))
    except ReadError as error:
        builder.warnings.append(f"attachment {name!r} was left out: it {error.reason}")
        return
    builder.warnings += [f"attachment {name!r}: {warning}" for warning in parsed.warnings]
    builder.embed(f"Attachment: {name}", parsed)


def _attachment_name(part: Message) -> str:
    """Return a printable name for an attachment: its file name without folders, or the subject of an attached email."""
    inner: Any = part.get_payload()
    name = _filename(part).replace("\\", "/").rpartition("/")[2]
    if not name and part.get_content_type() == "message/rfc822" and isinstance(inner, list) and inner:
        name = f"{_header(inner[0], 'Subject').replace('/', ' ') or 'mail'}.eml"
    return one_line(printable(name.replace("\0", "")), 150).strip(". ") or "unnamed"


def _filename(part: Message) -> str:
    with suppress(HeaderParseError, LookupError, ValueError, TypeError):  # its encoding is unknown or damaged
        return str(make_header(decode_header(part.get_filename() or "")))
    return "unnamed"


def _is_text(part: Message) -> bool:
    """Return whether a part belongs to the text of the email and is not an attachment."""
    is_attached = part.get_content_disposition() == "attachment" or _filename(part)
    return part.get_content_type() in ("text/plain", "text/html") and not is_attached


READERS: dict[str, Callable[[FileSource], ParsedFile]] = {
    **dict.fromkeys((".docx", ".docm"), partial(_read_package, add=_add_word)),
    **dict.fromkeys((".pptx", ".pptm"), partial(_read_package, add=_add_slides)),
    **dict.fromkeys((".xlsx", ".xlsm"), partial(_read_package, add=_add_sheets)),
    **dict.fromkeys((".html", ".htm", ".xhtml"), read_html),
    **dict.fromkeys((".csv", ".tsv"), _read_csv),
    ".eml": _read_mail,
    # Files of these types are read here only if they are attached to an email.
    ".pdf": parse_pdf,
    **dict.fromkeys(MARKDOWN_SUFFIXES, parse_markdown),
    **dict.fromkeys(TEXT_SUFFIXES, parse_text),
}
"""Reader function for each file extension."""
