"""The LLM contextualizer with a scripted model: cleaning, failures, the ledger, one model for many loops."""

from __future__ import annotations

import asyncio
import copy
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.extractors import DocumentContextExtractor
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.storage.docstore import SimpleDocumentStore

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.contextualizer import LLMContextualizer, StructuralContextualizer
from llama_index_contextual.contextualizer.base import segments
from llama_index_contextual.contextualizer.prompts import MAX_CONTEXT_TOKENS, judge
from llama_index_contextual.errors import ContextualizationError, ModelError
from llama_index_contextual.node_parser import count_tokens
from llama_index_contextual.storage.ledger import Ledger
from tests.integration.contextualizer.samples import chunks, documents, loose
from tests.support.models import ScriptedLLM
from tests.support.nodes import written

QUICK = RetryPolicy(attempts=3, base_delay=0)


def contextualizer(llm: ScriptedLLM, **options: object) -> LLMContextualizer:
    return LLMContextualizer(**{"llm": llm, "num_workers": 1, "retry": QUICK, **options})  # type: ignore[arg-type]


ANSWER = "Answer {} says in fifteen words or more in which part of the report the passage stands."


def cleaned(answer: str) -> str:
    return judge(answer, "").context or ""


def contexts(nodes: list[BaseNode]) -> list[str]:
    return [node.metadata["context"] for node in nodes]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


# ---- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "context"),
    [
        ("From the report.", "From the report."),
        ("  From\n\nthe  report. ", "From the report."),
        ("<context>From the report.</context>", "From the report."),
        ("<answer> From </ answer >the report.", "From the report."),
        ("Context: From the report.", "From the report."),
        ("assistant: Succinct context: From the report.", "From the report."),
        ('"From the report."', "From the report."),
        ('"From" the "report"', '"From" the "report"'),
        ("Here is a short succinct context to situate the chunk: From the report.", "From the report."),
        ("Here’s the context:\n\nFrom the report.", "From the report."),
        ("Here is what the report says. It is: good.", "Here is what the report says. It is: good."),
        ("<OUTPUT>From the report.</OUTPUT>", "From the report."),
        ("<b>From</b> the report.", "<b>From</b> the report."),
        ("Contextual facts stay.", "Contextual facts stay."),
        ('"', '"'),
        ("", ""),
        ("<context></context>", ""),
    ],
)
def test_tags_role_prefixes_and_quotation_marks_are_removed(answer: str, context: str) -> None:
    assert cleaned(answer) == context


@pytest.mark.parametrize(
    "sentence", ["This is one sentence about the pump. ", "这是关于泵的一个句子。", "Is it dry? Yes! "]
)
def test_a_long_answer_ends_with_its_last_whole_sentence(sentence: str) -> None:
    cut = cleaned(sentence * 100)
    assert (sentence * 100).startswith(cut)
    assert cut[-1] in ".。!?"
    assert MAX_CONTEXT_TOKENS - 20 <= count_tokens(cut) <= MAX_CONTEXT_TOKENS


@pytest.mark.parametrize("answer", ["word " * 500, "文" * 900, "x" * 3000, "3.5 4.5 " * 300])
def test_a_long_answer_without_sentences_is_cut_not_rejected(answer: str) -> None:
    cut = cleaned(answer)
    assert answer.startswith(cut)
    assert MAX_CONTEXT_TOKENS - 20 <= count_tokens(cut) <= MAX_CONTEXT_TOKENS


@given(st.text(max_size=900))
def test_a_context_is_one_paragraph_of_at_most_200_tokens(answer: str) -> None:
    context = cleaned(answer)
    assert count_tokens(context) <= MAX_CONTEXT_TOKENS
    assert context == " ".join(context.split())


def test_each_chunk_gets_its_own_answer() -> None:
    llm, given_chunks = ScriptedLLM(), chunks()
    llm.enqueue(*(ANSWER.format(n) for n in range(len(given_chunks))))
    done = contextualizer(llm).contextualize(given_chunks)
    assert list(map(written, done.nodes)) == [ANSWER.format(n) for n in range(len(given_chunks))]
    assert done.paid == len(llm.history) == len(given_chunks)
    for node, prompt in zip(given_chunks, llm.history, strict=True):
        assert prompt.split("<chunk>\n")[1].split("\n</chunk>")[0].endswith(node.get_content())


