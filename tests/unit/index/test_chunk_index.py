"""The contract of an index: every implementation gives the same search, and no other code asks which one it has."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from importlib.util import find_spec
from itertools import groupby
from typing import Any, get_args

import numpy as np
import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual.config import Fusion, Mode, ProjectConfig
from llama_index_contextual.embeddings.queries import QueryEmbedder
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.base import Chunk, ChunkIndex
from llama_index_contextual.index.bm25 import LexicalIndex, QueryTerms
from llama_index_contextual.index.documents import DocumentIndex
from llama_index_contextual.index.hits import Hits, Scale, top
from llama_index_contextual.index.units import Units
from llama_index_contextual.index.version import VersionIndex
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers import HybridRetriever, LexicalRetriever, SemanticRetriever
from llama_index_contextual.search.rank import FusionSettings
from llama_index_contextual.search.search import Query, SearchSettings, find_candidates, search
from llama_index_contextual.stores import IndexVectorStore
from tests.support.filter_oracle import passes
from tests.support.models import CountingEmbedding

TEXTS = {
    "manual": "Error code TS-999 means that the pump runs dry.\n\nClose the valve before the pump is switched off.",
    "guide": "Error code TS-104 means that the sensor is not calibrated.\n\nCall service if the pump leaks.",
    "report": "Revenue grew in the second quarter.\n\nImports of cast iron pumps cost duty.",
    "menu": "Soup is served at noon.",
}
QUERIES = ("error TS-999 of the pump", "When is soup served?", "zebra", "the report on pumps")
FILTERS = (
    None,
    MetadataFilters(filters=[MetadataFilter(key="kind", value="report")]),
    MetadataFilters(
        filters=[
            MetadataFilter(key="kind", value="menu"),
            MetadataFilter(key="year", operator=FilterOperator.LT, value=2),
        ],
        condition=FilterCondition.OR,
    ),
    MetadataFilters(filters=[MetadataFilter(key="kind", value="novel")]),
)
MODEL = CountingEmbedding()
HAS_QDRANT = find_spec("qdrant_client") is not None


class ListIndex:
    """Nodes in a list and vectors in an array: the least that an index can be."""

    def __init__(self, nodes: Sequence[BaseNode], vectors: NDArray[np.float32], documents: DocumentIndex) -> None:
        self.nodes = nodes
        self.matrix = vectors
        self.ids = [node.node_id for node in nodes]
        self.dimensions = vectors.shape[1]
        self.documents = documents
        self.lexical = LexicalIndex.build(node.get_content(MetadataMode.EMBED) for node in nodes)

    def rank_vectors(
        self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None
    ) -> tuple[Hits, Scale]:
        """Rank by cosine similarity."""
        similarities = self.matrix @ (vector / np.linalg.norm(vector))
        return self._best(similarities, k, filters), Scale(float(similarities.mean()), float(similarities.std()))

    def rank_terms(self, terms: QueryTerms, k: int, filters: MetadataFilters | None = None) -> tuple[Hits, Scale]:
        """Rank by BM25."""
        scores = self.lexical.scores(terms.counts)
        hits = self._best(np.where(scores > 0, scores, -np.inf), k, filters)
        return hits, Scale(0.0, float(scores.std()))

    def _best(self, scores: NDArray[np.float32], k: int, filters: MetadataFilters | None) -> Hits:
        passing = [filters is None or passes(node.metadata, filters) for node in self.nodes]
        best, rows = top(np.where(passing, scores, -np.inf), k)
        return Hits(rows, best.astype(np.float64))

    def fetch(self, rows: Sequence[int]) -> list[Chunk]:
        """Return the chunks."""
        return [Chunk.from_node(self.nodes[row]) for row in rows]

    def units(self, rows: NDArray[np.int64]) -> Units:
        """Return the units, made from the nodes."""
        nodes = (self.nodes[row] for row in rows.tolist())
        return Units.of(((node.get_content(), node.metadata) for node in nodes), self.lexical.analyzer)


def by_meaning(index: ChunkIndex, **options: Any) -> SemanticRetriever:
    store = IndexVectorStore(index, version_directory="")  # type: ignore[arg-type]
    return SemanticRetriever(VectorStoreIndex.from_vector_store(store, embed_model=MODEL), **options)


def documents_of(nodes: Sequence[BaseNode]) -> DocumentIndex:
    return DocumentIndex.build(list(chunks) for _, chunks in groupby(nodes, key=lambda node: node.ref_doc_id))


def published(project: Project) -> VersionIndex:
    """Return the index of a project that has ingested the texts one by one."""
    for at, (name, text) in enumerate(TEXTS.items()):
        project.ingest([Document(id_=name, text=text, metadata={"kind": name, "year": at})])
    return project.state.live.current().index


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChunkIndex]:
    """The same chunks in an index of each kind; those of a version have several parts."""
    config = ProjectConfig.local(context="none", chunk_size=20, chunk_overlap=0, segment_size=20)
    root = tmp_path_factory.mktemp("root")
    files = published(ProjectManager(root).create("files", config, embed_model=MODEL))
    in_qdrant = config.changed(backend=f"qdrant:{root / 'engine'}")
    qdrant = published(ProjectManager(root).create("qdrant", in_qdrant, embed_model=MODEL)) if HAS_QDRANT else files
    rows = np.arange(len(files.ids))
    nodes, vectors = [chunk.node for chunk in files.fetch(rows.tolist())], files.vectors(rows)
    documents = documents_of(nodes)
    lists = ListIndex(nodes, vectors, documents)
    return {"files": files, "qdrant": qdrant, "lists": lists}


KINDS = pytest.mark.parametrize(
    "kind",
    [
        pytest.param("qdrant", marks=pytest.mark.skipif(not HAS_QDRANT, reason="needs the extra qdrant")),
        "lists",
    ],
)


def test_the_chunks_are_several_of_several_parts(indexes: dict[str, ChunkIndex]) -> None:
    files: VersionIndex = indexes["files"]  # type: ignore[assignment]
    assert len(files.ids) > len(TEXTS)
    assert len(files.docstore.parts) > 1  # type: ignore[attr-defined]
    assert {tuple(index.ids) for index in indexes.values()} == {tuple(files.ids)}
    assert {index.dimensions for index in indexes.values()} == {64}


def rounded(value: object) -> object:
    """Return what a response holds, with numbers that do not depend on the order of a sum."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return round(value, 5) if isinstance(value, float) else value


