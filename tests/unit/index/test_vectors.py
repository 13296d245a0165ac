"""RaBitQ instead of exact vectors: chosen only if worthwhile and accurate, with filters, and stored in versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from llama_index_contextual.config import FaissIndex
from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.index import vectors
from llama_index_contextual.index.vectors import read_index, write_index

RNG = np.random.default_rng(5)
# Vectors of topics, as texts have them: a query has neighbours, unlike among random directions.
TOPICS = RNG.standard_normal((60, 64), dtype=np.float32)
VECTORS = unit_vectors(np.repeat(TOPICS, 20, axis=0) + 0.5 * RNG.standard_normal((1_200, 64), dtype=np.float32))

IDS = [f"n{row}" for row in range(len(VECTORS))]


def flat() -> faiss.IndexFlatIP:
    index = faiss.IndexFlatIP(64)
    index.add(VECTORS)
    return index


@pytest.mark.parametrize(
    ("wanted", "worthwhile", "min_recall", "kind"),
    [
        ("flat", 0, 0.0, faiss.IndexFlat),
        ("auto", vectors.WORTHWHILE_BYTES, 0.0, faiss.IndexFlat),
        ("auto", 0, 1.1, faiss.IndexFlat),
        ("auto", 0, 0.9, faiss.IndexRefine),
        ("rabitq", vectors.WORTHWHILE_BYTES, 1.1, faiss.IndexRefine),
    ],
)
def test_auto_compresses_only_large_indexes_with_sufficient_recall(
    wanted: FaissIndex, worthwhile: int, min_recall: float, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "WORTHWHILE_BYTES", worthwhile)
    monkeypatch.setattr(vectors, "MIN_RECALL", min_recall)
    assert isinstance(vectors.compress(flat(), wanted, IDS), kind)


def test_the_recall_probe_detects_an_index_with_wrong_results() -> None:
    good, bad = (vectors.compress(index, "rabitq") for index in (flat(), flat()))
    bad.reset()
    bad.add(VECTORS[::-1].copy())
    assert vectors.probed_recall(VECTORS, good, IDS) > 0.95
    assert vectors.probed_recall(VECTORS, bad, IDS) < 0.2


def chosen(rows: NDArray[np.float32], ids: Sequence[str]) -> bool:
    """Return whether `auto` chooses the compact index."""
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(np.ascontiguousarray(rows))
    return isinstance(vectors.compress(index, "auto", ids), faiss.IndexRefine)


def test_auto_is_right_about_corpora_on_which_compact_codes_work_or_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "WORTHWHILE_BYTES", 0)
    chance = np.random.default_rng(9)
    ids = [f"n{row}" for row in range(6_000)]
    topics = np.repeat(chance.standard_normal((300, 256), dtype=np.float32), 20, axis=0)
    noise = chance.standard_normal((6_000, 256), dtype=np.float32)
    assert chosen(unit_vectors(topics + 0.5 * noise), ids)  # a question is about one topic
    assert not chosen(unit_vectors(noise), ids)  # everything is about equally far from a question


def test_auto_does_not_depend_on_the_order_of_the_vectors() -> None:
    order = np.random.default_rng(1).permutation(len(VECTORS))
    index = vectors.compress(flat(), "rabitq")
    probes = vectors._probes(VECTORS, IDS)
    np.testing.assert_array_equal(vectors._probes(VECTORS[order], [IDS[row] for row in order]), probes)
    assert vectors.probed_recall(VECTORS, index, IDS) == vectors.probed_recall(VECTORS, index, IDS)


def test_probes_are_as_far_from_the_vectors_as_questions() -> None:
    best = (vectors._probes(VECTORS, IDS) @ VECTORS.T).max(axis=1)
    assert 0.5 < np.median(best) < 0.7
    assert len(best) == vectors._PROBES


@pytest.mark.parametrize("share", [0.01, 0.3, 0.95, 1.0, None])
def test_hits_are_nearly_those_of_an_exact_search(share: float | None) -> None:
    index, chance = vectors.compress(flat(), "rabitq"), np.random.default_rng(3)
    mask = chance.random(len(VECTORS)) < (share or 1.0)
    allowed = None if share is None else mask
    shares = []
    for query in VECTORS[::60]:
        k = min(10, int(mask.sum()))
        scores, rows = vectors.search_compact(index, query[None], 10, allowed)
        assert len(rows) == k
        np.testing.assert_allclose(scores, VECTORS[rows] @ query, atol=2e-3)
        assert mask[rows].all()
        assert (np.diff(scores) <= 0).all()
        exact = np.argsort(-np.where(mask, VECTORS @ query, -np.inf))[:k]
        shares.append(len(set(rows.tolist()) & set(exact.tolist())) / k)
    assert np.mean(shares) > 0.97
    assert len(vectors.search_compact(index, VECTORS[:1], 5_000, allowed)[1]) == mask.sum()
    assert len(vectors.search_compact(index, VECTORS[:1], 10, np.zeros(len(VECTORS), dtype=np.bool_))[1]) == 0


def test_the_scores_of_few_allowed_rows_are_those_of_their_16_bit_vectors(tmp_path: Path) -> None:
    stored = VECTORS.copy()
    stored[:, :3] = [0.0, -6e-5, 3e-8]  # zero, and numbers below the normal ones of 16 bits
    exact = faiss.IndexFlatIP(64)
    exact.add(stored)
    write_index(vectors.compress(exact, "rabitq"), tmp_path / "index")
    for index in (vectors.compress(exact, "rabitq"), read_index(tmp_path / "index")):
        mask = np.zeros(len(stored), dtype=np.bool_)
        mask[[0, 5, 700, 1_199]] = True
        for query in (VECTORS[:1], VECTORS[700:701], -VECTORS[:1]):
            scores, rows = vectors.search_compact(index, query, 3, mask)
            expected = index.reconstruct_batch(np.flatnonzero(mask)) @ query[0]
            best = np.argsort(-expected)[:3]
            assert rows.tolist() == np.flatnonzero(mask)[best].tolist()
            np.testing.assert_allclose(scores, expected[best], atol=1e-6)


def test_a_compressed_index_is_read_back_with_its_vectors(tmp_path: Path) -> None:
    exact = faiss.IndexFlatIP(VECTORS.shape[1])
    exact.add(VECTORS)
    write_index(vectors.compress(exact, "rabitq"), tmp_path / "index.faiss")
    opened = read_index(tmp_path / "index.faiss")
    _, rows, _ = vectors.search_index(opened, VECTORS[7:8], 5, None)
    assert rows[0] == 7
    np.testing.assert_allclose(vectors.reconstructed(opened, np.array([3, 4])), VECTORS[[3, 4]], atol=1e-3)
    assert (tmp_path / "index.faiss").stat().st_size < VECTORS.nbytes
