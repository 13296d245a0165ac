"""Questions in another language than the documents, which the answering LLM translates for the search."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import Document, QueryBundle

from llama_index_contextual.answering.query_engine import GroundedQueryEngine
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import run
from tests.support.models import ScriptedLLM
from tests.support.records import ApiError, Request
from tests.support.server import LoopbackProvider

TEXTS = {
    "lease": "The tenant may end the lease with a notice of four weeks to the end of a month.",
    "bikes": "The bicycles are to be kept in the shed behind the house, and not in the hall of the building.",
    "water": "The monthly charge for water is due on the first of each month, and is paid to the office.",
}
QUESTION = "Wie lang ist die Frist, mit der ich den Mietvertrag kündigen kann?"
TRANSLATION = "How long is the notice for the end of the lease?"
ANSWER = "Vier Wochen [Source 1]."
NOTE = "The question is in German, and most documents are in English: its translation was used."


def reply(request: Request) -> str:
    """Return the translation of the question, or the answer."""
    prompt = request.body["messages"][-1]["content"]
    if not prompt.startswith("Translate the last question into English"):
        return ANSWER
    return "And where are the bicycles kept?" if "Fahrräder" in prompt.partition("Last question:")[2] else TRANSLATION


@pytest.fixture
def project(manager: ProjectManager, provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with English documents, whose questions a model on the loopback interface answers."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.setenv(name, provider.api_base)
    provider.reply = reply
    project = manager.create("papers", ProjectConfig.local(answer_llm="openai:gpt-4o-mini", rerank=None))
    project.ingest([Document(id_=name, text=text) for name, text in TEXTS.items()])
    return project


def translations(provider: LoopbackProvider) -> list[str]:
    prompts = [call.body["messages"][-1]["content"] for call in provider.chat_calls]
    return [prompt for prompt in prompts if prompt.startswith("Translate")]


def ask(engine: Any, question: str = QUESTION) -> GroundedResponse:
    return cast(GroundedResponse, engine.query(question))


def test_a_question_is_translated_for_the_search_and_answered_in_its_language(
    project: Project, provider: LoopbackProvider
) -> None:
    response = ask(project.as_query_engine())
    assert (str(response), response.sources[0].doc_id) == (ANSWER, "lease")
    retrieval: Any = response.retrieval
    assert (retrieval.query, retrieval.searched, retrieval.warnings) == (QUESTION, TRANSLATION, (NOTE,))
    assert len(translations(provider)) == 1
    assert provider.chat_calls[-1].body["messages"][-1]["content"].endswith(f"Question: {QUESTION}")


def test_the_call_is_part_of_the_usage_and_of_the_costs(project: Project, provider: LoopbackProvider) -> None:
    response = ask(project.as_query_engine())
    usage: Any = response.usage
    reported: list[Any] = [call.usage for call in provider.chat_calls]
    assert usage.calls == len(provider.chat_calls) == 2
    assert usage.input_tokens == sum(one["prompt_tokens"] for one in reported)
    assert project.cost().answers == pytest.approx(usage.dollars)


def test_a_translation_is_paid_for_once(project: Project, provider: LoopbackProvider) -> None:
    engine = project.as_query_engine()
    for spelling in (QUESTION, f" {QUESTION.lower()} ", QUESTION):
        assert ask(engine, spelling).sources[0].doc_id == "lease"
    assert len(translations(provider)) == 1
    assert ask(project.as_query_engine(cache=True)).usage is not None
    stored = ask(project.as_query_engine(cache=True))
    assert (stored.from_cache, stored.usage) == (True, None), "another engine reads both from the file"
    assert len(translations(provider)) == 2


def test_a_question_in_the_language_of_the_documents_is_not_translated(
    project: Project, provider: LoopbackProvider
) -> None:
    assert ask(project.as_query_engine(), TRANSLATION).retrieval.warnings == ()  # type: ignore[union-attr]
    assert translations(provider) == []


@pytest.mark.parametrize("way", ["option", "setting"])
def test_it_can_be_turned_off(project: Project, provider: LoopbackProvider, way: str) -> None:
    if way == "setting":
        assert project.update_config(translate=False) == []
    response = ask(project.as_query_engine(translate=False) if way == "option" else project.as_query_engine())
    assert (
        cast(Any, response.retrieval)
        .warnings[0]
        .startswith("The question is in German, and most documents are in English: ask in English")
    )
    assert translations(provider) == []


@pytest.mark.parametrize("failure", ["", ApiError(404, "The model does not exist.")])
def test_if_the_translation_fails_the_question_is_searched_and_the_warning_remains(
    project: Project, provider: LoopbackProvider, failure: str | ApiError
) -> None:
    provider.enqueue(failure, ANSWER)
    response = ask(project.as_query_engine())
    assert cast(Any, response.retrieval).warnings[0].startswith("The question is in German")
    assert cast(Any, response.retrieval).searched == QUESTION


def test_a_follow_up_question_is_translated_with_what_it_refers_to(
    project: Project, provider: LoopbackProvider
) -> None:
    chat = project.as_chat_engine(memory=None)
    chat.chat(QUESTION)
    response: Any = chat.chat("Und wo sind die Fahrräder?").grounded
    assert response.retrieval.searched == "And where are the bicycles kept?"
    assert response.sources[0].doc_id == "bikes"
    second = translations(provider)[1]
    assert f"user: {QUESTION}\nassistant: Vier Wochen." in second
    assert response.usage.calls == 2


@pytest.mark.usefixtures("project")
def test_lines_in_the_language_of_the_question_need_no_translation(
    manager: ProjectManager, provider: LoopbackProvider
) -> None:
    provider.reply = lambda _request: "From the papers of a house, about its rules and duties.\nde: Mietvertrag, Frist"
    config = ProjectConfig.local(context="llm", llm="openai:gpt-4o-mini", context_languages=["de"])
    project = manager.create("lines", config)
    project.ingest([Document(id_=name, text=text) for name, text in TEXTS.items()])
    assert ask(project.as_query_engine()).retrieval.warnings == ()  # type: ignore[union-attr]
    assert translations(provider) == []


def test_a_query_with_its_own_embedding_is_not_translated(project: Project) -> None:
    llm = ScriptedLLM(default=ANSWER)
    engine = project.as_query_engine(llm=llm)
    engine.query(QueryBundle(QUESTION, custom_embedding_strs=["notice of the lease"]))
    assert not any("Translate" in prompt for prompt in llm.history)


def test_the_command_says_what_was_searched_for(project: Project) -> None:
    root = project.directory.parent
    result = run("ask", "papers", QUESTION, "--root", root)
    assert NOTE in result.err
    assert f"Searched for: {TRANSLATION}" in result.err
    assert "2 calls" in re.sub(r"\s+", " ", result.err)
    off = run("ask", "papers", QUESTION, "--root", root, "--set", "translate=false")
    assert "Searched for" not in off.err


def test_a_translation_with_personal_data_is_not_stored(project: Project, provider: LoopbackProvider) -> None:
    provider.reply = lambda request: (
        "How long is the notice of ann@example.org?"
        if request.body["messages"][-1]["content"].startswith("Translate")
        else ANSWER
    )
    question = "Wie lang ist die Frist von ann@example.org, und wo steht das?"
    for _ in range(2):
        ask(project.as_query_engine(cache=True, guards=True), question)
    assert len(translations(provider)) == 2


def test_the_prompt_can_be_changed(project: Project) -> None:
    llm = ScriptedLLM()
    llm.enqueue(TRANSLATION, ANSWER)
    engine = cast(GroundedQueryEngine, project.as_query_engine(llm=llm))
    engine.update_prompts({"translate_prompt": PromptTemplate("In {language}, {history}: {question}")})
    draft = engine.draft(QueryBundle(QUESTION), history=[ChatMessage("Guten Tag.")])
    assert draft.retrieval.searched == TRANSLATION
    assert llm.history[0] == f"In English, user: Guten Tag.: {QUESTION}"
