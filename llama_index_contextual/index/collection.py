"""Interface of an engine that keeps the chunks, vectors and terms of a project in a collection.

Each chunk has the versions between which it exists, `born` and `died`: version v contains those with
born <= v < died. So several versions share a chunk, and readers of an old version are not disturbed by a new one.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.index.facets import Condition

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

NEVER = 2**31 - 1
"""The version in which a chunk dies that is still in the newest one."""

_NAMESPACE = uuid.UUID("7c0f4c0e-3f0b-5d0c-9a53-2f6a6a1f6f0e")


@dataclass(frozen=True)
class StoredChunk:
    """A chunk as an engine stores it.

    Attributes:
        node: The chunk.
        born: Number of the version that it was added by.
        doc_id: Id of its document.
        facets: Numbers for its metadata values; see `index/facets.py`.
        length: Number of its terms, with repetitions.
        norm: The weight of a term was computed from its frequency as frequency / (norm + frequency).
        terms: Numbers of its distinct terms.
        weights: Their weights.
        vector: Its vector, or None without a semantic index.
    """

    node: BaseNode
    born: int
    doc_id: str
    facets: Sequence[int]
    length: int
    norm: float
    terms: NDArray[np.int32]
    weights: NDArray[np.float32]
    vector: NDArray[np.float32] | None


@dataclass(frozen=True)
class TermHit:
    """A chunk found by its terms.

    Attributes:
        node_id: Its id.
        length: As in `StoredChunk`, like the following attributes.
        norm: The norm of its weights.
        terms: Numbers of its terms.
        weights: Their weights.
    """

    node_id: str
    length: int
    norm: float
    terms: NDArray[np.int64]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class View:
    """The chunks that a search sees.

    Attributes:
        version: Number of the version.
        condition: Only chunks that meet it.
        ef: Size of the list of candidates of an approximate search; None for an exact search.
    """

    version: int
    condition: Condition = True
    ef: int | None = None


Key = tuple[str, int]
"""Id of a node, and the version that it was added by."""


@dataclass(frozen=True)
class Collection:
    """Content of collection.json.

    Attributes:
        backend: Name of the engine.
        url: Its address.
        name: Name of the collection.
        ef: Size of the list of candidates with which an approximate search is accurate enough; None if the search is
            exact.
        probed: Number of chunks for which `ef` was chosen.
    """

    backend: str
    url: str
    name: str
    ef: int | None = None
    probed: int = 0


class Engine(ABC):
    """A collection of an engine.

    Every method raises `BackendError` if the engine cannot be reached, after some attempts. A search raises
    `CorruptVersionError` if there is no collection; the other methods then find no chunks.

    Args:
        collection: Address and name of the collection.
    """

    def __init__(self, collection: Collection) -> None:
        self.collection = collection

    @staticmethod
    @abstractmethod
    def check(config: ProjectConfig) -> None:
        """Check that the engine can do what the settings of a project require.

        Raises:
            ConfigurationError: It cannot, or a package is missing; the message says what to do.
        """

    @abstractmethod
    def ping(self) -> None:
        """Check that the engine answers and accepts the key."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the collection exists."""

    @abstractmethod
    def write(self, chunks: Iterable[StoredChunk], dimensions: int | None) -> None:
        """Store chunks; the collection is created with the first ones. Storing a chunk again changes nothing.

        Raises:
            ConfigurationError: The vectors in the collection have another length.
        """

    @abstractmethod
    def rank_vectors(self, view: View, vector: NDArray[np.float32], k: int) -> list[tuple[str, float]]:
        """Return the ids of the k chunks with the largest inner product with a vector, and the products."""

    @abstractmethod
    def rank_terms(self, view: View, weights: Mapping[int, float], k: int) -> list[TermHit]:
        """Return the k chunks with the largest sum of weights of terms, each times the weight in the chunk."""

    @abstractmethod
    def nodes(self, keys: Sequence[Key]) -> dict[str, BaseNode]:
        """Return the chunks that exist, by id."""

    @abstractmethod
    def vectors(self, keys: Sequence[Key]) -> dict[str, list[float]]:
        """Return the vectors of the chunks that exist, by id."""

    @abstractmethod
    def keys(self, view: View) -> Iterator[Key]:
        """Yield the keys of all chunks of a view."""

    @abstractmethod
    def count(self, view: View) -> int:
        """Return the number of chunks of a view."""

    @abstractmethod
    def end(self, doc_ids: Sequence[str] | None, version: int) -> None:
        """Let the chunks of documents, or all of them, that were added before a version die in it."""

    @abstractmethod
    def end_chunks(self, keys: Sequence[Key], version: int) -> None:
        """Let some chunks die in a version."""

    @abstractmethod
    def drop_after(self, version: int) -> None:
        """Remove chunks that were added after a version, and revive those that died after it."""

    @abstractmethod
    def drop_before(self, version: int) -> None:
        """Remove chunks that had died when a version was published."""

    @abstractmethod
    def settle(self) -> bool:
        """Wait until the indexes contain what was written, and return whether they do."""

    @abstractmethod
    def leftovers(self, version: int) -> int:
        """Return the number of chunks that `drop_after` would change."""

    @abstractmethod
    def delete(self) -> None:
        """Remove the collection, if it exists."""


def lost_collection(collection: Collection) -> CorruptVersionError:
    """Return the error for a version with chunks whose collection does not exist."""
    return CorruptVersionError(
        f"There is no collection {collection.name!r} at {collection.url}: correct `backend` if it is on another"
        f" server, or restore it from a backup. Without it, `verify --repair` names the documents to ingest again."
    )


def point_id(node_id: str, born: int) -> str:
    """Return the id under which an engine stores a chunk.

    Example:
        >>> point_id("a", 1) == point_id("a", 1), point_id("a", 1) == point_id("a", 2)
        (True, False)
    """
    return str(uuid.uuid5(_NAMESPACE, f"{born}/{node_id}"))


def sorted_terms(terms: Any, weights: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the terms of a chunk in ascending order, with their weights."""
    numbers, values = np.asarray(terms, dtype=np.int64), np.asarray(weights, dtype=np.float64)
    order = np.argsort(numbers)
    return numbers[order], values[order]
