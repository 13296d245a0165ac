"""Receipts of calls and runs: their sums, and their rows in the ledger."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, fields

from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.money.receipt import ANSWERS, Receipt
from llama_index_contextual.money.tokens import Tokens

DAY = 86_400.0
RUN = Receipt(
    run=4, purpose="sync", started=5.0, llm="openai:gpt-4.1", calls=2, input_tokens=70, paid=0.5, prices="list"
)


def test_the_receipt_of_a_call_adds_its_numbers_to_the_receipt_of_a_run() -> None:
    tokens = Tokens(1, 30, 20, 10, 5, estimated_calls=1)
    total = RUN + Receipt.for_calls(tokens, paid=0.25) + Receipt(embedding_tokens=9, unsettled_calls=1, unsettled=2.0)
    assert total.contexts == Tokens(3, 100, 20, 10, 5, estimated_calls=1)
    assert (total.embedding_tokens, total.unsettled_calls, total.paid, total.dollars) == (9, 1, 0.75, 2.75)
    assert (total.run, total.purpose, total.started, total.llm, total.prices) == (4, "sync", 5.0, RUN.llm, "list")


def test_every_number_of_a_receipt_is_added() -> None:
    numbers = {field.name: 1 for field in fields(Receipt) if field.name.endswith(("calls", "tokens", "settled"))}
    one = Receipt(**numbers, paid=1.0)  # type: ignore[arg-type]
    total = asdict(one + one)
    assert {name: total[name] for name in [*numbers, "paid"]} == dict.fromkeys([*numbers, "paid"], 2)


def test_a_sum_with_an_unknown_price_is_unknown() -> None:
    for total in (RUN + Receipt(paid=None, unsettled=1.0), Receipt(paid=None) + RUN):
        assert (total.paid, total.dollars) == (None, None)


def test_a_row_is_read_again_as_it_was_written_even_if_it_is_older_than_a_field() -> None:
    with closing(Ledger(None)) as ledger:
        written = ledger.receipts.write(Receipt(purpose="ingest", calls=3, paid=0.125, batches={"file": 0.5}))
        older = {name: value for name, value in asdict(written).items() if name != "written_tokens"}
        with ledger.transaction():
            ledger.insert("runs", [("00000002", json.dumps({**older, "run": 2}))])
        first, second = ledger.receipts.cost().runs
        assert (first.run, first) == (1, written)
        assert (second.run, second.calls, second.written_tokens, second.dollars) == (2, 3, 0, 0.625)


def test_answers_of_one_model_on_one_day_share_a_row() -> None:
    with closing(Ledger(None)) as ledger:
        for started, llm in ((1.0, "a"), (2.0, "a"), (3.0, "b"), (DAY, "a")):
            receipt = Receipt.for_calls(Tokens(1, 10, 0, 5, 7), started=started, ended=started, llm=llm, paid=0.5)
            ledger.receipts.add_answers(Receipt(**{**asdict(receipt), "purpose": ANSWERS}))
        rows = [
            (run.started, run.ended, run.llm, run.calls, run.written_tokens, run.paid)
            for run in ledger.receipts.cost().runs
        ]
    assert rows == [(1.0, 2.0, "a", 2, 14, 1.0), (3.0, 3.0, "b", 1, 7, 0.5), (DAY, DAY, "a", 1, 7, 0.5)]
