"""A run that cannot succeed stops after the first requests with one message, and no request is repeated unchanged."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BudgetExceededError, ModelError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import run
from tests.support.records import ApiError, Request
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider
from tests.support.trouble import FATAL, UNREADABLE, UNUSABLE, Script

MODEL = "openai:gpt-4o-mini"
CHUNKS = 24
CONTEXT = "From the lease of the workshop in Lindfell, on the notice period for both parties."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "leases"
    folder.mkdir()
    for number in range(CHUNKS):
        (folder / f"lease-{number:02}.txt").write_text(f"Either party may end the lease within {number + 2} days.")
    return folder


@pytest.fixture
def project(tmp_path: Path, provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("OPENAI_BASE_URL", provider.api_base)
    monkeypatch.setattr("llama_index_contextual.contextualizer.llm.DEFAULT_RETRY", QUICK, raising=False)
    config = ProjectConfig.local(llm=MODEL, context="llm", llm_concurrency=4)
    return ProjectManager(tmp_path / "knowledge").create("leases", config)


QUICK = RetryPolicy(attempts=2, base_delay=0.001, max_delay=0.002)


def is_plain(sentence: str) -> bool:
    """Return whether a message has no name of an exception and no key."""
    return not any(word in sentence for word in ("Error", "Traceback", "object has no attribute", "None", "sk-or-"))


@pytest.mark.parametrize("name", [*FATAL, *UNREADABLE])
def test_the_same_failure_of_the_first_requests_stops_the_run(
    project: Project, folder: Path, provider: LoopbackProvider, name: str
) -> None:
    script, sentence = {**FATAL, **UNREADABLE}[name]
    script(provider)
    with pytest.raises(ModelError) as raised:
        project.ingest([folder])
    message = str(raised.value)
    assert sentence in message
    assert is_plain(message.replace("an error", ""))
    assert len(provider.chat_calls) <= 10 < CHUNKS
    assert project.versions() == []


def test_the_sentence_of_a_failure_that_stops_a_run_is_shown_by_the_command_line(
    project: Project, folder: Path, provider: LoopbackProvider
) -> None:
    script, sentence = FATAL["HTML page"]
    script(provider)
    result = run("ingest", "leases", folder, "--root", project.directory.parent)
    assert (result.code, sentence in " ".join(result.err.split())) == (1, True)


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_answer_is_not_requested_again_unchanged(
    project: Project, folder: Path, provider: LoopbackProvider, name: str
) -> None:
    script, sentence, calls = UNUSABLE[name]
    script(provider)
    with pytest.raises(ModelError, match=sentence) as raised:
        project.ingest([folder])
    assert is_plain(str(raised.value))
    sent = [(request.text, request.body.get("max_tokens")) for request in provider.chat_calls]
    assert len(sent) == len(set(sent)), "no request is sent twice unchanged"
    assert len(sent) <= 10 * calls < calls * CHUNKS
    assert ("also with a higher limit" in str(raised.value)) == (calls == 2)


@pytest.mark.parametrize("name", UNUSABLE)
def test_one_unusable_answer_of_many_is_reported_and_the_others_are_published(
    project: Project, folder: Path, provider: LoopbackProvider, name: str
) -> None:
    script, sentence, calls = UNUSABLE[name]
    script(provider)
    broken, tamper = provider.reply, provider.tamper
    provider.tamper = None

    def reply(request: Request) -> str | Reply:
        if "within 9 days" in request.chunk and broken is not None:
            return broken(request)
        return CONTEXT

    provider.reply = reply
    if tamper is not None:
        provider.tamper = lambda request, answer: tamper(request, answer) if "within 9 days" in request.chunk else None
    report = project.ingest([folder])
    (failure,) = report.failures
    assert sentence in failure.error
    assert len(provider.chat_calls) == CHUNKS - 1 + calls


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        ("temperature", "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1)."),
        ("max_tokens", "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."),
        ("prompt_cache_key", "Unrecognized request argument supplied: prompt_cache_key"),
    ],
)
def test_a_parameter_that_the_model_does_not_accept_is_left_out(
    project: Project, folder: Path, provider: LoopbackProvider, parameter: str, text: str
) -> None:
    def reply(request: Request) -> str:
        if parameter in request.body:
            raise ApiError(400, text, param=parameter, code="unsupported_parameter")
        return CONTEXT

    provider.reply = reply
    report = project.ingest([folder])
    assert list(report.failures) == []
    assert sum(parameter in request.body for request in provider.chat_calls) <= 4  # those that were in flight together
    if parameter == "max_tokens":
        assert any("max_completion_tokens" in request.body for request in provider.chat_calls)


@pytest.mark.parametrize("every", [2, 3, 5])
def test_the_limit_that_the_error_names_is_sufficient(
    project: Project, folder: Path, provider: LoopbackProvider, every: int
) -> None:
    numbers = itertools.count()

    def reply(_: Request) -> str | Reply:
        return Reply("This is", finish_reason="length") if next(numbers) % every == 0 else CONTEXT

    provider.reply = reply
    with pytest.raises(BudgetExceededError) as raised:
        project.ingest([folder], max_cost=0.0004)
    words = str(raised.value).partition("max_cost=")[2].split(",")[0]
    project.ingest([folder], max_cost=float(words))


def script_of(name: str) -> Script:
    return FATAL[name][0]


def test_a_reply_that_is_a_page_for_one_request_does_not_stop_the_run(
    project: Project, folder: Path, provider: LoopbackProvider
) -> None:
    script_of("HTML page")(provider)
    tamper = provider.tamper
    assert tamper is not None
    provider.tamper = lambda request, answer: tamper(request, answer) if "within 9 days" in request.chunk else None
    report = project.ingest([folder])
    (failure,) = report.failures
    assert "returned a web page" in failure.error
