"""Invalid queries, numbers of results, modes and filters raise an error with a message everywhere."""

from __future__ import annotations

import asyncio
import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.schema import Document, QueryBundle

from llama_index_contextual.agno import ContextualKnowledge
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ConfigurationError, InputError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers import HybridRetriever, LexicalRetriever, SemanticRetriever
from llama_index_contextual.retrievers.conversational import ConversationalRetriever, ConversationQuery
from tests.support.models import CountingEmbedding, ScriptedLLM

WRONG_QUERIES: list[Any] = [None, 5, b"pump", ["pump"], {"query": "pump"}]
EMPTY_QUERIES = ["", " \n\t", "\u3000"]
NOT_WHOLE: list[Any] = [1.5, "3", math.nan, math.inf, True, [3], np.float64(2.0)]
TOO_SMALL: list[Any] = [0, -1, np.int64(0)]
WRONG_FILTERS: list[Any] = [5, [("kind", "a")], True, "kind"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that no test changes."""
    manager = ProjectManager(tmp_path_factory.mktemp("root"))
    created = manager.create(
        "p", ProjectConfig.local(context="none"), embed_model=CountingEmbedding(), llm=ScriptedLLM(default="Dry.")
    )
    created.ingest([Document(id_="a", text="The pump runs dry."), Document(id_="b", text="Close the valve.")])
    return created


def doors(project: Project) -> dict[str, Callable[[Any], Any]]:
    """Return every way to ask with a query, by name."""
    retriever, knowledge = project.as_retriever(), ContextualKnowledge(project)
    conversational = ConversationalRetriever(retriever)
    intents = project.as_retriever(intents=True)
    return {
        "retrieve": project.retrieve,
        "aretrieve": lambda query: asyncio.run(project.aretrieve(query)),
        "retrieve_many": lambda query: project.retrieve_many([query]),
        "retriever": retriever.retrieve,
        "aretriever": lambda query: asyncio.run(retriever.aretrieve(query)),
        "conversational": conversational.respond,
        "aconversational": lambda query: asyncio.run(conversational.aretrieve(query)),
        "intents": intents.retrieve,
        "agno": knowledge.search,
        "aagno": lambda query: asyncio.run(knowledge.asearch(query)),
        "agno of a retriever": ContextualKnowledge(project.as_retriever()).search,
        "engine": project.as_query_engine().query,
        "aengine": lambda query: asyncio.run(project.as_query_engine().aquery(query)),
        "chat": lambda query: project.as_chat_engine().chat(query),
        "stream": lambda query: project.as_chat_engine().stream_chat(query),
    }


DOORS = (
    *("retrieve", "aretrieve", "retrieve_many", "retriever", "aretriever", "conversational", "aconversational"),
    *("intents", "agno", "aagno", "agno of a retriever", "engine", "aengine", "chat", "stream"),
)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("query", WRONG_QUERIES, ids=repr)
def test_invalid_queries_are_refused_by_every_entry_point(project: Project, door: str, query: Any) -> None:
    with pytest.raises(InputError, match=r"(query|message) is (None|of type \w+): pass a string") as raised:
        doors(project)[door](query)
    assert raised.value.value == query


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("query", EMPTY_QUERIES, ids=repr)
def test_an_empty_query_is_refused_by_every_entry_point(project: Project, door: str, query: str) -> None:
    with pytest.raises(InputError, match=r"The (query|message) is empty: ask a question"):
        doors(project)[door](query)


def test_a_bundle_without_a_text_is_refused(project: Project) -> None:
    with pytest.raises(InputError, match="The query's `query_str` is None: pass a string"):
        project.retrieve(QueryBundle(None))  # type: ignore[arg-type]


@pytest.mark.parametrize("queries", ["pump", b"pump", None, 5, QueryBundle("pump")], ids=repr)
def test_a_list_of_queries_is_refused_with_advice(project: Project, queries: Any) -> None:
    for ask in (project.retrieve_many, project.as_retriever().retrieve_many):
        with pytest.raises(InputError, match=r"The queries are (None|of type \w+): pass a list"):
            ask(queries)


def numbers(project: Project, k: Any) -> list[Callable[[], Any]]:
    """Return every way to ask for a number of results."""
    knowledge = ContextualKnowledge(project)
    return [
        lambda: project.retrieve("pump", top_k=k),
        lambda: asyncio.run(project.aretrieve("pump", top_k=k)),
        lambda: project.retrieve_many(["pump"], top_k=k),
        lambda: project.as_retriever(similarity_top_k=k),
        lambda: project.as_retriever().changed(similarity_top_k=k),
        lambda: project.as_query_engine(similarity_top_k=k),
        lambda: project.as_chat_engine(similarity_top_k=k),
        lambda: ContextualKnowledge(project, max_results=k),
        lambda: knowledge.search("pump", max_results=k),
        lambda: asyncio.run(knowledge.asearch("pump", max_results=k)),
        lambda: LexicalRetriever(project.state.live.current().index, top_k=k).retrieve("pump"),
        lambda: SemanticRetriever(project.index, top_k=k).retrieve("pump"),
    ]


@pytest.mark.parametrize("k", NOT_WHOLE, ids=repr)
def test_a_number_of_results_that_is_not_whole_is_refused(project: Project, k: Any) -> None:
    for ask in numbers(project, k):
        with pytest.raises(InputError, match=r"(top_k|max_results) is .*: it must be a whole number of at least 1"):
            ask()


@pytest.mark.parametrize("k", TOO_SMALL, ids=repr)
def test_a_number_of_results_below_one_is_refused(project: Project, k: Any) -> None:
    for ask in numbers(project, k):
        with pytest.raises(InputError, match=rf"(top_k|max_results) is {k}: request at least one"):
            ask()


@pytest.mark.parametrize("k", [np.int64(2), np.uint8(2), 10**30], ids=repr)
def test_numpy_integers_and_huge_integers_are_accepted_as_top_k(project: Project, k: Any) -> None:
    for mode in ("lexical", "semantic", "hybrid"):
        assert len(project.retrieve("pump valve", top_k=k, mode=mode, explain=True)) == 2
    assert len(ContextualKnowledge(project).search("pump valve", max_results=k)) == 2


@pytest.mark.parametrize("mode", [5, "", "vector", ["hybrid"], True, b"hybrid", 0], ids=repr)
def test_a_mode_of_another_type_is_refused(project: Project, mode: Any) -> None:
    for ask in (
        lambda: project.retrieve("pump", mode=mode),
        lambda: asyncio.run(project.aretrieve("pump", mode=mode)),
        lambda: project.retrieve_many(["pump"], mode=mode),
        lambda: project.as_retriever(mode=mode),
        lambda: project.as_query_engine(mode=mode),
        lambda: project.as_chat_engine(search_mode=mode),
    ):
        with pytest.raises(InputError, match=r"Mode .* is unknown: use semantic, lexical or hybrid"):
            ask()


@pytest.mark.parametrize("filters", WRONG_FILTERS, ids=repr)
def test_filters_of_another_type_are_refused(project: Project, filters: Any) -> None:
    legs = project.state.live.current()
    for ask in (
        lambda: project.retrieve("pump", filters=filters),
        lambda: asyncio.run(project.aretrieve("pump", filters=filters)),
        lambda: project.retrieve_many(["pump"], filters=filters),
        lambda: project.as_retriever(filters=filters),
        lambda: project.as_retriever().changed(filters=filters),
        lambda: project.as_query_engine(filters=filters),
        lambda: project.as_chat_engine(filters=filters),
        lambda: LexicalRetriever(legs.index, filters=filters).retrieve("pump"),
        lambda: SemanticRetriever(project.index, filters=filters).retrieve("pump"),
    ):
        with pytest.raises(InputError, match=r"The filters are of type \w+: pass a dict or text|is not FIELD=VALUE"):
            ask()


@pytest.mark.parametrize("history", [["Why?"], None, "Why?", [{"role": "user"}]], ids=repr)
def test_a_history_without_messages_is_refused(history: Any) -> None:
    with pytest.raises(InputError, match=r"The history of a query must be a list of ChatMessages\."):
        ConversationQuery("pump", history=history)


def test_a_rewritten_question_is_a_text() -> None:
    with pytest.raises(InputError, match=r"The rewritten question must be a text or None\."):
        ConversationQuery("pump", history=[ChatMessage("Why?")], rewrite=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("weights", [["a", "b"], [1.0, None], "ab", 5, [math.nan, 1.0], [0, 0], [1.0]], ids=repr)
def test_weights_of_another_type_are_refused(project: Project, weights: Any) -> None:
    legs = project.state.live.current()
    with pytest.raises(ConfigurationError, match=r"HybridRetriever: .*weight"):
        HybridRetriever([SemanticRetriever(project.index), LexicalRetriever(legs.index)], retriever_weights=weights)


@pytest.mark.parametrize("weight", ["a", None, math.nan, -1.0, math.inf], ids=repr)
def test_a_weight_of_another_type_is_refused(project: Project, weight: Any) -> None:
    legs = project.state.live.current()
    with pytest.raises(ConfigurationError, match=r"document_weight .* must be a finite number and not negative"):
        HybridRetriever([SemanticRetriever(project.index), LexicalRetriever(legs.index)], document_weight=weight)


# ---- another process -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy, copy.copy])
def test_a_project_is_not_pickled_and_the_error_says_how_to_open_it_again(
    project: Project, copied: Callable[[Any], Any]
) -> None:
    root = project.directory.parent
    things = [project, project.state.live, {"here": project}]
    for thing in things if copied is not copy.copy else [project]:
        with pytest.raises(InputError) as raised:
            copied(thing)
        assert f"open the project again where you need it, with ProjectManager({str(root)!r}).load('p')" in str(
            raised.value
        )


def test_a_surrogate_in_a_question_is_replaced_before_it_is_sent(tmp_path: Path) -> None:
    model, llm = CountingEmbedding(), ScriptedLLM(default="Dry [Source 1].")
    created = ProjectManager(tmp_path).create("p", ProjectConfig.local(context="none"), embed_model=model, llm=llm)
    created.ingest([Document(text="The pump runs dry.")])
    chat = created.as_chat_engine()
    for ask in (created.as_query_engine().query, chat.chat, chat.chat):
        ask("Why does the pump run dry? \ud83d")
        assert "run dry? \ufffd" in llm.history[-1]
        llm.history[-1].encode()
    assert {query[-1] for query in model.queries} == {"\ufffd"}
    assert created.retrieve("pump \ud83d").warnings == ()
