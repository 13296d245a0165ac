"""Summaries of the previous and the next chunk in a context."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import BaseNode, Document

from llama_index_contextual import LLMContextualizer, ProjectConfig, ProjectManager, StructuralContextualizer
from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.contextualizer.base import MAX_CONTEXT_TOKENS, NEIGHBOUR_TOKENS
from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.metadata import context_parts
from llama_index_contextual.project.project import Project
from tests.integration.contextualizer.samples import chunks, loose
from tests.integration.ingestion.support import nodes_of
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.server import LoopbackProvider

TEXTS = (
    "Valves. The north pump was cleaned in May.",
    "The north pump was cleaned in May. It runs at 40 degrees; oil it each week.",
    "Oil it each week. Spare parts for it are in hall two: ask Ada.",
)
CONTEXTS = (
    "The manual of the pumps: how the north pump is cleaned.",
    "The manual of the pumps: at which temperature it runs and how it is oiled.",
    "The manual of the pumps: where its spare parts are kept.",
)


def contexts(nodes: list[BaseNode]) -> list[str]:
    return [str(node.metadata.get("context", "")) for node in nodes]


def test_a_summary_is_the_longest_clause_that_the_chunk_itself_does_not_contain() -> None:
    assert contexts(StructuralContextualizer(neighbours=True)(loose(*TEXTS))) == [
        "Begins: Valves. The north pump was cleaned in May. After: It runs at 40 degrees.",
        "Begins: Valves. The north pump was cleaned in May. Before: Valves. After: Spare parts for it are in hall two.",
        "Begins: Valves. The north pump was cleaned in May. Before: The north pump was cleaned in May.",
    ]


def test_a_neighbour_in_another_section_is_named_with_its_section() -> None:
    nodes = loose(*TEXTS, title="Pumps")
    for node, section in zip(nodes, ("Care", "Care", "Parts"), strict=True):
        node.metadata["section"] = section
    middle = contexts(StructuralContextualizer(neighbours=True)(nodes))[1]
    assert middle == (
        "Pumps. Section: Care. Begins: Valves. The north pump was cleaned in May."
        " Before: Valves. After: Parts: Spare parts for it are in hall two."
    )


def test_without_the_option_and_without_neighbours_nothing_is_added() -> None:
    plain = contexts(StructuralContextualizer()(chunks()))
    assert not any("Before: " in context or "After: " in context for context in plain)
    summarised = contexts(StructuralContextualizer(neighbours=True)(chunks()))
    assert all(new.startswith(old) for new, old in zip(summarised, plain, strict=True))
    alone = loose("The pump runs dry.", title="Manual")
    assert contexts(StructuralContextualizer(neighbours=True)(alone)) == contexts(StructuralContextualizer()(alone))


def test_neighbours_in_another_segment_are_summarised_too() -> None:
    nodes = chunks()
    assert len({node.metadata["segment_index"] for node in nodes if node.ref_doc_id == "report.md"}) > 1
    for doc_id in ("report.md", "manual.txt"):
        of_document = [n for n in StructuralContextualizer(neighbours=True)(nodes) if n.ref_doc_id == doc_id]
        assert ["Before: " in context for context in contexts(of_document)] == [
            at > 0 for at in range(len(of_document))
        ]
        after = ["After: " in context for context in contexts(of_document)]
        assert after == [at < len(of_document) - 1 for at in range(len(of_document))]


def test_the_summary_comes_from_the_contexts_of_the_llm_without_more_calls(ledger: Ledger) -> None:
    llm = ScriptedLLM()
    llm.enqueue(*CONTEXTS)
    plain = LLMContextualizer(llm=llm, num_workers=1, ledger=ledger)(loose(*TEXTS))
    assert len(llm.history) == 3
    again = LLMContextualizer(llm=llm, num_workers=1, ledger=ledger, neighbours=True)(loose(*TEXTS))
    assert len(llm.history) == 3, "the keys in the ledger are the same"
    lines = [context_parts(node.metadata) for node in plain]
    assert [context_parts(node.metadata) for node in again] == [
        (f"{lines[0][0]} After: at which temperature it runs and how it is oiled.", CONTEXTS[0]),
        (
            f"{lines[1][0]} Before: how the north pump is cleaned. After: where its spare parts are kept.",
            CONTEXTS[1],
        ),
        (f"{lines[2][0]} Before: at which temperature it runs and how it is oiled.", CONTEXTS[2]),
    ]


def test_a_neighbour_whose_context_failed_is_summarised_by_its_text() -> None:
    llm = ScriptedLLM()
    llm.enqueue(CONTEXTS[0], ValueError("refused"), CONTEXTS[2])
    done = LLMContextualizer(llm=llm, num_workers=1, retry=RetryPolicy(attempts=1), neighbours=True).contextualize(
        loose(*TEXTS)
    )
    assert [failure.node_id for failure in done.failures] == ["loose-1"]
    first, failed, last = contexts(done.nodes)
    assert "After: It runs at 40 degrees.\n" in first
    assert failed.endswith("Before: Valves. After: Spare parts for it are in hall two.")
    assert "Before: The north pump was cleaned in May.\n" in last


@given(st.lists(st.text(max_size=400), min_size=2, max_size=4), st.integers(1, 260))
def test_each_summary_has_at_most_30_tokens(texts: list[str], words: int) -> None:
    llm = ScriptedLLM(default=f"{'valve ' * words}.")
    for writer in (StructuralContextualizer(neighbours=True), LLMContextualizer(llm=llm, neighbours=True)):
        for context in contexts(writer(loose(*texts, title="A report"))):
            assert count_tokens(context) <= MAX_CONTEXT_TOKENS + 2 * (NEIGHBOUR_TOKENS + 5)


def project_of(tmp_path: Path, **settings: object) -> Project:
    config = ProjectConfig(
        **{
            "embed_model": "openai:text-embedding-3-small",
            "llm": "openai:gpt-4.1",
            "chunk_size": 40,
            "chunk_overlap": 4,
            **settings,
        }  # type: ignore[arg-type]
    )
    return ProjectManager(tmp_path).create("p", config)


def report() -> Document:
    text = "\n\n".join(
        f"Pump {n} stands in hall {n % 7}. It is cleaned on day {n}, and oiled later." for n in range(12)
    )
    return Document(id_="report", text=text, metadata={"title": "Pumps"})


@pytest.mark.parametrize("context", ["structural", "llm"])
def test_the_estimate_includes_the_summaries_and_contexts_are_not_paid_again(
    context: str, tmp_path: Path, provider: LoopbackProvider
) -> None:
    project = project_of(tmp_path, context=context)
    first = project.ingest([report()])
    calls = len(provider.chat_calls)
    assert calls == (first.chunks if context == "llm" else 0)
    assert project.update_config(context_neighbours=True) == ["context_neighbours"]
    expected = project.estimate()
    rebuilt = project.rebuild()
    assert len(provider.chat_calls) == calls
    assert rebuilt.paid is not None
    assert rebuilt.paid.embedding_tokens == expected.embedding_tokens > first.paid.embedding_tokens  # type: ignore[union-attr]
    middle = contexts(nodes_of(project))[1:-1]
    assert all("Before: " in each and "After: " in each for each in middle)


def test_a_renamed_file_has_the_contexts_of_a_new_one(tmp_path: Path) -> None:
    folder, config = (
        tmp_path / "docs",
        ProjectConfig.local(context="llm", context_neighbours=True, chunk_size=40, chunk_overlap=4),
    )
    folder.mkdir()
    (folder / "old.txt").write_text(report().text)
    llm = ScriptedLLM()
    llm.enqueue(*(f"The list of pumps: its part number {n} of the whole list." for n in range(12)))
    manager = ProjectManager(tmp_path / "knowledge")
    project = manager.create("p", config.changed(llm_concurrency=1), llm=llm, embed_model=CountingEmbedding())
    project.ingest([folder])
    before = contexts(nodes_of(project))
    (folder / "old.txt").rename(folder / "new.txt")
    calls = len(llm.history)
    project.ingest([folder])
    assert len(llm.history) == calls
    assert contexts(nodes_of(project)) == [context.replace("old", "new") for context in before]
