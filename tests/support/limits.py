"""Rate limits as token buckets, and the headers that tell about them."""

from __future__ import annotations

import math

from tests.support.records import ApiError

# What the headers tell when no limit is enforced.
NOMINAL = {"requests": 10_000, "tokens": 2_000_000}


class RateLimiter:
    """Requests and tokens per window, for each model on its own: buckets that refill evenly."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str, int, float], tuple[float, float]] = {}

    def admit(
        self, model: str, tokens: int, now: float, *, rpm: int | None, tpm: int | None, window: float
    ) -> dict[str, str]:
        """Count a request and return its rate-limit headers.

        Raises:
            ApiError: 429 with the honest waiting time, when an enforced limit is exceeded.
        """
        levels, headers = {}, dict[str, str]()
        for unit, limit, amount in (("requests", rpm, 1), ("tokens", tpm, tokens)):
            capacity = limit or NOMINAL[unit]
            key = (model, unit, capacity, window)
            level, at = self._buckets.get(key, (float(capacity), now))
            level = min(capacity, level + (now - at) * capacity / window)
            missing = amount - level if limit is not None and level < amount else 0
            level -= 0 if missing else amount
            levels[key] = (level, now)
            headers |= {
                f"x-ratelimit-limit-{unit}": f"{capacity}",
                f"x-ratelimit-remaining-{unit}": str(max(0, int(level))),
                f"x-ratelimit-reset-{unit}": f"{max(0, math.ceil((capacity - level) * window / capacity * 1000))}ms",
            }
            if missing:
                wait = missing * window / capacity
                headers |= {"retry-after": f"{wait:.3f}", "retry-after-ms": str(math.ceil(wait * 1000))}
                message = f"Rate limit reached for {model} on {unit} per min: Limit {capacity}, Requested {amount}."
                raise ApiError(429, message, type=unit, code="rate_limit_exceeded", headers=headers)
        self._buckets |= levels
        return headers