def test_a_custom_prompt_is_sent() -> None:
    llm = ScriptedLLM()
    contextualizer(llm, prompt="Doc: {segment}\nPart: {chunk}\nSum up.")(loose("One.", "Two."))
    assert llm.history == ["Doc: One.\n\nTwo.\nPart: One.\nSum up.", "Doc: One.\n\nTwo.\nPart: Two.\nSum up."]


# ---- failures --------------------------------------------------------------------------------------------------------


def test_a_chunk_that_fails_gets_the_structural_context_and_is_reported() -> None:
    llm, given_chunks = ScriptedLLM(), chunks()
    llm.enqueue(ANSWER, ValueError("content refused"))
    done = contextualizer(llm).contextualize(given_chunks)
    failed = done.nodes[1]
    assert [(f.node_id, f.doc_id) for f in done.failures] == [(failed.node_id, "report.md")]
    assert done.failures[0].error == "'ScriptedLLM:scripted' failed: ValueError: content refused"
    assert failed.metadata["context_source"] == "structural"
    assert contexts([failed]) == contexts(StructuralContextualizer()(given_chunks)[1:2])
    assert list(map(written, [done.nodes[0], *done.nodes[2:]])) == [
        ANSWER,
        *["A context of the passage in its text, as long as it has to be here."] * (len(given_chunks) - 2),
    ]
    assert done.paid == len(given_chunks) - 1


@pytest.mark.parametrize("answer", ["", "  \n", "<context> </context>"])
def test_an_empty_answer_four_times_is_a_failure(answer: str) -> None:
    llm = ScriptedLLM()
    llm.enqueue(*[answer] * 4)
    done = contextualizer(llm).contextualize(loose("One."))
    assert done.failures[0].error == "'ScriptedLLM:scripted' answered with an empty context."
    assert done.nodes[0].metadata["context_source"] == "structural"


def test_failures_are_logged_by_calls_that_return_no_report(caplog: pytest.LogCaptureFixture) -> None:
    llm = ScriptedLLM()
    llm.enqueue(ValueError("refused"))
    with caplog.at_level(logging.WARNING, logger="llama_index_contextual"):
        nodes = contextualizer(llm)(chunks())
    (record,) = caplog.records
    assert record.getMessage() == (
        f"Chunk {nodes[0].node_id} of report.md: 'ScriptedLLM:scripted' failed: ValueError: refused"
    )


@pytest.mark.parametrize("error", [ConnectionError("gone"), TimeoutError("late")])
def test_a_temporary_error_is_retried(error: Exception) -> None:
    llm = ScriptedLLM()
    llm.enqueue(error, error, ANSWER)
    done = contextualizer(llm).contextualize(loose("One."))
    assert (contexts(done.nodes), done.failures, len(llm.history)) == ([ANSWER], [], 3)


def test_a_failing_call_is_abandoned_after_the_attempts_of_the_policy() -> None:
    llm = ScriptedLLM()
    llm.enqueue(ANSWER, *[ConnectionError("gone")] * 9)
    done = contextualizer(llm).contextualize(loose("One.", "Two."))
    assert len(llm.history) == 1 + QUICK.attempts
    assert "cannot be reached" in done.failures[0].error


def test_a_provider_that_never_answers_stops_the_run() -> None:
    llm = ScriptedLLM()
    llm.enqueue(*[ConnectionError("gone")] * 9)
    with pytest.raises(ModelError, match=r"cannot be reached: .* The run was stopped after 3 failures in a row\."):
        contextualizer(llm)(loose("One."))
    assert len(llm.history) == QUICK.attempts


@pytest.mark.parametrize("answers", [[ValueError("refused")], [""] * 4], ids=["error", "empty"])
def test_failures_can_be_raised_instead(answers: list[object]) -> None:
    llm = ScriptedLLM()
    llm.enqueue(*answers)  # type: ignore[arg-type]
    nodes = loose("One.", "Two.", "Three.")
    with pytest.raises(ContextualizationError) as raised:
        contextualizer(llm, on_error="raise")(nodes[:1] if len(answers) > 1 else nodes)
    assert raised.value.node_ids == (nodes[0].node_id,)
    assert repr(raised.value.__cause__) == repr(answers[0] or None)
    assert len(llm.history) == len(answers), "nothing is sent after the failure"


