"""API keys are removed from all output, in the forms in which a provider may repeat them."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import Document, QueryBundle
from llama_index.llms.openai import OpenAI

from llama_index_contextual._utils.calls import redacted_error
from llama_index_contextual._utils.redaction import REMOVED, KeyFilter, get_logger, keys_in_use, scrub, watch
from llama_index_contextual.agno import ContextualKnowledge
from llama_index_contextual.answering.judge import Judge
from llama_index_contextual.answering.streaming import blocking
from llama_index_contextual.cli import app as cli
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer import LLMContextualizer
from llama_index_contextual.errors import ContextualError, InputError, ModelError
from llama_index_contextual.evaluation.questions import generate_questions
from llama_index_contextual.mcp import make_server
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.modes import KEY, all_of, echoes, error, leaks
from tests.support.server import LoopbackProvider

SETTINGS: dict[str, Any] = {"llm": "openai:gpt-4o-mini", "chunk_size": 40, "chunk_overlap": 4}
LOCAL = ProjectConfig.local(context="llm", **SETTINGS)
DOCUMENT = Document(id_="d", text="The pump runs dry when the valve is shut.")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    monkeypatch.setattr("llama_index_contextual._utils.calls.RetryPolicy.delay", lambda *_arguments: None)
    with LoopbackProvider(context_tokens=12) as running:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", running.api_base)
        yield running


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


# ---- one text --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("form", echoes(f"Bearer {KEY}"))
def test_a_key_is_recognised_in_every_form(form: str) -> None:
    scrubbed = scrub(f"Refused: {form}, says the proxy.")
    assert not leaks(scrubbed)
    assert REMOVED in scrubbed
    assert scrubbed.startswith("Refused: ")
    assert scrubbed.endswith(", says the proxy.")


@given(
    key=st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=12, max_size=60),
    before=st.text(max_size=8),
    after=st.text(max_size=8),
)
def test_any_key_is_recognised_wherever_it_stands(key: str, before: str, after: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", key)
        assert key not in scrub(f"{before}{key}{after}")
        assert quote(key, safe="") not in scrub(f"{before}{quote(key, safe='')}{after}")
        encoded = base64.b64encode(f"{before}{key}{after}".encode("utf-8", "surrogatepass")).decode()
        assert encoded not in scrub(encoded)
        message = json.dumps(f"{before}{key}{after}")
        assert json.dumps(key)[1:-1] not in scrub(message)


LONG_KEY = "sk-proj-Zq8vT1rLm4Xw7Bn2Kc9Yd5Hs3Jf6Gp0AaEeUuIiOo_R-tQwErTy"


def parts(key: str) -> dict[str, str]:
    """Return parts of a key, alone and encoded, as they occur in messages."""
    basic = base64.b64encode(f"user:{key}".encode()).decode()
    return {
        "end cut": key[:-4],
        "beginning cut": key[4:],
        "both cut": key[6:-6],
        "first half": key[: len(key) // 2],
        "second half": key[len(key) // 2 :],
        "first third, dots": f"{key[: len(key) // 3]}…",
        "quoted": quote(key, safe="")[:-4],
        "JSON": json.dumps(key[:-4]),
        "Basic": f"Basic {basic}",
        "Basic, end cut": basic[:-4],
        "Basic, beginning cut": basic[9:],
    }


@pytest.mark.parametrize("key", [KEY, LONG_KEY, "0f3a9c5d7e1b2846a0c4e8f1d3b59766"])
@pytest.mark.parametrize("form", parts(KEY))
def test_a_part_of_a_key_is_recognised(form: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    text = parts(key)[form]
    scrubbed = scrub(f"Refused: {text} by the proxy.")
    assert REMOVED in scrubbed
    assert scrubbed.startswith("Refused: ")
    assert scrubbed.endswith(" by the proxy.")
    rest = scrubbed.replace(REMOVED, "")
    assert not any(text[at : at + 6] in rest for at in range(9, len(text) - 6))


@pytest.mark.parametrize("form", ["end cut", "beginning cut", "both cut", "first half", "second half"])
@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_a_part_of_a_key_is_removed_from_a_streamed_text(form: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", LONG_KEY)
    text = f"So says {parts(LONG_KEY)[form]}, the end."
    stream = KeyFilter()
    pieces = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
    shown = "".join([*pieces, stream.flush()])
    assert REMOVED in shown
    assert shown.endswith(", the end.")
    assert len(shown) < len("So says , the end.") + len(REMOVED) + 8


KEYS_OF_PROVIDERS = [
    "sk-Zq8vT1rLm4Xw7Bn2Kc9Yd5Hs3Jf6Gp0AaEeUuIiOoR",
    "sk-proj-Zq8vT1rLm4-w7Bn2Kc9Yd5Hs3Jf6Gp0_aEeUuIiOoR",
    "sk-ant-api03-Zq8vT1rLm4Xw7Bn2Kc9Yd5Hs3Jf6Gp0AaEeUu-IiOoRAA",
    "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",
    "AIzaSyZq8vT1rLm4Xw7Bn2Kc9Yd5Hs3Jf6Gp0AaE",
    "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",
    "gsk_Zq8vT1rLm4Xw7Bn2Kc9Yd5Hs3Jf6Gp0AaEeUuIiOoR",
    "pa-Zq8vT1rLm4Xw7Bn2Kc9Yd5Hs3Jf6Gp0AaEeUuIiOoR",
    "xai-Zq8vT1rLm4Xw7Bn2Kc9Yd5Hs3Jf6Gp0AaEeUuIiOoR",
    "nvapi-Zq8vT1rLm4Xw7Bn2Kc9Yd5Hs3Jf6Gp0AaEeUuIiOoR",
    "ghp_Zq8vT1rLm4Xw7Bn2Kc9Yd5Hs3Jf6Gp0AaE",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "Bearer Zq8vT1rLm4Xw7Bn2Kc9Yd5Hs3Jf6Gp0A",
    "Basic dXNlcjpacTh2VDFyTG00WHc3Qm4yS2M5WWQ1SHM=",
]


@pytest.mark.parametrize("key", KEYS_OF_PROVIDERS)
def test_an_unknown_key_in_the_form_of_a_provider_is_removed(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    scheme = key.partition(" ")[0] + " " if " " in key else ""
    assert scrub(f'Refused: "{key}", says the proxy.') == f'Refused: "{scheme}{REMOVED}", says the proxy.'


@pytest.mark.parametrize("key", [KEY, LONG_KEY, "local-development-password", "sk-ant-api03-Zq8vT1rLm4Xw7Bn2Kc9Yd5"])
def test_ordinary_text_is_not_taken_for_a_part_of_a_key(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    text = """A key begins with sk-proj- or sk-ant-api03-, the local development password is SECRET, abcdef 012345.
        See sk-learn-contrib-examples-for-classification, pa-2024-annual-report-final, hf_transformers_integration_test,
        github_pat_documentation_of_tokens, Basic internationalisation, Bearer authentication-with-OAuth2-and-tokens,
        2024-01-15T10:00:00, text-embedding-3-large, claude-3-5-sonnet-20241022, C:\\new\\reports\\u2.txt, 9 %25, &amp;
        https://example.org/a%20b?c=%C3%A4, sk-…9xYz, sk-proj-********************************TyAb."""
    assert scrub(text) == text


