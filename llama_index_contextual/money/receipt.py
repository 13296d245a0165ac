"""Receipts: the cost of every run, stored as one row per run in the ledger file.

Before a run makes calls, it records their maximum cost. If the process is killed, the row therefore shows at least the
amount that the provider may charge. All answers from one model on the same day share a row. Forgetting contexts does
not remove receipts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.money.price import money
from llama_index_contextual.money.tokens import Tokens

ANSWERS = "answers"
"""Value of `purpose` in rows for answer costs."""

_UNSETTLED = "timed out, interrupted or not read from a batch"
_NUMBERS = (
    *("calls", "estimated_calls", "input_tokens", "cached_tokens", "output_tokens", "written_tokens"),
    *("embedding_tokens", "estimated_embedding_tokens", "unsettled_calls", "unsettled"),
)
"""Fields that are added up; `paid` may be unknown."""
_SECONDS_OF_DAY = 86_400
_LATEST = 50
"""Number of recent rows that are searched for the row of the current day."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The calls and tokens of a run, or of a single call, with their cost.

    The receipt of a call contains only numbers. If it is added to the receipt of a run, the rest of the latter is kept.

    Attributes:
        run: Number of the run, starting at 1; 0 for a receipt that is not stored.
        purpose: "ingest", "sync", "rebuild", "retry", "compare", or "answers" for all answers that one model wrote on
            one day.
        started: Time when the first cost was recorded, in seconds since the epoch.
        ended: End time in seconds since the epoch; None while the run is in progress, or if it was killed.
        llm: Name of the LLM that writes contexts or answers, or None.
        embed_model: Name of the embedding model, or None.
        calls: Number of LLM calls that returned a context or an answer.
        estimated_calls: Number of these calls whose tokens were counted locally, because the provider did not report
            token counts.
        input_tokens: Number of tokens in the prompts, including cached tokens.
        cached_tokens: Number of input tokens that the provider read from its cache.
        output_tokens: Number of tokens in the LLM's answers.
        written_tokens: Number of input tokens that the provider wrote to its cache, if it reports them.
        embedding_tokens: Number of tokens in the embedded texts.
        estimated_embedding_tokens: Number of these tokens that were counted locally, because the provider did not
            report token counts.
        paid: Cost in dollars of calls that returned a response, at list prices, including discounts; None if a price is
            unknown.
        unsettled_calls: Number of calls that may be charged but whose cost is unknown, because they timed out or were
            interrupted, or because their reply in a batch was not read.
        unsettled: Maximum cost of the unsettled calls in dollars.
        in_flight: Maximum cost in dollars of calls that were in flight when the row was written; zero after the run.
        batches: Maximum cost in dollars of each batch that the provider is processing, by upload id.
        prices: Name and release of the price table.

    Example:
        >>> total = Receipt(purpose="sync", calls=1, paid=0.5) + Receipt(calls=2, paid=0.25, unsettled=1.0)
        >>> total.purpose, total.calls, total.paid, total.dollars
        ('sync', 3, 0.75, 1.75)
    """

    run: int = 0
    purpose: str = "ingest"
    started: float = 0.0
    ended: float | None = None
    llm: str | None = None
    embed_model: str | None = None
    calls: int = 0
    estimated_calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    written_tokens: int = 0
    embedding_tokens: int = 0
    estimated_embedding_tokens: int = 0
    paid: float | None = 0.0
    unsettled_calls: int = 0
    unsettled: float = 0.0
    in_flight: float = 0.0
    batches: Mapping[str, float] = field(default_factory=dict)
    prices: str = ""

    @classmethod
    def for_calls(cls, tokens: Tokens, **values: Any) -> Receipt:
        """Return the receipt of LLM calls with these tokens, and with other attributes."""
        return cls(**{count.name: getattr(tokens, count.name) for count in fields(Tokens)}, **values)

    def __add__(self, other: Receipt) -> Receipt:
        sums = {name: getattr(self, name) + getattr(other, name) for name in _NUMBERS}
        dollars = None if self.paid is None or other.paid is None else self.paid + other.paid
        return replace(self, paid=dollars, **sums)

    @property
    def contexts(self) -> Tokens:
        """The LLM calls and their tokens."""
        return Tokens(*(getattr(self, count.name) for count in fields(Tokens)))

    @property
    def booked(self) -> float:
        """Maximum cost in dollars of calls whose actual cost is not known."""
        return self.unsettled + self.in_flight + sum(self.batches.values())

    @property
    def is_estimated(self) -> bool:
        """Whether some tokens were counted locally, because the provider did not report token counts."""
        return bool(self.estimated_calls or self.estimated_embedding_tokens)

    @property
    def dollars(self) -> float | None:
        """Maximum cost of the run in dollars, or None if a price is unknown."""
        return None if self.paid is None else self.paid + self.booked

    def describe_estimated(self) -> str:
        """Describe the tokens that were counted locally; return an empty string if there are none."""
        parts = []
        if self.estimated_calls:
            parts.append(f"the tokens of {pluralize(self.estimated_calls, 'call')}")
        if self.estimated_embedding_tokens:
            parts.append(pluralize(self.estimated_embedding_tokens, "embedded token"))
        return f"estimated: the provider did not report {' and '.join(parts)}" if parts else ""

    def describe_unsettled(self) -> str:
        """Describe the calls whose cost is unknown; return an empty string if there are none."""
        if not self.unsettled_calls:
            return ""
        calls = pluralize(self.unsettled_calls, "call")
        if self.paid is None:
            return f"{calls} more {_UNSETTLED}"
        return f"of which {money(self.unsettled)} for {calls} of unknown cost ({_UNSETTLED})"

    def to_dict(self) -> dict[str, object]:
        """Return the receipt as JSON values."""
        return {**asdict(self), "dollars": self.dollars, "is_estimated": self.is_estimated}


@dataclass(frozen=True, kw_only=True)
class ProjectCost:
    """Total cost of a project so far: contexts, document embeddings and answers.

    Embeddings of queries are not included, nor is the single text that may be embedded to recognise a model that was
    passed as an object.

    Attributes:
        runs: The runs that made calls, oldest first.
        damaged: Number of damaged rows, which are not included.
    """

    runs: Sequence[Receipt] = ()
    damaged: int = 0

    @property
    def dollars(self) -> float:
        """Cost in dollars of all runs whose price is known."""
        return sum(receipt.dollars or 0.0 for receipt in self.runs)

    @property
    def answers(self) -> float:
        """Cost in dollars of the answers; it is included in `dollars`."""
        return sum(receipt.dollars or 0.0 for receipt in self.runs if receipt.purpose == ANSWERS)

    @property
    def booked(self) -> float:
        """Maximum cost in dollars of calls that timed out, were interrupted or are still running.

        It is included in `dollars`.
        """
        return sum(receipt.booked for receipt in self.runs if receipt.dollars is not None)

    @property
    def is_estimated(self) -> bool:
        """Whether some tokens of some runs were counted locally, because the provider did not report token counts."""
        return any(receipt.is_estimated for receipt in self.runs)

    @property
    def without_price(self) -> int:
        """Number of runs whose price is unknown."""
        return sum(receipt.dollars is None for receipt in self.runs)

    def to_dict(self) -> dict[str, object]:
        """Return the costs as a dict that can be written as JSON."""
        runs = [receipt.to_dict() for receipt in self.runs]
        totals = {"dollars": self.dollars, "answers": self.answers, "booked": self.booked}
        totals["is_estimated"] = self.is_estimated
        return {**totals, "runs": runs, "damaged": self.damaged}


class ReceiptStore(Protocol):
    """Protocol for the database of the receipts, which `Ledger` implements."""

    def transaction(self) -> AbstractContextManager[object]:
        """Return a context manager whose statements are committed together or not at all."""
        ...

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a SELECT."""
        ...

    def rows(self, table: str, clauses: str = "", parameters: Sequence[Any] = ()) -> list[Any]:
        """Return the undamaged rows of a table."""
        ...

    def insert(self, table: str, rows: Iterable[Sequence[Any]], *, replace: bool = True) -> None:
        """Insert rows within an open transaction."""
        ...


