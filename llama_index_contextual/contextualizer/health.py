"""Whether there is hope: errors that no call can survive, and failures in a row. Pure."""

from __future__ import annotations

from llama_index_contextual.calls import is_connection_error
from llama_index_contextual.contextualizer.requests import ContextRequest

_FATAL_STATUS = frozenset({401, 403, 404})
_FATAL_CODES = frozenset({"insufficient_quota", "model_not_found", "invalid_api_key"})


class Health:
    """Whether the provider is there: failures in a row, those of calls that were in flight together counted once.

    Args:
        limit: So many in a row, and it is not there.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ever = False
        self._counted = 0.0
        self._requests: set[str] = set()
        self.answers = self.rounds = 0

    def answered(self) -> None:
        """Note an answer."""
        self.answers += 1
        self.refused()

    def refused(self) -> None:
        """Note that the provider is there, if only to refuse a call."""
        self._ever = True
        self.rounds = 0
        self._requests.clear()

    def failed(self, request: ContextRequest, error: Exception, sent: float, *, now: float) -> bool:
        """Note a failure, and return whether the provider must be taken to be gone.

        A single call that fails again and again, where others were answered, is that call's own trouble.
        """
        if sent >= self._counted:
            self.rounds += 1
            self._counted = now
        self._requests.add(request.keys[0])
        alone = len(self._requests) == 1 and (self._ever or not is_connection_error(error))
        return self.rounds >= self._limit and not alone


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
