"""Whether there is hope: errors that no call can survive, and failures in a row. Pure."""

from __future__ import annotations

import math

from llama_index_contextual.calls import RetryPolicy, is_connection_error
from llama_index_contextual.contextualizer.requests import ContextRequest

_ROUNDS_BEFORE_PAUSE = 3
_FATAL_STATUS = frozenset({401, 403, 404})
_FATAL_CODES = frozenset({"insufficient_quota", "model_not_found", "invalid_api_key"})


class Health:
    """Whether the provider is there, by its failures in a row.

    They are counted in rounds, each twice as long as the one before: what fails within a round counts once, so a short
    disturbance is a single failure, however many calls it meets.

    Args:
        retry: When a failed call is sent again: so many rounds in a row, of such lengths, and the provider is gone.

    Attributes:
        answers: Number of answers.
        rounds: Rounds of failures in a row, with no answer in between.
        begun: Rounds in all.
    """

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self._ever = False
        self._round_ends = -math.inf
        self._requests: set[str] = set()
        self.answers = self.rounds = self.begun = 0

    def answered(self) -> None:
        """Note an answer."""
        self.answers += 1
        self.refused()

    def refused(self) -> None:
        """Note that the provider is there, if only to refuse a call."""
        self._ever = True
        self.rounds, self._round_ends = 0, -math.inf
        self._requests.clear()

    def failed(self, request: ContextRequest, error: Exception, sent: float, *, now: float) -> bool:
        """Note a failure, and return whether the provider must be taken to be gone.

        A single call that fails again and again, where others were answered, is that call's own trouble.
        """
        if sent >= self._round_ends:
            self.rounds += 1
            self.begun += 1
            length = min(self._retry.max_delay, self._retry.base_delay * 2 ** (self.rounds - 1))
            self._round_ends = max(now + length, math.nextafter(now, math.inf))
        self._requests.add(request.keys[0])
        alone = len(self._requests) == 1 and (self._ever or not is_connection_error(error))
        return self.rounds >= self._retry.attempts and not alone

    def rest(self, *, now: float) -> float:
        """Return the seconds until the round ends: a call that failed in it and is sent before counts for nothing."""
        return max(0.0, self._round_ends - now)

    def pause(self, *, now: float) -> float:
        """Return the seconds for which no call should be sent: the rest of the round, if it is not among the first."""
        return self.rest(now=now) if self.rounds >= _ROUNDS_BEFORE_PAUSE else 0.0


def is_fatal(error: Exception) -> bool:
    """Return whether no call can succeed: no such model, a refused key, an empty account."""
    return (
        getattr(error, "status_code", None) in _FATAL_STATUS
        or getattr(error, "code", None) in _FATAL_CODES
        or (isinstance(error, ValueError) and "nknown model" in str(error))
    )


def is_rate_limit(error: Exception) -> bool:
    """Return whether the provider is only busy."""
    return getattr(error, "status_code", None) == 429
