"""The batches endpoint.

A batch moves through its stages by polls or by `Batches.advance`, never by time. Lines that
break the rules of the input file make the batch "failed" after validation, as in the real
service. Lines answered with an error, and those an expired batch did not reach, go to the
error file; a cancelled batch leaves out what it did not reach.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.batch_input import BatchLine, read_lines
from tests.support.files import Files
from tests.support.records import MODEL_PATHS, Answer, ApiError, Request

Ending = Literal["completed", "expired", "failed", "cancelled"]
TERMINAL = frozenset({"completed", "expired", "failed", "cancelled"})
COMPLETION_WINDOW = 24 * 3600
DEFAULT_PAGE, LARGEST_PAGE = 20, 100

_SCRIPTED_FAILURE = {"code": "token_limit_exceeded", "message": "Enqueued token limit reached.", "line": None}


@dataclass(frozen=True)
class BatchPlan:
    """Plan of the status changes of batches.

    Attributes:
        ending: The last status.
        polls: How many polls a batch spends in each stage; None when only `advance` moves it.
        stages: The statuses before the last one; "finalizing" may be added.
        finished: How many lines were answered before an expiry or a cancellation; default: half.
        failing: Ids of the lines that are answered with status 500.
        output: What is left of the output file: all, the first two thirds, an empty file, or no file.
    """

    ending: Ending = "completed"
    polls: int | None = 1
    stages: tuple[str, ...] = ("validating", "in_progress")
    finished: int | None = None
    failing: Container[str] = ()
    output: Literal["whole", "truncated", "empty", "missing"] = "whole"


@dataclass(eq=False)
class Batch:
    """A batch: its JSON object, its lines and the rest of its plan."""

    info: dict[str, Any]
    plan: BatchPlan
    lines: list[BatchLine]
    errors: list[dict[str, Any]]
    polls: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def following(self) -> str:
        """Return the status after the current one."""
        status = self.info["status"]
        if status == "cancelling":
            return "cancelled"
        if self.errors or (self.plan.ending == "failed" and status == "validating"):
            return "failed"
        later = self.plan.stages[self.plan.stages.index(status) + 1 :] if status in self.plan.stages else ()
        return later[0] if later else self.plan.ending

    def enter(self, status: str) -> None:
        """Set the status and its time stamp."""
        self.info["status"] = status
        if status != "validating":
            self.info[f"{status}_at"] = int(time.time())


def _total(usages: list[dict[str, Any]]) -> dict[str, Any]:
    """Add up the usage of the lines in the form of the batch object."""
    sent = sum(usage.get("prompt_tokens", 0) for usage in usages)
    got = sum(usage.get("completion_tokens", 0) for usage in usages)
    return {
        "input_tokens": sent,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": got,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": sent + got,
    }


class Batches:
    """Batches by id."""

    def __init__(self, run: Callable[[Request], Awaitable[Answer]], files: Files, seed: int) -> None:
        self._run = run
        self._files = files
        self._random = random.Random(seed)
        self._batches: dict[str, Batch] = {}

    def batch(self, batch_id: str) -> Batch:
        """Return a batch, or refuse with 404."""
        if batch_id not in self._batches:
            raise ApiError(404, f"No batch found with id '{batch_id}'.")
        return self._batches[batch_id]

    def create(self, request: Request, plan: BatchPlan, max_requests: int) -> Answer:
        """Accept a batch; its input is validated now and reported at the next stage."""
        fields = request.fields
        source = self._files.get(str(fields.get("input_file_id")))
        if source.info["purpose"] != "batch":
            raise ApiError(400, "The input file must have the purpose 'batch'.", param="input_file_id")
        if fields.get("endpoint") not in MODEL_PATHS:
            raise ApiError(400, f"Invalid endpoint: {fields.get('endpoint')}.", param="endpoint", code="invalid_value")
        if fields.get("completion_window") != "24h":
            raise ApiError(400, "The completion_window must be '24h'.", param="completion_window", code="invalid_value")
        lines, errors = read_lines(source.content, fields["endpoint"], max_requests)
        now = int(time.time())
        info = {
            "id": f"batch_{len(self._batches) + 1}",
            "object": "batch",
            "endpoint": fields["endpoint"],
            "errors": None,
            "input_file_id": source.info["id"],
            "completion_window": "24h",
            "status": plan.stages[0],
            "output_file_id": None,
            "error_file_id": None,
            "created_at": now,
            "expires_at": now + COMPLETION_WINDOW,
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "metadata": fields.get("metadata"),
        }
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
        batch = self.batch(batch_id)
        async with batch.lock:
            batch.polls += 1
            due = batch.plan.polls is not None and batch.polls >= batch.plan.polls
            if due and batch.info["status"] not in TERMINAL:
                await self._move(batch, batch.following())
            return Answer(payload=dict(batch.info))

    async def cancel(self, batch_id: str) -> Answer:
        """Begin to cancel a batch."""
        batch = self.batch(batch_id)
        async with batch.lock:
            if batch.info["status"] in TERMINAL:
                raise ApiError(409, f"Cannot cancel a batch with status '{batch.info['status']}'.")
            await self._move(batch, "cancelling")
            return Answer(payload=dict(batch.info))

    async def advance(self, batch_id: str, to: str | None = None) -> str:
        """Move a batch to its next status, or at once to a given one."""
        if to not in {None, "in_progress", "finalizing", "cancelling", *TERMINAL}:
            raise ValueError(f"unknown status {to!r}")
        batch = self.batch(batch_id)
        async with batch.lock:
            if batch.info["status"] not in TERMINAL:
                await self._move(batch, to or batch.following())
            return str(batch.info["status"])

    async def _move(self, batch: Batch, status: str) -> None:
        batch.polls = 0
        if status == "failed":
            data = batch.errors or [_SCRIPTED_FAILURE]
            batch.info["errors"] = {"object": "list", "data": data}
        elif status in TERMINAL:
            await self._execute(batch, status)
        else:
            batch.info["request_counts"]["total"] = len(batch.lines)
        batch.enter(status)

    async def _execute(self, batch: Batch, status: str) -> None:
        """Answer the lines and store the output and error files, in no useful order."""
        lines = self._random.sample(batch.lines, len(batch.lines))
        half = len(lines) // 2 if batch.plan.finished is None else batch.plan.finished
        reached = len(lines) if status == "completed" else half
        output: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        usages: list[dict[str, Any]] = []
        for number, line in enumerate(lines[:reached]):
            answer = await self._answer(batch, line)
            usages.append(answer.usage or {})
            (output if answer.status == 200 else errors).append(line.result(number, answer))
            if number % 64 == 63:
                await asyncio.sleep(0)
        batch.info["request_counts"] = {"total": len(lines), "completed": len(output), "failed": len(errors)}
        if status == "expired":
            errors += [line.expired(number) for number, line in enumerate(lines[reached:], reached)]
        batch.info["usage"] = _total(usages)
        batch.info["output_file_id"] = self._store_lines(batch, output, "output")
        batch.info["error_file_id"] = self._store_lines(batch, errors, "error")

    async def _answer(self, batch: Batch, line: BatchLine) -> Answer:
        if line.custom_id in batch.plan.failing:
            return ApiError(500, "The server had an error while processing your request.", type="server_error").answer()
        return await self._run(line.request(batch.info["id"]))

    def _store_lines(self, batch: Batch, lines: list[dict[str, Any]], kind: str) -> str | None:
        if not lines:
            return None
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        if kind == "output" and batch.plan.output != "whole":
            if batch.plan.output == "missing":
                return None
            content = content[: 2 * len(content) // 3] if batch.plan.output == "truncated" else b""
        return str(self._files.store(content, f"{batch.info['id']}_{kind}.jsonl", "batch_output").info["id"])