def test_an_error_that_concerns_all_chunks_stops_the_run() -> None:
    llm = ScriptedLLM()
    cause = ValueError("Unknown model 'gpt-0'. Please provide a valid OpenAI model name in: ...")
    llm.enqueue(cause)
    with pytest.raises(
        ModelError, match="does not offer the model 'ScriptedLLM:scripted': change the setting 'llm'"
    ) as e:
        contextualizer(llm)(chunks())
    assert repr(e.value.__cause__) == repr(cause)
    assert len(llm.history) == 1


def test_a_missing_key_is_an_error_with_a_message() -> None:
    with pytest.raises(ModelError, match=r"'openai:gpt-6-luna' needs OPENAI_API_KEY, which is not set"):
        LLMContextualizer()(chunks())


# ---- the ledger ------------------------------------------------------------------------------------------------------


def test_a_second_run_sends_no_request(ledger: Ledger) -> None:
    first, second = ScriptedLLM(), ScriptedLLM(default="never")
    once = contextualizer(first, ledger=ledger).contextualize(chunks())
    again = contextualizer(second, ledger=ledger).contextualize(chunks())
    assert second.history == []
    assert (once.paid, again.paid) == (len(chunks()), 0)
    assert again.nodes == once.nodes
    assert ledger.info().contexts == len(chunks())


@pytest.mark.parametrize("change", ["model", "prompt", "segment", "chunk"])
def test_every_input_of_a_call_is_part_of_its_key(change: str, ledger: Ledger) -> None:
    contextualizer(ScriptedLLM(), ledger=ledger)(loose("One.", "Two."))
    llm = ScriptedLLM(model_name="other") if change == "model" else ScriptedLLM()
    options: dict[str, object] = {"prompt": "{segment} {chunk}"} if change == "prompt" else {}
    texts = {"segment": ("One.", "Three."), "chunk": ("One.", "Two!")}.get(change, ("One.", "Two."))
    contextualizer(llm, ledger=ledger, **options)(loose(*texts))
    assert len(llm.history) == 2


def test_a_failure_is_not_stored_and_can_be_retried(ledger: Ledger) -> None:
    llm = ScriptedLLM()
    llm.enqueue(ValueError("refused"), *[""] * 4)
    contextualizer(llm, ledger=ledger)(loose("One.", "Two."))
    assert ledger.info().contexts == 0
    done = contextualizer(llm, ledger=ledger).contextualize(loose("One.", "Two."))
    assert (done.failures, ledger.info().contexts) == ([], 2)


def test_contexts_written_before_a_stop_are_kept(ledger: Ledger) -> None:
    llm = ScriptedLLM()
    llm.enqueue(ANSWER, ANSWER, ValueError("Unknown model"))
    with pytest.raises(ModelError):
        contextualizer(llm, ledger=ledger)(chunks())
    assert ledger.info().contexts == 2


def test_a_complete_ledger_needs_no_model(ledger: Ledger) -> None:
    contextualizer(ScriptedLLM(), ledger=ledger)(loose("One."))
    keyless = LLMContextualizer(model="ScriptedLLM:scripted", ledger=ledger)
    assert contexts(keyless(loose("One."))) == ["A context of the passage in its text, as long as it has to be here."]


# ---- event loops -----------------------------------------------------------------------------------------------------


class Waiting(ScriptedLLM):
    """Answers never, and remembers that it was told to stop."""

    _started: int = 0
    _stopped: int = 0

    async def achat(self, messages, **kwargs):  # type: ignore[no-untyped-def]
        """Wait for ever."""
        self._started += 1
        try:
            return await asyncio.Event().wait()
        except asyncio.CancelledError:
            self._stopped += 1
            raise


@pytest.mark.parametrize("workers", [1, 3])
async def test_a_cancelled_run_leaves_no_call_in_flight(workers: int) -> None:
    llm = Waiting()
    run = asyncio.create_task(contextualizer(llm, num_workers=workers).acontextualize(chunks()))
    while llm._started < workers:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert llm._started == workers
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert llm._stopped == workers


def test_one_object_serves_several_event_loops() -> None:
    one = contextualizer(ScriptedLLM(), num_workers=2)
    for _ in range(3):
        assert len(asyncio.run(one.acall(chunks()))) == len(chunks())
        assert len(one(chunks())) == len(chunks())


