"""Write and rank vectors that are stored in Qdrant, and convert metadata filters to Qdrant filters.

Vectors are sent with the number of the version that is being built, so that no reader sees them before that version is
live. Instead of a FAISS index, a part contains:

added_in.bin            for each row, the number of the version that added its vector
sample.bin              a sample of the vectors, used to estimate the mean and standard deviation of similarities

An engine stores each vector with its facets, which are numbers that represent the chunk's metadata values. For each
filter, this module determines which of the values in the parts pass the filter, and the engine only has to find the
vectors with at least one of the corresponding facets. Filters therefore do not depend on how the engine treats lists,
booleans, dates and missing keys.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import FilterCondition, MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import BackendError, CorruptVersionError, InputError, Remedy
from llama_index_contextual.index import files
from llama_index_contextual.index.fields import COLUMNS, DOCUMENT
from llama_index_contextual.index.filters import field_test, valid_filters
from llama_index_contextual.index.hits import NO_HITS, NO_SCALE, Hits, Scale
from llama_index_contextual.index.manifest import ADDED_FILE, MANIFEST, SAMPLE_FILE
from llama_index_contextual.index.part import Part
from llama_index_contextual.index.qdrant import (
    COLLECTION_FILE,
    Key,
    QdrantEngine,
    StoredVector,
    drop_unused,
    has_facet,
    models_module,
    of_documents,
    open_engine,
)
from llama_index_contextual.index.restricted import RestrictedPart
from llama_index_contextual.index.vectors import products
from llama_index_contextual.index.versions import number

if TYPE_CHECKING:
    from qdrant_client import models

    from llama_index_contextual.index.version_nodes import VersionNodes

logger = logging.getLogger(__name__)

EXACT_CHUNKS = 20_000
"""Maximum number of chunks for an exact search; with more chunks, the search is approximate."""

SAMPLE = 1_024
"""Maximum number of vectors per part that are used to estimate the mean and standard deviation of similarities."""

TIES = 16
"""Number of additional hits to request, because the engine returns equal scores in no particular order."""

MAX_FACETS = 50_000
"""Maximum number of distinct values that may pass a single filter."""

_CHECKED = 128  # number of vectors per part that are compared in a check
_TOLERANCE = 1e-3
_MAX_LISTED = 5
_SENT = 1_000  # number of vectors that are sent together


# ---- writing ---------------------------------------------------------------------------------------------------------


class RemoteVectorWriter:
    """Writer for the vectors of a part, in node order; see `VectorWriter`.

    Args:
        engine: The engine.
        version: Number of the version.
    """

    def __init__(self, engine: QdrantEngine, version: int) -> None:
        self._engine = engine
        self._version = version
        self._waiting: list[StoredVector] = []
        self._added_in = [np.zeros(0, dtype=np.int32)]

    def add(self, doc_id: str, nodes: Sequence[BaseNode], vectors: NDArray[np.float32]) -> None:
        """Add the unit vectors of a document's chunks; shape (n, dimensions)."""
        self._added_in.append(np.full(len(nodes), self._version, dtype=np.int32))
        for node, vector in zip(nodes, vectors, strict=True):
            facets = [facet(DOCUMENT, doc_id), *(facet(key, value) for key, value in node.metadata.items())]
            self._waiting.append(StoredVector(node.node_id, self._version, doc_id, facets, vector))
        if len(self._waiting) >= _SENT:
            self._send()

    def copy(self, part: Part, rows: NDArray[np.int64]) -> None:
        """Add the vectors of the given rows of another part. The engine already contains these vectors."""
        self._added_in.append(part.added_in[rows])

    def _send(self) -> None:
        self._engine.write(self._waiting)
        self._waiting = []

    def finish(self, directory: Path, ids: Sequence[str]) -> None:
        """Send the remaining vectors and write the files of the part.

        Args:
            directory: Directory of the part.
            ids: Ids of the nodes.

        Raises:
            CorruptVersionError: A vector is missing from the engine.
        """
        self._send()
        added_in = np.concatenate(self._added_in)
        if len(added_in):
            sample = vectors_of(self._engine, [(ids[row], int(added_in[row])) for row in sampled(len(ids)).tolist()])
            files.write_array(directory / ADDED_FILE, added_in)
            files.write_array(directory / SAMPLE_FILE, sample)


