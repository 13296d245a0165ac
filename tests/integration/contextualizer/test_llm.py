"""The LLM contextualizer with a scripted model: failures, the ledger, very short answers, LlamaIndex's extractor."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
from llama_index.core.schema import BaseNode

from llama_index_contextual import ProjectConfig, ProjectManager
from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.contextualizer import LLMContextualizer
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.ingestion.report import ContextLengths
from tests.integration.contextualizer.samples import loose
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.nodes import written

QUICK = RetryPolicy(attempts=3, base_delay=0)


def contextualizer(llm: ScriptedLLM, **options: object) -> LLMContextualizer:
    return LLMContextualizer(**{"llm": llm, "num_workers": 1, "retry": QUICK, **options})  # type: ignore[arg-type]


def contexts(nodes: list[BaseNode]) -> list[str]:
    return [node.metadata["context"] for node in nodes]


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_a_custom_prompt_is_sent() -> None:
    llm = ScriptedLLM()
    contextualizer(llm, prompt="Doc: {segment}\nPart: {chunk}\nSum up.")(loose("One.", "Two."))
    assert llm.history == ["Doc: One.\n\nTwo.\nPart: One.\nSum up.", "Doc: One.\n\nTwo.\nPart: Two.\nSum up."]


# ---- the ledger ------------------------------------------------------------------------------------------------------


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


def test_a_complete_ledger_needs_no_model(ledger: Ledger) -> None:
    contextualizer(ScriptedLLM(), ledger=ledger)(loose("One."))
    keyless = LLMContextualizer(model="ScriptedLLM:scripted", ledger=ledger)
    assert contexts(keyless(loose("One."))) == ["A context of the passage in its text, as long as it has to be here."]


LONG = "The report of the valve works on its second quarter; this part compares orders with those before."

# ---- very short contexts are kept and reported -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("context", "thin"),
    [
        ("About orders.", True),
        (" ".join(["word"] * 14), True),
        (" ".join(["word"] * 15), False),
        ("本节说明收入增长。", True),
        ("本节说明阿尔法基金在第四季度的收入增长情况及与上季比较", False),
    ],
)
def test_a_context_below_15_tokens_in_any_script_is_kept_and_reported(context: str, thin: bool) -> None:
    llm = ScriptedLLM(default=LONG)
    llm.enqueue(context)
    done = LLMContextualizer(llm=llm, on_structure=False, num_workers=1).contextualize(loose("Orders rose.", "All."))
    assert [written(node) for node in done.nodes] == [context, LONG]
    assert (done.failures, done.paid, list(done.thin)) == ([], 2, [done.nodes[0].node_id] if thin else [])


def test_contexts_are_checked_when_they_are_written_and_when_they_come_from_the_ledger(
    tmp_path: Path, text_folder: Path
) -> None:
    llm = ScriptedLLM()
    llm.enqueue("It is from Atlantis, of 1789.", "This chunk is from a text. It is by Plato.")
    config = ProjectConfig.local(context="llm", llm_concurrency=1)
    project = ProjectManager(tmp_path).create("p", config, llm=llm, embed_model=CountingEmbedding())
    report = project.ingest([text_folder])
    assert report.context_findings == {"unsupported": 2, "self_reference": 1}
    assert "note 2 contexts with names or numbers that are not in the segment: they are left out" in str(report)
    assert (report.contexts_paid, report.failures) == (2, ())

    def stored() -> list[tuple[str, str]]:
        nodes = [node for record in project.documents() for node in project.chunks(record.doc_id)]
        return [(node.metadata["context_source"], node.metadata["context"].splitlines()[-1]) for node in nodes]

    (first, line), second = stored()
    assert (first, second) == ("structural", ("llm", "This chunk is from a text."))
    assert "Atlantis" not in line
    before = stored()
    project.update_config(segment_size=7_000)
    assert project.rebuild().contexts_paid == 0
    assert stored() == before


def test_names_in_the_prompt_and_in_its_variables_may_be_in_contexts() -> None:
    llm = ScriptedLLM(default="On orders of kind Urgent at Contoso.")
    prompt = "{header}{segment}{chunk} Kinds: Urgent, Usual. {glossary}"
    writer = LLMContextualizer(llm=llm, prompt=prompt, variables={"glossary": "CTS: Contoso."}, on_structure=False)
    (node,) = writer(loose("Orders rose."))
    assert written(node) == "On orders of kind Urgent at Contoso."


def test_the_report_compares_the_lengths_of_new_contexts_with_the_target(tmp_path: Path, text_folder: Path) -> None:
    llm = ScriptedLLM()
    llm.enqueue(" ".join(["word"] * 40), " ".join(["word"] * 300))
    config = ProjectConfig.local(context="llm", llm_concurrency=1)
    project = ProjectManager(tmp_path).create("p", config, llm=llm, embed_model=CountingEmbedding())
    report = project.ingest([text_folder])
    assert report.context_lengths == ContextLengths(mean=170, below=0.5, above=0.5)
    line = "note contexts: 170 tokens on average; 50 % have fewer than 50, and 50 % had more than 200 and are shortened"
    assert line in str(report)
    within = ContextLengths.measure([49, *[50] * 9, *[200] * 9, 201])
    assert (within.below, within.above, within.is_off_target) == (0.05, 0.05, False)
    assert "note" not in str(replace(report, short_contexts=(), context_lengths=within))
    assert report.to_dict()["context_lengths"] == {"mean": 170, "below": 0.5, "above": 0.5}
    project.update_config(chunk_size=700)
    assert project.rebuild().context_lengths is None, "no new contexts"


# ---- the extractor in LlamaIndex's core ------------------------------------------------------------------------------


def test_a_name_for_a_model_that_is_not_passed_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="pass that too"):
        LLMContextualizer(model="openai:gpt-4o-mini", model_id="mock")


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