@pytest.mark.parametrize("value", ["none", "ollama", "-", "", "k", "sk-test"])
def test_a_placeholder_key_does_not_alter_messages(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", value)
    message = f"ollama: there is none, ask - for sk-test and k {value}."
    assert scrub(message) == message


def test_the_environment_names_the_keys_of_all_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "VOYAGE_API_KEY", "HF_TOKEN", "AZURE_OPENAI_API_KEY"):
        monkeypatch.setenv(name, f"{name}-0123456789\n")
        assert scrub(f"sent {name}-0123456789.") == f"sent {REMOVED}."
    monkeypatch.setenv("OPENAI_BASE_URL", "https://ann:correct-horse@proxy.example/v1")
    assert (
        scrub("no way to https://ann:correct-horse@proxy.example") == f"no way to https://ann:{REMOVED}@proxy.example"
    )


def test_keys_and_secret_headers_of_a_model_and_its_client_are_removed() -> None:
    client = httpx.AsyncClient(headers={"authorization": "Bearer from-the-client-0123"})
    watch(
        OpenAI(
            model="gpt-4.1",
            api_key="of-the-object-0123",
            default_headers={"X-Api-Key": "of-a-header-0123", "X-Title": "harmless-0123"},
            additional_kwargs={"extra_headers": {"Authorization": "Bearer of-the-kwargs-0123"}},
            async_http_client=client,
        )
    )
    expected = {"of-the-object-0123", "of-a-header-0123", "of-the-kwargs-0123", "from-the-client-0123"}
    assert expected <= keys_in_use()
    assert "harmless-0123" not in keys_in_use()
    assert "harmless-0123" in scrub("harmless-0123")


