"""OpenAI's Batch API against the loopback provider: uploads, replies, and resumption by a new process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.contextualizer import sending as batches
from llama_index_contextual.contextualizer.prompts import ContextRequest, Prefix
from llama_index_contextual.contextualizer.sending import (
    BatchProgress,
    BatchReplies,
    BatchRunner,
    parse_errors,
    parse_output,
    request_line,
)
from llama_index_contextual.errors import ModelError
from llama_index_contextual.index.ledger import BatchJournal, BatchReply, Ledger, content_key
from llama_index_contextual.money.account import Account
from llama_index_contextual.money.price import Prices
from tests.integration.contextualizer.segments_of import planned
from tests.support.batches import BatchPlan, Files
from tests.support.replies import context_for
from tests.support.server import LoopbackProvider

MODEL = "openai:gpt-4.1"
REQUEST = replace(planned()[0][0], prefix=Prefix(""))


def request(number: int) -> ContextRequest:
    return replace(REQUEST, suffix=f"Situate <chunk>Passage number {number} speaks of subject{number}.</chunk>")


def id_of(number: int) -> str:
    return content_key("batch", MODEL, request(number).prompt)


def body(request: ContextRequest) -> dict[str, Any]:
    return {"model": "gpt-4.1", "messages": [{"role": "user", "content": request.prompt}]}


class Desk:
    """A journal, a client of the provider, and runners as processes would make them one after the other."""

    def __init__(self, path: Path, client: AsyncOpenAI) -> None:
        self.path, self.client = path, client
        self.journal = BatchJournal(Ledger(path))
        self.start_process()

    def start_process(self, **options: Any) -> None:
        self.replies = BatchReplies(self.journal, MODEL, Account(Prices()))
        self.runner = BatchRunner(self.replies, self.client, body, policy=RetryPolicy(base_delay=0.0), **options)

    async def submit(self, *numbers: int) -> int:
        return await self.runner.submit(map(request, numbers))

    async def collect(self) -> None:
        await self.runner.collect()

    async def upload(self, *numbers: int) -> str:
        """Upload requests without a word in the journal."""
        content = b"".join(request_line(id_of(number), body(request(number))) for number in numbers)
        return (await self.client.files.create(file=("x.jsonl", content), purpose="batch")).id

    async def create(self, file_id: str) -> None:
        """Begin a batch without a word in the journal."""
        await self.client.batches.create(
            input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )

    def answered(self, *numbers: int) -> list[bool]:
        return [self.journal.reply(id_of(number)) is not None for number in numbers]


@pytest.fixture
async def desk(provider: LoopbackProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setattr(batches, "POLL_SECONDS", 0.0)
    async with AsyncOpenAI(api_key="any", base_url=provider.api_base, max_retries=0) as client:
        yield Desk(tmp_path / "ledger.sqlite", client)


# ---- files ---------------------------------------------------------------------------------------------------------


def test_lines_without_a_reply_are_skipped() -> None:
    good = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
    lines = [
        {"custom_id": "1", "response": {"body": good}},
        {"custom_id": "2", "response": None, "error": {"code": "batch_expired"}},
        {"custom_id": "3", "response": {"body": {"error": {"message": "no"}}}},
        {"custom_id": "4", "response": {"body": {"choices": []}}},
        ["no object"],
    ]
    content = b"\n".join([*(json.dumps(line).encode() for line in lines), b"{half", b""])
    assert list(parse_output(content)) == [BatchReply(custom_id="1", text="x", finish_reason="stop")]


def test_replies_with_odd_content_can_be_stored(tmp_path: Path) -> None:
    def line(custom_id: object, text: str, tokens: int = 5) -> bytes:
        choice = {"message": {"content": text}, "finish_reason": "stop\ud800"}
        body = {"choices": [choice], "usage": {"prompt_tokens": tokens, "completion_tokens": tokens}}
        return json.dumps({"custom_id": custom_id, "response": {"body": body}}).encode()

    lines = [line("a", "One\0 and\ud800 two."), line("b", "\0"), line("c\ud800", "no id"), line(7, "no id")]
    lines += [line("d", "Much.", 10**30), b"[" * 100_000]
    replies = list(parse_output(b"\n".join(lines)))
    journal = BatchJournal(Ledger(tmp_path / "ledger.sqlite"))
    journal.closed("file", replies)
    kept = {reply.custom_id: journal.reply(reply.custom_id) for reply in replies}
    assert {name: reply.text for name, reply in kept.items() if reply} == {"a": "One and two.", "b": "", "d": "Much."}
    assert kept["a"] == replies[0]
    assert kept["d"] is not None
    assert kept["d"].input_tokens is None


# ---- one batch -----------------------------------------------------------------------------------------------------


async def test_replies_in_another_order_are_matched_to_their_requests(provider: LoopbackProvider, desk: Desk) -> None:
    progress: list[BatchProgress] = []
    desk.start_process(on_progress=progress.append)
    assert await desk.submit(*range(12)) == 12
    assert [batch.requests for batch in desk.journal.open_batches()] == [12]
    await desk.collect()
    assert desk.journal.open_batches() == []
    for number in range(12):
        reply = desk.journal.reply(id_of(number))
        assert reply is not None
        assert reply.text == context_for(f"Passage number {number} speaks of subject{number}.", 20)
        assert (reply.finish_reason, reply.cached_tokens) == ("stop", 0)
        assert reply.input_tokens
        assert reply.output_tokens
    assert progress[-1] == BatchProgress(batches=0, requests=12, done=12)
    assert provider.calls() == [], "nothing was sent live"


async def test_requests_in_progress_or_answered_or_repeated_are_not_sent_again(
    provider: LoopbackProvider, desk: Desk
) -> None:
    assert await desk.submit(1, 2, 1) == 2
    assert await desk.submit(1, 2, 3) == 1
    await desk.collect()
    assert await desk.submit(1, 2, 3) == 0
    assert len(provider.batch_history) == 3
    assert desk.answered(1, 2, 3) == [True] * 3


async def test_the_body_of_a_request_that_is_not_sent_is_not_built(desk: Desk) -> None:
    await desk.submit(1)
    built: list[str] = []

    def noted(request: ContextRequest) -> dict[str, Any]:
        built.append(request.suffix)
        return body(request)

    desk.runner = BatchRunner(desk.replies, desk.client, noted)
    assert await desk.submit(1, 2, 2) == 1
    assert built == [request(2).suffix], "money is reserved while a body is built"


async def test_many_requests_are_split_into_several_batches(
    provider: LoopbackProvider, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.batch_max_requests = 4
    monkeypatch.setattr(batches, "MAX_REQUESTS", 4)
    await desk.submit(*range(10))
    assert [batch.requests for batch in desk.journal.open_batches()] == [4, 4, 2]
    await desk.collect()
    assert all(desk.answered(*range(10)))


# ---- resumption by a new process -----------------------------------------------------------------------------------


@pytest.mark.parametrize("created", [True, False], ids=["the batch was created", "the batch was not created"])
async def test_an_upload_without_a_recorded_batch_is_resumed(
    provider: LoopbackProvider, desk: Desk, created: bool
) -> None:
    file_id = await desk.upload(1, 2)
    desk.journal.uploaded(file_id, model=MODEL, custom_ids=[id_of(1), id_of(2)])
    if created:
        await desk.create(file_id)
    assert await desk.submit(1, 2) == 0
    await desk.collect()
    assert desk.answered(1) == [True]
    assert len(provider.batch_history) == 2, "paid once"


async def test_a_batch_beyond_the_first_page_of_the_list_is_resumed(
    provider: LoopbackProvider, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.batches.LARGEST_PAGE", 2)
    for number in range(1, 7):
        await desk.create(file_id := await desk.upload(number))
        if number == 1:
            desk.journal.uploaded(file_id, model=MODEL, custom_ids=[id_of(1)])
    await desk.collect()
    assert desk.answered(1) == [True]
    created = [call for call in provider.history if (call.method, call.path) == ("POST", "/v1/batches")]
    assert len(created) == 6, "each was created once"


async def test_batches_of_another_model_are_ignored(desk: Desk) -> None:
    desk.journal.uploaded("file-x", model="openai:other", custom_ids=["a"])
    await desk.collect()
    assert [batch.model for batch in desk.journal.open_batches()] == ["openai:other"]


# ---- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["expired", "cancelled"])
async def test_replies_of_an_incomplete_batch_are_kept_and_the_other_requests_can_be_sent_again(
    provider: LoopbackProvider, desk: Desk, caplog: pytest.LogCaptureFixture, ending: Any
) -> None:
    provider.batch_plan = BatchPlan(ending=ending, finished=3)
    await desk.submit(*range(8))
    await desk.collect()
    assert sum(desk.answered(*range(8))) == 3
    assert f"is {ending} with 3 of 8 replies" in caplog.text
    unanswered = {id_of(number) for number in range(8) if not desk.answered(number)[0]}
    assert desk.replies.unanswered.keys() == unanswered
    reasons = {
        "expired": "This request could not be executed before the window expired.",
        "cancelled": "its batch was cancelled before the request was answered",
    }
    assert set(desk.replies.unanswered.values()) == {reasons[ending]}
    provider.batch_plan = BatchPlan()
    assert await desk.submit(*range(8)) == 5
    assert desk.replies.unanswered == {}
    await desk.collect()
    assert all(desk.answered(*range(8)))
    assert len(provider.batch_history) == 8, "nothing was paid twice"


@pytest.mark.parametrize("error_output", ["whole", "truncated", "empty", "missing", "gone"])
async def test_a_failed_request_does_not_affect_the_others(
    provider: LoopbackProvider, desk: Desk, error_output: Any
) -> None:
    provider.batch_plan = BatchPlan(failing=(id_of(1),), error_output=error_output)
    await desk.submit(0, 1, 2)
    await desk.collect()
    assert desk.answered(0, 1, 2) == [True, False, True]
    said = "The server had an error while processing your request."
    unknown = "the provider failed to answer its request in a batch"
    assert desk.replies.unanswered == {id_of(1): said if error_output == "whole" else unknown}
    assert not desk.replies.is_sent(id_of(1))


async def test_the_requests_of_a_refused_batch_are_unanswered_and_the_batch_is_removed(
    provider: LoopbackProvider, desk: Desk
) -> None:
    provider.batch_plan = BatchPlan(ending="failed")
    await desk.submit(1)
    await desk.collect()
    assert desk.replies.unanswered == {id_of(1): "the provider refused its batch: Enqueued token limit reached"}
    assert desk.journal.open_batches() == []
    assert not desk.replies.is_sent(id_of(1))


def test_lines_of_an_error_file_without_a_message_are_skipped() -> None:
    lines = [
        {"custom_id": "1", "response": {"body": {"error": {"message": "Too long."}}}, "error": None},
        {"custom_id": "2", "error": {"code": "batch_expired", "message": "Expired\ud800."}},
        {"custom_id": "3", "error": {"code": "unknown"}},
        {"custom_id": "4", "response": None, "error": None},
        {"custom_id": "5", "error": "text"},
        ["no object"],
        7,
    ]
    content = b"\n".join([*(json.dumps(line).encode() for line in lines), b"{half", b"[" * 100_000, b""])
    assert parse_errors(content) == {"1": "Too long.", "2": "Expired."}


async def test_requests_of_a_batch_unknown_to_the_provider_are_not_sent_again(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.journal.uploaded("file-9", model=MODEL, custom_ids=[id_of(1)])
    desk.journal.started("file-9", "batch_999")
    await desk.collect()
    assert "does not know the batch batch_999; it may belong to another account" in caplog.text
    assert await desk.submit(1) == 0


@pytest.mark.parametrize("output", ["missing", "empty", "truncated"])
async def test_charged_requests_without_a_readable_reply_are_not_sent_again(
    provider: LoopbackProvider, desk: Desk, caplog: pytest.LogCaptureFixture, output: Any
) -> None:
    provider.batch_plan = BatchPlan(output=output)
    await desk.submit(*range(9))
    await desk.collect()
    assert desk.replies.unanswered == {}
    read = sum(desk.answered(*range(9)))
    assert read == (0 if output != "truncated" else pytest.approx(6, abs=1))
    assert desk.runner.unread == {desk.journal.open_batches()[0].file_id: 9 - read}
    assert f"is completed with {read} of 9 replies, although the provider counts 9" in caplog.text
    assert await desk.submit(*range(9)) == 0
    assert len(provider.batch_history) == 9


async def test_replies_that_can_be_read_later_are_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Files.get

    def cut(files: Files, file_id: str) -> Any:
        file = whole(files, file_id)
        return replace(file, content=file.content[: len(file.content) // 2])

    await desk.submit(*range(6))
    with monkeypatch.context() as patch:
        patch.setattr(Files, "get", cut)
        await desk.collect()
    unread = sum(desk.runner.unread.values())
    assert 0 < unread < 6
    desk.start_process()
    await desk.collect()
    assert (desk.runner.unread, desk.journal.open_batches()) == ({}, [])
    assert len(desk.replies.recorded) == unread, "each reply is recorded once"
    assert all(desk.answered(*range(6)))


async def test_requests_that_an_expired_batch_did_not_reach_wait_for_the_replies_that_it_charges(
    provider: LoopbackProvider, desk: Desk
) -> None:
    provider.batch_plan = BatchPlan(ending="expired", finished=4, output="missing")
    await desk.submit(*range(8))
    await desk.collect()
    assert list(desk.runner.unread.values()) == [4]
    assert await desk.submit(*range(8)) == 0


async def test_an_unknown_upload_can_be_sent_again(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.journal.uploaded("file-9", model=MODEL, custom_ids=[id_of(1)])
    await desk.collect()
    assert desk.replies.unanswered == {id_of(1): "the provider rejected the file with its request"}
    assert "Upload file-9 was rejected by the provider" in caplog.text
    assert await desk.submit(1) == 1
    await desk.collect()
    assert desk.answered(1) == [True]


async def test_a_failed_call_is_sent_again(provider: LoopbackProvider, desk: Desk) -> None:
    provider.fault("server_error", match="/v1/files")
    provider.fault("rate_limit", match="/v1/batches", after=1)
    await desk.submit(1)
    await desk.collect()
    assert desk.answered(1) == [True]


async def test_a_refused_key_is_a_model_error(provider: LoopbackProvider, desk: Desk) -> None:
    provider.require_key = "another"
    with pytest.raises(ModelError, match="refused the API key"):
        await desk.submit(1)
    assert desk.journal.open_batches() == []


def test_used_replies_are_removed(desk: Desk) -> None:
    desk.journal.uploaded("file-1", model=MODEL, custom_ids=["a", "b"])
    desk.journal.closed("file-1", [BatchReply(custom_id="a", text="A"), BatchReply(custom_id="b", text="B")])
    desk.journal.forget_replies(["a"])
    assert desk.journal.reply("a") is None
    assert desk.journal.reply("b") == BatchReply(custom_id="b", text="B")
