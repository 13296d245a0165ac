"""Several chunks in one call: prompts, checks of ids, and repeated requests, first together, then one by one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from llama_index.core.schema import BaseNode

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual._utils.templates import ContextPrompt
from llama_index_contextual.contextualizer import Contextualized, LLMContextualizer
from llama_index_contextual.contextualizer.base import segments
from llama_index_contextual.contextualizer.prompts import (
    DEFAULT_PROMPT,
    RESPONSE_FORMAT,
    ChunksPerCall,
    keyed,
    read_group,
)
from llama_index_contextual.index.ledger import Ledger
from tests.integration.contextualizer.samples import chunks, foreign, loose
from tests.integration.contextualizer.segments_of import answered, corpus, independent_totals, plan_requests, prompt_of
from tests.support.faults import FaultKind
from tests.support.nodes import written
from tests.support.records import Request
from tests.support.replies import default_reply
from tests.support.server import LoopbackProvider

MODEL = "openai:gpt-4o-mini"
PROMPT = ContextPrompt(DEFAULT_PROMPT)
QUICK = RetryPolicy(attempts=3, base_delay=0.001)


def run(nodes: list[BaseNode], chunks_per_call: ChunksPerCall, **options: object) -> Contextualized:
    values = {"model": MODEL, "retry": QUICK, "chunks_per_call": chunks_per_call, **options}
    return LLMContextualizer(**values).contextualize(nodes)  # type: ignore[arg-type]


def is_grouped(request: Request) -> bool:
    return "[#" in request.chunk


def sizes(provider: LoopbackProvider) -> list[int]:
    """Return how many chunks each call asks for; 0 for a chunk on its own."""
    return [len(re.findall(r"\[#\d+\]", prompt_of(call).rpartition("<chunks>")[2])) for call in provider.chat_calls]


# ---- what is planned (pure) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("per_call", "groups"),
    [(1, [()] * 5), (2, [(1, 2), (3, 4), (5,)]), (9, [(1, 2, 3, 4, 5)]), ("all", [(1, 2, 3, 4, 5)])],
)
def test_groups_identify_chunks_by_number(per_call: ChunksPerCall, groups: list[tuple[int, ...]]) -> None:
    (segment,) = segments(corpus(1, 5, words=5), segment_size=8000)
    planned = plan_requests(segment, segment.chunks, prompt=PROMPT, model=MODEL, chunks_per_call=per_call)
    assert [request.ids for request in planned] == groups
    assert len({request.prefix for request in planned}) == 1
    assert [key for request in planned for key in request.keys] == list(
        keyed(segment, segment.chunks, prompt=PROMPT, model=MODEL)
    )
    assert all((request.response_format == RESPONSE_FORMAT) == bool(request.ids) for request in planned)


@pytest.mark.parametrize(
    "nodes", [chunks(), foreign(), loose("One.", "Two.", "One.")], ids=["ours", "foreign", "loose"]
)
def test_the_tags_enclose_exactly_the_chunk(nodes: list[BaseNode]) -> None:
    for segment in segments(nodes, segment_size=8000):
        if len(segment.chunks) < 2:
            continue
        planned = plan_requests(segment, segment.chunks, prompt=PROMPT, model=MODEL, chunks_per_call="all")
        for request in planned:
            for number, chunk in zip(request.ids, request.chunks, strict=True):
                marked = request.prefix.text.partition(f"[#{number}]")[2].partition(f"[/#{number}]")[0]
                for other in range(1, len(segment.chunks) + 1):  # overlapping chunks have marks inside each other
                    marked = marked.replace(f"[#{other}]", "").replace(f"[/#{other}]", "")
                assert marked == chunk.get_content()


def test_text_that_looks_like_a_tag_is_neutralised() -> None:
    (segment,) = segments(loose("See [#2] and [/#1] there.", "Two."), segment_size=8000)
    (request,) = plan_requests(segment, segment.chunks, prompt=PROMPT, model=MODEL, chunks_per_call="all")
    assert "[#1]See (#2) and (/#1) there.[/#1]" in request.prefix.text


def test_a_single_chunk_is_requested_with_the_published_prompt() -> None:
    (segment,) = segments(loose("One."), segment_size=8000)
    grouped, single = (
        plan_requests(segment, segment.chunks, prompt=PROMPT, model=MODEL, chunks_per_call=n) for n in ("all", 1)
    )
    assert grouped == single


def test_sections_are_listed_with_the_ids() -> None:
    nodes = [*loose("One.", "Two.", section="A"), *loose("Three.", section="B")]
    nodes[2].node_id = "loose-2"
    (segment,) = segments(nodes, segment_size=8000)
    (request,) = plan_requests(segment, segment.chunks, prompt=PROMPT, model=MODEL, chunks_per_call="all")
    assert "[#1] [#2] Section: A\n[#3] Section: B\n</chunks>" in request.suffix


def test_the_default_prompt_for_several_chunks_asks_once_and_for_json_only() -> None:
    (segment,) = segments(loose("One.", "Two."), segment_size=8000)
    (request,) = plan_requests(segment, segment.chunks, prompt=PROMPT, model=MODEL, chunks_per_call="all")
    instruction = request.prompt.rpartition("</chunks>")[2]
    assert instruction.count("Answer") == instruction.count("context to situate") == 1
    assert "Answer only with the succinct context" not in request.prompt
    assert read_group(instruction.partition("JSON only: ")[2], [1, 2]) == {1: "…", 2: "…"}, "the example is valid"
    assert "<chunk>" not in request.prompt


def test_an_own_prompt_for_several_chunks_keeps_its_words_and_variables() -> None:
    (segment,) = segments(loose("One.", "Two."), segment_size=8000)
    own = ContextPrompt("{terms} {segment} Situate: {chunk} Be brief.", {"terms": "TS: sensor."})
    (request,) = plan_requests(segment, segment.chunks, prompt=own, model=MODEL, chunks_per_call="all")
    assert request.prefix.text.startswith("TS: sensor. ")
    assert "Situate: [#1] [#2] Be brief.\nSeveral chunks are named by their ids; " in request.prompt
    assert "Answer with JSON only: " in request.suffix


# ---- what is sent ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("per_call", "calls"), [(2, [2, 2, 1]), ("all", [5])])
def test_every_chunk_gets_the_context_of_its_own_id(
    per_call: ChunksPerCall, calls: list[int], provider: LoopbackProvider, tmp_path: Path
) -> None:
    nodes = corpus(1, 5, words=40)
    done = run(nodes, per_call)
    # The calls are concurrent, so they may arrive in any order.
    assert (done.failures, done.paid, sorted(sizes(provider), reverse=True)) == ([], 5, calls)
    by_id = {entry["id"]: entry["context"] for entry in answered(provider.chat_calls)}
    assert [written(node) for node in done.nodes] == [by_id[number] for number in range(1, 6)]
    assert len(set(by_id.values())) == 5
    assert {call.body["response_format"]["type"] for call in provider.chat_calls} == {"json_schema"}
    assert independent_totals(provider, tmp_path)["mismatches"] == 0


def test_the_tokens_of_a_call_are_shared_among_its_contexts(provider: LoopbackProvider, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    run(corpus(1, 5, words=40), "all", ledger=ledger)
    result = ledger.info()
    assert (result.contexts, result.input_tokens) == (5, provider.totals()["prompt_tokens"])
    assert result.output_tokens == provider.totals()["completion_tokens"]


# ---- what is asked again ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["refusal", "content_filter", "content_filter_error"])
def test_refused_contexts_are_requested_chunk_by_chunk(kind: FaultKind, provider: LoopbackProvider) -> None:
    provider.fault(kind)
    done = run(corpus(1, 4, words=40), "all")
    assert done.failures == []
    together, *alone = sizes(provider)
    assert (together, set(alone)) == (4, {0})
    # What can be read of an answer that the filter has cut is kept.
    assert len(alone) < 4 if kind == "content_filter" else len(alone) == 4


def test_only_missing_contexts_are_requested_again_first_together_then_one_by_one(
    provider: LoopbackProvider,
) -> None:
    calls: list[list[str]] = []

    def forgetful(request: Request) -> str:
        text = default_reply(request, 20).text or ""
        if is_grouped(request):
            calls.append([word for word in request.chunk.split() if word.startswith("[#") and word[2].isdigit()])
            for number in (2, 4, 5) if len(calls) == 1 else (4, 5):
                text = text.replace(f'"id": {number},', f'"id": {number + 70},')
        return text

    provider.reply = forgetful
    done = run(corpus(1, 5, words=40), "all")
    assert calls == [["[#1]", "[#2]", "[#3]", "[#4]", "[#5]"], ["[#2]", "[#4]", "[#5]"]]
    assert sizes(provider) == [5, 3, 0, 0]
    assert (done.failures, done.paid) == ([], 5)


@pytest.mark.parametrize("kind", ["wrong_ids", "duplicate_ids", "malformed_reply"])
def test_a_model_that_returns_no_ids_gets_single_requests(kind: FaultKind, provider: LoopbackProvider) -> None:
    provider.fault(kind, times=None, match=is_grouped)
    done = run(corpus(1, 4, words=40), "all")
    assert done.failures == []
    assert [size for size in sizes(provider) if size] == ([4, 3] if kind == "malformed_reply" else [4, 4])
    assert len({node.metadata["context"] for node in done.nodes}) == 4


def test_a_chunk_refused_by_a_content_filter_does_not_affect_others(provider: LoopbackProvider) -> None:
    provider.fault(
        "content_filter_error", times=None, match=lambda r: is_grouped(r) or "Part 2 of document 0" in r.chunk
    )
    done = run(corpus(2, 4, words=40), "all")
    assert [failure.node_id for failure in done.failures] == ["doc-0-2"]
    assert [node.metadata["context_source"] for node in done.nodes].count("llm") == 7


def test_a_group_whose_provider_keeps_failing_is_not_tried_chunk_by_chunk(provider: LoopbackProvider) -> None:
    provider.fault("server_error", times=None, match=lambda r: is_grouped(r) and "of document 1" in r.text)
    done = run(corpus(2, 4, words=40), "all", num_workers=1)
    assert [failure.node_id for failure in done.failures] == [f"doc-1-{n}" for n in range(4)]
    assert len(provider.chat_calls) == 1 + QUICK.attempts


def test_an_unusable_context_in_a_group_is_requested_alone(provider: LoopbackProvider) -> None:
    def lazy(request: Request) -> str:
        text = default_reply(request, 20).text or ""
        return text.replace('"id": 3, "context": "', '"id": 3, "context": "I cannot help with this. ')

    provider.reply = lazy
    done = run(corpus(1, 4, words=40), "all")
    assert (done.failures, sizes(provider)) == ([], [4, 0])
    assert "cannot help" not in done.nodes[2].metadata["context"]
