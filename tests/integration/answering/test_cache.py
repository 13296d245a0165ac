"""The answer cache: hits, misses, and answers that are not cached."""

from __future__ import annotations

import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai import OpenAI

from llama_index_contextual.answering.judge import FALLBACK, NOT_JUDGED, Judge
from llama_index_contextual.answering.query_engine import AnswerCache, GroundedQueryEngine, WrittenAnswer, question_form
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.results import RetrievalResponse
from tests.integration.answering.conftest import QUESTION
from tests.integration.answering.test_judge import BAD, GOOD
from tests.integration.retrievers.corpus import FixedRetriever, hits
from tests.support.documents import write_texts
from tests.support.models import ScriptedLLM
from tests.support.server import LoopbackProvider

DRY = "The pump runs dry as the manual says [Source 1]."


def test_the_same_question_is_asked_once_and_streams_in_one_piece(
    reports: Project, openai: OpenAI, provider: LoopbackProvider, cache: AnswerCache
) -> None:
    provider.enqueue(DRY)
    engine: Any = reports.as_query_engine(llm=openai, cache=cache)
    first, second = engine.query(QUESTION), engine.query(QUESTION)
    assert (str(second), first.from_cache, second.from_cache) == (str(first), False, True)
    assert second.metadata["answer"]["from_cache"]
    stream: Any = reports.as_query_engine(llm=openai, cache=cache, streaming=True).query(QUESTION)
    assert list(stream.response_gen) == [DRY]
    assert len(provider.calls()) == 1


@pytest.mark.parametrize(
    ("options", "asked", "calls"),
    [
        ({"style": "persona"}, QUESTION, 2),
        ({"answer_tokens": 25}, QUESTION, 2),
        ({"mode": "hybrid"}, QUESTION, 2),
        ({"context": False}, QUESTION, 2),
        ({}, "What does error TS-104 mean?", 2),
        ({}, "What does ERROR TS-999 mean, and why?", 2),
        ({}, "  What does error  TS-999 mean?\n", 1),
        ({}, "what does error ts-999 mean", 1),
        ({}, "WHAT DOES ERROR TS-999 MEAN ?", 1),
        ({}, "What\u00a0does error TS-999 mean\u200b？", 1),
    ],
    ids=str,
)
def test_what_changes_the_answer_misses_the_cache(
    reports: Project, cache: AnswerCache, options: dict[str, Any], asked: str, calls: int
) -> None:
    llm = ScriptedLLM(default=DRY)
    reports.as_query_engine(llm=llm, cache=cache, mode="lexical").query(QUESTION)
    reports.as_query_engine(llm=llm, cache=cache, **{"mode": "lexical", **options}).query(asked)
    assert len(llm.history) == calls


SPELLINGS = ("What is the café's fee?", "what is the CAFE\u0301's fee", " What is\tthe café’s fee ？".replace("’", "'"))


@pytest.mark.parametrize(
    ("question", "form"),
    [
        *((spelling, "what is the café's fee") for spelling in SPELLINGS),
        ("¿Cuánto cuesta?", "cuánto cuesta"),
        ("كم التكلفة؟", "كم التكلفة"),
        ("Straße", "strasse"),
        ("What does the WHO say?", "what does the WHO say"),
        ("Who says what?", "who says what"),
        ("Taxes of the US (IT)", "taxes of the US (IT)"),
        ("TAXES OF THE US", "taxes of the us"),
        ("US", "US"),
        ("US 2024", "US 2024"),
        ("Is it WHO-approved, or the US's?", "is it WHO-approved, or the US's"),
        ("Is IT ready??", "is IT ready"),
        ("Is NASA's TS-999 on?", "is nasa's ts-999 on"),
        ("Is it a or b? Why?", "is it a or b? why"),
        ("?", ""),
    ],
)
def test_the_form_of_a_question_leaves_out_what_does_not_change_its_meaning(question: str, form: str) -> None:
    assert question_form(question) == form
    assert question_form(form) == form


