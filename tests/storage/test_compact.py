"""RaBitQ instead of exact vectors: chosen only if worthwhile and accurate, with filters, and stored in versions."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest
from llama_index.core.schema import TextNode

from llama_index_contextual.config import FaissIndex
from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.storage import compact
from llama_index_contextual.storage.docstore import SQLiteDocumentStore
from llama_index_contextual.storage.faiss_store import UnitFaissVectorStore

RNG = np.random.default_rng(5)
# Vectors of topics, as texts have them: a query has neighbours, unlike among random directions.
TOPICS = RNG.standard_normal((60, 64), dtype=np.float32)
VECTORS = unit_vectors(np.repeat(TOPICS, 20, axis=0) + 0.5 * RNG.standard_normal((1_200, 64), dtype=np.float32))


def flat() -> faiss.IndexFlatIP:
    index = faiss.IndexFlatIP(64)
    index.add(VECTORS)
    return index


@pytest.mark.parametrize(
    ("wanted", "worthwhile", "min_recall", "kind"),
    [
        ("flat", 0, 0.0, faiss.IndexFlat),
        ("auto", compact.WORTHWHILE_BYTES, 0.0, faiss.IndexFlat),
        ("auto", 0, 1.1, faiss.IndexFlat),
        ("auto", 0, 0.9, faiss.IndexRefine),
        ("rabitq", compact.WORTHWHILE_BYTES, 1.1, faiss.IndexRefine),
    ],
)
def test_auto_compresses_only_large_indexes_with_sufficient_recall(
    wanted: FaissIndex, worthwhile: int, min_recall: float, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "WORTHWHILE_BYTES", worthwhile)
    monkeypatch.setattr(compact, "MIN_RECALL", min_recall)
    assert isinstance(compact.compress(flat(), wanted), kind)


def test_the_recall_probe_detects_an_index_with_wrong_results() -> None:
    good, bad = (compact.compress(index, "rabitq") for index in (flat(), flat()))
    bad.reset()
    bad.add(VECTORS[::-1].copy())
    assert compact.probed_recall(VECTORS, good) > 0.95
    assert compact.probed_recall(VECTORS, bad) < 0.2


def test_hits_are_sorted_by_cosine_and_all_filtered_rows_are_searched() -> None:
    index, query = compact.compress(flat(), "rabitq"), VECTORS[:1]
    scores, rows = compact.search(index, query, 10, None)
    assert rows[0] == 0
    assert (np.diff(scores) <= 0).all()
    np.testing.assert_allclose(scores, VECTORS[rows] @ query[0], atol=2e-3)
    mask = np.zeros(len(VECTORS), dtype=np.bool_)
    mask[1_000:1_100] = True
    _, allowed = compact.search(index, query, 10, mask)
    exact = 1_000 + np.argsort(-(VECTORS[mask] @ query[0]))[:10]
    assert len(set(allowed.tolist()) & set(exact.tolist())) >= 9
    assert mask[allowed].all()


def test_a_top_k_beyond_the_number_of_rows_returns_all_rows() -> None:
    assert len(compact.search(compact.compress(flat(), "rabitq"), VECTORS[:1], 5_000, None)[1]) == len(VECTORS)


def test_a_compressed_index_is_read_back_with_its_vectors(tmp_path: Path) -> None:
    docstore = SQLiteDocumentStore(tmp_path / "docstore.sqlite")
    store = UnitFaissVectorStore(docstore=docstore)
    store.add_vectors([TextNode(id_=f"n{row:04d}", text="x") for row in range(len(VECTORS))], VECTORS)
    store.compact("rabitq")
    store.persist(str(tmp_path / "index.faiss"))
    docstore.close()
    opened = UnitFaissVectorStore.from_persist_path(
        str(tmp_path / "index.faiss"), docstore=SQLiteDocumentStore(tmp_path / "docstore.sqlite", access="read")
    )
    assert opened.rank(VECTORS[7], 5)[0][0] == "n0007"
    assert opened.rank(VECTORS[7], 0) == []
    np.testing.assert_allclose(opened.vectors([3, 4]), VECTORS[[3, 4]], atol=1e-3)
    assert (tmp_path / "index.faiss").stat().st_size < VECTORS.nbytes
