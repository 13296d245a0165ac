"""An HTTP client that the user has configured, such as one with a proxy or certificates, sends all calls of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai import OpenAI

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.integration.answering.conftest import QUESTION
from tests.support.records import CHAT_PATH, EMBEDDINGS_PATH, Request
from tests.support.server import LoopbackProvider

ANSWER = "The pump runs dry [Source 1]."
CONTEXT = "From the manual of the pump, on what to do when the pump runs dry and a valve is open."


@pytest.mark.parametrize("name", ["http_client", "async_http_client"])
def test_contexts_embeddings_answers_and_streams_are_sent_by_the_client_of_the_user(
    name: str, tmp_path: Path, provider: LoopbackProvider
) -> None:
    def reply(request: Request) -> str:
        return ANSWER if "Sources:" in request.text else CONTEXT

    provider.reply = reply
    kind: Any = httpx.Client if name == "http_client" else httpx.AsyncClient
    client = kind(headers={"x-team": "pumps"}, timeout=60.0)
    options: Any = {"api_key": "any", "api_base": provider.api_base, "max_retries": 0}
    llm = OpenAI(model="gpt-4o-mini", **options, **{name: client})
    embed_model = OpenAIEmbedding(http_client=httpx.Client(headers={"x-team": "pumps"}), **options)
    (tmp_path / "pump.md").write_text("# Manual of the pump\n\nError TS-999: the pump runs dry. Close valve V2.\n")
    project = ProjectManager(tmp_path / "knowledge").create("pump", ProjectConfig(), llm=llm, embed_model=embed_model)
    assert list(project.ingest([tmp_path / "pump.md"]).failures) == []
    engine: Any = project.as_query_engine(min_confidence=0.0)
    assert str(engine.query(QUESTION)) == ANSWER
    stream: Any = project.as_query_engine(min_confidence=0.0, streaming=True).query(f"{QUESTION} And why?")
    pieces = list(stream.response_gen)
    assert ("".join(pieces), len(pieces) > 1) == (ANSWER, True)
    assert {(call.path, call.headers.get("x-team")) for call in provider.calls()} == {
        (CHAT_PATH, "pumps"),
        (EMBEDDINGS_PATH, "pumps"),
    }
    assert not client.is_closed