class RemoteVersion:
    """The vectors of a version that is being built.

    Args:
        project_dir: The project, whose write lock must be held.
        engine: The project's collection, from which unpublished vectors have been removed.
        version: Name of the new version.
    """

    def __init__(self, project_dir: Path, engine: QdrantEngine, version: str) -> None:
        self._project_dir = project_dir
        self._engine = engine
        self._version = number(version)

    def writer(self) -> RemoteVectorWriter:
        """Return a writer for the vectors of a part."""
        return RemoteVectorWriter(self._engine, self._version)

    def mark_removed(self, gone: Sequence[str] | None, parts: Sequence[Part], *, has_strays: bool) -> None:
        """Mark vectors that are not in the new version as removed.

        Args:
            gone: Ids of the previous version's documents whose vectors the new version does not contain; None for all.
            parts: The parts of the new version.
            has_strays: Whether parts of the previous version were damaged, so that their documents may be unknown.

        Raises:
            CorruptVersionError: The engine and the parts contain different numbers of vectors.
        """
        if gone is None or gone:
            self._engine.mark_removed(gone, self._version)
        if has_strays:
            alive_keys = {key for part in parts for key in part.vector_keys()}
            strays = [key for key in self._engine.keys(self._version) if key not in alive_keys]
            self._engine.end_keys(strays, self._version)
        expected, actual = sum(part.size for part in parts if part.has_semantic), self._engine.count(self._version)
        if actual != expected:
            raise CorruptVersionError(
                f"The collection {self._engine.collection.name!r} at {self._engine.collection.url} has"
                f" {pluralize(actual, 'vector')} of the new version instead of {expected}, so it is not published",
                name=self._project_dir.name,
                remedy=Remedy(
                    "call `verify(repair=True)`, which names the documents to ingest again",
                    "run `llama-index-contextual verify {project} --repair`, which names the documents to ingest again",
                ),
            )

    def published(self, version: str) -> None:
        """Remove vectors that are no longer in any version, after the new version has been published."""
        try:
            drop_unused(self._project_dir, self._engine)
        except BackendError as error:
            logger.warning(
                "Version %s is published, but vectors of removed versions are still in the collection; the next version"
                " removes them. %s",
                version,
                error,
            )


# ---- reading ---------------------------------------------------------------------------------------------------------


