"""Very short contexts: requested once more, then the longer one is kept and reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_index_contextual import LLMContextualizer, ProjectConfig, ProjectManager
from llama_index_contextual.contextualizer.prompts import is_thin
from llama_index_contextual.storage.ledger import Ledger
from tests.integration.contextualizer.samples import loose
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.nodes import written

LONG = "The report of the valve works on its second quarter; this part compares orders with those before."


@pytest.mark.parametrize(
    ("context", "thin"),
    [
        ("one two three four five six seven eight nine ten eleven twelve thirteen fourteen", True),
        ("one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen", False),
        ("本节说明阿尔法基金在第四季度的收入增长情况及与上季比较", True),
        ("本节说明阿尔法基金在二零二四年第四季度的收入增长情况及其与上季的比较结果", False),
        ("The 基金 report.", True),
        ("", True),
    ],
)
def test_the_limit_is_15_words_or_30_characters_without_spaces(context: str, thin: bool) -> None:
    assert is_thin(context) is thin


@pytest.mark.parametrize(
    ("second", "kept", "is_reported"),
    [
        (LONG, LONG, False),
        ("About the orders of the quarter.", "About the orders of the quarter.", True),
        ("No.", "About orders.", True),
        (ValueError("refused"), "About orders.", True),
    ],
)
def test_the_llm_is_asked_once_more_and_the_longer_answer_is_kept(
    second: str | Exception, kept: str, is_reported: bool
) -> None:
    llm = ScriptedLLM(default=LONG)
    llm.enqueue("About orders.", second)
    done = LLMContextualizer(llm=llm, on_structure=False, num_workers=1).contextualize(loose("Orders rose."))
    assert [written(node) for node in done.nodes] == [kept]
    assert len(llm.history) == 2
    assert len(set(llm.history)) == 1
    assert (done.failures, done.paid) == ([], 1)
    assert list(done.thin) == ([done.nodes[0].node_id] if is_reported else [])


def test_the_ledger_keeps_the_same_context_as_the_node_and_does_not_ask_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for answers in (("About orders.", "No."), ()):
        llm = ScriptedLLM(default=LONG)
        llm.enqueue(*answers)
        done = LLMContextualizer(llm=llm, ledger=ledger, on_structure=False)(loose("Orders rose."))
        assert written(done[0]) == "About orders."
        assert len(llm.history) == len(answers)
    ledger.close()


def test_the_report_counts_very_short_contexts(tmp_path: Path, text_folder: Path) -> None:
    llm = ScriptedLLM(default="Too short.")
    project = ProjectManager(tmp_path).create(
        "p", ProjectConfig.local(context="llm"), llm=llm, embed_model=CountingEmbedding()
    )
    report = project.ingest([text_folder])
    assert len(report.short_contexts) == report.chunks == 2
    assert "2 contexts have fewer than 15 words, although the LLM was asked twice" in str(report)
    assert report.failures == ()
