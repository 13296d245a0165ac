"""Read the bodies of requests: small forms, and the files of a multipart form, directly into the inbox of a project.

Everything that can be known before a byte is read is checked first: the length of the request, the limits of the user,
and the space on the disk. Names and types are checked before the content of a file is written. If the request breaks
off or is invalid, none of its files is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from llama_index_contextual.errors import ContextualError, InputError
from llama_index_contextual.index.inbox import Inbox, Upload
from llama_index_contextual.ui.users import RefusedError, User, Window

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FILE = 500_000_000
"""Maximum number of bytes in a file, as in `ReadLimits`."""
MAX_REQUEST = 1_000_000_000
"""Maximum number of bytes in a request."""
MAX_FILES = 1_000
"""Maximum number of files in a request."""
FILES_PER_HOUR = 5_000
"""Maximum number of files that a user adds in an hour."""
BYTES_PER_HOUR = 10_000_000_000
"""Maximum number of bytes that a user sends in an hour."""
IDLE_SECONDS = 60.0
"""Number of seconds without a byte after which a request is given up."""

_BLOCK = 1 << 20
_MAX_FIELDS = 2_000
_MAX_HEADER_BYTES = 8_000
_MAX_FORM_FIELDS = 500  # of a form without files


@dataclass
class Received:
    """The content of a form.

    Attributes:
        uploads: The complete files.
        refused: Names of the files that are not accepted, with the reasons.
    """

    uploads: list[Upload] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)


class UploadLimits:
    """Limits for what users send in an hour, and for the space that requests in progress will need."""

    def __init__(self) -> None:
        self._files, self._bytes = Window(3600), Window(3600)
        self._in_progress = 0

    @contextmanager
    def reserve(self, request: Request, inbox: Inbox, user: User) -> Iterator[None]:
        """Check a request before its body is read, and reserve its space within the block.

        Raises:
            RefusedError: The request has no length, is too large, or exceeds a limit of the user.
            NoSpaceError: The disk has no space for it.
        """
        length = request.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            raise RefusedError(411, "The length of the request is missing: send a Content-Length header.")
        size = int(length) if len(length) < 20 else MAX_REQUEST + 1
        if size > MAX_REQUEST:
            raise RefusedError(413, f"The request has more than {MAX_REQUEST:,} bytes: send fewer files at once.")
        waits = [
            self._bytes.wait(user.name, size, limit=BYTES_PER_HOUR),
            self._files.wait(user.name, 1, limit=FILES_PER_HOUR),
        ]
        if any(waits):
            limits = f"{FILES_PER_HOUR:,} files and {BYTES_PER_HOUR:,} bytes"
            raise RefusedError(429, f"More than {limits} in an hour: try again later.", retry_after=max(waits))
        inbox.require_space(size + self._in_progress)
        self._bytes.add(user.name, size)
        self._in_progress += size
        try:
            yield
        finally:
            self._in_progress -= size

    def count(self, user: User, number: int) -> None:
        """Count files that a user has added."""
        if number:
            self._files.add(user.name, number)


async def receive(request: Request, inbox: Inbox, *, waits: str | None) -> Received:
    """Receive the files of a form.

    Args:
        request: The request.
        inbox: Inbox of the project.
        waits: As in `Inbox.receive`.

    Raises:
        RefusedError: The request is not a valid form, or has too many files or fields.
        NoSpaceError: The disk is full; none of the files is kept.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise RefusedError(415, "The request is not a form with files: send it as multipart/form-data.")
    form = _Form(lambda name: inbox.receive(name, waits=waits, max_bytes=MAX_FILE))
    is_complete = False
    try:
        parser = MultipartParser(options[b"boundary"], form.callbacks())
        async for block in blocks(request):
            await asyncio.to_thread(parser.write, block)
        await asyncio.to_thread(parser.finalize)
        is_complete = form.is_ended
        if not is_complete:
            raise RefusedError(400, "The form is incomplete: send it again.")
        return form.received
    except (FormParserError, ValueError) as error:
        if isinstance(error, ContextualError):
            raise
        raise RefusedError(400, "The form cannot be read: send it again.") from error
    finally:
        if not is_complete:
            form.discard()


