"""A version whose chunks and vectors an engine keeps: its document store and its vector store.

The rows of the version are those of its parts, as with files. A hit of the engine is the id of a chunk, whose row the
parts know; scores, evidence and documents are then computed by row as always.

remote.json             in a part: the mean length of chunks that the weights of terms were computed with
sample.npy              in a part: some of its vectors, evenly spaced, for the mean and deviation of similarities
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from fsspec import AbstractFileSystem
from llama_index.core.schema import BaseNode
from llama_index.core.storage.docstore.types import DEFAULT_PERSIST_PATH
from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery, VectorStoreQueryResult
from numpy.typing import NDArray
from pydantic import PrivateAttr

from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.errors import CorruptVersionError, InputError
from llama_index_contextual.index import files
from llama_index_contextual.index.check import read_manifest
from llama_index_contextual.index.collection import Key, TermHit, View
from llama_index_contextual.index.docstore import FRAMES, SQLiteDocumentStore
from llama_index_contextual.index.engine import open_engine, read_collection, write_collection
from llama_index_contextual.index.facets import Condition, condition_of
from llama_index_contextual.index.faiss_store import Rows, UnitFaissVectorStore
from llama_index_contextual.index.filters import FieldTest, valid_filters
from llama_index_contextual.index.manifest import MANIFEST, REMOTE_FILE, SAMPLE_FILE
from llama_index_contextual.index.part import Part, open_parts
from llama_index_contextual.index.remote_docstore import RemoteDocumentStore, fetched, missing
from llama_index_contextual.index.scan import products
from llama_index_contextual.index.version_docstore import VersionDocumentStore
from llama_index_contextual.index.versions import number

SAMPLE = 2_048
"""Maximum number of vectors of the sample of a part."""

EXACT_CHUNKS = 20_000
"""Number of chunks up to which every vector is compared."""

MIN_RECALL, PROBED_K = 0.99, 20
EF = (128, 256, 512, 1_024, 2_048, 4_096)
"""Sizes of the list of candidates that are probed; if none is accurate enough, the search is exact."""

_TIES = 16  # further hits that are requested, since equal scores are in no particular order
_BLOCK = 4_096
_PROBES = 128
_CONFIDENCE = 2.0  # number of standard errors


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


class RemoteVersionStore(VersionDocumentStore):
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

    def persist(self, persist_path: str = DEFAULT_PERSIST_PATH, fs: AbstractFileSystem | None = None) -> None:
        """Write the chunks to a file and sync it."""
        copy = SQLiteDocumentStore()
        nodes = self.iterate()
        while block := list(itertools.islice(nodes, _BLOCK)):
            copy.add_documents(block)
        for part in self.parts:
            for record in part.records:
                if (frame := part.docstore.get_extra(FRAMES, record.doc_id)) is not None:
                    copy.put_extra(FRAMES, record.doc_id, frame)
        copy.persist(persist_path, fs)
        copy.close()


class RemoteVectorStore(UnitFaissVectorStore):
    """The vectors of a version, which an engine keeps, and which cannot be changed.

    Args:
        docstore: The chunks of the version.
        dimensions: Length of the vectors.
    """

    _chunks: RemoteVersionStore = PrivateAttr()
    _dimensions: int = PrivateAttr()
    _sample: NDArray[np.float32] | None = PrivateAttr(default=None)

    def __init__(self, docstore: RemoteVersionStore, *, dimensions: int) -> None:
        super().__init__(docstore=docstore)
        self._chunks, self._dimensions = docstore, dimensions

    @property
    def dimensions(self) -> int:
        """Length of the vectors."""
        return self._dimensions

    def __len__(self) -> int:
        return len(self._chunks)

    def rank_rows(self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None) -> Rows:
        """Rank rows by their cosine similarity to `vector`."""
        return self._rank_view(vector, k, self._chunks.view(filters))

    def _rank_view(self, vector: NDArray[np.float32], k: int, view: View) -> Rows:
        query = unit_vectors(np.asarray(vector, dtype=np.float32).reshape(1, -1))[0]
        if len(self) == 0 or not query.any():
            return Rows(np.zeros(0, dtype=np.int64), np.zeros(0))
        if len(query) != self.dimensions:
            raise InputError(
                f"The query's embedding has {len(query)} dimensions, the index {self.dimensions}:"
                f" search with the embedding model that built the index."
            )
        k = min(k, len(self))
        hits = self._chunks.engine.rank_vectors(view, query, k + _TIES)
        self._chunks.require_hits(view, hits)
        rows = np.asarray(self._chunks.rows([node_id for node_id, _ in hits]), dtype=np.int64)
        # Because of rounding, the product of two unit vectors may exceed 1.
        scores = np.clip(np.asarray([score for _, score in hits], dtype=np.float64), -1.0, 1.0)
        order = np.lexsort((rows, -scores))[:k]
        similarities = products(self.sample, query)
        moments = float(similarities.mean()), float(similarities.std())
        return Rows(rows[order], scores[order], moments=moments)

    @property
    def sample(self) -> NDArray[np.float32]:
        """Some vectors, of every part in proportion to its size."""
        if self._sample is None:
            samples = [(part.size, _live_sample(part)) for part in self._chunks.parts if part.size]
            density = min((len(sample) / size for size, sample in samples if len(sample)), default=0.0)
            vectors = [_thinned(sample, round(density * size)) for size, sample in samples]
            self._sample = np.concatenate([np.zeros((0, self._dimensions), dtype=np.float32), *vectors])
        return self._sample

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Answer a LlamaIndex query with nodes, their cosine similarities (-1 to 1) and their ids."""
        if query.query_embedding is None:
            raise InputError("The query has no embedding: pass an embed_model to the retriever.")
        vector, k = np.asarray(query.query_embedding, dtype=np.float32), query.similarity_top_k
        allowed = self._mask(VectorStoreQuery(node_ids=query.node_ids, doc_ids=query.doc_ids))
        hits = self.rank_rows(vector, k if allowed is None else len(self), query.filters)
        passing = slice(k) if allowed is None else np.flatnonzero(allowed[hits.rows])[:k]
        ids = [self._docstore.ids[row] for row in hits.rows[passing].tolist()]
        similarities = hits.scores[passing].tolist()
        return VectorStoreQueryResult(nodes=self._docstore.get_nodes(ids), similarities=similarities, ids=ids)

    def vectors(self, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the stored vectors of some rows."""
        distinct, where = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
        keys = self._chunks.keys_of_rows(distinct)
        found = self._chunks.engine.vectors(keys)
        if lost := [node_id for node_id, _ in keys if node_id not in found]:
            raise missing(lost[0])
        vectors = np.asarray([found[node_id] for node_id, _ in keys], dtype=np.float32)
        return vectors.reshape(len(keys), self._dimensions)[where]

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return the directory of the version, with which `from_dict` opens it again."""
        return {"class_name": self.class_name(), "remote_version_directory": str(self._chunks.directory)}

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Open the vectors of the version that `to_dict` names.

        Raises:
            CorruptVersionError: The version is damaged or was removed.
        """
        directory = Path(data["remote_version_directory"])
        manifest = read_manifest(directory)
        docstore = RemoteVersionStore(open_parts(directory, manifest, "xxh3"), directory)
        return cls(docstore, dimensions=manifest.dimensions or 0)

    def settle(self) -> bool:
        """Wait until the engine's index contains all vectors; see `Engine.settle`."""
        return self._chunks.engine.settle()

    def probe(self) -> int | None:
        """Return the smallest size of the list of candidates that is accurate enough, or None if none is.

        The questions are means of four and of eight vectors: like real ones, they are farther from the chunks than
        chunks from each other, and at a given size they find no more than those
        (`python -m tests.benchmarks.engines recall --data ../shared/data`). The recall is taken two standard errors
        below its mean.
        """
        chance, sample = np.random.default_rng(0), self.sample
        groups = [chance.integers(0, len(sample), (_PROBES // 2, size)) for size in (4, 8)]
        questions = np.concatenate([sample[group].mean(axis=1) for group in groups])
        exact = [set(self._rank_view(one, PROBED_K, View(self._chunks.number)).rows.tolist()) for one in questions]
        for ef in EF:
            view = View(self._chunks.number, ef=ef)
            found = [set(self._rank_view(one, PROBED_K, view).rows.tolist()) for one in questions]
            shares = [len(best & hits) / len(best) for best, hits in zip(exact, found, strict=True)]
            if np.mean(shares) - _CONFIDENCE * np.std(shares) / math.sqrt(len(shares)) >= MIN_RECALL:
                return ef
        return None


def tune(project_dir: Path, store: RemoteVectorStore, *, is_rebuilt: bool) -> None:
    """Choose how to search the vectors of a large version, if it has grown by half since that was last chosen.

    Args:
        project_dir: The project.
        store: The vectors.
        is_rebuilt: Whether all of them are new, perhaps from another model.
    """
    collection, size = read_collection(project_dir), len(store)
    if collection is None or size <= EXACT_CHUNKS or (size < 1.5 * collection.probed and not is_rebuilt):
        return
    if store.settle():
        write_collection(project_dir, replace(collection, ef=store.probe(), probed=size))
    else:  # until the next version
        write_collection(project_dir, replace(collection, ef=None, probed=0))


def _store(part: Part) -> RemoteDocumentStore:
    store: Any = part.docstore
    return store  # type: ignore[no-any-return]


def _live_sample(part: Part) -> NDArray[np.float32]:
    """Return the sample of a part, without vectors that are gone."""

    def load() -> NDArray[np.float32]:
        vectors = np.load(part.directory / SAMPLE_FILE)
        return np.ascontiguousarray(vectors, dtype=np.float32)

    if SAMPLE_FILE not in part.files:
        return np.zeros((0, 0), dtype=np.float32)
    vectors: NDArray[np.float32] = part.shared(SAMPLE_FILE, load)
    if part.live is None:
        return vectors
    return vectors[part.live[sampled_rows(len(part.live))]]


def _thinned(sample: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    return sample[np.linspace(0, len(sample) - 1, min(size, len(sample)), dtype=np.int64)]
