"""A stream of Ollama that ends before the answer does is partial in every door, and is not cached."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.answering.query_engine import AnswerCache
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.answering.conftest import QUESTION
from tests.support.records import Answer, Request
from tests.support.server import LoopbackProvider

ANSWER = "It means that the pump runs dry and that valve V2 is to be closed [Source 1]."
BROKE_OFF = "The answer broke off. "


def without_end(events: list[str]) -> list[str]:
    return events[:-1]


def without_done(events: list[str]) -> list[str]:
    lines = [json.loads(event) for event in events[:-1]]
    return [json.dumps({name: value for name, value in line.items() if name != "done"}) for line in lines]


def within_a_line(events: list[str]) -> list[str]:
    return [*events[:5], events[5][:30]]


def with_an_error(events: list[str]) -> list[str]:
    return [*events[:5], json.dumps({"error": "CUDA out of memory"})]


Break = Callable[[list[str]], list[str]]
BREAKS: dict[Break, str] = {
    without_end: "The connection to 'ollama:llama3.1' ended before the end of the reply: try again.",
    without_done: "The connection to 'ollama:llama3.1' ended before the end of the reply: try again.",
    within_a_line: "The connection to 'ollama:llama3.1' ended before the end of the reply: try again.",
    with_an_error: "The server of 'ollama:llama3.1' returned an error instead of a reply: CUDA out of memory.",
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    pytest.importorskip("llama_index.llms.ollama", reason="needs llama-index-llms-ollama")
    with LoopbackProvider(reply=lambda _: ANSWER) as provider:
        monkeypatch.setenv("OLLAMA_HOST", provider.url)
        yield provider


@pytest.fixture
def project(server: LoopbackProvider, tmp_path: Path) -> Project:
    (tmp_path / "pump.md").write_text("# Manual of the pump\n\nError TS-999: the pump runs dry. Close valve V2.\n")
    config = ProjectConfig.local(answer_llm="ollama:llama3.1", min_confidence=0.0)
    project = ProjectManager(tmp_path / "knowledge").create("pump", config)
    project.ingest([tmp_path / "pump.md"])
    return project


def cut(server: LoopbackProvider, broken: Break) -> None:
    """Let the server break off every stream."""

    def tamper(_: Request, answer: Answer) -> None:
        answer.events = None if answer.events is None else broken(answer.events)

    server.tamper = tamper


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_answer_is_partial_and_not_cached(
    project: Project, server: LoopbackProvider, tmp_path: Path, broken: Break
) -> None:
    cut(server, broken)
    cache = AnswerCache(tmp_path / "answers.sqlite")
    engine: Any = project.as_query_engine(cache=cache)
    streamed: Any = project.as_query_engine(cache=cache, streaming=True).query(QUESTION)
    pieces = "".join(streamed.response_gen)
    chat: Any = project.as_chat_engine().chat(QUESTION)
    answers = [engine.query(QUESTION), streamed.get_response(), chat.grounded]
    expected = f"{BROKE_OFF}{BREAKS[broken]}"
    assert [answer.partial for answer in answers] == [expected] * 3
    assert ANSWER.startswith(pieces.strip())
    assert all(ANSWER.startswith(str(answer)) and str(answer) for answer in answers)
    assert len(cache) == 0
    server.tamper = None
    whole = engine.query(QUESTION)
    assert (str(whole), whole.partial, whole.from_cache, len(cache)) == (ANSWER, None, False, 1)