@KINDS
@pytest.mark.parametrize("fusion", get_args(Fusion))
@pytest.mark.parametrize("mode", get_args(Mode))
async def test_every_index_gives_the_same_response(
    kind: str, mode: Mode, fusion: Fusion, indexes: dict[str, ChunkIndex]
) -> None:
    by = FusionSettings(by=fusion, weights=(0.7, 0.3), document_weight=0.1)
    embedder = QueryEmbedder(MODEL)
    for query in QUERIES:
        for filters in FILTERS:
            settings = SearchSettings(mode=mode, k=3, filters=filters, fusion=by, spotlight=False, explain=True)
            wanted = search(Query.of(query), indexes["files"], settings, embedder=embedder)
            found = search(Query.of(query), indexes[kind], settings, embedder=embedder)
            assert rounded(found.to_dict()) == rounded(wanted.to_dict())
            candidates = find_candidates(Query.of(query), indexes[kind], settings, embedder=embedder)
            assert await candidates.arespond() == found
    assert wanted.results == (), "nothing passes the last filter"


@KINDS
@pytest.mark.parametrize("filters", FILTERS[:2], ids=["all", "some"])
def test_every_index_serves_the_retrievers(
    kind: str, filters: MetadataFilters | None, indexes: dict[str, ChunkIndex]
) -> None:
    def answers(index: ChunkIndex) -> list[object]:
        semantic = by_meaning(index, top_k=3, filters=filters)
        lexical = LexicalRetriever(index, top_k=3, filters=filters)
        hybrid = HybridRetriever([semantic, lexical], fusion="score", top_k=3)
        rankings = [retriever.retrieve(query) for retriever in (semantic, lexical, hybrid) for query in QUERIES]
        return [rounded([hit.to_dict() for hit in ranking]) for ranking in rankings]

    wanted = answers(indexes["files"])
    assert answers(indexes[kind]) == wanted
    assert [] in wanted  # of "zebra", by words


def test_a_retriever_by_words_needs_terms(indexes: dict[str, ChunkIndex]) -> None:
    index = copy(indexes["lists"])
    index.lexical = None  # type: ignore[misc]
    with pytest.raises(InputError, match="has no lexical index"):
        LexicalRetriever(index)
