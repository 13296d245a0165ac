"""Read mail (.eml): headers, text, and attachments as sections.

The document of a mail contains its attachments, so that a search finds the mail with the attachment named. Attachments
are read in memory; no file is written, and their names are only shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message
from email.parser import BytesParser
from email.policy import Compat32
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from typing import Any

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.base import FileAccount, ParsedFile, has_text
from llama_index_contextual.readers.builder import DocumentBuilder
from llama_index_contextual.readers.discovery import one_line, printable
from llama_index_contextual.readers.text import decode_bytes

ReadAttachment = Callable[[Path, bytes], ParsedFile]

MAX_PARTS = 10_000
MAX_HEADER = 20_000
"""Characters of a header that are read; one with parameters may not have more."""
_MAX_LISTED = 20
_HEADERS = ("From", "To", "Cc", "Date")
_SIGNATURES = ("application/pkcs7-signature", "application/x-pkcs7-signature", "application/pgp-signature")
_ENCRYPTED = ("application/pkcs7-mime", "application/x-pkcs7-mime", "multipart/encrypted")
_SUFFIXES = {"text/plain": ".txt", "text/html": ".html", "text/csv": ".csv", "message/rfc822": ".eml"}


def read_mail(
    path: Path,
    data: bytes,
    *,
    account: FileAccount,
    digest: str = "",
    read_attachment: ReadAttachment,
) -> ParsedFile:
    """Read a mail with its attachments.

    The text is the plain version, or the HTML version if there is no other.

    Args:
        path: Name of the file in errors.
        data: Its bytes.
        account: Account of the file, which its attachments share.
        digest: Hash of the bytes.
        read_attachment: Reads an attachment, given its name and bytes.

    Raises:
        ReadError: It is not a mail, encrypted, nested too deeply, or exceeds a limit.
    """
    try:
        message = BytesParser(policy=_BoundedHeaders()).parsebytes(data)
        if not any(name in message for name in ("From", "Subject", "Date", "Received", "Content-Type")):
            raise ReadError(str(path), "is not a mail: it has no headers such as From and Subject")
        return _read(message, path, account, digest, read_attachment)
    except HeaderParseError as error:
        raise ReadError(str(path), str(error)) from error
    except RecursionError as error:
        raise ReadError(str(path), "has parts nested too deeply: save its text from the mail program") from error


class _BoundedHeaders(Compat32):
    """Policy of the parser that refuses long headers with parameters, which take quadratic time to read."""

    def header_source_parse(self, sourcelines: Sequence[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(list(sourcelines))
        if len(value) > MAX_HEADER and name.lower().startswith("content-"):
            limit = f"a {one_line(name)} header of more than {MAX_HEADER:,} characters"
            raise HeaderParseError(f"has {limit}: save its text from the mail program")
        return name, value


def _read(
    message: Message, path: Path, account: FileAccount, digest: str, read_attachment: ReadAttachment
) -> ParsedFile:
    builder = DocumentBuilder(account)
    subject = _header(message, "Subject")
    lines = [f"{name}: {text}" for name in _HEADERS if (text := _header(message, name))]
    builder.paragraph("\n".join([f"Subject: {subject}", *lines] if subject else lines))
    attachments = []
    for number, part in enumerate(_parts(message)):
        if number == MAX_PARTS:
            raise ReadError(str(path), f"has more than {MAX_PARTS:,} parts")
        if part.get_content_type() in _ENCRYPTED:
            raise ReadError(str(path), "is encrypted: decrypt it in the mail program and save its text")
        if _is_attachment(part):
            attachments.append(part)
        else:
            _add_text(builder, part, path)
    unread = [reason for part in attachments if (reason := _add_attachment(builder, part, path, read_attachment))]
    builder.warnings += unread[:_MAX_LISTED]
    if len(unread) > _MAX_LISTED:
        builder.warnings.append(f"{len(unread) - _MAX_LISTED:,} more attachments were left out")
    facts = {"mail_from": _header(message, "From"), "mail_to": _header(message, "To"), "mail_date": _date(message)}
    return builder.parsed(title=subject, digest=digest, metadata={key: text for key, text in facts.items() if text})


def _header(message: Message, name: str) -> str:
    """Return a header in one line."""
    value = message.get(name)
    return one_line(_decoded("" if value is None else str(value)[:MAX_HEADER]), 1_000)


def _decoded(value: str) -> str:
    """Decode the encoded words of a header; one that is malformed is returned as it is."""
    try:
        return str(make_header(decode_header(value)))
    except (HeaderParseError, LookupError, ValueError):
        return value


def _date(message: Message) -> str:
    """Return the date in ISO format, with its time zone; empty if it has none."""
    try:
        date: datetime = parsedate_to_datetime(_header(message, "Date"))
    except (ValueError, TypeError, IndexError, OverflowError):
        return ""
    return date.isoformat()


# Parts


def _parts(message: Message) -> Iterator[Message]:
    """Yield the parts without parts; of alternatives the preferred one, and the attachments of the others."""
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
    """Return the alternative that is plain text, or else the last one."""
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
    from llama_index_contextual.readers.html import add_html, parse_html

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
        root = parse_html(path, decoded.text)
        if root is not None:
            add_html(builder, root)
    else:
        builder.paragraph(decoded.text, keeps_space=True)


def _add_attachment(builder: DocumentBuilder, part: Message, path: Path, read_attachment: ReadAttachment) -> str | None:
    """Add an attachment as a section, or return why it was left out; signatures and images in the text are ignored."""
    kind = part.get_content_type()
    if kind in _SIGNATURES or (part.get_content_maintype() == "image" and part.get("Content-ID")):
        return None
    name = _name(part)
    suffix = PurePosixPath(name).suffix or _SUFFIXES.get(kind, "")
    try:
        parsed = read_attachment(path.with_name(PurePosixPath(name).stem + suffix), _payload(part))
    except ReadError as error:
        return f"attachment {name!r} was left out: it {error.reason}"
    if not has_text(parsed.text):
        return f"attachment {name!r} was left out: it has no text"
    builder.warnings += [f"attachment {name!r}: {warning}" for warning in parsed.warnings]
    builder.embed(f"Attachment: {name}", parsed)
    return None


def _name(part: Message) -> str:
    """Return the file name of an attachment without folders, safe to print; that of a mail is its subject."""
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