class Receipts:
    """Receipts of one project.

    Args:
        store: The open ledger.
    """

    def __init__(self, store: ReceiptStore) -> None:
        self._store = store

    def write(self, receipt: Receipt) -> Receipt:
        """Commit a receipt and return it.

        A receipt with the run number 0 is stored in a new row under the next number.
        """
        with self._store.transaction():
            return self.insert(receipt)

    def insert(self, receipt: Receipt) -> Receipt:
        """Insert a receipt like `write`, but within an open transaction."""
        if not receipt.run:
            ((last,),) = self._store.query("SELECT ifnull(max(run), '0') FROM runs")
            receipt = replace(receipt, run=int(last) + 1)
        self._store.insert("runs", [(f"{receipt.run:08d}", json.dumps(asdict(receipt)))])
        return receipt

    def add_answers(self, cost: Receipt) -> None:
        """Commit the cost of answers, adding it to the row for the same model and day if there is one."""
        with self._store.transaction():
            latest = self._store.rows("runs", f"ORDER BY run DESC LIMIT {_LATEST}")
            rows = (Receipt(**json.loads(content)) for _, content in latest)
            self.insert(next((replace(row + cost, ended=cost.ended) for row in rows if _shares_row(row, cost)), cost))

    def close_batch(self, file_id: str, *, unread: int = 0) -> None:
        """Remove a batch from the receipt of the run that sent it.

        The run that fetches the replies records their cost.

        Args:
            file_id: Upload id of the batch, assigned by the provider.
            unread: Number of requests that are abandoned without a reply; their maximum cost is added to `unsettled`.
        """
        if (receipt := self._sender(file_id)) is not None:
            batches = dict(receipt.batches)
            reserve = batches.pop(file_id)
            calls, dollars = receipt.unsettled_calls + unread, receipt.unsettled + (reserve if unread else 0.0)
            self.write(replace(receipt, batches=batches, unsettled_calls=calls, unsettled=dollars))

    def read_batch(self, file_id: str, booked: Callable[[float], float]) -> None:
        """Update the maximum cost of a batch after some of its replies have been read.

        Args:
            file_id: Upload id of the batch, assigned by the provider.
            booked: Function that takes the recorded maximum cost and returns the new maximum cost.
        """
        if (receipt := self._sender(file_id)) is not None:
            self.write(replace(receipt, batches={**receipt.batches, file_id: booked(receipt.batches[file_id])}))

    def _sender(self, file_id: str) -> Receipt | None:
        return next((receipt for receipt in self.cost().runs if file_id in receipt.batches), None)

    def cost(self) -> ProjectCost:
        """Return the cost of all runs."""
        rows = self._store.rows("runs", "ORDER BY run")
        ((number,),) = self._store.query("SELECT count(*) FROM runs")
        return ProjectCost(
            runs=tuple(Receipt(**json.loads(content)) for _, content in rows), damaged=number - len(rows)
        )


def _shares_row(row: Receipt, cost: Receipt) -> bool:
    days = {int(receipt.started // _SECONDS_OF_DAY) for receipt in (row, cost)}
    names = {(receipt.purpose, receipt.llm, receipt.prices, receipt.paid is None) for receipt in (row, cost)}
    return len(days) == len(names) == 1
