"""A cross-encoder trained here on invented passages, which changes the order of passages that it has not seen.

Training takes about a minute. Skipped without the extra `rerank`; CONTRIBUTING.md names the command that runs these
tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_index_contextual.evaluation.run import ndcg
from llama_index_contextual.search.rerank import CrossEncoderReranker
from llama_index_contextual.search.response import Hit
from tests.integration.retrievers.corpus import project_of
from tests.integration.retrievers.test_rerank import hits_of
from tests.support import cross_encoder
from tests.support.cross_encoder import Case

torch = pytest.importorskip("torch", reason="needs the extra rerank: pip install 'llama-index-contextual[rerank]'")
pytest.importorskip("sentence_transformers", reason="needs the extra rerank")

CASES = cross_encoder.held_out()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # so that all machines add numbers in the same order
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield cross_encoder.train(tmp_path_factory.mktemp("trained"))
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def reranker(model: str) -> CrossEncoderReranker:
    return CrossEncoderReranker(model, device="cpu")


def by_words(case: Case) -> list[Hit]:
    """Return the passages for a question, sorted by the number of words that they share with it."""
    asked = set(case.question.split())
    return hits_of(*sorted([*case.others, case.answer], key=lambda text: -len(asked & set(text.split()))))


def mean_ndcg(orders: Sequence[Sequence[Hit]]) -> float:
    """Return the mean nDCG@10 over the questions, each of which one passage answers."""
    ranks = [[hit.text for hit in hits].index(case.answer) + 1 for case, hits in zip(CASES, orders, strict=True)]
    return float(np.mean([ndcg([rank], 10) for rank in ranks]))


def test_it_puts_the_answers_to_unseen_questions_first(reranker: CrossEncoderReranker) -> None:
    before = [by_words(case) for case in CASES]
    after = [reranker.rerank(case.question, hits).hits for case, hits in zip(CASES, before, strict=True)]
    print(f"{len(CASES)} questions, nDCG@10: {mean_ndcg(before):.3f} before, {mean_ndcg(after):.3f} after")
    assert mean_ndcg(before) < 0.7
    assert mean_ndcg(after) > 0.85


async def test_the_default_threshold_keeps_answers_and_drops_other_passages(reranker: CrossEncoderReranker) -> None:
    kept = [reranker.rerank(case.question, by_words(case), threshold="auto") for case in CASES]
    texts = [[hit.text for hit in reranked.hits] for reranked in kept]
    assert sum(case.answer in each for case, each in zip(CASES, texts, strict=True)) >= 0.8 * len(CASES)
    assert sum(map(len, texts)) < 0.4 * sum(len(reranked.decisions) for reranked in kept)
    for case, reranked in zip(CASES, kept, strict=True):
        assert reranked.threshold == 0.3
        assert all((hit.score or 0.0) >= 0.3 for hit in reranked.hits)
        assert await reranker.arerank(case.question, by_words(case), threshold="auto") == reranked


async def test_a_project_is_searched_with_it(model: str, tmp_path: Path) -> None:
    case = CASES[0]
    texts = {"answer": case.answer, **{f"other{at}": text for at, text in enumerate(case.others)}}
    project = project_of(tmp_path, texts, rerank=model, rerank_threshold=None)
    response = project.retrieve(case.question)
    assert response[0].source.doc_id == "answer"
    assert response.reranker is not None
    assert (response.reranker.name, response.reranker.passages) == (model, len(texts))
    again = await project.aretrieve(case.question)
    assert [(hit.node_id, hit.score) for hit in again] == [(hit.node_id, hit.score) for hit in response]
    assert again.reranker == response.reranker