def test_invalid_options_are_refused() -> None:
    for options in ({"num_workers": 0}, {"on_error": "ignore"}, {"segment_size": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            LLMContextualizer(**options)  # type: ignore[arg-type]


# ---- the extractor in LlamaIndex's core ------------------------------------------------------------------------------


def extractor_input() -> tuple[SimpleDocumentStore, list[BaseNode]]:
    store = SimpleDocumentStore()
    store.add_documents(documents()[1:])
    return store, list(SentenceSplitter(chunk_size=16, chunk_overlap=0)(documents()[1:]))


def test_without_a_model_the_stock_extractor_asserts_and_this_package_raises_a_message() -> None:
    store, nodes = extractor_input()
    with pytest.raises(AssertionError):
        DocumentContextExtractor(docstore=store, llm=None)
    with pytest.raises(ModelError, match="Either set it, or work without a key"):
        LLMContextualizer()(nodes)


def test_the_stock_extractor_hides_a_failure_and_this_package_reports_it() -> None:
    store, nodes = extractor_input()
    llm = ScriptedLLM()
    llm.enqueue(*[ValueError("refused")] * len(nodes))
    stock = DocumentContextExtractor(docstore=store, llm=llm, max_context_length=8000)(nodes)
    assert not any("context" in node.metadata for node in stock)
    llm.enqueue(*[ValueError("refused")] * len(nodes))
    done = contextualizer(llm).contextualize(extractor_input()[1])
    assert len(done.failures) == len(nodes)
    assert all(node.metadata["context"] for node in done.nodes)


def test_the_stock_extractor_sends_a_whole_document_and_this_package_a_segment() -> None:
    store = SimpleDocumentStore()
    (document,) = documents()[1:]
    document.set_content("The pump needs oil. " * 400)
    store.add_documents([document])
    nodes = list(SentenceSplitter(chunk_size=100, chunk_overlap=0)([document]))
    llm = ScriptedLLM()
    DocumentContextExtractor(docstore=store, llm=llm, max_context_length=200)(nodes[:1])
    assert count_tokens(llm.history[0]) > 2000
    ours = ScriptedLLM()
    contextualizer(ours, segment_size=200)(nodes)
    assert max(count_tokens(prompt) for prompt in ours.history) < 600


def test_the_stock_extractor_mixes_context_with_metadata_and_this_package_does_not() -> None:
    store, nodes = extractor_input()
    llm = ScriptedLLM()
    (stock, *_) = DocumentContextExtractor(docstore=store, llm=llm, max_context_length=8000)(nodes)
    for mode in (MetadataMode.EMBED, MetadataMode.LLM):
        assert f"file_name: manual.txt\ncontext: {llm.default}\nExcerpt:" in stock.get_content(metadata_mode=mode)
    (ours, *_) = contextualizer(ScriptedLLM())(extractor_input()[1])
    context = ours.metadata["context"]
    assert context.endswith("\nA context of the passage in its text, as long as it has to be here.")
    assert ours.get_content(metadata_mode=MetadataMode.EMBED) == f"{context}\n\n{ours.get_content()}"


def test_a_mock_model_works() -> None:
    assert contexts(LLMContextualizer(llm=MockLLM(max_tokens=3), model_id="mock")(loose("One."))) == ["text text text"]


def test_a_copy_with_another_model_calls_that_model() -> None:
    first, second = ScriptedLLM(), ScriptedLLM()
    original = contextualizer(first)
    original(loose("One."))
    copy.deepcopy(original)(loose("One."))
    original.model_copy(update={"llm": second})(loose("One."))
    assert (len(first.history), len(second.history)) == (1, 1)


def test_chunks_with_given_contexts_cost_nothing() -> None:
    llm = ScriptedLLM()
    given_chunks = loose("One.", "Two.", context="Written by hand.")
    done = contextualizer(llm).contextualize([*given_chunks, *loose("Three.", doc_id="other")])
    assert len(llm.history) == done.paid == 1
    assert contexts(done.nodes) == [
        "Written by hand.",
        "Written by hand.",
        "A context of the passage in its text, as long as it has to be here.",
    ]


async def test_a_single_segment_can_be_contextualized() -> None:
    llm = ScriptedLLM()
    (segment,) = segments(loose("One.", "Two."), segment_size=100)
    result = await contextualizer(llm)._acontexts(segment, segment.chunks[1:])
    assert [(context.text, context.paid) for context in result] == [
        ("A context of the passage in its text, as long as it has to be here.", True)
    ]
