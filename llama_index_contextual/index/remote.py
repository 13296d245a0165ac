"""A version whose chunks and vectors an engine keeps: its document store and its vector store.

The rows of the version are those of its parts, as with files. A hit of the engine is the id of a chunk, whose row the
parts know; scores, evidence and documents are then computed by row as always.

remote.json             in a part: the mean length of chunks that the weights of terms were computed with
sample.npy              in a part: some of its vectors, evenly spaced, for the mean and deviation of similarities
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.index import files
from llama_index_contextual.index.collection import Key, TermHit, View
from llama_index_contextual.index.engine import open_engine
from llama_index_contextual.index.facets import Condition, condition_of
from llama_index_contextual.index.file_index import VersionNodes
from llama_index_contextual.index.filters import FieldTest, valid_filters
from llama_index_contextual.index.manifest import MANIFEST, REMOTE_FILE, SAMPLE_FILE
from llama_index_contextual.index.nodes import FRAMES, NodeTable
from llama_index_contextual.index.part import Part
from llama_index_contextual.index.remote_docstore import RemoteDocumentStore, fetched, missing
from llama_index_contextual.index.versions import number

SAMPLE = 2_048
"""Maximum number of vectors of the sample of a part."""

EXACT_CHUNKS = 20_000
"""Number of chunks up to which every vector is compared."""

_TIES = 16  # further hits that are requested, since equal scores are in no particular order
_BLOCK = 4_096


@dataclass(frozen=True)
class RemotePart:
    """Content of remote.json.

    Attributes:
        mean_length: Mean number of terms of a chunk with which the weights were computed; None without chunks.
    """

    mean_length: float | None

    @classmethod
    def of(cls, part: Part) -> RemotePart:
        """Read the file of a part."""
        return cls(**json.loads(files.read(part.directory / REMOTE_FILE)))

    def save(self, directory: Path) -> None:
        """Write the file of a part."""
        files.write(directory / REMOTE_FILE, json.dumps({"mean_length": self.mean_length}).encode())


def save_sample(directory: Path, vectors: NDArray[np.float32]) -> None:
    """Write the sample of a part."""

    def fill(file: IO[bytes]) -> None:
        np.lib.format.write_array(file, vectors.astype(np.float32), version=(1, 0))

    files.write_with(directory / SAMPLE_FILE, fill)


def sampled_rows(size: int) -> NDArray[np.int64]:
    """Return the rows of the sample of a part with `size` chunks.

    Example:
        >>> sampled_rows(3).tolist(), len(sampled_rows(50_000))
        ([0, 1, 2], 2048)
    """
    return np.linspace(0, max(0, size - 1), min(size, SAMPLE), dtype=np.int64)


class RemoteVersionStore(VersionNodes):
    """The chunks of a version, which an engine keeps.

    Args:
        parts: The parts of the version.
        directory: Directory of the version.
    """

    def __init__(self, parts: Sequence[Part], directory: Path) -> None:
        super().__init__(parts)
        self.directory = directory
        self.number = number(directory.name)
        self.engine = open_engine(directory.parent.parent)

    def view(self, filters: MetadataFilters | None = None) -> View:
        """Return what a search with metadata filters sees.

        Raises:
            InputError: The filters are invalid, or the engine cannot evaluate them.
        """
        return View(self.number, self._condition(filters), self.engine.collection.ef if self._is_large else None)

    @property
    def _is_large(self) -> bool:
        return len(self) > EXACT_CHUNKS

    def _condition(self, filters: MetadataFilters | None) -> Condition:
        def passing(test: FieldTest) -> Collection[int]:
            return {facet for part in self._stores() for facet in part.passing(test)}

        return condition_of(filters, passing)

    def _stores(self) -> Iterator[RemoteDocumentStore]:
        return (_store(part) for part in self.parts)

    def require_present(self) -> None:
        """Check after a query that no writer has removed the version, and with it some of its chunks, meanwhile.

        Raises:
            CorruptVersionError: The version is gone; the query is run again in the live version.
        """
        if not (self.directory / MANIFEST).exists():
            raise CorruptVersionError(f"Version {self.directory.name} was removed during a query.")

    def require_hits(self, view: View, hits: Sequence[object]) -> None:
        """Check after a search for something that the version contains that it was not removed, as by a writer.

        Raises:
            CorruptVersionError: The version is gone, or the engine has none of its chunks.
        """
        self.require_present()
        if not hits and view.condition is True:
            raise CorruptVersionError(
                f"The collection {self.engine.collection.name!r} at {self.engine.collection.url} has no chunks of"
                f" version {self.directory.name}: run `verify`, which says what to do."
            )

    def rank_terms(self, filters: MetadataFilters | None, weights: dict[int, float], k: int) -> list[TermHit]:
        """Return the k chunks with the largest sum of weights of terms; see `Engine.rank_terms`."""
        if not weights:
            return []
        view = self.view(filters)
        hits = self.engine.rank_terms(view, weights, min(k + _TIES, len(self)))
        self.require_hits(view, hits)
        return hits

    def rows(self, node_ids: Sequence[str]) -> list[int]:
        """Return the rows of nodes.

        Raises:
            CorruptVersionError: The version does not contain one of them.
        """
        try:
            return super().rows(node_ids)
        except KeyError as error:
            raise missing(str(error.args[0])) from error

    def mask(self, filters: MetadataFilters | None) -> NDArray[np.bool_] | None:
        """Return a mask of the rows that pass the filters, or None without filters."""
        if valid_filters(filters) is None:
            return None
        mask = np.zeros(len(self), dtype=np.bool_)
        mask[self.rows([node_id for node_id, _ in self.engine.keys(self.view(filters))])] = True
        self.require_present()
        return mask

    def document_ids(self, filters: MetadataFilters | None) -> set[str]:
        """Return the ids of the documents of which at least one node passes the filters."""
        ids, mask, start = set[str](), self.mask(filters), 0
        for part in self.parts:
            numbers = part.document_of if part.rows is None else part.document_of[part.rows]
            passing = numbers if mask is None else numbers[mask[start : start + part.size]]
            ids.update(part.record_index.records[document].doc_id for document in np.unique(passing).tolist())
            start += part.size
        return ids

    def nodes_at(self, node_ids: Sequence[str]) -> Iterator[tuple[int, BaseNode]]:
        """Yield the nodes among `node_ids` that exist, with their positions in their part."""
        yield from fetched(self.engine, self._live_keys(node_ids))

    def _live_keys(self, node_ids: Sequence[str]) -> list[tuple[int, Key]]:
        return [
            (position, key)
            for part in self.parts
            for position, key in _store(part).keys(node_ids)
            if part.is_live(position - 1)
        ]

    def keys_of_rows(self, rows: NDArray[np.int64]) -> list[Key]:
        """Return the keys of some rows, given in ascending order."""
        return [key for store, of_part in self._rows_by_part(rows) for key in store.keys_of_rows(of_part)]

    def places_of_rows(self, rows: NDArray[np.int64]) -> list[tuple[str, str | None]]:
        """Return the ids of some rows, given in ascending order, and the ids of their documents."""
        return [place for store, of_part in self._rows_by_part(rows) for place in store.places_of_rows(of_part)]

    def _rows_by_part(self, rows: NDArray[np.int64]) -> Iterator[tuple[RemoteDocumentStore, NDArray[np.int64]]]:
        for part, start in zip(self.parts, self._starts.tolist(), strict=False):
            of_part = rows[(rows >= start) & (rows < start + part.size)] - start
            yield _store(part), of_part if part.rows is None else part.rows[of_part]

    def save(self, path: Path) -> None:
        """Write the chunks to a file and sync it."""
        copy = NodeTable()
        nodes = self.iterate()
        while block := list(itertools.islice(nodes, _BLOCK)):
            copy.add(block)
        for part in self.parts:
            for record in part.records:
                if (frame := part.docstore.get_extra(FRAMES, record.doc_id)) is not None:
                    copy.put_extra(FRAMES, record.doc_id, frame)
        copy.save(path)
        copy.close()


def _store(part: Part) -> RemoteDocumentStore:
    store: Any = part.docstore
    return store  # type: ignore[no-any-return]