class Spelled(BaseRetriever):
    """A retriever that ranks two nodes by the letter case of the question."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        texts = ["The fee is 5 euros.", "The café is closed on Mondays."]
        ordered = texts if query_bundle.query_str[0].isupper() else texts[::-1]
        return [NodeWithScore(node=TextNode(id_=text, text=text), score=2.0 - at) for at, text in enumerate(ordered)]


@pytest.mark.parametrize("streaming", [False, True])
def test_spellings_for_which_other_passages_are_found_share_an_answer(cache: AnswerCache, streaming: bool) -> None:
    llm = ScriptedLLM(default="The fee is 5 euros [Source 1].")
    engine = GroundedQueryEngine(Spelled(), llm, cache=cache, streaming=streaming)

    def answer(question: str) -> Any:
        response: Any = engine.query(question)
        if streaming:
            "".join(response.response_gen)
            response = response.get_response()
        return response

    first = answer(SPELLINGS[0])
    assert not first.from_cache
    assert first.cited_sources
    for spelling in SPELLINGS[1:]:
        again = answer(spelling)
        assert again.from_cache
        assert str(again) == str(first)
        assert again.retrieval.query == spelling
        assert again.cited_sources == first.cited_sources
        assert [hit.node_id for hit in again.source_nodes] == [hit.node_id for hit in first.source_nodes]
    assert len(llm.history) == 1
    assert not answer("what is the fee of the café").from_cache
    assert len(cache) == 2


def test_the_prompt_has_the_question_as_it_was_typed(reports: Project) -> None:
    llm, question = ScriptedLLM(default=DRY), "What does\n    TS-999\nmean in the cafe\u0301?"
    reports.as_query_engine(llm=llm).query(question)
    assert question in llm.history[0]


def test_an_answer_is_not_shared_with_another_version_or_scope(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "answers.sqlite", scope="a")
    cache.put("k", ANSWER, version=None, form="f", question="Why?")
    cache.put("l", ANSWER, version=None, form="f", question="why")
    cache.put("m", ANSWER, version=None, form="g", question="How?")
    assert cache.questions("f") == ["why", "Why?"]
    assert AnswerCache(tmp_path / "answers.sqlite", scope="b").questions("f") == []


def test_the_conversation_is_part_of_the_key(reports: Project, cache: AnswerCache) -> None:
    llm = ScriptedLLM(default=DRY)
    chat = reports.as_chat_engine(llm=llm, cache=cache)
    for _ in range(2):
        chat.reset()
        chat.chat(QUESTION)
    assert len(llm.history) == 1
    chat.chat(QUESTION)
    assert len(llm.history) == 2


def test_model_and_version_are_part_of_the_key_and_only_the_live_version_is_kept(tmp_path: Path) -> None:
    engines = [GroundedQueryEngine(FixedRetriever([]), ScriptedLLM(model_name=model)) for model in "ab"]
    found = [replace(RetrievalResponse.of_nodes("Why?", []), version=version) for version in ("v1", "v2", None)]
    messages = [ChatMessage(role="user", content="Why?")]
    assert len({engine._key(messages, response.version, "Why?") for engine in engines for response in found}) == 6
    cache = AnswerCache(tmp_path / "answers.sqlite", current=lambda: "v000002")
    cache.put("a", ANSWER, version="v000001")
    cache.put("b", ANSWER, version="v000002")
    assert (cache.get("a"), cache.get("b")) == (None, ANSWER)


def test_the_oldest_answer_is_dropped_first_and_a_huge_one_is_not_kept(tmp_path: Path) -> None:
    cache, answer = AnswerCache(tmp_path / "answers.sqlite", max_entries=2), WrittenAnswer("Yes.", "Yes, ä\ud800.")
    for key in "abc":
        cache.put(key, answer, version=None)
    cache.put("d", WrittenAnswer("y" * 70_000, ""), version=None)
    assert [cache.get(key) for key in "abcd"] == [None, answer, answer, None]
    cache.clear()
    assert len(cache) == 0


# ---- on disk ---------------------------------------------------------------------------------------------------------

ANSWER = WrittenAnswer("Yes [Source 1].", "Yes [Source 1].")


def test_threads_with_caches_of_their_own_lose_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    with ThreadPoolExecutor(4) as pool:
        for at in range(20):
            pool.submit(AnswerCache(path).put, str(at), ANSWER, version=None)
    assert [AnswerCache(path).get(str(at)) for at in range(20)] == [ANSWER] * 20


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flip", "table"])
def test_a_damaged_file_is_discarded_with_a_line_in_the_log(
    cache: AnswerCache, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    path = tmp_path / "answers.sqlite"
    cache.put("a", ANSWER, version=None)
    content = path.read_bytes()
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("Not a database, but a text that is long enough to have a header of its own." * 20)
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "flip":
            path.write_bytes(content.replace(b"Yes [Source 1].", b"No, [Source 1]."))
        case _:
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("ALTER TABLE answers RENAME COLUMN answer TO other")
    assert cache.get("a") is None
    assert ("was discarded" in caplog.text) is (damage != "empty")
    cache.put("a", ANSWER, version=None)
    assert cache.get("a") == ANSWER


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for path in (tmp_path / "absent" / "answers.sqlite", tmp_path):
        cache = AnswerCache(path)
        cache.put("a", ANSWER, version=None)
        assert cache.get("a") is None
    assert "answers are neither read from it nor kept" in caplog.text


def test_a_cached_answer_is_checked_like_the_first_one(reports: Project, cache: AnswerCache) -> None:
    text = "“the pump runs dry” [Source 1], not 77 [Source 1] [Source 99]. Ask ann@example.org."
    judge = Judge(ScriptedLLM(model_name="judge", default=GOOD))
    engine = reports.as_query_engine(llm=ScriptedLLM(default=text), cache=cache, guards=True, judge=judge)
    first, second = (engine.query(QUESTION).to_dict() for _ in range(2))  # type: ignore[union-attr]
    assert second.pop("from_cache")
    assert not first.pop("from_cache")
    assert first.pop("usage")["calls"] == 2
    assert second.pop("usage") is None
    assert first == second


def test_where_personal_data_is_masked_the_file_does_not_contain_it(reports: Project, tmp_path: Path) -> None:
    text = "Reasons of ann@example.org.\nAnswer: Ask ann@example.org [Source 1]."
    for style in ("instruction", "chain_of_thought"):
        cache = AnswerCache(tmp_path / f"{style}.sqlite")
        engine = reports.as_query_engine(llm=ScriptedLLM(default=text), cache=cache, guards=True, style=style)
        engine.query(QUESTION)
        assert len(cache) == 1
    assert not [path for path in tmp_path.iterdir() if b"ann@" in path.read_bytes()]


@pytest.mark.parametrize("how", ["remove", "forget"])
def test_a_project_clears_its_answers_when_documents_are_removed_or_forgotten(tmp_path: Path, how: str) -> None:
    project = ProjectManager(tmp_path / "knowledge").create("a", ProjectConfig.local(indexes="lexical"))
    project.ingest([write_texts(tmp_path / "texts")])
    llm = ScriptedLLM(default="The pump runs dry.")
    project.as_query_engine(llm=llm, cache=True).query(QUESTION)
    assert len(AnswerCache.from_project(project.directory)) == 1
    assert project.as_query_engine(llm=llm, cache=True).query(QUESTION).from_cache  # type: ignore[union-attr]
    if how == "remove":
        project.remove(project.documents()[0].doc_id)
    else:
        project.forget()
    assert len(AnswerCache.from_project(project.directory)) == 0
    assert b"runs dry" not in (project.directory / "answers.sqlite").read_bytes()
    assert project.verify().sound


def test_a_model_without_a_name_is_asked_every_time(cache: AnswerCache) -> None:
    llm = ScriptedLLM(default="Yes.", model_name="")
    engine = GroundedQueryEngine(FixedRetriever(hits(a=1.0)), llm, cache=cache)
    assert [str(engine.query("Why?")) for _ in range(2)] == ["Yes."] * 2
    assert (len(llm.history), len(cache)) == (2, 0)


@pytest.mark.parametrize(
    ("verdict", "shown", "judged"),
    [(BAD, FALLBACK, 2), (GOOD, DRY, 1), (ValueError("down"), NOT_JUDGED, 2)],
    ids=["blocked", "passed", "failed"],
)
def test_an_engine_with_a_judge_does_not_use_answers_without_a_verdict(
    reports: Project, verdict: Any, shown: str, judged: int, cache: AnswerCache
) -> None:
    judge, llm = ScriptedLLM(model_name="judge"), ScriptedLLM(default=DRY)
    reports.as_query_engine(llm=llm, cache=cache).query(QUESTION)
    judge.enqueue(verdict, verdict)
    engine = reports.as_query_engine(llm=llm, cache=cache, judge=Judge(judge))
    assert [str(engine.query(QUESTION)) for _ in range(2)] == [shown] * 2
    assert len(judge.history) == judged, "what did not pass is judged again"