async def blocks(request: Request) -> AsyncIterator[bytes]:
    """Yield the body of a request in blocks of about a megabyte.

    Raises:
        RefusedError: The client stopped sending.
        ClientDisconnect: The connection broke off.
    """
    stream, block = request.stream(), b""
    while True:
        try:
            part = await asyncio.wait_for(anext(stream, None), IDLE_SECONDS)
        except TimeoutError as error:
            raise RefusedError(408, "The request took too long: send it again.") from error
        if part is None:
            break
        block += part
        if len(block) >= _BLOCK:
            yield block
            block = b""
    if block:
        yield block


async def body_of(request: Request, most: int) -> bytes:
    """Return the body of a request.

    Raises:
        RefusedError: It has more than `most` bytes, or the client stopped sending.
    """
    body = b""
    async for block in blocks(request):
        body += block
        if len(body) > most:
            raise RefusedError(413, f"The request has more than {most:,} bytes: shorten it.", code="request_too_large")
    return body


async def form_fields(request: Request, most: int) -> dict[str, list[str]]:
    """Return the fields of a form without files.

    Raises:
        RefusedError: As for `body_of`, or the form has too many fields.
    """
    try:
        return parse_qs((await body_of(request, most)).decode("utf-8", "replace"), max_num_fields=_MAX_FORM_FIELDS)
    except ValueError as error:
        raise RefusedError(400, "The form has too many fields.") from error


class _Form:
    """Callbacks for the multipart parser, which write each file as its bytes arrive.

    Args:
        open_upload: Function that begins to receive a file with a given name.
    """

    def __init__(self, open_upload: Callable[[str], Upload]) -> None:
        self.received = Received()
        self.is_ended = False
        self._open_upload = open_upload
        self._header, self._value = b"", b""
        self._disposition = b""
        self._file_name = ""
        self._upload: Upload | None = None
        self._parts = self._header_bytes = 0

    def callbacks(self) -> MultipartCallbacks:
        """Return the callbacks by their names."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._on_field,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers,
            "on_part_data": self._on_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }

    def discard(self) -> None:
        """Remove all received files."""
        for upload in (*self.received.uploads, *([self._upload] if self._upload else [])):
            upload.discard()

    def _begin(self) -> None:
        self._header = self._value = self._disposition = b""
        self._file_name = ""
        self._upload = None
        self._header_bytes = 0
        self._parts += 1
        if self._parts > _MAX_FIELDS:
            raise RefusedError(413, f"The form has more than {_MAX_FIELDS:,} fields: send fewer files at once.")

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]
        self._check_headers(end - start)

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._check_headers(end - start)

    def _check_headers(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise RefusedError(400, "A part of the form has too long headers: shorten the name of the file.")

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _on_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"filename" not in options:
            return
        self._file_name = options[b"filename"].decode("utf-8", "replace")
        if len(self.received.uploads) + len(self.received.refused) >= MAX_FILES:
            raise RefusedError(413, f"The form has more than {MAX_FILES:,} files: send fewer files at once.")
        if not self._file_name:  # a field for files that was left empty
            return
        try:
            self._upload = self._open_upload(self._file_name)
        except InputError as error:
            self._refuse(error)

    def _refuse(self, error: InputError) -> None:
        self.received.refused.append((self._file_name[:200], str(error).rstrip(".")))
        if self._upload is not None:
            self._upload.discard()
            self._upload = None

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._upload is not None:
            try:
                self._upload.write(data[start:end])
            except InputError as error:
                self._refuse(error)

    def _on_part_end(self) -> None:
        if self._upload is not None:
            try:
                self._upload.close()
            except InputError as error:
                self._refuse(error)
                return
            self.received.uploads.append(self._upload)
            self._upload = None

    def _on_end(self) -> None:
        self.is_ended = True
