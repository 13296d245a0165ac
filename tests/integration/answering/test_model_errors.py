"""Errors of the model that answers: each is a sentence that says what to do, also on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.integration.answering.conftest import QUESTION
from tests.support.cli import Result, run
from tests.support.documents import write_texts
from tests.support.records import ApiError
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider

LLM = "openai:gpt-4o-mini"
TOO_LONG = ApiError(400, "This model's maximum context length is 8192 tokens.", code="context_length_exceeded")
FILTERED = ApiError(400, "The response was filtered due to the prompt.", code="content_filter")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the project "a"; tests do not change it."""
    folder = tmp_path_factory.mktemp("errors")
    project = ProjectManager(folder / "knowledge").create("a", ProjectConfig.local())
    project.ingest([write_texts(folder / "reports")])
    return folder / "knowledge"


@pytest.fixture(autouse=True)
def address(monkeypatch: pytest.MonkeyPatch, provider: LoopbackProvider) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setenv("OPENAI_BASE_URL", provider.api_base)


def ask(root: Path, *options: str) -> Result:
    return run("ask", "a", QUESTION, *options, "--root", root)


@pytest.mark.parametrize(
    ("error", "llm", "sentence"),
    [
        (
            TOO_LONG,
            LLM,
            "The prompt is longer than the context window of 'openai:gpt-4o-mini'. Let it read less, with"
            " `llama-index-contextual configure a --root {root} answer_tokens=4000` or lower, or name a model with a"
            " larger window with --llm.",
        ),
        (
            FILTERED,
            LLM,
            "The content filter of the provider of 'openai:gpt-4o-mini' refused the question or the passages:"
            " ask in other words, or restrict the search to other files.",
        ),
        (
            None,
            "openai:no-such-model",
            "The provider does not offer the model 'openai:no-such-model': change the setting 'answer_llm' to one that"
            " it offers.",
        ),
    ],
)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_refused_request_is_reported_in_a_sentence_with_what_to_do(
    root: Path, provider: LoopbackProvider, error: ApiError | None, llm: str, sentence: str, options: list[str]
) -> None:
    if error is not None:
        provider.enqueue(error)
    result = ask(root, "--llm", llm, *options)
    assert result.code == 1
    assert result.err.strip() == f"Error: {sentence.format(root=root)}"


@pytest.mark.parametrize(
    ("reply", "code", "problem"),
    [
        (
            Reply("", finish_reason="content_filter"),
            1,
            f"The content filter of the provider of '{LLM}' withheld the answer.",
        ),
        (Reply(""), 1, "The model returned an empty answer."),
        (
            Reply("It runs.", finish_reason="content_filter"),
            0,
            f"The content filter of the provider of '{LLM}' cut the answer off.",
        ),
    ],
)
def test_a_withheld_answer_is_an_error_with_the_reason_and_a_cut_one_partial(
    root: Path, provider: LoopbackProvider, reply: Reply, code: int, problem: str
) -> None:
    provider.enqueue(reply, reply)
    as_json = ask(root, "--llm", LLM, "--json")
    assert (as_json.code, as_json.json["partial"]) == (code, problem)
    result = ask(root, "--llm", LLM)
    assert (result.code, result.out == "") == (code, code == 1)
    assert problem in result.err
    assert (f"Error: There is no answer. {problem}\n" in result.err) == (code == 1)


@pytest.mark.parametrize("name", ["gpt-4.1-mini", "claude-3-5-haiku-latest", "openai", "openia:gpt-4.1"])
def test_a_wrong_model_name_is_blamed_on_the_option(root: Path, name: str) -> None:
    result = ask(root, "--llm", name)
    assert result.code == 1
    assert result.err.startswith(f"Error: --llm is '{name}', which is not the name of an LLM: use one of openai:…")


def test_ask_names_the_address_of_a_server_that_cannot_be_reached(root: Path, provider: LoopbackProvider) -> None:
    provider.fault("drop", times=9)
    result = ask(root, "--llm", LLM)
    assert result.code == 1
    assert f"cannot be reached at {provider.api_base}: check that it is running" in result.err
