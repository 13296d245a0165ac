"""What every run has cost: one row a run in the ledger's file, written before money can be spent.

A run books the most that its calls in flight can cost before it sends them, so a process that is killed leaves a row
that says at least what the provider may charge. The rows stay when contexts are forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from llama_index_contextual.storage.ledger_file import LedgerFile


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """What one run has cost.

    Attributes:
        run: Its number, from 1.
        purpose: "ingest", "rebuild", "retry" or "compare".
        started: When it spent its first money, seconds since 1970.
        ended: When it ended; None while it runs, and where it was killed.
        llm: Name of the LLM that writes contexts, or None.
        embed_model: Name of the embedding model, or None.
        calls: Calls for contexts that were answered.
        input_tokens: Tokens of their prompts, the cached ones included.
        cached_tokens: Those of them from the provider's cache.
        output_tokens: Tokens of their answers.
        embedding_tokens: Tokens of the texts that were embedded.
        paid: Dollars for what was answered; None where a price is not known.
        unsettled_calls: Calls that may have been charged and whose price is not known: timed out or cut off.
        unsettled: Dollars booked for these, at the most that they can have cost.
        in_flight: Dollars booked for calls that were in flight when the row was written; zero once a run has ended.
        batches: Dollars booked for batches that the provider works on, by the id of their upload.
        prices: Name and release of the price table.
    """

    run: int = 0
    purpose: str = "ingest"
    started: float = 0.0
    ended: float | None = None
    llm: str | None = None
    embed_model: str | None = None
    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    embedding_tokens: int = 0
    paid: float | None = 0.0
    unsettled_calls: int = 0
    unsettled: float = 0.0
    in_flight: float = 0.0
    batches: Mapping[str, float] = field(default_factory=dict)
    prices: str = ""

    @property
    def booked(self) -> float:
        """Dollars for calls whose price is not known, or not known yet."""
        return self.unsettled + self.in_flight + sum(self.batches.values())

    @property
    def dollars(self) -> float | None:
        """What the run has cost, at most; None where a price is not known."""
        return None if self.paid is None else self.paid + self.booked


@dataclass(frozen=True, kw_only=True)
class ProjectCost:
    """What a project has cost so far: contexts and embeddings of its documents.

    Questions and answers are not counted.

    Attributes:
        runs: The runs that sent anything, oldest first.
        damaged: Rows that are not as they were written, and are not counted.
    """

    runs: Sequence[RunCost] = ()
    damaged: int = 0

    @property
    def dollars(self) -> float:
        """All runs together; those without a known price are left out."""
        return sum(run.dollars or 0.0 for run in self.runs)

    @property
    def booked(self) -> float:
        """The part of it for calls whose price is not known: timed out, cut off, or under way."""
        return sum(run.booked for run in self.runs if run.dollars is not None)

    @property
    def without_price(self) -> int:
        """Number of runs whose price is not known."""
        return sum(run.dollars is None for run in self.runs)

    def to_dict(self) -> dict[str, object]:
        """Return the costs as JSON values."""
        runs = [{**asdict(run), "dollars": run.dollars} for run in self.runs]
        return {"dollars": self.dollars, "booked": self.booked, "runs": runs, "damaged": self.damaged}


class Receipts:
    """The rows of one project.

    Args:
        store: The open ledger file.
    """

    def __init__(self, store: LedgerFile) -> None:
        self._store = store

    def write(self, receipt: RunCost) -> RunCost:
        """Commit a row, which is new where its number is 0, and return it with its number."""
        with self._store.transaction():
            if not receipt.run:
                ((last,),) = self._store.query("SELECT ifnull(max(run), '0') FROM runs")
                receipt = replace(receipt, run=int(last) + 1)
            self._store.insert("runs", [(f"{receipt.run:08d}", json.dumps(asdict(receipt)))])
        return receipt

    def close_batch(self, file_id: str) -> None:
        """Take a batch out of the run that sent it: its replies are booked by the run that has taken them."""
        for receipt in self.cost().runs:
            if file_id in receipt.batches:
                left = {name: dollars for name, dollars in receipt.batches.items() if name != file_id}
                self.write(replace(receipt, batches=left))

    def cost(self) -> ProjectCost:
        """Return what all runs have cost."""
        if not self._store.has_table("runs"):
            return ProjectCost()
        rows = self._store.rows("runs", "ORDER BY run")
        ((number,),) = self._store.query("SELECT count(*) FROM runs")
        return ProjectCost(
            runs=tuple(RunCost(**json.loads(content)) for _, content in rows), damaged=number - len(rows)
        )
