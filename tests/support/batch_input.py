"""Lines of a batch: reads the input file and writes results."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.records import Answer, Request


@dataclass(frozen=True)
class BatchLine:
    """One request of a batch."""

    number: int
    custom_id: str
    url: str
    body: dict[str, Any]

    def request(self, batch_id: str) -> Request:
        """Return the line as a request to the model."""
        raw = json.dumps(self.body).encode()
        now = time.perf_counter()
        return Request(self.number, "POST", self.url, {}, raw, self.body, -1, now, batch_id)

    def result(self, number: int, answer: Answer) -> dict[str, Any]:
        """Return the line of the output or error file for an answer."""
        response = {"status_code": answer.status, "request_id": f"req_{number}", "body": answer.payload}
        return {"id": f"batch_req_{number}", "custom_id": self.custom_id, "response": response, "error": None}

    def expired(self, number: int) -> dict[str, Any]:
        """Return the line of the error file for a request that was not processed in time."""
        message = "This request could not be executed before the completion window expired."
        error = {"code": "batch_expired", "message": message}
        return {"id": f"batch_req_{number}", "custom_id": self.custom_id, "response": None, "error": error}


def _problem(code: str, message: str, line: int | None = None, param: str | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "line": line, "param": param}


def _parse(number: int, text: bytes, endpoint: str) -> BatchLine | dict[str, Any]:
    """Return a line, or its error."""
    try:
        value = json.loads(text)
    except ValueError:
        return _problem("invalid_json_line", "This line is not parseable as valid JSON.", number)
    for name in ("custom_id", "method", "url", "body"):
        if not isinstance(value, dict) or not value.get(name):
            return _problem("missing_required_parameter", f"Missing required parameter: '{name}'.", number, name)
    if value["url"] != endpoint or value["method"] != "POST":
        message = "The URL provided for this request does not match the batch endpoint."
        return _problem("invalid_url", message, number, "url")
    return BatchLine(number, value["custom_id"], value["url"], value["body"])


def _conflicts(lines: list[BatchLine]) -> Iterator[dict[str, Any]]:
    """Report inconsistent lines."""
    recorded: set[str] = set()
    for line in lines:
        if line.custom_id in recorded:
            message = f"The custom_id '{line.custom_id}' for this request is a duplicate of another request."
            yield _problem("duplicate_custom_id", message, line.number, "custom_id")
        recorded.add(line.custom_id)
        if line.body.get("model") != lines[0].body.get("model"):
            message = "The model of this request does not match the rest of the batch."
            yield _problem("mismatched_model", message, line.number, "body.model")


def read_lines(content: bytes, endpoint: str, limit: int) -> tuple[list[BatchLine], list[dict[str, Any]]]:
    """Return the requests of an input file and its errors."""
    texts = [(number, text) for number, text in enumerate(content.split(b"\n"), 1) if text.strip()]
    if not texts:
        return [], [_problem("empty_file", "The input file is empty.")]
    if len(texts) > limit:
        message = f"The batch has {len(texts)} requests, more than the maximum of {limit}."
        return [], [_problem("maximum_requests_exceeded", message)]
    parsed = [_parse(number, text, endpoint) for number, text in texts]
    lines = [item for item in parsed if isinstance(item, BatchLine)]
    return lines, [item for item in parsed if not isinstance(item, BatchLine)] + list(_conflicts(lines))
