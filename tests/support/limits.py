"""Rate limits as token buckets, and the headers that tell about them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.support.records import ApiError

# What the headers tell when no limit is enforced.
NOMINAL_RPM = 10_000
NOMINAL_TPM = 2_000_000


def format_wait(seconds: float) -> str:
    """Write a duration as the reset headers do: 120ms, 1.5s or 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"


@dataclass(eq=False)
class Bucket:
    """A bucket that refills evenly to its capacity within a window of seconds."""

    capacity: float
    window: float
    updated: float
    level: float

    def refill(self, now: float) -> None:
        """Add what has come in since the last update."""
        gained = (now - self.updated) * self.capacity / self.window
        self.level, self.updated = min(self.capacity, self.level + gained), now

    def wait_for(self, amount: float) -> float:
        """Return the seconds until the bucket holds an amount."""
        return max(0.0, (amount - self.level) * self.window / self.capacity)

    def headers(self, unit: str) -> dict[str, str]:
        """Return the rate-limit headers of the bucket."""
        prefix = "x-ratelimit"
        return {
            f"{prefix}-limit-{unit}": f"{self.capacity:.0f}",
            f"{prefix}-remaining-{unit}": str(max(0, int(self.level))),
            f"{prefix}-reset-{unit}": format_wait(self.wait_for(self.capacity)),
        }


class RateLimiter:
    """Requests and tokens per window, for each model on its own."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def admit(
        self, model: str, tokens: int, now: float, *, rpm: int | None, tpm: int | None, window: float
    ) -> dict[str, str]:
        """Count a request and return its rate-limit headers.

        Raises:
            ApiError: 429 with the honest waiting time, when an enforced limit is exceeded.
        """
        requests = self._bucket("requests", model, rpm or NOMINAL_RPM, window, now)
        token_bucket = self._bucket("tokens", model, tpm or NOMINAL_TPM, window, now)
        headers = requests.headers("requests") | token_bucket.headers("tokens")
        if rpm is not None and requests.level < 1:
            raise self._exceeded(model, "requests", requests, 1, headers)
        if tpm is not None and token_bucket.level < tokens:
            raise self._exceeded(model, "tokens", token_bucket, tokens, headers)
        requests.level -= 1
        token_bucket.level -= tokens
        return requests.headers("requests") | token_bucket.headers("tokens")

    def clear(self) -> None:
        """Fill all buckets."""
        self._buckets.clear()

    def _bucket(self, unit: str, model: str, capacity: int, window: float, now: float) -> Bucket:
        bucket = self._buckets.get((unit, model))
        if bucket is None or bucket.capacity != capacity or bucket.window != window:
            bucket = self._buckets[unit, model] = Bucket(capacity, window, now, capacity)
        bucket.refill(now)
        return bucket

    @staticmethod
    def _exceeded(model: str, unit: str, bucket: Bucket, amount: int, headers: dict[str, str]) -> ApiError:
        wait = bucket.wait_for(amount)
        short = "RPM" if unit == "requests" else "TPM"
        used = bucket.capacity - max(0, int(bucket.level))
        message = (
            f"Rate limit reached for {model} on {unit} per min ({short}): Limit {bucket.capacity:.0f}, "
            f"Used {used:.0f}, Requested {amount}. Please try again in {format_wait(wait)}."
        )
        waiting = {"retry-after": f"{wait:.3f}", "retry-after-ms": str(math.ceil(wait * 1000))}
        return ApiError(429, message, type=unit, code="rate_limit_exceeded", headers=headers | waiting)
