"""The same cross-encoder by sentence-transformers and by fastembed (ONNX Runtime): equal windows, scores and order.

Skipped without the extras `rerank` and `fastembed`; CONTRIBUTING.md names the command that runs these tests.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.search import rerank
from llama_index_contextual.search.rerank import CrossEncoderReranker, Reranked
from llama_index_contextual.search.response import Hit
from llama_index_contextual.search.results import RetrievedChunk
from tests.slow.retrievers.test_cross_encoder import (
    LENGTH,
    QUESTION,
    SIGMOID,
    contextualized,
    hits_of,
    make_model,
    words,
)
from tests.support.onnx_models import bert_model

pytest.importorskip("fastembed", reason='needs the extra fastembed: pip install -e ".[fastembed]"')

Pair = tuple[CrossEncoderReranker, CrossEncoderReranker]


@pytest.fixture(scope="module", autouse=True)
def offline() -> Any:
    """Keep the Hugging Face hub out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


def load(folder: Path, activation: str) -> Pair:
    """Write a cross-encoder with random weights in both formats, and load it with both libraries."""
    from transformers import BertForSequenceClassification

    name = make_model(folder, activation=activation, initializer_range=0.09)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(bert_model(BertForSequenceClassification.from_pretrained(folder)))
    return CrossEncoderReranker(name, device="cpu"), CrossEncoderReranker(f"fastembed:{name}", device="cpu")


@pytest.fixture(scope="module")
def rerankers(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return load(tmp_path_factory.mktemp("both"), SIGMOID)


def passages() -> list[Hit]:
    """Return passages shorter and longer than the model reads, some of them with a context."""
    texts = [words(count, count) for count in (1, 20, 50, 51, 60, 200, 1_000)]
    return hits_of(*texts, "", "unknown \ud800 words", contextualized(words(300, 3), "word5 word6 word7."))


def scores(reranked: Reranked) -> dict[str, float | None]:
    return {name: decision.score for name, decision in reranked.decisions.items()}


@pytest.mark.parametrize("question", [QUESTION, "", words(200, 1)])
def test_windows_scores_and_order_are_equal(rerankers: Pair, question: str) -> None:
    by_torch, by_onnx = rerankers
    assert (by_torch.length, by_onnx.length) == (LENGTH, LENGTH)
    for hit in passages() if len(question.split()) < LENGTH else ():  # a longer question is shortened before
        passage, head = rerank._encoder_input(RetrievedChunk.of_hit(hit))
        assert by_onnx.windows(question, passage, head) == by_torch.windows(question, passage, head)
    one, other = (reranker.rerank(question, passages()) for reranker in rerankers)
    assert one.windows == other.windows > 2 * len(passages())
    assert scores(other) == pytest.approx(scores(one), abs=1e-5)
    assert len({round(score or 0.0, 2) for score in scores(one).values()}) > 5, "the scores differ among passages"
    assert [hit.node_id for hit in other.hits] == [hit.node_id for hit in one.hits]
    best = [[decision.reason.partition("of ")[2] for decision in each.decisions.values()] for each in (one, other)]
    assert best[0] == best[1], "the same window of each passage has the best score"


async def test_thresholds_keep_the_same_passages_also_in_concurrent_calls(rerankers: Pair) -> None:
    by_score = sorted(score or 0.0 for score in scores(rerankers[0].rerank(QUESTION, passages())).values())
    gap, low = max((high - low, low) for low, high in pairwise(by_score))
    threshold = low + gap / 2
    kept = [[hit.node_id for hit in r.rerank(QUESTION, passages(), threshold=threshold).hits] for r in rerankers]
    assert kept[0] == kept[1]
    assert 0 < len(kept[0]) < len(passages())
    calls = [r.arerank(QUESTION, passages(), threshold=threshold) for r in rerankers for _ in range(3)]
    concurrent = [[hit.node_id for hit in reranked.hits] for reranked in await asyncio.gather(*calls)]
    assert concurrent == 6 * [kept[0]]