@pytest.mark.usefixtures("key")
@given(st.lists(st.integers(0, len(KEY)), max_size=12))
def test_a_key_is_removed_from_a_streamed_text(cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", KEY)
        text = f"So says {KEY}"
        places = sorted({0, *(8 + cut for cut in cuts), len(text)})
        stream = KeyFilter()
        pieces = [stream.feed(text[a:b]) for a, b in itertools.pairwise(places)]
        assert "".join([*pieces, stream.flush()]) == f"So says {REMOVED}"


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(("end", "shown"), [(KEY[:3], KEY[:3]), (KEY[:-1], REMOVED)])
def test_an_incomplete_key_at_the_end_is_removed(end: str, shown: str) -> None:
    stream = KeyFilter()
    assert [stream.feed(f"So says {end}"), stream.flush()] == ["So says ", shown]


def test_a_stream_without_keys_is_unchanged() -> None:
    stream = KeyFilter()
    pieces = ["So ", "", "says", " s", "k-"]
    assert "".join([*map(stream.feed, pieces), stream.flush()]) == "".join(pieces)


# ---- errors and logs -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("key")
def test_errors_of_the_package_contain_no_key() -> None:
    for kind in (ContextualError, InputError, ModelError):
        assert str(kind(f"refused {KEY}")) == f"refused {REMOVED}"


@pytest.mark.usefixtures("key")
def test_copied_errors_and_their_causes_contain_no_key() -> None:
    request = httpx.Request("POST", "http://127.0.0.1/v1", headers={"authorization": f"Bearer {KEY}"})
    response = httpx.Response(401, headers={"x-echo": KEY, "retry-after": "3"}, request=request)
    original = openai.AuthenticationError(f"Bearer {KEY}", response=response, body={"code": KEY, "message": KEY})
    original.__cause__ = httpx.LocalProtocolError(f"Illegal header value b'Bearer {KEY}'")
    other = redacted_error(original)
    assert leaks("\n".join(all_of(original)))
    assert not leaks("\n".join(all_of(other)))
    assert type(other).__name__ == "AuthenticationError"
    assert type(other.__cause__).__name__ == "LocalProtocolError"


@pytest.mark.usefixtures("key")
def test_log_records_contain_no_key(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("llama_index_contextual.test")
    try:
        raise ValueError(KEY)
    except ValueError:
        logger.exception("Failed with %s", KEY)
    assert f"Failed with {REMOVED}" in caplog.text
    assert f"ValueError: {REMOVED}" in caplog.text
    assert KEY not in caplog.text


# ---- what providers repeat -------------------------------------------------------------------------------------------


def said_by(project: Project, folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    """Return all that an ingest says and leaves."""
    messages = []
    try:
        report = project.ingest([DOCUMENT])
        messages += [str(report), repr(report), repr(report.to_dict())]
    except ContextualError as raised:
        messages += all_of(raised)
    ours = [record for record in caplog.records if record.name.startswith("llama_index_contextual")]
    messages += [repr(project), *(logging.Formatter().format(record) for record in ours)]
    messages += [path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file()]
    return "\n".join(messages)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
def test_reports_of_an_ingest_contain_no_key(
    status: int,
    path: str,
    provider: LoopbackProvider,
    manager: ProjectManager,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    provider.tamper = lambda request, answer: error(status)(request, answer) if request.path == path else None
    project = manager.create("p", ProjectConfig(**SETTINGS))
    message = said_by(project, tmp_path, caplog)
    assert not leaks(message)
    assert status != 400 or REMOVED in message, "the rest of the message is there"


def test_a_key_that_only_a_model_object_has_is_removed(
    monkeypatch: pytest.MonkeyPatch, manager: ProjectManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LoopbackProvider(tamper=error(400)) as provider:
        llm = OpenAI(model="gpt-4o-mini", api_key=KEY, api_base=provider.api_base, max_retries=0)
        project = manager.create("p", LOCAL, llm=llm, embed_model=CountingEmbedding())
        assert not leaks(said_by(project, tmp_path, caplog))


def test_the_error_of_an_invalid_header_does_not_repeat_it(
    monkeypatch: pytest.MonkeyPatch,
    provider: LoopbackProvider,
    manager: ProjectManager,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    assert not leaks(said_by(manager.create("p", LOCAL), tmp_path, caplog))


@pytest.fixture
def asked(provider: LoopbackProvider, manager: ProjectManager) -> Project:
    """A project with a document, whose provider has begun to repeat the key."""
    project = manager.create("p", ProjectConfig(**SETTINGS))
    project.ingest([DOCUMENT])
    provider.tamper = error(400)
    return project


def test_errors_of_queries_contain_no_key(asked: Project, provider: LoopbackProvider) -> None:
    engine = asked.as_query_engine(mode="lexical", similarity_top_k=1)
    chat = asked.as_chat_engine(search_mode="lexical")
    live = asked.state.live.current()
    attempts: list[Any] = [
        lambda: asked.retrieve("pump"),
        lambda: asyncio.run(asked.aretrieve("pump")),
        lambda: engine.query("When does the pump run dry?"),
        lambda: "".join(blocking(engine.astream(engine.draft(QueryBundle("When is it dry?")), _completion()))),
        lambda: chat.chat("When does the pump run dry?"),
        lambda: generate_questions(live, OpenAI(model="gpt-4o-mini", max_retries=0), number=1),
        lambda: asked.as_tool().call("pump").raw_output.unknown,
    ]
    for attempt in attempts[:-1]:
        with pytest.raises(ContextualError) as raised:
            attempt()
        assert not leaks("\n".join(all_of(raised.value)))
    assert not leaks(str(asked.as_tool().call("pump").content))
    assert not leaks(str(ContextualKnowledge(asked).retrieve("pump")))


def _completion() -> Any:
    from llama_index_contextual.answering.streaming import Completion

    return Completion()


async def test_mcp_answers_contain_no_key(asked: Project) -> None:
    server = make_server([asked])
    for name, arguments in (("search", {"query": "pump"}), ("ask", {"question": "When does the pump run dry?"})):
        with pytest.raises(Exception, match=r"failed|Refused|removed") as raised:
            await server.call_tool(name, arguments)
        assert not leaks("\n".join(all_of(raised.value)))


def test_a_key_in_a_complete_or_interrupted_answer_is_removed(asked: Project, provider: LoopbackProvider) -> None:
    provider.tamper = None
    provider.reply = lambda _request: f"It runs dry, says {KEY} of the yard."
    engine = asked.as_query_engine(mode="lexical", similarity_top_k=1)
    assert not leaks(str(engine.query("When does the pump run dry?")))
    draft = engine.draft(QueryBundle("When does it run dry?"))
    streamed = "".join(blocking(engine.astream(draft, _completion())))
    assert not leaks(streamed)
    assert streamed.startswith("It runs dry, says [API key removed] of the yard.")

    def breaks_off(request: Any, answer: Any) -> None:
        answer.events[2:] = [json.dumps({"error": {"message": f"Bearer {KEY}", "type": "odd", "code": None}})]

    provider.tamper = breaks_off
    answer = engine.query("When does the pump run dry at last?")
    assert answer.partial is not None  # type: ignore[union-attr]
    assert not leaks(repr(answer.to_dict()))  # type: ignore[union-attr]


def test_commands_print_no_key(
    asked: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root, text = str(asked.directory.parent), tmp_path / "more.txt"
    text.write_text("The valve is shut.")
    for command in (["search", "p", "pump"], ["ask", "p", "pump?"], ["ingest", "p", str(text), "--json"]):
        monkeypatch.setattr(sys, "argv", ["llama-index-contextual", *command, "--root", root])
        with pytest.raises(SystemExit):
            cli.main()
    monkeypatch.setattr(ProjectManager, "list", lambda _self: (_ for _ in ()).throw(RuntimeError(f"boom {KEY}")))
    monkeypatch.setattr(sys, "argv", ["llama-index-contextual", "list", "--root", root])
    with pytest.raises(SystemExit):
        cli.main()
    printed = capsys.readouterr()
    assert f"boom {REMOVED}" in printed.err
    assert not leaks(printed.out + printed.err)


@pytest.mark.usefixtures("key")
def test_representations_of_components_contain_no_key() -> None:
    llm = OpenAI(model="gpt-4.1", api_key=KEY)
    shown = [Judge(llm), LLMContextualizer(llm=llm)]
    assert not leaks("\n".join(f"{component!r} {component}" for component in shown))


def test_unknown_keys_are_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert scrub("sk-someone-elses-key") == "sk-someone-elses-key"
    assert scrub("") == ""
    watch(MockEmbedding(embed_dim=3))
    watch(ScriptedLLM())
