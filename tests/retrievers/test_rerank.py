"""Reranking by a cross-encoder or an LLM: number of hits, threshold, order, and evidence."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from llama_index.core.postprocessor import sbert_rerank
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import Document, QueryBundle

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ModelError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.rerank import Reranker, Rerankers
from tests.support.models import CountingEmbedding, ScriptedLLM

TEXTS = {
    "dry": "Error code TS-999 means that the pump runs dry.",
    "valve": "Close the valve before the pump is switched off.",
    "revenue": "Revenue of the pump maker grew in the second quarter.",
}
QUERY = "pump"
CROSS_ENCODER = "cross-encoder/ms-marco-MiniLM-L-6-v2"


class CrossEncoder:
    """A reranker that prefers long texts."""

    made: list[dict[str, Any]] = []  # noqa: RUF012 - each test has its own class

    def __init__(self, model: str, **options: Any) -> None:
        if model.startswith("no/"):
            raise OSError("not a model")
        self.made.append({"model": model, **options})

    def predict(self, pairs: list[tuple[str, str]]) -> list[float]:
        """Return the length of each text."""
        return [float(len(text)) for _, text in pairs]


@pytest.fixture
def cross_encoder(monkeypatch: pytest.MonkeyPatch) -> type[CrossEncoder]:
    """Replace the package sentence-transformers by a module with this cross-encoder."""
    kind = type("Mine", (CrossEncoder,), {"made": []})
    module = ModuleType("sentence_transformers")
    module.CrossEncoder = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    monkeypatch.setattr(sbert_rerank, "infer_torch_device", lambda: "cpu")
    return kind


def project_of(root: Path, llm: ScriptedLLM | None = None, **settings: Any) -> Project:
    config = ProjectConfig.local(**{"context": "none", **settings})
    made = ProjectManager(root).create("p", config, embed_model=CountingEmbedding(), llm=llm)
    made.ingest([Document(id_=name, text=text) for name, text in TEXTS.items()])
    return made


def test_a_cross_encoder_decides_the_order_and_is_loaded_once(
    tmp_path: Path, cross_encoder: type[CrossEncoder]
) -> None:
    project = project_of(tmp_path, rerank=CROSS_ENCODER)
    plain = {hit.node_id: hit for hit in project_of(tmp_path / "plain").retrieve(QUERY)}
    found = project.retrieve(QUERY, top_k=2)
    project.retrieve("valve")
    assert [hit.source.doc_id for hit in found] == ["revenue", "valve"]
    assert [hit.score for hit in found] == [len(TEXTS["revenue"]), len(TEXTS["valve"])]
    assert [hit.rank for hit in found] == [1, 2]
    for hit in found:  # the evidence is kept
        before = plain[hit.node_id]
        assert (hit.semantic, hit.lexical, hit.relevance) == (before.semantic, before.lexical, before.relevance)
    assert [one["model"] for one in cross_encoder.made] == [CROSS_ENCODER]
    assert cross_encoder.made[0]["trust_remote_code"] is False


def test_only_the_candidates_are_reranked(tmp_path: Path, cross_encoder: type[CrossEncoder]) -> None:
    first = project_of(tmp_path / "plain").retrieve(QUERY, top_k=1)[0].node_id
    project = project_of(tmp_path, rerank=CROSS_ENCODER, rerank_candidates=1)
    assert [hit.node_id for hit in project.retrieve(QUERY, top_k=1)] == [first]
    assert len(project.retrieve(QUERY, top_k=3)) == 3


def test_hits_below_the_threshold_are_left_out(tmp_path: Path, cross_encoder: type[CrossEncoder]) -> None:
    project = project_of(tmp_path, rerank=CROSS_ENCODER, rerank_threshold=len(TEXTS["revenue"]))
    assert [hit.source.doc_id for hit in project.retrieve(QUERY)] == ["revenue"]
    project.update_config(rerank=None)
    assert len(project.retrieve(QUERY)) == 3


def test_without_hits_above_the_threshold_there_is_no_confidence(
    tmp_path: Path, cross_encoder: type[CrossEncoder]
) -> None:
    project = project_of(tmp_path, rerank=CROSS_ENCODER)
    assert (project.retrieve(QUERY).confidence or 0.0) > 0.0
    project.update_config(rerank_threshold=1000.0)
    response = project.retrieve(QUERY)
    assert (response.results, response.confidence, response.confidence_level) == ((), 0.0, "none")
    lexical = project.retrieve(QUERY, mode="lexical")
    assert (lexical.results, lexical.confidence) == ((), None)


@pytest.mark.parametrize("by", ["setting", "postprocessor"])
def test_the_model_reads_what_the_reranker_puts_first(
    tmp_path: Path, cross_encoder: type[CrossEncoder], by: str
) -> None:
    project = project_of(tmp_path, rerank=CROSS_ENCODER if by == "setting" else None)
    steps = [] if by == "setting" else [sbert_rerank.SentenceTransformerRerank(model=CROSS_ENCODER, top_n=9)]
    question = "Does the pump run dry with TS-999?"
    best = max(TEXTS, key=lambda name: len(TEXTS[name]))
    assert project_of(tmp_path / "plain").retrieve(question)[0].source.doc_id != best
    for options in ({"max_passages": 1}, {"answer_tokens": 14}):
        engine = project.as_query_engine(llm=ScriptedLLM(), node_postprocessors=steps, min_confidence=0.0, **options)
        assert [hit.node.ref_doc_id for hit in engine.retrieve(QueryBundle(question))] == [best]


def test_explanations_follow_the_new_order(tmp_path: Path, cross_encoder: type[CrossEncoder]) -> None:
    response = project_of(tmp_path, rerank=CROSS_ENCODER).retrieve(QUERY, top_k=1, explain=True)
    (one,), miss = response.explanations, response.near_misses[0]
    assert one.node_id == response[0].node_id
    assert f"by {len(TEXTS['revenue'])}.0000" in one.arithmetic
    assert miss.why_not == f"the reranker's {len(TEXTS['valve'])}.0000 is less than {len(TEXTS['revenue'])}.0000"


async def test_an_llm_can_rerank(tmp_path: Path) -> None:
    llm = ScriptedLLM(default="Doc: 3, Relevance: 9\nDoc: 1, Relevance: 2")
    project = project_of(tmp_path, llm, rerank="llm")
    order = [hit.node_id for hit in project_of(tmp_path / "plain").retrieve(QUERY)]
    found = project.retrieve(QUERY)
    assert [(hit.node_id, hit.score) for hit in found] == [(order[2], 9.0), (order[0], 2.0)]
    assert "What is relevant" not in llm.history[0]
    assert QUERY in llm.history[0]
    assert await project.aretrieve(QUERY) == found


def test_without_the_package_the_error_names_the_pip_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ModelError, match=r'pip install "llama-index-contextual\[rerank\]"') as raised:
        project_of(tmp_path, rerank=CROSS_ENCODER).retrieve(QUERY)
    assert raised.value.setting == "rerank"


def test_a_missing_model_is_named(tmp_path: Path, cross_encoder: type[CrossEncoder]) -> None:
    with pytest.raises(ModelError, match="The reranker 'no/such' cannot be loaded"):
        project_of(tmp_path, rerank="no/such").retrieve(QUERY)


def test_a_failing_llm_is_a_model_error(tmp_path: Path) -> None:
    llm = ScriptedLLM()
    llm.enqueue(ValueError("no answer"))
    with pytest.raises(ModelError, match="no answer"):
        project_of(tmp_path, llm, rerank="llm").retrieve(QUERY)


@pytest.mark.parametrize(
    ("answer", "scores"),
    [
        ("Doc: 2, Relevance: 7\nDoc: 1, Relevance: 9\nDoc: 2, Relevance: 8", [9.0, 8.0]),
        ("Doc: 0, Relevance: 9\nDoc: 4, Relevance: 9\nDoc: 3, Relevance: 5", [5.0]),
        ("Doc: 1, Relevance: high\nDoc: 2, Relevance: 0.5", [0.5]),
    ],
    ids=["one twice", "numbers that no passage has", "no number"],
)
def test_each_passage_that_an_llm_chooses_is_returned_once_with_its_score(
    tmp_path: Path, answer: str, scores: list[float]
) -> None:
    llm = ScriptedLLM()
    llm.enqueue(answer)
    found = project_of(tmp_path, llm, rerank="llm").retrieve(QUERY)
    assert [chunk.score for chunk in found] == scores
    assert len({chunk.node_id for chunk in found}) == len(found)


def test_another_llm_gives_another_reranker() -> None:
    made: list[ScriptedLLM] = []

    def load() -> ScriptedLLM:
        made.append(ScriptedLLM())
        return made[-1]

    rerankers = Rerankers(load)
    for llm in ("openai:gpt-4.1", "openai:gpt-4.1", "openai:gpt-4o"):
        rerankers.of(ProjectConfig.local(rerank="llm", llm=llm))
    assert len(made) == 2


def test_a_reranker_that_returns_nothing_is_a_warning(tmp_path: Path) -> None:
    llm = ScriptedLLM(default="The first one, I think.")
    response = project_of(tmp_path, llm, rerank="llm").retrieve(QUERY)
    assert response.results == ()
    assert response.warnings == ("The reranker 'llm' dropped all 3 hits.",)


def test_an_error_with_a_readable_message_is_not_wrapped() -> None:
    refusal = ModelError("There is no key.")

    class Refusing(BaseNodePostprocessor):
        def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
            raise refusal

    with pytest.raises(ModelError) as raised:
        Reranker("llm", Refusing()).rerank(QueryBundle("pump"), [])
    assert raised.value is refusal
