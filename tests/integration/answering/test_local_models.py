"""Local models, by their names in the settings: Ollama and OpenAI-compatible servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from llama_index_contextual.cli.app import app
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ModelError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.ollama import LoopbackOllama
from tests.support.server import LoopbackProvider

QUESTION = "What does error TS-999 mean?"
WRITTEN = "This chunk is of the manual of the pump and says what to do when it runs dry."
ANSWER = "It means that “the pump runs dry” [Source 1]."
TEXT = "# Manual of the pump\n\nError TS-999: the pump runs dry. Close valve V2.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "manuals").mkdir()
    (tmp_path / "manuals" / "pump.md").write_text(TEXT)
    return tmp_path / "manuals"


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackOllama]:
    for package in ("llms", "embeddings"):
        reason = "needs llama-index-llms-ollama and llama-index-embeddings-ollama"
        pytest.importorskip(f"llama_index.{package}.ollama", reason=reason)

    def says(prompt: str) -> str:
        return ANSWER if "Sources:" in prompt else WRITTEN

    with LoopbackOllama(says) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.address)
        yield server


def on_ollama(tmp_path: Path, folder: Path, llm: str = "ollama:llama3.1") -> Project:
    config = ProjectConfig(
        llm=llm, embed_model="ollama:nomic-embed-text", segment_size=4000, segment_overlap=400, faiss_index="flat"
    )
    project = ProjectManager(tmp_path / "knowledge").create("pump", config)
    project.ingest([folder])
    return project


def test_ollama_writes_contexts_embeds_and_answers_one_question_after_the_other(
    ollama: LoopbackOllama, tmp_path: Path, folder: Path
) -> None:
    project = on_ollama(tmp_path, folder)
    (chunk,) = project.retrieve(QUESTION).results
    assert chunk.written_context == WRITTEN
    assert chunk.semantic is not None
    engine = project.as_query_engine(min_confidence=0.0)
    for _ in range(3):
        answer: Any = engine.query(QUESTION)
        assert str(answer) == ANSWER
        assert answer.citations.is_clean
    assert {body["options"]["num_ctx"] for body in ollama.bodies("/api/chat")} == {8192}
    assert {body["model"] for body in ollama.bodies("/api/embed")} == {"nomic-embed-text"}


def test_ollama_streams_a_chat_and_an_interrupted_answer_is_partial(
    ollama: LoopbackOllama, tmp_path: Path, folder: Path
) -> None:
    chat = on_ollama(tmp_path, folder).as_chat_engine(min_confidence=0.0)
    assert len(list(chat.stream_chat(QUESTION).response_gen)) > 2
    ollama.cut = True
    stream = chat.stream_chat("And why?")
    assert ANSWER.startswith("".join(stream.response_gen))
    assert stream.grounded is not None
    assert "broke off" in str(stream.grounded.partial)


def test_ollama_answers_in_several_threads(ollama: LoopbackOllama, tmp_path: Path, folder: Path) -> None:
    engine = on_ollama(tmp_path, folder).as_query_engine(min_confidence=0.0)
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: str(engine.query(QUESTION)), range(8))) == {ANSWER}


def test_a_model_that_ollama_does_not_have_is_a_model_error(
    ollama: LoopbackOllama, tmp_path: Path, folder: Path
) -> None:
    project = on_ollama(tmp_path, folder)
    project.update_config(llm="ollama:no-such-model")
    with pytest.raises(ModelError, match="does not offer the model 'ollama:no-such-model', which writes the"):
        project.as_query_engine(min_confidence=0.0).query(QUESTION)


@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_an_openai_compatible_server_answers_on_the_command_line(
    variable: str, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llama_index.llms.openai_like", reason="needs llama-index-llms-openai-like")
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    with LoopbackProvider() as server:
        monkeypatch.setenv(variable, server.api_base)
        server.enqueue(ANSWER)
        root = tmp_path / "knowledge"
        config = ProjectConfig.local(llm="openai-like:qwen2.5-7b-instruct")
        ProjectManager(root).create("pump", config).ingest([folder])
        options = ["--root", str(root), "--min-confidence", "0", "--json"]
        result = CliRunner().invoke(app, ["ask", "pump", QUESTION, *options])
        assert json.loads(result.stdout)["answer"] == ANSWER
        assert [call.body["model"] for call in server.calls()] == ["qwen2.5-7b-instruct"]
