"""The log of requests and what can be counted in it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.records import CHAT_PATH, CONTEXTUAL_PATH, EMBEDDINGS_PATH, MODEL_PATHS, Answer, Record, Request

PATIENCE = 300.0
"""Seconds for what takes milliseconds, on a machine that is busy with other things."""


@dataclass(eq=False, kw_only=True, repr=False)
class Recorder:
    """Records requests and how many of them are in flight.

    Attributes:
        history: All HTTP requests in order of arrival; a request is here as soon as it arrived.
        batch_history: The lines that batches executed.
        in_flight: Chat and embedding calls that arrived and are not complete.
        in_flight_max: The most of them at one time so far.
    """

    history: list[Record] = field(default_factory=list, init=False)
    batch_history: list[Record] = field(default_factory=list, init=False)
    in_flight: int = field(default=0, init=False)
    in_flight_max: int = field(default=0, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)

    def begin(self, request: Request) -> Record:
        """Record the arrival of a request."""
        record = Record.of(request)
        with self._changed:
            self.history.append(record)
            self.in_flight += request.path in MODEL_PATHS
            self.in_flight_max = max(self.in_flight_max, self.in_flight)
            self._changed.notify_all()
        return record

    def finish(self, record: Record, answer: Answer | None) -> None:
        """Record the end of a request, once; no answer means that none is sent."""
        if record.completed is not None:
            return
        with self._changed:
            self._fill(record, answer)
            self.in_flight -= record.path in MODEL_PATHS
            self._changed.notify_all()

    def record_batch_line(self, request: Request, answer: Answer) -> None:
        """Record a line that a batch executed."""
        record = Record.of(request)
        self._fill(record, answer)
        self.batch_history.append(record)

    @staticmethod
    def _fill(record: Record, answer: Answer | None) -> None:
        record.status = answer.status if answer else 0
        for name in ("usage", "cached_tokens", "finish_reason", "reply") if answer else ():
            setattr(record, name, getattr(answer, name))
        record.completed = time.perf_counter()

    def wait_until(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Block until a condition on the log holds; in a coroutine, call it in a thread.

        Raises:
            TimeoutError: When it does not hold in time.
        """
        with self._changed:
            if not self._changed.wait_for(condition, timeout):
                raise TimeoutError(f"not reached within {timeout} s; {self.in_flight} calls in flight")

    def wait_in_flight(self, calls: int) -> None:
        """Block until so many chat and embedding calls are in flight."""
        self.wait_until(lambda: self.in_flight >= calls)

    def calls(self, path: str | None = None) -> list[Record]:
        """Return the recorded requests to a path, or the chat and embedding calls."""
        return [record for record in list(self.history) if record.path in ({path} if path else MODEL_PATHS)]

    def charged(self) -> list[Record]:
        """Return the calls that a model has worked on, whether or not anybody has waited for the answer."""
        return [record for record in self.calls() if record.worked] + [r for r in self.batch_history if r.usage]

    @property
    def chat_calls(self) -> list[Record]:
        """The recorded chat calls."""
        return self.calls(CHAT_PATH)

    @property
    def embedding_calls(self) -> list[Record]:
        """The recorded embedding calls."""
        return self.calls(EMBEDDINGS_PATH)

    @property
    def contextual_calls(self) -> list[Record]:
        """The recorded calls for contextual embeddings."""
        return self.calls(CONTEXTUAL_PATH)

    def totals(self) -> dict[str, int]:
        """Return the counts that `log_check` computes from the log on its own."""
        paid = [record for record in self.calls() if record.paid]
        chat = [record.usage or {} for record in paid if record.path == CHAT_PATH]
        embeddings = [record.usage or {} for record in paid if record.path == EMBEDDINGS_PATH]
        return {
            "calls": len(self.calls()),
            "chat_calls": len(self.chat_calls),
            "embedding_calls": len(self.embedding_calls),
            "paid_calls": len(paid),
            "prompt_tokens": sum(usage["prompt_tokens"] for usage in chat),
            "completion_tokens": sum(usage["completion_tokens"] for usage in chat),
            "cached_tokens": sum(record.cached_tokens for record in paid),
            "embedding_tokens": sum(usage["prompt_tokens"] for usage in embeddings),
            "in_flight_max": self.in_flight_max,
            "batch_lines": len(self.batch_history),
        }

    def write_log(self, path: str | Path) -> Path:
        """Write the records as JSON lines in order of arrival, and return the path."""
        records = sorted(self.history + self.batch_history, key=lambda record: record.arrived)
        target = Path(path)
        target.write_text("".join(json.dumps(record.as_dict()) + "\n" for record in records), encoding="utf-8")
        return target

    def clear_history(self) -> None:
        """Forget the recorded requests and the highest counts."""
        with self._changed:
            self.history.clear()
            self.batch_history.clear()
            self.in_flight_max = self.in_flight
