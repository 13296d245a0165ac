"""The chunks of a version, which are the chunks of its parts."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.index.dates import superseded
from llama_index_contextual.index.nodes import Nodes
from llama_index_contextual.index.part import Part

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters


class VersionNodes(Nodes):
    """The chunks of a version.

    Args:
        parts: The parts of the version.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._open_parts: Sequence[Part] | None = parts
        # The first row of each part in the version, followed by the total number of rows.
        self._starts = np.cumsum([0, *(part.size for part in parts)], dtype=np.int64)

    @property
    def parts(self) -> Sequence[Part]:
        """The parts of the version."""
        if self._open_parts is None:
            raise sqlite3.ProgrammingError("The version is closed.")
        return self._open_parts

    def close(self) -> None:
        """Drop the references to the parts, so that they cannot be used any more."""
        self._open_parts = None

    # ---- rows --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def ids(self) -> Sequence[str]:
        """Node id of each row."""
        return list(itertools.chain.from_iterable(part.docstore.ids for part in self.parts))

    def places(self, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.intp], Part, NDArray[np.int64]]]:
        """Find the parts that contain the given rows.

        Yields:
            For each of these parts, the positions in `rows`, the part, and the row numbers within the part.
        """
        if len(self.parts) == 1 and len(rows):
            yield np.arange(len(rows)), self.parts[0], rows
            return
        for start, part in zip(self._starts.tolist(), self.parts, strict=False):
            selected = np.flatnonzero((rows >= start) & (rows < start + part.size))
            if len(selected):
                yield selected, part, rows[selected] - start

    def rows(self, node_ids: Sequence[str]) -> list[int]:
        """Return the row numbers of the given nodes, which are the same in all indexes."""
        rows: dict[str, int] = {}
        for part, start in zip(self.parts, self._starts.tolist(), strict=False):
            rows.update((node_id, start + at - 1) for node_id, at in part.docstore.positions(node_ids).items())
        return [rows[node_id] for node_id in node_ids]

    def mask(self, filters: MetadataFilters | None) -> NDArray[np.bool_] | None:
        """Return a mask that selects the rows that pass the filters, or None if there are no filters."""
        masks = [mask for part in self.parts if (mask := part.docstore.mask(filters)) is not None]
        return np.concatenate(masks) if masks else None

    # ---- chunks and documents ----------------------------------------------------------------------------------------

    def find_nodes(self, node_ids: Sequence[str]) -> Iterator[BaseNode]:
        """Yield the nodes with the given ids, skipping ids that do not exist."""
        for part in self.parts:
            yield from part.docstore.find_nodes(node_ids)

    def existing_ids(self, node_ids: Sequence[str]) -> list[str]:
        """Return the subset of the given node ids that the version contains."""
        return [node_id for part in self.parts for node_id in part.docstore.existing_ids(node_ids)]

    def iterate(self, *, doc_id: str | None = None, span: tuple[int, int] | None = None) -> Iterator[BaseNode]:
        """Yield nodes sorted by part and position; see `Nodes.iterate`."""
        for part in self.parts:
            if doc_id is None or doc_id in part.records.by_id:
                yield from part.docstore.iterate(doc_id=doc_id, span=span)

    def ids_of_document(self, doc_id: str) -> list[str]:
        """Return the ids of a document's nodes in text order."""
        part = self._part_of(doc_id)
        return [] if part is None else part.docstore.ids_of_document(doc_id)

    def ids_by_document(self) -> dict[str, list[str]]:
        """Return a mapping of document ids to the ids of their nodes."""
        of_parts = (part.docstore.ids_by_document() for part in self.parts)
        return {doc_id: ids for of_part in of_parts for doc_id, ids in of_part.items()}

    def get_extra(self, collection: str, key: str) -> dict[str, Any] | None:
        """Return the JSON object stored for a document in a collection, or None if there is none."""
        part = self._part_of(key)
        return None if part is None else part.docstore.get_extra(collection, key)

    def _part_of(self, doc_id: str) -> Part | None:
        return next((part for part in self.parts if doc_id in part.records.by_id), None)

    def children(self, parent_id: str) -> list[BaseNode]:
        """Return the child nodes of a parent, in text order."""
        return [node for part in self.parts for node in part.docstore.children(parent_id)]

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def document_ids(self, filters: MetadataFilters | None) -> set[str]:
        """Return the ids of the documents with at least one node that passes the filters."""
        ids: set[str] = set()
        for part in self.parts:
            mask = part.docstore.mask(filters)
            passing = np.unique(part.document_of if mask is None else part.document_of[mask])
            ids.update(part.records[number].doc_id for number in passing.tolist())
        return ids

    @cached_property
    def superseded(self) -> Mapping[str, str]:
        """The ids of documents that a newer document supersedes, each with the id of the newest one."""
        return superseded(record for part in self.parts for record in part.records)

    def values(self, key: str) -> list[Any]:
        """Return the values of a metadata key; values of different parts may be equal."""
        return [value for part in self.parts for value in part.docstore.values(key)]

    def metadata_values(self, *, skip: Sequence[str]) -> dict[str, list[str | int | float]]:
        """Return the sorted distinct values of each metadata key, except the keys in `skip`.

        Only strings and numbers are included.
        """
        values: dict[str, dict[str | int | float, None]] = {}
        for key, value in self._distinct_metadata():
            if value is not None and key not in skip:
                values.setdefault(key, {})[value] = None
        return {key: sorted(values[key], key=lambda value: (isinstance(value, str), value)) for key in sorted(values)}

    def metadata_keys(self) -> list[str]:
        """Return the sorted metadata keys of all nodes, for use in filters."""
        return sorted({key for key, _ in self._distinct_metadata()})

    def _distinct_metadata(self) -> Iterator[tuple[str, str | int | float | None]]:
        for part in self.parts:
            yield from part.shared("metadata values", part.docstore.distinct_metadata)
