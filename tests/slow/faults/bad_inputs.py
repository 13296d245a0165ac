"""Invalid inputs of users, besides those that `test_inputs.py` draws; each gets a message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llama_index.core.schema import Document, TextNode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.errors import ContextualError
from llama_index_contextual.index.ledger_lines import import_ledger
from tests.slow.faults.cases import NAME, ROOT, create, documents, ingest, load, manager

Case = Callable[[Path], object]

INPUTS: dict[str, object] = {
    "a number": 42,
    "None": None,
    "bytes": b"x",
    "a list": [],
    "a Document with a tuple for a key in its metadata": Document(text="x", metadata={"v": {("a", "b"): 1}}),
    "a TextNode with a tuple for a key in its metadata": TextNode(text="x", metadata={"v": [{(): 1}]}),
    "a Document without an id": Document(id_="", text="x"),
    "a Document with a lone surrogate": Document(text="\ud800"),
    "a Document with an object in its metadata": Document(text="x", metadata={"v": object()}),
    "a Document with infinity in its metadata": Document(text="x", metadata={"v": 1e999}),
}


def _project(disk: Path) -> Path:
    create(disk)
    ingest(1)(disk)
    return disk / ROOT / NAME


def _filter(key: str, value: object, operator: FilterOperator) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter.model_construct(key=key, value=value, operator=operator)])


def _on(run: Case) -> Case:
    def on_project(disk: Path) -> object:
        _project(disk)
        return run(disk)

    return on_project


def _written(disk: Path) -> None:
    (disk / "there").mkdir()
    (disk / "there" / "file").write_text("x", encoding="utf-8")
    load(disk).export(disk / "there")


CASES: dict[str, Case] = {
    **{
        f"ingest {what}": _on(lambda disk, given=given: load(disk).ingest([given]))  # type: ignore[misc]
        for what, given in INPUTS.items()
    },
    "load what does not exist": lambda disk: manager(disk).load("nothing"),
    "delete what does not exist": lambda disk: manager(disk).delete("nothing"),
    "create what is there": _on(lambda disk: manager(disk).create(NAME)),
    "a root that is a file": lambda disk: [(disk / ROOT).write_text("x"), manager(disk).create(NAME)],
    "ask before the first ingest": lambda disk: [create(disk), load(disk).retrieve("alpha")],
    "ingest what does not exist": lambda disk: [create(disk), load(disk).ingest(["nowhere.txt"])],
    "forget before the first ingest": lambda disk: [create(disk), load(disk).forget()],
    "an empty query": _on(lambda disk: load(disk).retrieve(" ")),
    "top_k 0": _on(lambda disk: load(disk).retrieve("alpha", top_k=0)),
    "a mode that is none": _on(lambda disk: load(disk).retrieve("alpha", mode="magic")),  # type: ignore[arg-type]
    "a filter IN without a list": _on(
        lambda disk: load(disk).retrieve("alpha", filters=_filter("mark", 1, FilterOperator.IN))
    ),
    "remove what does not exist": _on(lambda disk: load(disk).remove(["nothing"])),
    "read what does not exist": _on(lambda disk: load(disk).read("nothing")),
    "roll back before the first": _on(lambda disk: load(disk).rollback()),
    "roll back to '../x'": _on(lambda disk: load(disk).rollback("../x")),
    "an unknown setting": _on(lambda disk: load(disk).update_config(nonsense=1)),
    "export into what is there": _on(_written),
    "ledger import of nothing": _on(lambda disk: import_ledger(load(disk).directory, disk / "nothing.jsonl")),
    "two documents of one id": _on(lambda disk: load(disk).ingest([*documents(2, 1), *documents(3, 1)])),
}


def message_of(what: str, disk: Path) -> str:
    """Return the message that a bad input gets; whatever is not an error of this package goes on its way.

    Raises:
        AssertionError: It was taken.
    """
    try:
        CASES[what](disk)
    except ContextualError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"{what} was taken")
