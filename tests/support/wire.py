"""HTTP/1.1 over asyncio streams: reading requests, writing answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from tests.support.records import Answer

# Large enough for any head; bodies are read by their length.
READ_LIMIT = 1 << 20


class Stream(asyncio.StreamReader):
    """A stream reader that tells when the client has gone."""

    def __init__(self) -> None:
        super().__init__(limit=READ_LIMIT)
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        """Note the end of the stream."""
        self.gone.set()
        super().feed_eof()

    def set_exception(self, exc: BaseException) -> None:
        """Note the loss of the connection."""
        self.gone.set()
        # The base class declares Exception only, its callers pass what the transport reports.
        super().set_exception(exc)  # type: ignore[arg-type,unused-ignore]

    async def pause(self, seconds: float | None) -> None:
        """Wait, but not longer than the client does."""
        if seconds is None or seconds > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.gone.wait(), seconds)

    async def pause_until(self, event: asyncio.Event) -> None:
        """Wait for an event, but not longer than the client does."""
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self.gone.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


class Message(NamedTuple):
    """A request as read from the wire, header names in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


async def _read_chunked(stream: Stream) -> bytes:
    parts: list[bytes] = []
    while size := int((await stream.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append(await stream.readexactly(size))
        await stream.readexactly(2)
    while await stream.readuntil(b"\r\n") != b"\r\n":
        pass
    return b"".join(parts)


async def read_message(stream: Stream) -> Message | None:
    """Read the next request; None when the client closed the connection."""
    try:
        head = (await stream.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        method, target, _version = first.split(" ", 2)
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = await _read_chunked(stream)
        else:
            body = await stream.readexactly(int(headers.get("content-length", 0)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    path, _, query = target.partition("?")
    return Message(method, path, dict(parse_qsl(query)), headers, body)


def parse_json(message: Message) -> Any:
    """Return the JSON body, an empty object for a form or no body, None when it is broken."""
    if not message.body or message.headers.get("content-type", "").startswith("multipart/"):
        return {}
    try:
        return json.loads(message.body)
    except ValueError:
        return None


def parse_multipart(content_type: str, body: bytes) -> dict[str, tuple[str | None, bytes]]:
    """Return the fields of a multipart form, each with its file name if it is a file."""
    _, _, boundary = content_type.partition("boundary=")
    form: dict[str, tuple[str | None, bytes]] = {}
    for part in body.split(b"--" + boundary.strip('"').encode("latin-1"))[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        options = dict(
            option.strip().split("=", 1)
            for line in head.decode("utf-8", "replace").split("\r\n")
            if line.lower().startswith("content-disposition:")
            for option in line.split(";")[1:]
        )
        filename = options.get("filename")
        form[options["name"].strip('"')] = (filename and filename.strip('"'), content.removesuffix(b"\r\n"))
    return form


def _head(answer: Answer, headers: dict[str, str]) -> bytes:
    phrase = HTTPStatus(answer.status).phrase
    lines = [f"HTTP/1.1 {answer.status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in (headers | answer.headers).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _framed(event: str) -> bytes:
    data = f"data: {event}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def render(answer: Answer, *, broken: bool = False) -> tuple[bytes, list[bytes]]:
    """Return the head and the parts of the body of an answer.

    Args:
        answer: What to send.
        broken: Cut the JSON in half, within a well-formed HTTP answer.
    """
    if answer.events is not None:
        events = [answer.events[0][: len(answer.events[0]) // 2]] if broken else answer.events
        head = _head(answer, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
        return head, [_framed(event) for event in events] + [b"0\r\n\r\n"]
    kind = "application/octet-stream" if answer.content is not None else "application/json"
    body = answer.content if answer.content is not None else json.dumps(answer.payload).encode()
    body = body[: len(body) // 2] if broken else body
    return _head(answer, {"content-type": kind, "content-length": str(len(body))}), [body]


async def send(writer: asyncio.StreamWriter, head: bytes, parts: list[bytes]) -> None:
    """Write an answer."""
    writer.write(head)
    for part in parts:
        writer.write(part)
        await writer.drain()


async def send_half(writer: asyncio.StreamWriter, head: bytes, parts: list[bytes]) -> None:
    """Write an answer up to the middle of its body and close the connection."""
    half = parts[: len(parts) // 2] if len(parts) > 2 else [parts[0][: len(parts[0]) // 2]]
    await send(writer, head, half)
    writer.close()
