"""Engines from keyword arguments: what each option gives, and that no wrong one is passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine

from llama_index_contextual.answering.cache import AnswerCache
from llama_index_contextual.answering.guards import Guards
from llama_index_contextual.answering.intent import SearchPlan
from llama_index_contextual.answering.judge import Judge
from llama_index_contextual.answering.query_engine import GroundedQueryEngine
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.conversational import BlendWeights
from tests.support.models import CountingEmbedding, ScriptedLLM

QUESTION = "What does error TS-999 mean?"


def grounded(project: Project, **options: Any) -> GroundedQueryEngine:
    engine = project.as_query_engine(llm=ScriptedLLM(), **options)
    assert isinstance(engine, GroundedQueryEngine)
    return engine


# ---- which engine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("typo", ["stlye", "min_confidnce", "retriever", "answers"])
def test_an_option_that_nothing_knows_is_refused_with_those_that_are_known(reports: Project, typo: str) -> None:
    for make in (reports.as_query_engine, reports.as_chat_engine):
        with pytest.raises(ConfigurationError, match=f"'{typo}' is unknown.*min_confidence.*style") as raised:
            make(llm=MockLLM(), **{typo: "x"})  # type: ignore[operator]
        assert raised.value.setting == typo


def test_options_of_both_engines_at_once_are_refused(reports: Project) -> None:
    with pytest.raises(ConfigurationError, match=r"`response_mode` gives LlamaIndex's own engine.*no `style`"):
        reports.as_query_engine(llm=MockLLM(), response_mode="refine", style="persona")
    with pytest.raises(ConfigurationError, match="'response_mode' is unknown"):
        reports.as_chat_engine(llm=MockLLM(), response_mode="refine")


def test_what_both_engines_know_goes_with_either(reports: Project) -> None:
    stock = reports.as_query_engine(llm=MockLLM(), response_mode="refine", streaming=True, intents=True)
    assert type(stock) is RetrieverQueryEngine
    assert grounded(reports, streaming=True).streaming


# ---- values ----------------------------------------------------------------------------------------------------------


def test_true_gives_the_usual_guards_judge_and_cache(reports: Project) -> None:
    engine = grounded(reports, guards=True, judge=True, cache=True)
    assert engine.guards == Guards()
    assert isinstance(engine.judge, Judge)
    assert isinstance(engine.cache, AnswerCache)
    plain = grounded(reports, guards=False, judge=False, cache=False)
    assert (plain.guards, plain.judge, plain.cache) == (None, None, None)


def test_the_engines_of_a_project_share_its_cache(reports: Project) -> None:
    llm = ScriptedLLM(default="It means “the pump runs dry” [Source 1].")
    asked = [reports.as_query_engine(llm=llm, cache=True).query(QUESTION) for _ in range(2)]
    chat = reports.as_chat_engine(llm=llm, cache=True)
    assert [answer.from_cache for answer in asked] == [False, True]  # type: ignore[union-attr]
    assert chat.engine.cache is reports.answer_cache
    assert len(reports.answer_cache) == len(llm.history) == 1
    reports.answer_cache.clear()


@pytest.mark.parametrize(
    "wrong",
    [
        {"guards": "yes"},
        {"cache": 5},
        {"judge": "gpt"},
        {"timeouts": 30},
        {"timeouts": True},
        {"weights": 2.0},
        {"adjacent": "all"},
        {"intents": "yes"},
        {"intents": {"factual": 5}},
        {"intents": {"factul": SearchPlan(top_k=5)}},
    ],
)
def test_a_value_that_cannot_be_is_refused_before_anything_is_asked(reports: Project, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    for make in (reports.as_query_engine, reports.as_chat_engine):
        with pytest.raises(ConfigurationError, match=name) as raised:
            make(llm=MockLLM(), **wrong)  # type: ignore[operator]
        assert raised.value.setting == name
    if name == "intents":
        with pytest.raises(ConfigurationError, match=name):
            reports.as_retriever(**wrong)


def test_a_chat_takes_weights_of_its_own(reports: Project) -> None:
    weights = BlendWeights(turns=2, history=0.5)
    assert reports.as_chat_engine(llm=MockLLM(), weights=weights).engine.retriever.weights == weights
    assert reports.as_chat_engine(llm=MockLLM(), turns=1).engine.retriever.weights == BlendWeights(turns=1)


def test_settings_of_the_project_hold_unless_the_engine_is_told_otherwise(tmp_path: Path) -> None:
    config = ProjectConfig.local(context_in_answer=False)
    project = ProjectManager(tmp_path).create("p", config, embed_model=CountingEmbedding())
    assert not grounded(project).options.context
    assert grounded(project, context=True).options.context
    assert not project.as_chat_engine(llm=MockLLM()).engine.options.context


def test_the_model_answers_at_the_temperature_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    for settings, wanted in (({}, 0.1), ({"answer_temperature": 0.7}, 0.7)):
        project = ProjectManager(tmp_path).create(f"p{wanted}", ProjectConfig(faiss=False, **settings))
        engine = project.as_query_engine()
        assert isinstance(engine, GroundedQueryEngine)
        assert engine.answer_stream._llm.sync().temperature == wanted  # type: ignore[attr-defined]


# ---- the embedding model ---------------------------------------------------------------------------------------------


def test_a_project_without_a_semantic_index_answers_without_an_embedding_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    llm = ScriptedLLM(default="It runs dry [Source 1].")
    project = ProjectManager(tmp_path).create("p", ProjectConfig(faiss=False, context="none"), llm=llm)
    chat = project.as_chat_engine()  # before anything is there to be asked
    project.ingest([Document(id_="d", text="Error TS-999 means that the pump runs dry.")])
    assert str(project.as_query_engine().query(QUESTION)) == "It runs dry [Source 1]."
    for question in (QUESTION, "And why?"):
        assert str(chat.chat(question)) == "It runs dry [Source 1]."


# ---- what stands side by side ----------------------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path: Path) -> Project:
    """A document of three chunks, of which the first and the last speak of the question's word."""
    config = ProjectConfig.local(context="none", chunk_size=12, chunk_overlap=0, segment_overlap=0, bm25=True)
    project = ProjectManager(tmp_path).create("p", config, embed_model=CountingEmbedding())
    project.ingest([Document(id_="d", text="\n\n".join((f"Zebra {'one ' * 8}", "two " * 9, f"Zebra {'three ' * 8}")))])
    assert [len(node.get_content().split()) for node in project.chunks("d")] == [9, 9, 9]
    return project


