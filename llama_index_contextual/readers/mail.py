"""Read emails with their attachments."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message
from email.parser import BytesParser
from email.policy import Compat32
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from itertools import islice
from mimetypes import guess_extension
from pathlib import PurePath
from typing import Any, NamedTuple

from llama_index_contextual.errors import ReadError
from llama_index_contextual.figures import Figure
from llama_index_contextual.readers.builder import DocumentBuilder
from llama_index_contextual.readers.files import FileSource, ParsedFile, one_line, printable
from llama_index_contextual.readers.html import add_html, parse_html
from llama_index_contextual.readers.text import decode

MAX_MAILS = 5
"""Maximum nesting depth of emails attached to other emails."""
MAX_MAIL_PARTS = 1_000
MAX_HEADER = 20_000
"""Maximum number of characters that are read from a header. Longer headers are rejected if they have parameters."""
MAX_STUB = 150
"""Maximum number of words of a plain text that may only refer to the HTML version."""
HALF = 0.5
MOST = 0.8  # a plain text with a smaller share of the words of the HTML version, and no others, is only a part of it
SAME = 0.9  # share of the words of a text that must be in another text for it to add nothing
MAX_COMPARED = 200_000
"""Maximum number of characters of an HTML version that are compared with the plain text."""
_WORD = re.compile(r"\w+")
_ADDRESS = re.compile(r"https?://\S+")
_STYLE = re.compile(r"(?i)<(?:style|script)\b")
_TAG = re.compile(r"<[^<>]*>")
_REFERRING = re.compile(r"(?i)\bhtml\b|\bbrowser\b|mail (?:client|program)|mailprogramm")
_HEADERS = ("From", "To", "Cc", "Date")
_ENCRYPTED = ("application/pkcs7-mime", "application/x-pkcs7-mime", "multipart/encrypted")


def read_mail(source: FileSource, parse: Callable[[FileSource], ParsedFile]) -> ParsedFile:
    """Read an email with its attachments.

    Of several versions of the text, the plain text version is used, unless it is only a note that refers to the HTML
    version, or a part of it. Attachments become sections of the document, so that a search result from an attachment
    shows both the email and the attachment. They are read in memory, and their names are never used to open files.
    """
    if source.depth > MAX_MAILS:
        raise source.error(f"is attached to {MAX_MAILS} mails that are attached to one another")
    message = BytesParser(policy=_BoundedHeaders()).parsebytes(source.data)
    if not any(name in message for name in ("From", "Subject", "Date", "Received", "Content-Type")):
        raise source.error("is not a mail: it has no headers such as From and Subject")
    builder = DocumentBuilder(source.account, figures=source.figures)
    subject = _header(message, "Subject")
    lines = [f"{name}: {text}" for name in _HEADERS if (text := _header(message, name))]
    builder.paragraph("\n".join([f"Subject: {subject}", *lines] if subject else lines))
    parts = list(islice(_leaves(message), MAX_MAIL_PARTS + 1))
    if len(parts) > MAX_MAIL_PARTS:
        raise source.error(f"has more than {MAX_MAIL_PARTS:,} parts")
    if any(part.get_content_type() in _ENCRYPTED for part in (message, *parts)):
        raise source.error("is encrypted: decrypt it in the mail program and save its text")
    plain = ""
    for body in _bodies(message, source):
        _add_body(builder, body, plain, source)
        plain += "" if body.is_html else f" {body.text}"
    for part in parts:
        if not _is_text(part):
            _add_attachment(builder, part, source, parse)
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


class _Body(NamedTuple):
    """A part of the text of an email.

    Attributes:
        text: The text, or the HTML source.
        is_html: Whether it is HTML.
        warnings: Problems with its encoding.
    """

    text: str
    is_html: bool
    warnings: tuple[str, ...] = ()


def _bodies(message: Message, source: FileSource) -> list[_Body]:
    """Return the parts of the text in order; of alternatives, only one is returned."""
    if _is_text(message) and message.get_content_maintype() == "text":
        return [_body(message, source)]
    inner: Any = message.get_payload()
    if message.get_content_maintype() != "multipart" or not isinstance(inner, list):
        return []
    if message.get_content_subtype() == "alternative":
        return _chosen(_bodies(part, source) for part in inner)
    return [body for part in inner for body in _bodies(part, source)]


def _body(part: Message, source: FileSource) -> _Body:
    data, is_html = _payload(part), part.get_content_type() == "text/html"
    if not data.strip():
        return _Body("", is_html)
    try:
        text, warnings = decode(replace(source, data=data), part.get_content_charset())
    except ReadError as error:
        return _Body("", is_html, (f"a part of its text was left out: it {error.reason}",))
    if not is_html and str(part.get_param("format") or "").lower() == "flowed":
        text = _unflowed(text, deletes_space=str(part.get_param("delsp") or "").lower() == "yes")
    return _Body(text, is_html, tuple(f"its text {warning}" for warning in warnings))


def _unflowed(text: str, *, deletes_space: bool) -> str:
    """Join the lines of paragraphs in the format of RFC 3676, in which a space at the end of a line continues it."""
    lines: list[str] = []
    depth_before, is_open = 0, False
    for line in text.replace("\r\n", "\n").split("\n"):
        content = line.lstrip(">")
        depth = len(line) - len(content)
        content = content.removeprefix(" ")
        is_signature = content == "-- "
        is_soft = content.endswith(" ") and not is_signature
        rest = content[:-1] if is_soft and deletes_space else content
        if is_open and depth == depth_before and not is_signature:
            lines[-1] += rest
        else:
            lines.append(f"{'>' * depth}{' ' if depth else ''}{rest}")
        depth_before, is_open = depth, is_soft
    return "\n".join(lines)


def _chosen(alternatives: Iterable[list[_Body]]) -> list[_Body]:
    """Return the plain version of a text, or the HTML version if the plain version is a stub.

    A stub is a short text without most of the words of the HTML version, or a text that is only a part of it.
    """
    plain: list[_Body] = []
    rich: list[_Body] = []
    for bodies in alternatives:
        if any(body.is_html and body.text.strip() for body in bodies):
            rich = bodies
        elif not plain and any(body.text.strip() for body in bodies):
            plain = bodies
    if not plain or not rich:
        return plain or rich
    text = " ".join(_ADDRESS.sub(" ", body.text) for body in plain)
    words = _words(text)
    rich_words = [word for body in rich for word in _words(_html_text(body.text) if body.is_html else body.text)]
    share = _share(rich_words, words)
    if share < MOST and _share(words, rich_words) >= SAME:
        return rich
    is_longer = len(set(rich_words)) > len(set(words))
    refers = len(rich_words) * 4 >= len(words) and _REFERRING.search(text) is not None
    return rich if len(text.split()) <= MAX_STUB and (is_longer or refers) and share < HALF else plain


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _share(words: list[str], others: list[str]) -> float:
    """Return the share of the different `words` that are among the others."""
    wanted = set(words)
    return len(wanted & set(others)) / len(wanted) if wanted else 1.0


def _html_text(page: str) -> str:
    """Return roughly the text of an HTML page, for a comparison of its words."""
    end = page.lower().find("</head>")
    body = page[max(end, 0) : max(end, 0) + MAX_COMPARED]
    first, *others = _STYLE.split(body)
    text = " ".join([first, *(other.partition("</")[2] for other in others)])
    return html.unescape(_TAG.sub(" ", text))


def _add_body(builder: DocumentBuilder, body: _Body, plain: str, source: FileSource) -> None:
    """Add a part of the text, unless it is an HTML version of the `plain` text before it."""
    builder.warnings += body.warnings
    if not body.is_html:
        builder.paragraph(body.text, keeps_space=True)
    elif plain.strip() and find_spec("lxml") is None:
        builder.warnings.append("its HTML part was left out: it needs further packages")
    elif body.text.strip() and not (plain.strip() and _share(_words(_html_text(body.text)), _words(plain)) >= SAME):
        add_html(builder, parse_html(source, body.text))


def _add_attachment(
    builder: DocumentBuilder, part: Message, source: FileSource, parse: Callable[[FileSource], ParsedFile]
) -> None:
    """Add an attachment as a section, or a warning if it cannot be read. Skip signatures and small inline images."""
    kind = part.get_content_type()
    if kind.endswith("-signature"):
        return
    name, data = _attachment_name(part), _payload(part)
    text = None
    is_picture = part.get_content_maintype() == "image"
    if source.pictures is not None and data.strip(b"\0"):
        text = source.pictures.text(data, f"attachment {name!r}")
    if text is not None:
        if text:
            builder.heading(1, f"Attachment: {name}")
            builder.paragraph(text, keeps_space=True)
        builder.figure(Figure(id="", alt=name), data)
        return
    if is_picture:
        builder.figure(Figure(id="", alt=name), data)
    if is_picture and part.get("Content-ID"):
        return
    path = source.path.with_name(name if PurePath(name).suffix else name + (guess_extension(kind) or ""))
    try:
        parsed = parse(replace(source, path=path, data=data, digest="", depth=source.depth + 1))
    except ReadError as error:
        builder.warnings.append(f"attachment {name!r} was left out: it {error.reason}")
        return
    builder.warnings += [f"attachment {name!r}: {warning}" for warning in parsed.warnings]
    if parsed.text or not parsed.scanned:
        builder.embed(f"Attachment: {name}", parsed)


def attachments(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the extension and the bytes of each attachment and image of an email, including attached emails."""
    message = BytesParser(policy=_BoundedHeaders()).parsebytes(data)
    for part in islice(_leaves(message), MAX_MAIL_PARTS):
        if not _is_text(part):
            kind = part.get_content_type()
            suffix = PurePath(_attachment_name(part)).suffix or guess_extension(kind) or ""
            is_image = part.get_content_maintype() == "image"
            yield (".png" if is_image else suffix.lower()), _payload(part)


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
