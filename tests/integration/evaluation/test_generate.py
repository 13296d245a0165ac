"""Generated questions: one call per chunk, several calls at a time, errors as one sentence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_index.core.schema import TextNode
from llama_index.llms.openai import OpenAI

from llama_index_contextual import Project, ProjectConfig, ProjectManager
from llama_index_contextual.errors import ModelError
from llama_index_contextual.evaluation.questions import Question, generate_questions
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider

CHUNKS = 20


def written(project: Project, number: int) -> list[Question]:
    return generate_questions(project.live_version, project.state.answering_llm(), number=number)


@pytest.fixture
def provider() -> Iterator[LoopbackProvider]:
    with LoopbackProvider(reply=lambda request: Reply("1. What is it?\n2. Who says so?")) as running:
        yield running


@pytest.fixture
def project(tmp_path: Path, provider: LoopbackProvider) -> Project:
    llm = OpenAI(model="gpt-4.1", api_base=provider.api_base, api_key="sk-test", max_retries=0)
    created = ProjectManager(tmp_path).create("a", ProjectConfig(indexes="lexical", context="none"), llm=llm)
    created.ingest([TextNode(id_=f"n{at}", text=f"Passage {at} of the handbook.") for at in range(CHUNKS)])
    return created


@pytest.mark.usefixtures("lasting_connections")
def test_one_call_for_two_questions_and_several_calls_at_a_time(project: Project, provider: LoopbackProvider) -> None:
    with provider.hold():
        calls: list[int] = []
        thread = threading.Thread(target=lambda: calls.append(len(written(project, 30))))
        thread.start()
        provider.wait_in_flight(8)
        assert provider.in_flight_max == 8
    thread.join()
    assert calls == [30]
    assert len(provider.calls()) == 15
    assert len({record.connection_id for record in provider.calls()}) <= 8


def test_the_questions_of_a_version_are_about_the_same_chunks_each_time(project: Project) -> None:
    assert written(project, 6) == written(project, 6)


def test_a_refusal_by_the_provider_is_a_model_error(project: Project, provider: LoopbackProvider) -> None:
    provider.fault("invalid_key", times=None)
    with pytest.raises(ModelError, match="refused the API key") as raised:
        written(project, 10)
    assert "sk-test" not in str(raised.value)


def test_questions_contain_nothing_that_cannot_be_stored(project: Project, provider: LoopbackProvider) -> None:
    provider.reply = lambda request: Reply("1. What\x00 is\x1b it?\n2. \x00\x00")
    assert {question.text for question in written(project, 4)} == {"What is it?"}
