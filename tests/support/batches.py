"""The files and batches endpoints.

A batch moves through its stages by polls or by `Batches.advance`, never by time. Lines that break the rules of the
input file make the batch "failed" after validation, as in the real service. Lines answered with an error, and those an
expired batch did not reach, go to the error file; a cancelled batch leaves out what it did not reach.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.records import MODEL_PATHS, Answer, ApiError, Request

TERMINAL = frozenset({"completed", "expired", "failed", "cancelled"})
DEFAULT_PAGE, LARGEST_PAGE = 20, 100

_FORM = re.compile(rb'name="(\w+)"(?:; filename="([^"]*)")?.*?\r\n\r\n(.*?)\r\n--', re.DOTALL)
_SCRIPTED_FAILURE = {"code": "token_limit_exceeded", "message": "Enqueued token limit reached.", "line": None}
_EXPIRED = {"code": "batch_expired", "message": "This request could not be executed before the window expired."}


FileState = Literal["whole", "truncated", "empty", "missing", "gone"]


@dataclass(frozen=True)
class BatchPlan:
    """Plan of the status changes of batches.

    Attributes:
        ending: The last status.
        polls: How many polls a batch spends in each stage; None when only `advance` moves it.
        finished: How many lines were answered before an expiry or a cancellation; default: half.
        failing: Ids of the lines that are answered with status 500.
        output: What is left of the output file: all, the first two thirds, an empty file, no file, or the id of a file
            that is gone.
        error_output: What is left of the error file.
    """

    ending: Literal["completed", "expired", "failed", "cancelled"] = "completed"
    polls: int | None = 1
    finished: int | None = None
    failing: Container[str] = ()
    output: FileState = "whole"
    error_output: FileState = "whole"


@dataclass(eq=False)
class StoredFile:
    """A file kept by the service."""

    info: dict[str, Any]
    content: bytes


class Files:
    """Files by id."""

    def __init__(self) -> None:
        self._files: list[StoredFile] = []

    def upload(self, request: Request) -> Answer:
        """Store a file sent as a multipart form."""
        form = {name.decode(): (filename.decode(), content) for name, filename, content in _FORM.findall(request.raw)}
        (filename, content), purpose = form["file"], form["purpose"][1].decode()
        # The record of the upload keeps what was sent, not its bytes.
        request.fields.update({"purpose": purpose, "filename": filename, "bytes": len(content)})
        return Answer(payload=self.store(content, filename, purpose).info)

    def store(self, content: bytes, filename: str, purpose: str) -> StoredFile:
        """Keep a file under a new id."""
        about = {"id": f"file-{len(self._files) + 1}", "object": "file", "status": "processed", "purpose": purpose}
        info = about | {"bytes": len(content), "created_at": int(time.time()), "filename": filename}
        self._files.append(StoredFile(info, content))
        return self._files[-1]

    def get(self, file_id: str) -> StoredFile:
        """Return a file, or refuse with 404."""
        for file in self._files:
            if file.info["id"] == file_id:
                return file
        raise ApiError(404, f"No such File object: {file_id}", param="id")


def problems(content: bytes, endpoint: str, limit: int) -> Iterator[dict[str, Any]]:
    """Yield the errors of an input file."""
    lines = content.splitlines()
    if not 0 < len(lines) <= limit:
        yield {"code": "invalid_size", "message": f"The batch has {len(lines)} requests.", "line": None}
    known, model = set[str](), None
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
        except ValueError:
            line = {}
        model = model or (line.get("body") or {}).get("model")
        for code, holds in (
            ("missing_required_parameter", not all(line.get(name) for name in ("custom_id", "body"))),
            ("invalid_url", (line.get("method"), line.get("url")) != ("POST", endpoint)),
            ("duplicate_custom_id", line.get("custom_id") in known),
            ("mismatched_model", (line.get("body") or {}).get("model") != model),
        ):
            if holds:
                yield {"code": code, "message": f"Invalid line: {text[:80]!r}", "line": number}
        known.add(line.get("custom_id"))


@dataclass(eq=False)
class Batch:
    """A batch: its JSON object, its lines and the rest of its plan."""

    info: dict[str, Any]
    plan: BatchPlan
    lines: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    polls: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def following(self) -> str:
        """Return the status after the current one."""
        status = self.info["status"]
        if self.errors or (self.plan.ending == "failed" and status == "validating"):
            return "failed"
        return "in_progress" if status == "validating" else self.plan.ending


class Batches:
    """Batches by id."""

    def __init__(self, run: Callable[[Request], Awaitable[Answer]], files: Files, seed: int) -> None:
        self._run = run
        self._files = files
        self._random = random.Random(seed)
        self._batches: dict[str, Batch] = {}

    def create(self, request: Request, plan: BatchPlan, max_requests: int) -> Answer:
        """Accept a batch; its input is validated now and reported at the next stage."""
        fields = request.fields
        source = self._files.get(str(fields.get("input_file_id")))
        if fields.get("endpoint") not in MODEL_PATHS or fields.get("completion_window") != "24h":
            raise ApiError(400, "Invalid endpoint or completion window.", code="invalid_value")
        errors = list(problems(source.content, fields["endpoint"], max_requests))
        info = {
            "id": f"batch_{len(self._batches) + 1}",
            "object": "batch",
            "endpoint": fields["endpoint"],
            "errors": None,
            "input_file_id": source.info["id"],
            "completion_window": "24h",
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": int(time.time()),
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "metadata": fields.get("metadata"),
        }
        lines = [] if errors else [json.loads(line) for line in source.content.splitlines()]
        self._batches[info["id"]] = Batch(info, plan, lines, errors)
        return Answer(payload=dict(info))

    def listed(self, query: Mapping[str, str]) -> Answer:
        """Return a page of batches, the newest first: those behind `after`, at most `limit`."""
        newest_first = list(reversed(self._batches))
        begin = newest_first.index(query["after"]) + 1 if "after" in query else 0
        end = begin + min(int(query.get("limit", DEFAULT_PAGE)), LARGEST_PAGE)
        page = [dict(self._batches[batch_id].info) for batch_id in newest_first[begin:end]]
        return Answer(payload={"object": "list", "data": page, "has_more": end < len(newest_first)})

    async def poll(self, batch_id: str) -> Answer:
        """Return the state of a batch; the poll may advance it."""
        if batch_id not in self._batches:
            raise ApiError(404, f"No batch found with id '{batch_id}'.")
        batch = self._batches[batch_id]
        async with batch.lock:
            batch.polls += 1
            if batch.plan.polls is not None and batch.polls >= batch.plan.polls:
                await self._move(batch, batch.following())
            return Answer(payload=dict(batch.info))

    async def advance(self, batch_id: str, to: str) -> None:
        """Move a batch at once to a given status."""
        batch = self._batches[batch_id]
        async with batch.lock:
            await self._move(batch, to)

    async def _move(self, batch: Batch, status: str) -> None:
        if batch.info["status"] in TERMINAL:
            return
        batch.polls = 0
        if status == "failed":
            batch.info["errors"] = {"object": "list", "data": batch.errors or [_SCRIPTED_FAILURE]}
        elif status in TERMINAL:
            await self._execute(batch, status)
        else:
            batch.info["request_counts"]["total"] = len(batch.lines)
        batch.info |= {"status": status, f"{status}_at": int(time.time())}

    async def _execute(self, batch: Batch, status: str) -> None:
        """Answer the lines and store the output and error files, in no useful order."""
        lines = self._random.sample(batch.lines, len(batch.lines))
        half = len(lines) // 2 if batch.plan.finished is None else batch.plan.finished
        reached = len(lines) if status == "completed" else half
        output: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        for number, line in enumerate(lines):
            result = {"id": f"batch_req_{number}", "custom_id": line["custom_id"], "response": None, "error": None}
            if number < reached:
                answer = await self._answer(batch, line, number)
                response = {"status_code": answer.status, "request_id": f"req_{number}", "body": answer.payload}
                (output if answer.status == 200 else errors).append(result | {"response": response})
            elif status == "expired":
                errors.append(result | {"error": _EXPIRED})
        failed = sum(bool(line["response"]) for line in errors)
        batch.info["request_counts"] = {"total": len(lines), "completed": len(output), "failed": failed}
        batch.info["output_file_id"] = self._store_lines(batch, output, batch.plan.output)
        batch.info["error_file_id"] = self._store_lines(batch, errors, batch.plan.error_output)

    async def _answer(self, batch: Batch, line: dict[str, Any], number: int) -> Answer:
        if line["custom_id"] in batch.plan.failing:
            return ApiError(500, "The server had an error while processing your request.", type="server_error").answer()
        raw = json.dumps(line["body"]).encode()
        request = Request(number, "POST", line["url"], {}, raw, line["body"], -1, time.perf_counter(), batch.info["id"])
        return await self._run(request)

    def _store_lines(self, batch: Batch, lines: list[dict[str, Any]], output: str) -> str | None:
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        if not lines or output == "missing":
            return None
        if output == "gone":
            return "file-0"
        content = {"whole": content, "truncated": content[: 2 * len(content) // 3], "empty": b""}[output]
        return str(self._files.store(content, f"{batch.info['id']}.jsonl", "batch_output").info["id"])
