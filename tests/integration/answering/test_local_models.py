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
from tests.integration.answering.conftest import QUESTION
from tests.support import ollama as api
from tests.support.records import Request
from tests.support.server import LoopbackProvider

WRITTEN = "This chunk is of the manual of the pump and says what to do when it runs dry."
ANSWER = "It means that “the pump runs dry” [Source 1]."
TEXT = "# Manual of the pump\n\nError TS-999: the pump runs dry. Close valve V2.\n"


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    for package in ("llms", "embeddings"):
        reason = "needs llama-index-llms-ollama and llama-index-embeddings-ollama"
        pytest.importorskip(f"llama_index.{package}.ollama", reason=reason)

    def says(request: Request) -> str:
        return ANSWER if "Sources:" in request.text else WRITTEN

    with LoopbackProvider(reply=says) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pump.md").write_text(TEXT)
    return tmp_path


def test_ollama_writes_contexts_embeds_answers_and_streams(ollama: LoopbackProvider, folder: Path) -> None:
    config = ProjectConfig(llm="ollama:llama3.1", embed_model="ollama:nomic-embed-text", segment_size=4000)
    project = ProjectManager(folder / "knowledge").create("pump", config)
    project.ingest([folder / "pump.md"])
    (chunk,) = project.retrieve(QUESTION).results
    assert chunk.written_context == WRITTEN
    assert chunk.semantic is not None
    engine: Any = project.as_query_engine(min_confidence=0.0)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: engine.query(QUESTION), range(8)))
    assert {(str(answer), answer.citations.is_clean) for answer in [*answers, engine.query(QUESTION)]} == {
        (ANSWER, True)
    }
    assert {call.body["options"]["num_ctx"] for call in ollama.calls(api.CHAT)} == {8192}
    assert {call.model for call in ollama.calls(api.EMBED)} == {"nomic-embed-text"}

    chat = project.as_chat_engine(min_confidence=0.0)
    assert len(list(chat.stream_chat(QUESTION).response_gen)) > 2
    ollama.fault("drop_in_body", match=lambda request: request.path == api.CHAT)
    stream: Any = chat.stream_chat("And why?")
    assert ANSWER.startswith("".join(stream.response_gen))
    assert "broke off" in str(stream.grounded.partial)

    project.update_config(llm="ollama:no-such-model")
    with pytest.raises(ModelError, match="does not offer the model 'ollama:no-such-model'"):
        project.as_query_engine(min_confidence=0.0).query(QUESTION)


@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_an_openai_compatible_server_answers_on_the_command_line(
    variable: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llama_index.llms.openai_like", reason="needs llama-index-llms-openai-like")
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    with LoopbackProvider() as server:
        monkeypatch.setenv(variable, server.api_base)
        server.enqueue(ANSWER)
        root = folder / "knowledge"
        config = ProjectConfig.local(llm="openai-like:qwen2.5-7b-instruct")
        ProjectManager(root).create("pump", config).ingest([folder / "pump.md"])
        options = ["--root", str(root), "--set", "min_confidence=0", "--json"]
        result = CliRunner().invoke(app, ["ask", "pump", QUESTION, *options])
        assert json.loads(result.stdout)["answer"] == ANSWER
        assert [call.body["model"] for call in server.calls()] == ["qwen2.5-7b-instruct"]
