"""Real clients talk to the API over a socket: openai, LlamaIndex, LangChain and curl."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.schema import Document
from llama_index.llms.openai import OpenAI as LlamaOpenAI
from llama_index.llms.openai_like import OpenAILike
from openai import APIError, AuthenticationError, BadRequestError, NotFoundError, OpenAI, PermissionDeniedError

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.support.server import LoopbackProvider

pytest.importorskip("starlette", reason="needs the extra ui")
from llama_index_contextual.api.app import add_api
from llama_index_contextual.ui.adding import Adding
from llama_index_contextual.ui.app import make_app
from llama_index_contextual.ui.users import TokensFile, add_token, new_user
from tests.slow.browser.conftest import GatedLLM
from tests.slow.browser.harness import serve_app

QUESTION = "When does pump P-7 stop?"
ANSWER = "It stops “after three days without oil” [Source 1]."
FIVE = {
    f"pump-{number}.md": f"# Pump {number}\n\nPump P-{number} stops after {number} days.\n" for number in range(1, 6)
}


class Served:
    """A running server, with the tokens of two users and the provider of its LLM."""

    def __init__(self, url: str, tokens: dict[str, str], provider: LoopbackProvider, gated: GatedLLM) -> None:
        self.url, self.tokens, self.provider, self.gated = url, tokens, provider, gated

    def openai(self, user: str = "ada", **options: Any) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=self.tokens.get(user, user), max_retries=0, **options)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("clients")
    with LoopbackProvider() as provider:
        options = {"api_key": "any", "api_base": provider.api_base, "max_retries": 0, "reuse_client": False}
        manager = ProjectManager(folder / "root")
        text = "# Pumps\n\nPump P-7 stops after three days without oil.\n"
        manager.create("plant", ProjectConfig.local()).ingest([Document(text=text, id_="pumps.md")])
        gated = GatedLLM()
        shutil.copytree(folder / "root" / "plant", folder / "root" / "gated")
        project = manager.load("plant", llm=LlamaOpenAI(model="gpt-4o-mini", **options))
        rights = {"ada": ["search", "ask", "add"], "finder": ["search"]}
        tokens = {name: add_token(folder / "tokens.json", new_user(name, rights=own)) for name, own in rights.items()}
        adding = Adding(project)
        projects = [project, manager.load("gated", llm=gated)]
        app = add_api(make_app(projects, users=TokensFile(folder / "tokens.json"), adding={"plant": adding}))
        with serve_app(app) as url:
            yield Served(url, tokens, provider, gated)
        adding.stop()


@pytest.fixture(autouse=True)
def _fresh(served: Served) -> None:
    served.provider.reset()


# ---- openai ----------------------------------------------------------------------------------------------------------


def test_the_openai_client_gets_answers_with_annotations_and_usage(served: Served) -> None:
    served.provider.enqueue(ANSWER)
    client = served.openai()
    assert [model.id for model in client.models.list()][:2] == ["plant", "plant:passages"]
    answer = client.chat.completions.create(model="plant", messages=[{"role": "user", "content": QUESTION}])
    message = answer.choices[0].message
    assert (message.content or "").startswith(ANSWER)
    assert message.annotations is not None
    assert message.annotations[0].url_citation.url.startswith(f"{served.url}/p/plant/passage/")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == served.provider.totals()["prompt_tokens"]


def test_the_openai_client_streams_and_closes_a_stream(served: Served) -> None:
    served.provider.enqueue(ANSWER)
    stream = served.openai().chat.completions.create(
        model="plant",
        messages=[{"role": "user", "content": QUESTION}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.startswith(ANSWER)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == served.provider.totals()["completion_tokens"]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


def test_the_openai_client_understands_the_errors(served: Served) -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    for kind, client, model, more in (
        (AuthenticationError, served.openai("a-wrong-token-of-32-characters-xx"), "plant", {}),
        (PermissionDeniedError, served.openai("finder"), "plant", {}),
        (NotFoundError, served.openai(), "other", {}),
        (BadRequestError, served.openai(), "plant", {"tool_choice": "required"}),
    ):
        with pytest.raises(kind) as raised:
            client.chat.completions.create(model=model, messages=messages, **more)
        assert isinstance(raised.value, APIError)
        assert isinstance(raised.value.body, dict)
        assert raised.value.body["message"]


def test_a_client_that_leaves_stops_the_call_that_is_paid(served: Served) -> None:
    served.provider.enqueue("word " * 400)
    with served.provider.hold():
        client = served.openai(timeout=0.5)
        with pytest.raises(APIError):
            client.chat.completions.create(model="plant", messages=[{"role": "user", "content": QUESTION}])
        served.provider.wait_until(lambda: served.provider.in_flight == 0)
    assert [call.status for call in served.provider.calls()] == [0]


def test_a_client_that_leaves_a_stream_stops_the_call_that_is_paid(served: Served) -> None:
    served.gated.release("The pump ", "stops ")  # the response begins with the first piece
    with served.openai().chat.completions.create(
        model="gated", messages=[{"role": "user", "content": QUESTION}], stream=True
    ) as stream:
        text = ""
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if "pump" in text:
                break
    assert served.gated.wait_until_closed()


# ---- LlamaIndex and LangChain ----------------------------------------------------------------------------------------


def test_llamaindex_chats_and_streams(served: Served) -> None:
    served.provider.enqueue(ANSWER, ANSWER)
    llm = OpenAILike(
        model="plant", api_base=f"{served.url}/v1", api_key=served.tokens["ada"], is_chat_model=True, max_retries=0
    )
    messages = [ChatMessage(role="user", content=QUESTION)]
    assert str(llm.chat(messages).message.content).startswith(ANSWER)
    assert "".join(piece.delta or "" for piece in llm.stream_chat(messages)).startswith(ANSWER)


def test_langchain_chats_and_streams(served: Served) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="needs langchain-openai")
    served.provider.enqueue(ANSWER, ANSWER)
    llm = langchain.ChatOpenAI(
        model="plant", base_url=f"{served.url}/v1", api_key=served.tokens["ada"], max_retries=0, stream_usage=True
    )
    answer = llm.invoke(QUESTION)
    assert answer.content.startswith(ANSWER)
    assert answer.usage_metadata["input_tokens"] > 0
    assert "".join(str(piece.content) for piece in llm.stream(QUESTION)).startswith(ANSWER)


# ---- curl ------------------------------------------------------------------------------------------------------------


def curl(served: Served, *arguments: str) -> str:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("needs curl")
    token = f"Authorization: Bearer {served.tokens['ada']}"
    run = subprocess.run([program, "-sS", "-H", token, *arguments], capture_output=True, text=True, check=True)
    return run.stdout


def test_curl_goes_from_five_files_to_an_answer(served: Served, tmp_path: Path) -> None:
    for name, text in FIVE.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    forms = [word for name in FIVE for word in ("-F", f"file=@{tmp_path / name}")]
    added = json.loads(curl(served, *forms, f"{served.url}/api/add?project=plant"))
    assert [file["state"] for file in added["files"]] == ["queued"] * 5 or added["is_running"] is False
    while json.loads(curl(served, f"{served.url}/api/add?project=plant"))["is_running"]:
        pass
    assert {file["state"] for file in json.loads(curl(served, f"{served.url}/api/add?project=plant"))["files"]} == {
        "read"
    }
    served.provider.enqueue("After 4 days [Source 1].", "After 4 days [Source 1].")
    body = {"model": "plant", "messages": [{"role": "user", "content": "After how many days does pump P-4 stop?"}]}
    kind = ["-H", "Content-Type: application/json", "-d"]
    answer = json.loads(curl(served, *kind, json.dumps(body), f"{served.url}/v1/chat/completions"))
    citation = answer["choices"][0]["message"]["annotations"][0]["url_citation"]
    assert (citation["file"], citation["quote"]) == ("pump-4.md", "Pump P-4 stops after 4 days.")
    lines = curl(served, "-N", *kind, json.dumps({**body, "stream": True}), f"{served.url}/v1/chat/completions")
    assert lines.rstrip().endswith("data: [DONE]")
    query = {"query": "P-4 stops", "project": "plant"}
    found = json.loads(curl(served, *kind, json.dumps(query), f"{served.url}/api/search"))
    assert found["passages"][0]["doc_id"] == "inbox/ada/pump-4.md"
