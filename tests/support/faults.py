"""Scripted faults of the provider: kind, requests concerned, and frequency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Literal

from tests.support.records import CHAT_PATH, MODEL_PATHS, ApiError, Request
from tests.support.replies import Reply
from tests.support.tokens import count, cut

# fmt: off
FaultKind = Literal[
    # errors
    "rate_limit", "insufficient_quota", "server_error", "unavailable", "content_filter_error", "model_not_found",
    "invalid_key",
    # the delivery of the answer
    "drop", "drop_in_body", "hang", "malformed_json", "missing_usage",
    # the reply of the model
    "empty", "refusal", "content_filter", "length",
]
# fmt: on
Match = str | Callable[[Request], bool]

# status, type, code, message
_ERRORS: Mapping[str, tuple[int, str, str | None, str]] = {
    "rate_limit": (429, "requests", "rate_limit_exceeded", "Rate limit reached for requests."),
    "insufficient_quota": (429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota."),
    "server_error": (500, "server_error", None, "The server had an error while processing your request."),
    "unavailable": (503, "server_error", None, "The engine is currently overloaded, please try again later."),
    "content_filter_error": (400, "invalid_request_error", "content_filter", "The response was filtered."),
    "model_not_found": (404, "invalid_request_error", "model_not_found", "The model does not exist."),
    "invalid_key": (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
}


def _half(text: str) -> str:
    return cut(text, count(text) // 2)


_DISTORTIONS: Mapping[str, Callable[[Reply, str], Reply]] = {
    "empty": lambda reply, _: replace(reply, text=""),
    "refusal": lambda *_: Reply(refusal="I'm sorry, I cannot help with that request."),
    "content_filter": lambda reply, text: replace(reply, text=_half(text), finish_reason="content_filter"),
    "length": lambda reply, text: replace(reply, text=_half(text), finish_reason="length"),
}


@dataclass(eq=False)
class Fault:
    """A scripted fault; see `Faults.fault` for the meaning of the fields."""

    kind: FaultKind
    times: int | None = 1
    match: Match | None = None
    after: int = 0
    retry_after: float | str | None = None
    seconds: float | None = None

    def applies(self, request: Request) -> bool:
        """Whether the request is one the fault is meant for."""
        if self.kind in _DISTORTIONS and request.path != CHAT_PATH:
            return False
        if callable(self.match):
            return self.match(request)
        if self.match is None:
            return request.path in MODEL_PATHS
        return request.path.startswith(self.match) if self.match.startswith("/v1/") else self.match in request.text

    def take(self) -> bool:
        """Use the fault up by one, unless requests are still let pass first."""
        if self.after > 0:
            self.after -= 1
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0

    @property
    def error(self) -> ApiError | None:
        """The HTTP error of the fault, if it is one."""
        if self.kind not in _ERRORS:
            return None
        status, type_, code, message = _ERRORS[self.kind]
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return ApiError(status, message, type=type_, code=code, headers=headers)

    def distort(self, reply: Reply) -> Reply:
        """Return the reply as the fault leaves it."""
        distortion = _DISTORTIONS.get(self.kind)
        return distortion(reply, reply.text or "") if distortion else reply


@dataclass(eq=False, kw_only=True, repr=False)
class Faults:
    """The faults still to come."""

    _scripted: list[Fault] = field(default_factory=list, init=False)
    _random: tuple[float, int, tuple[Fault, ...]] | None = field(default=None, init=False)
    _seen: Counter[bytes] = field(default_factory=Counter, init=False)

    def fault(
        self,
        kind: FaultKind,
        times: int | None = 1,
        match: Match | None = None,
        after: int = 0,
        *,
        retry_after: float | str | None = None,
        seconds: float | None = None,
    ) -> Fault:
        """Script a fault.

        Args:
            kind: What goes wrong.
            times: How many requests it hits; None for all.
            match: Which requests: a path prefix when it starts with "/v1/", else a part of the
                prompt or of an embedding input, or a function of the request. Default: all chat
                and embedding calls. It runs in the server's loop, so it must not block.
            after: How many matching requests are served before the first hit.
            retry_after: Value of the Retry-After header of an error; None for no header.
            seconds: How long "hang" lasts before the normal answer; None until the stop.

        Returns:
            The fault; setting its `times` to 0 ends it.
        """
        fault = Fault(kind, times, match, after, retry_after, seconds)
        self._scripted.append(fault)
        return fault

    def fail_randomly(
        self,
        rate: float,
        seed: int = 0,
        kinds: Sequence[FaultKind] = ("server_error",),
        *,
        retry_after: float | str | None = None,
    ) -> None:
        """Let a share of the chat and embedding calls fail.

        Which ones depends on the seed, the content and how often that content was sent before,
        not on the order of arrival, so runs with concurrent calls repeat. Rate 0 ends it.
        """
        self._random = (rate, seed, tuple(Fault(kind, None, retry_after=retry_after) for kind in kinds))

    def pick_fault(self, request: Request) -> Fault | None:
        """Return the fault for a request and use it up."""
        scripted = next((f for f in list(self._scripted) if f.applies(request) and f.take()), None)
        return scripted or self._draw(request)

    def clear_faults(self) -> None:
        """Drop all scripted faults and the random rate."""
        self._scripted.clear()
        self._seen.clear()
        self._random = None

    def _draw(self, request: Request) -> Fault | None:
        if self._random is None or request.path not in MODEL_PATHS:
            return None
        rate, seed, faults = self._random
        content = blake2b(request.path.encode() + request.raw, digest_size=16).digest()
        self._seen[content] += 1
        draw = blake2b(f"{seed}:{self._seen[content]}".encode() + content, digest_size=12).digest()
        if int.from_bytes(draw[:8], "big") / 2**64 >= rate:
            return None
        fault = faults[int.from_bytes(draw[8:], "big") % len(faults)]
        return fault if fault.applies(request) else None