def test_a_chunk_between_two_hits_can_be_read_too(parts: Project) -> None:
    options: dict[str, Any] = {"llm": ScriptedLLM(), "mode": "lexical", "min_confidence": 0.0}
    assert len(parts.as_query_engine(**options).query("Zebra").source_nodes) == 2
    (passage,) = parts.as_query_engine(**options, adjacent="bridge").query("Zebra").source_nodes
    assert passage.node.get_content().split() == ["Zebra", *8 * ["one"], *9 * ["two"], "Zebra", *8 * ["three"]]
    chat = parts.as_chat_engine(llm=ScriptedLLM(), search_mode="lexical", adjacent="bridge")
    assert len(chat.chat("Zebra").source_nodes) == 1


def test_a_passage_can_grow_by_what_is_on_the_topic(parts: Project) -> None:
    engine = parts.as_query_engine(llm=ScriptedLLM(), similarity_top_k=1, min_confidence=0.0, adjacent="expand")
    (passage,) = engine.query("one two").source_nodes
    assert passage.node.get_content().split()[:18] == ["Zebra", *8 * ["one"], *9 * ["two"]]
    with pytest.raises(ConfigurationError, match="'expand' compares embeddings"):
        parts.as_query_engine(llm=ScriptedLLM(), mode="lexical", adjacent="expand")


def test_chunks_of_a_version_that_is_gone_are_not_mixed_in(parts: Project) -> None:
    retriever = parts.as_retriever()
    version = parts.info().version
    assert retriever.docstore_of(version) is not None
    parts.ingest([Document(id_="e", text="Another one.")])
    assert retriever.docstore_of(version) is None