class RemoteVectors:
    """The vectors of a published version; see `FaissVectors`.

    Args:
        nodes: The chunks of the version.
        dimensions: Length of the vectors.
        directory: Directory of the version.
    """

    def __init__(self, nodes: VersionNodes, dimensions: int, directory: Path) -> None:
        self.nodes = nodes
        self._dimensions = dimensions
        self._directory = directory
        self._version = number(directory.name)
        self._engine = open_engine(directory.parent.parent)

    @cached_property
    def _sample(self) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """The vectors of sampled rows, and the number of rows that each of them represents."""
        samples = [(part, self._sample_of(part)) for part in self.nodes.parts if part.size]
        weights = [np.full(len(sample), part.size / len(sample)) for part, sample in samples]
        vectors = [np.zeros((0, self._dimensions), dtype=np.float32), *(sample for _, sample in samples)]
        return np.concatenate(vectors), np.concatenate([np.zeros(0), *weights])

    def _sample_of(self, part: Part) -> NDArray[np.float32]:
        if isinstance(part, RestrictedPart):
            return vectors_of(self._engine, part.vector_keys(sampled(part.size)))
        return part_sample(part, self._dimensions)

    @cached_property
    def _visible(self) -> Any:
        """The Qdrant filter for the visible documents, or None if the version is not restricted."""
        parts = [part for part in self.nodes.parts if isinstance(part, RestrictedPart)]
        if not parts:
            return None
        # Negations need the values of the hidden documents too.
        nodes = type(self.nodes)([part.whole for part in parts])
        whole = RemoteVectors(nodes, self._dimensions, self._directory)._condition(parts[0].filters)
        partial = [doc_id for part in parts for doc_id in part.partial]
        return models_module().Filter(must=[whole], must_not=[of_documents(partial)])

    def rank(self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None) -> tuple[Hits, Scale]:
        """Rank chunks by cosine similarity; see `ChunkIndex.rank_vectors`.

        Raises:
            CorruptVersionError: Vectors are missing from the engine, or a writer has removed the version during the
                query.
            InputError: Too many distinct values pass a filter.
        """
        sample, weights = self._sample
        similarities = products(sample, vector)
        if not len(similarities):
            return NO_HITS, NO_SCALE
        condition = self._condition(filters)
        if self._visible is not None:
            condition = models_module().Filter(must=[self._visible, condition] if condition else [self._visible])
        hits = self._nearest(vector, k, condition)
        if not (self._directory / MANIFEST).exists():
            raise CorruptVersionError(f"Version {self._directory.name} was removed during a query.")
        if not len(hits.rows) and condition is None:
            raise CorruptVersionError(
                f"The collection {self._engine.collection.name!r} at {self._engine.collection.url} has no vectors of"
                f" version {self._directory.name}: run `verify`, which says what to do."
            )
        mean = np.average(similarities, weights=weights)
        return hits, Scale(float(mean), math.sqrt(np.average((similarities - mean) ** 2, weights=weights)))

    def _nearest(self, query: NDArray[np.float32], k: int, condition: models.Filter | None) -> Hits:
        k, is_exact = min(k, len(self.nodes)), len(self.nodes) <= EXACT_CHUNKS
        nearest = self._engine.rank(self._version, query, k + TIES, condition, exact=is_exact)
        if self._visible is not None:  # do not rely on the engine
            known = frozenset(self.nodes.existing_ids([node_id for node_id, _ in nearest]))
            nearest = [(node_id, score) for node_id, score in nearest if node_id in known]
        try:
            rows = np.asarray(self.nodes.rows([node_id for node_id, _ in nearest]), dtype=np.int64)
        except KeyError as error:  # the chunk of a vector is not in the version
            raise lost_vector(str(error.args[0])) from error
        # Because of rounding, the product of two unit vectors may exceed 1.
        scores = np.clip(np.asarray([score for _, score in nearest], dtype=np.float64), -1.0, 1.0)
        order = np.lexsort((rows, -scores))[:k]
        return Hits(rows[order], scores[order])

    def of_rows(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the unit vectors of the given rows; shape (rows, dimensions)."""
        keys: dict[int, Key] = {}
        for selected, part, places in self.nodes.places(rows):
            keys.update(zip(rows[selected].tolist(), part.vector_keys(places), strict=True))
        vectors = vectors_of(self._engine, [keys[row] for row in rows.tolist()])
        return vectors.reshape(len(rows), self._dimensions)

    # ---- filters -----------------------------------------------------------------------------------------------------

    def _condition(self, filters: MetadataFilters | None) -> models.Filter | None:
        """Return the Qdrant filter for metadata filters, or None if there are no filters.

        Raises:
            InputError: The filters are invalid, or too many values pass one of them.
        """
        valid = valid_filters(filters)
        return None if valid is None else self._junction(valid)

    def _junction(self, filters: MetadataFilters) -> Any:
        conditions: list[Any] = [
            self._junction(item) if isinstance(item, MetadataFilters) else self._leaf(item) for item in filters.filters
        ]
        clauses = {FilterCondition.AND: "must", FilterCondition.OR: "should", FilterCondition.NOT: "must_not"}
        return models_module().Filter(**{clauses[filters.condition or FilterCondition.AND]: conditions or None})

    def _leaf(self, item: Any) -> Any:
        test = field_test(item)
        if test.key in COLUMNS:  # the engine knows a document by its id
            records = [record for part in self.nodes.parts for record in part.records]
            value_of = COLUMNS[test.key]
            facets = {
                facet(DOCUMENT, record.doc_id)
                for record in records
                if (value := value_of(record)) and test.passes(value)
            }
        else:
            columns = [part.docstore.column(test.key) for part in self.nodes.parts]
            facets = {facet(test.key, value) for column in columns for value in column.values if test.passes(value)}
        if len(facets) > MAX_FACETS:
            raise InputError(
                f"Filter {test.key!r}: more than {MAX_FACETS:,} different values pass, which is too many for the"
                f" backend of this project: use a narrower filter, or a key with fewer different values.",
                value=test.key,
            )
        passing = has_facet(sorted(facets))
        return models_module().Filter(must_not=[passing]) if test.is_negated else passing


def facet(key: str, value: Any) -> int:
    """Return the facet for a metadata key and value as a 63-bit hash.

    Example:
        >>> facet("year", 2024) == facet("year", "2024")
        False
    """
    return xxhash.xxh3_64_intdigest(json.dumps([key, value], sort_keys=True).encode()) >> 1


def vectors_of(engine: QdrantEngine, keys: Sequence[Key]) -> NDArray[np.float32]:
    """Return the vectors with the given keys; shape (keys, dimensions).

    Raises:
        CorruptVersionError: A vector is missing from the engine.
    """
    stored = engine.vectors(keys)
    if lost := next((node_id for node_id, _ in keys if node_id not in stored), None):
        raise lost_vector(lost)
    return np.asarray([stored[node_id] for node_id, _ in keys], dtype=np.float32)


def lost_vector(node_id: str) -> CorruptVersionError:
    """Return the error to raise if a chunk is missing from either the parts or the engine."""
    return CorruptVersionError(
        f"The collection of the project lacks the chunk {node_id!r}: run `verify`, which names the documents to ingest"
        f" again."
    )


# ---- verification ----------------------------------------------------------------------------------------------------


def check_vectors(directory: Path, version_parts: Sequence[Part], dimensions: int) -> None:
    """Compare the vectors that an engine stores for a version with the parts of the version.

    The number of vectors and the values of some sampled vectors are compared.

    Args:
        directory: Directory of the version.
        version_parts: The parts of the version.
        dimensions: Length of the vectors.

    Raises:
        BackendError: The engine does not respond.
        CorruptVersionError: Vectors are missing or wrong.
    """
    name, engine = directory.name, open_engine(directory.parent.parent)
    parts = [part for part in version_parts if part.has_semantic and part.size]
    expected, actual = sum(part.size for part in parts), engine.count(number(name))
    if actual != expected:
        documents = lost_documents(directory, version_parts)
        names = ", ".join(documents[:_MAX_LISTED])
        raise CorruptVersionError(
            f"{COLLECTION_FILE} names a collection with {pluralize(actual, 'vector')} of {name} instead of"
            f" {expected}; documents concerned: {names or 'none'}{', …' if documents[_MAX_LISTED:] else ''}."
        )
    for part in parts:
        rows = sampled(part.size)[:_CHECKED]
        stored = part_sample(part, dimensions)[:_CHECKED]
        if not np.allclose(vectors_of(engine, part.vector_keys(rows)), stored, atol=_TOLERANCE):
            raise CorruptVersionError(f"{COLLECTION_FILE} names a collection with other vectors of {name}.")


def sampled(rows: int) -> NDArray[np.int64]:
    """Return at most 1,024 row numbers, evenly spaced from 0 to `rows` - 1."""
    return np.linspace(0, rows - 1, min(rows, SAMPLE)).round().astype(np.int64)


def part_sample(part: Part, dimensions: int) -> NDArray[np.float32]:
    """Return a part's stored sample: the vectors of the rows that `sampled` returns; shape (rows, dimensions)."""
    return files.mmap(part.directory / SAMPLE_FILE, np.float32).reshape(-1, dimensions)


def lost_documents(directory: Path, parts: Sequence[Part]) -> list[str]:
    """Return the ids of documents whose vectors are missing from the engine; see `OpenVersion.lost_documents`."""
    present = set(open_engine(directory.parent.parent).keys(number(directory.name)))
    lost: list[str] = []
    for part in (part for part in parts if part.has_semantic):
        keys = zip(part.vector_keys(), part.document_of.tolist(), strict=True)
        numbers = {document for key, document in keys if key not in present}
        lost += [part.records[document].doc_id for document in sorted(numbers)]
    return lost
