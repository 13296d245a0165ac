"""Retrieval from the live version: modes, fallback, a new version during queries, and bad queries."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest
from llama_index.core import Settings
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser.text import sentence
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import Document, QueryBundle
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.errors import ConfigurationError, CorruptVersionError, InputError, NoVersionError
from llama_index_contextual.index.version import VersionIndex
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers import LexicalRetriever
from llama_index_contextual.retrievers import project as project_retriever
from llama_index_contextual.retrievers.base import specificity_of
from llama_index_contextual.retrievers.conversational import ConversationalRetriever, ConversationQuery
from llama_index_contextual.search import live, search
from llama_index_contextual.search.confidence import MODELS
from llama_index_contextual.search.rank import RankedList, Ranking
from llama_index_contextual.search.results import RetrievalResponse
from llama_index_contextual.search.search import Query
from tests.integration.retrievers import corpus
from tests.integration.retrievers.conftest import TEXTS
from tests.support.models import CountingEmbedding

QUERY = "error TS-999 of the pump"
MODES: tuple[Mode, ...] = ("semantic", "lexical", "hybrid")


def quince() -> list[Document]:
    return [Document(id_="quince", text="The quince harvest was poor.")]


def project_of(root: Path, **settings: Any) -> Project:
    return corpus.project_of(root, TEXTS, **settings)


def reader_of(root: Path, model: str = "counting") -> Project:
    """Return the project that `project_of` made as another process would load it."""
    return ProjectManager(root).load("p", embed_model=CountingEmbedding(model_name=model))


def ids(response: RetrievalResponse) -> list[str | None]:
    return [chunk.source.doc_id for chunk in response.results]


# ---- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_answers_and_says_which_index_found_what(built: Project, mode: Mode) -> None:
    response = built.retrieve(QUERY, mode=mode)
    assert (response.mode_requested, response.mode_used, response.warnings) == (mode, mode, ())
    assert (response.query, response.version) == (QUERY, "v000001")
    best = response[0]
    assert best.source.doc_id == "dry"
    assert (best.semantic is not None) == (mode != "lexical")
    assert (best.lexical is not None) == (mode != "semantic")
    assert [chunk.rank for chunk in response] == list(range(1, len(response) + 1))


def test_mode_and_number_of_results_default_to_the_settings(tmp_path: Path) -> None:
    project = project_of(tmp_path, mode="lexical", top_k=1)
    assert project.retrieve("pump").mode_used == "lexical"
    assert len(project.retrieve("pump")) == 1
    assert len(project.retrieve("pump", mode="hybrid", top_k=1000)) == 3


def test_an_unknown_mode_is_refused(built: Project) -> None:
    with pytest.raises(InputError, match="Mode 'vector' is unknown: use semantic, lexical or hybrid") as raised:
        built.retrieve(QUERY, mode="vector")  # type: ignore[arg-type]
    assert raised.value.value == "vector"


@pytest.mark.parametrize("query", ["", "  \n", "\u3000"])
async def test_an_empty_query_is_refused(built: Project, query: str) -> None:
    retriever = built.as_retriever()
    for ask in (built.retrieve, retriever.retrieve, lambda text: built.retrieve_many([QUERY, text])):
        with pytest.raises(InputError, match="The query is empty: ask a question"):
            ask(query)
    for ask in (built.aretrieve, lambda text: retriever.aretrieve(QueryBundle(text))):
        with pytest.raises(InputError, match="The query is empty: ask a question"):
            await ask(query)


@pytest.mark.parametrize("top_k", [0, -1])
def test_at_least_one_result_must_be_requested(built: Project, top_k: int) -> None:
    with pytest.raises(InputError, match=f"top_k is {top_k}: request at least one result") as raised:
        built.retrieve(QUERY, top_k=top_k)
    assert raised.value.value == top_k


@pytest.mark.parametrize("mode", MODES)
def test_filters_count_in_every_mode(built: Project, mode: Mode) -> None:
    only = MetadataFilters(filters=[MetadataFilter(key="kind", value="v")])
    assert ids(built.retrieve("pump revenue", mode=mode, filters=only)) == ["valve"]
    nothing = MetadataFilters(filters=[MetadataFilter(key="kind", value="z")])
    with pytest.raises(InputError, match="No document has kind 'z'; there are d, r, v"):
        built.retrieve("pump revenue", mode=mode, filters=nothing)


def test_settings_of_the_fusion_have_an_effect_at_the_next_query(tmp_path: Path) -> None:
    weights = {"semantic_weight": 0.0, "document_weight": 0.0}
    project = project_of(tmp_path, fusion="rrf", rrf_k=1.0, rerank=None, **weights)
    assert project.retrieve("TS-999", mode="hybrid")[0].score == 0.5
    project.update_config(rrf_k=3.0)
    assert project.retrieve("TS-999", mode="hybrid")[0].score == 0.25


# ---- an index that is absent -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "wanted", "used", "missing"),
    [
        ({"indexes": "lexical"}, "hybrid", "lexical", "semantic"),
        ({"indexes": "lexical"}, "semantic", "lexical", "semantic"),
        ({"indexes": "semantic"}, "hybrid", "semantic", "lexical"),
        ({"indexes": "semantic"}, "lexical", "semantic", "lexical"),
    ],
)
async def test_a_mode_without_its_index_falls_back_and_says_so(
    settings: dict[str, bool], wanted: Mode, used: Mode, missing: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    project = project_of(tmp_path, **settings)
    warning = f"Mode {wanted!r} was requested, but there is no {missing} index: answered with {used!r}."
    with caplog.at_level(logging.WARNING, logger="llama_index_contextual"):
        response = project.retrieve(QUERY, mode=wanted)
    assert (response.mode_requested, response.mode_used, response.warnings) == (wanted, used, (warning,))
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("llama_index_contextual")]
    assert ours == [warning]
    assert response[0].source.doc_id == "dry"
    assert (await project.aretrieve(QUERY, mode=wanted)).warnings == response.warnings
    assert project.retrieve(QUERY, mode=used).warnings == ()


def test_without_a_semantic_index_no_embedding_model_is_needed(tmp_path: Path) -> None:
    project = ProjectManager(tmp_path).create("keyless", ProjectConfig(indexes="lexical", context="none"))
    project.ingest(quince())
    assert project.retrieve("quince")[0].source.doc_id == "quince"
    with pytest.raises(
        ConfigurationError, match="no semantic index: create the project with indexes='hybrid'"
    ) as raised:
        _ = project.index
    assert raised.value.setting == "indexes"


def test_without_a_lexical_index_its_retriever_names_the_setting(tmp_path: Path) -> None:
    project = project_of(tmp_path, indexes="semantic")
    with pytest.raises(InputError, match="no lexical index: create the project with indexes='hybrid'"):
        LexicalRetriever(project.live_version.index)


# ---- another embedding model -----------------------------------------------------------------------------------------


async def test_another_embedding_model_than_the_one_indexed_is_refused(tmp_path: Path) -> None:
    project_of(tmp_path)
    other = reader_of(tmp_path, model="other")
    message = (
        "The index was built with the embedding model 'CountingEmbedding:counting', the project is loaded with"
        " 'CountingEmbedding:other': load it with the former, or create a new project for the latter."
    )
    for mode in ("semantic", "hybrid"):
        with pytest.raises(ConfigurationError, match=f"^{re.escape(message)}$") as raised:
            other.retrieve(QUERY, mode=mode)
        assert raised.value.setting == "embed_model"
    with pytest.raises(ConfigurationError):
        await other.aretrieve(QUERY)
    assert other.retrieve(QUERY, mode="lexical")[0].source.doc_id == "dry"


# ---- versions --------------------------------------------------------------------------------------------------------


def test_a_search_before_the_first_ingest_raises_a_clear_error(project: Project) -> None:
    with pytest.raises(NoVersionError, match=r"'reports' has no version yet: run `project\.ingest\(\[\.\.\.\]\)` fi"):
        project.as_retriever().retrieve(QUERY)


async def test_an_existing_retriever_searches_the_new_version(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    retriever = project.as_retriever(similarity_top_k=10)
    engine = RetrieverQueryEngine.from_args(project.as_retriever(mode="lexical"), llm=MockLLM())
    old = retriever.respond(QueryBundle("quince"))
    project.ingest(quince())
    new = retriever.respond(QueryBundle("quince"))
    assert (old.version, new.version) == ("v000001", "v000002")
    assert "quince" not in ids(old)
    assert ids(new)[0] == "quince"
    assert (await retriever.arespond(QueryBundle("quince"))).version == "v000002"
    assert "quince harvest" in str(engine.query("quince"))


def test_another_process_knows_the_live_version_by_the_content_of_current_not_by_its_file_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_of(tmp_path, keep_versions=4)
    reader = reader_of(tmp_path)
    current, said = tmp_path / "p" / "CURRENT", [reader.retrieve("harvest").version]
    for name in ("quince", "medlar"):
        project.ingest([Document(id_=name, text=f"The {name} harvest was poor.")])
        said.append(reader.retrieve("harvest").version)
    alike = current.stat()

    def stat(self: Path, **options: Any) -> os.stat_result:
        return alike if self == current else os.stat(self, **options)

    for _ in range(2):
        project.rollback()
        with monkeypatch.context() as patch:  # a coarse clock, and a file system that gives a number again
            patch.setattr(Path, "stat", stat)
            patch.setattr(os, "fstat", lambda _: alike)
            said.append(reader.retrieve("harvest").version)
    assert said == ["v000001", "v000002", "v000003", "v000002", "v000001"]


def test_current_is_read_again_only_if_it_is_new_or_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_of(tmp_path)
    reader, current, read = reader_of(tmp_path), tmp_path / "p" / "CURRENT", list[str]()
    real = os.open

    def count(path: Any, *args: Any, **options: Any) -> int:
        read.extend(["CURRENT"] if os.fspath(path) == str(current) else [])
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", count)
    for _ in range(3):  # another file could still have the same modification time
        reader.retrieve("harvest")
    assert len(read) == 3
    hour = current.stat().st_mtime - 3_600
    os.utime(current, (hour, hour))
    for _ in range(3):
        reader.retrieve("harvest")
    assert len(read) == 4
    project.ingest([Document(id_="quince", text="The quince harvest was poor.")])
    assert reader.retrieve("harvest").version == "v000002"


def test_a_running_query_is_answered_by_the_version_it_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, real = project_of(tmp_path), CountingEmbedding._get_query_embedding

    def slow(self: CountingEmbedding, query: str) -> list[float]:
        project.ingest(quince())
        return real(self, query)

    monkeypatch.setattr(CountingEmbedding, "_get_query_embedding", slow)
    response = project.retrieve("quince")
    assert response.version == "v000001"
    assert "quince" not in ids(response)


@pytest.mark.parametrize("run", ["sync", "async"])
async def test_a_query_whose_version_is_removed_meanwhile_is_repeated(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_of(tmp_path)
    real, versions = project_retriever.usable_mode, []

    def fail_once(index: VersionIndex, mode: Mode) -> tuple[Mode, list[str]]:
        versions.append(project.state.live.current().name)
        if len(versions) == 1:
            project.ingest(quince())
            raise FileNotFoundError("a file of the version before")
        return real(index, mode)

    monkeypatch.setattr(project_retriever, "usable_mode", fail_once)
    response = project.retrieve("quince") if run == "sync" else await project.aretrieve("quince")
    assert versions == ["v000001", "v000002"]
    assert (response.version, ids(response)[0]) == ("v000002", "quince")


@pytest.mark.parametrize("run", ["sync", "async"])
async def test_a_failure_of_the_live_version_is_not_hidden(
    run: str, built: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def fail(*_: object) -> NoReturn:
        calls.append("asked")
        raise OSError("disk failure")

    monkeypatch.setattr(project_retriever, "usable_mode", fail)
    with pytest.raises(OSError, match="disk failure"):
        _ = built.retrieve(QUERY) if run == "sync" else await built.aretrieve(QUERY)
    assert calls == ["asked"]


def test_a_version_that_is_removed_while_it_is_opened_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project_of(tmp_path)
    writer, reader = reader_of(tmp_path), reader_of(tmp_path)
    real, opened = live.SearchableVersion, []

    def open_version(directory: Path, load_embed_model: Any) -> Any:
        opened.append(directory.name)
        if len(opened) == 1:
            with monkeypatch.context() as patch:
                patch.setattr(live, "SearchableVersion", real)
                writer.ingest(quince())
            raise CorruptVersionError("gone")
        return real(directory, load_embed_model)

    monkeypatch.setattr(live, "SearchableVersion", open_version)
    assert reader.retrieve("quince").version == "v000002"
    assert opened == ["v000001", "v000002"]


def test_a_damaged_live_version_is_named(tmp_path: Path) -> None:
    project_of(tmp_path)
    (tmp_path / "p" / "versions" / "v000001" / "manifest.json").write_text("{}")
    with pytest.raises(CorruptVersionError, match="manifest"):
        reader_of(tmp_path).retrieve(QUERY)


# ---- as a LlamaIndex retriever ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_async_gives_what_sync_gives_and_nodes_carry_the_evidence(built: Project, mode: Mode) -> None:
    retriever, response = built.as_retriever(mode=mode), built.retrieve(QUERY, mode=mode)
    assert (await built.aretrieve(QUERY, mode=mode)).to_dict() == response.to_dict()
    nodes = retriever.retrieve(QUERY)
    assert await retriever.aretrieve(QUERY) == nodes
    assert [(hit.semantic, hit.lexical, hit.score) for hit in nodes] == [  # type: ignore[attr-defined]
        (chunk.semantic, chunk.lexical, chunk.score) for chunk in response
    ]


async def test_neither_opening_nor_ranking_blocks_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_of(tmp_path)
    loop, real = asyncio.get_running_loop(), type(project.state.live).current
    seen: list[str] = []

    def current(self: Any) -> Any:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(300)
        seen.append("opened")
        return real(self)

    monkeypatch.setattr(type(project.state.live), "current", current)
    responses = await asyncio.gather(*(project.aretrieve(QUERY) for _ in range(3)))
    assert [ids(response)[0] for response in responses] == ["dry"] * 3
    assert seen == ["opened"] * 3


async def test_concurrent_queries_of_one_project_do_not_disturb_each_other(built: Project) -> None:
    queries = [QUERY, "valve", "revenue"] * 5
    alone = [ids(built.retrieve(query)) for query in queries]
    together = await asyncio.gather(*(built.aretrieve(query) for query in queries))
    threads = await asyncio.gather(*(asyncio.to_thread(built.retrieve, query) for query in queries))
    assert [ids(response) for response in together] == alone
    assert [ids(response) for response in threads] == alone


# ---- several questions -----------------------------------------------------------------------------------------------


def test_threads_scan_vectors_at_the_same_time_and_rank_one_at_a_time(
    built: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, eight, ranking, seen = threading.Lock(), threading.Barrier(8), list[str](), list[int]()
    real, scan = search.rank, search.semantic_list

    def semantic_list(*args: Any, **options: Any) -> RankedList:
        eight.wait(timeout=300)
        return scan(*args, **options)

    def rank(query: Query, *args: Any, **options: Any) -> Ranking:
        with lock:
            ranking.append(query.text)
            seen.append(len(ranking))
        response = real(query, *args, **options)
        with lock:
            ranking.remove(query.text)
        return response

    monkeypatch.setattr(search, "semantic_list", semantic_list)
    monkeypatch.setattr(search, "rank", rank)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(built.retrieve, [QUERY] * 8))
    assert {len(answer) for answer in answers} == {3}
    assert seen == [1] * 8


def test_no_search_waits_for_the_embedding_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = project_of(tmp_path)  # that has kept no question's embedding
    asked, answered, real = threading.Event(), threading.Event(), CountingEmbedding._get_query_embedding

    def slow(self: CountingEmbedding, query: str) -> list[float]:
        if query == "slow":
            asked.set()
            assert answered.wait(timeout=300)
        return real(self, query)

    monkeypatch.setattr(CountingEmbedding, "_get_query_embedding", slow)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(project.retrieve, "slow")
        assert asked.wait(timeout=300)
        assert len(project.retrieve("the pump")) == 3
        answered.set()
        assert len(waiting.result(timeout=300)) == 3


def test_several_questions_are_answered_like_single_ones(built: Project) -> None:
    queries = [QUERY, "revenue", QueryBundle("valve")]
    for mode in MODES:
        alone = [built.retrieve(query, mode=mode, top_k=2) for query in queries]
        assert built.retrieve_many(queries, mode=mode, top_k=2) == alone
    assert [len(nodes) for nodes in built.as_retriever().retrieve_many(queries)] == [3, 3, 3]
    assert built.retrieve_many([]) == []


def test_opening_a_version_loads_no_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = project_of(tmp_path)
    monkeypatch.setattr(Settings, "_node_parser", None)
    monkeypatch.setattr(Settings, "_transformations", None)
    monkeypatch.setattr(sentence, "get_tokenizer", None)
    with pytest.raises(TypeError):  # what LlamaIndex would do
        _ = Settings.transformations
    assert len(project.retrieve(QUERY)) == 3


# ---- probabilities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_hits_have_probabilities_whatever_the_mode_and_the_number_of_results(built: Project, mode: Mode) -> None:
    one, response = (built.retrieve("error TS-999", mode=mode, top_k=k) for k in (1, 3))
    assert response.confidence_level in ((None,) if mode == "lexical" else ("low", "medium", "high"))
    shown = [hit.relevance or 0 for hit in response]
    assert all(0 < value < 1 for value in shown)
    assert shown[0] == max(shown)
    assert (one.confidence, one[0].relevance) == (response.confidence, shown[0])
    assert [node.relevance for node in response.to_nodes()] == shown  # type: ignore[attr-defined]
    assert response.to_dict()["results"][0]["relevance"] == shown[0]


def test_words_that_no_document_has_lower_confidence_and_relevance(built: Project) -> None:
    known, strange = built.retrieve("error TS-999"), built.retrieve("quokka habitat on Rottnest")
    assert (known[0].relevance or 0) > 2 * (strange[0].relevance or 1)
    assert (strange.confidence or 1) < (MODELS["hybrid"].low or 0) < (known.confidence or 0)
    assert strange.confidence_level == "low"


def test_the_setting_min_confidence_moves_the_limit_of_a_low_confidence(built: Project, tmp_path: Path) -> None:
    assert built.retrieve("error TS-999").doubt() == ""
    assert "Low confidence" in project_of(tmp_path, min_confidence=1.0).retrieve("error TS-999").doubt()


def test_an_embedding_of_zeros_is_answered_by_words_and_said(built: Project) -> None:
    query = QueryBundle("pump", embedding=[0.0] * 64)
    response = built.retrieve(query)
    assert set(ids(response)) == {"dry", "valve"}
    assert "is zero" in response.warnings[0]
    assert list(built.retrieve(query, mode="semantic")) == []


# ---- conversations ---------------------------------------------------------------------------------------------------


def asked_before(question: str, answer: str, before: str) -> ConversationQuery:
    return ConversationQuery(question, history=[ChatMessage(before), ChatMessage(answer, role="assistant")])


def test_a_follow_up_question_has_the_confidence_of_its_conversation(built: Project) -> None:
    retriever = ConversationalRetriever(built.as_retriever(), embed_model=built.embed_model)
    known = retriever.respond(asked_before("And why?", "The pump runs dry.", "What does error TS-999 mean?"))
    strange = retriever.respond(asked_before("And why?", "On Rottnest.", "Where do quokkas live?"))
    assert (known.confidence or 0) > (strange.confidence or 1)
    assert all(hit.relevance is not None for hit in known)


async def test_a_follow_up_question_is_answered_alike_by_async_and_blocking_calls(built: Project) -> None:
    retriever = ConversationalRetriever(built.as_retriever(), embed_model=built.embed_model)
    query = asked_before("What does it mean?", "It is an error.", "Error TS-999")
    found = await retriever.arespond(query)
    assert found.to_dict() == retriever.respond(query).to_dict()
    assert (found.mode_used, found.version, found.query) == ("hybrid", "v000001", "What does it mean?")
    assert [node.node_id for node in await retriever.aretrieve(query)] == [chunk.node_id for chunk in found]
    assert ids(found)[0] == "dry"


def test_a_lexical_search_for_a_follow_up_question_embeds_nothing(built: Project) -> None:
    model = CountingEmbedding()
    retriever = ConversationalRetriever(built.as_retriever(mode="lexical"), embed_model=model)
    assert ids(retriever.respond(asked_before("Why?", "", "TS-999"))) == ["dry"]
    assert model.queries == []


def test_every_retriever_of_a_project_knows_how_specific_a_question_is(built: Project) -> None:
    retrievers = [built.as_retriever(), built.as_retriever(mode="semantic"), built.as_retriever(intents=True)]
    alone, *others = [specificity_of(retriever, "Error TS-999") for retriever in retrievers]
    assert (alone or 0) > 0
    assert others == [alone, alone]


def test_what_is_assigned_to_a_retriever_holds_for_the_next_query(built: Project) -> None:
    retriever = built.as_retriever(similarity_top_k=3)
    assert len(retriever.retrieve("pump")) == 3
    retriever.similarity_top_k = 1
    assert len(retriever.retrieve("pump")) == 1
    retriever.mode = "lexical"
    assert retriever.respond(QueryBundle("pump")).mode_used == "lexical"
