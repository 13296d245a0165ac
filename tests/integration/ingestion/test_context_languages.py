"""Lines of contexts in other languages, which are written in the same call."""

from __future__ import annotations

from contextlib import closing

import pytest
from llama_index.core.schema import Document, MetadataMode

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.tokens import CONTEXT_TOKENS, LINE_TOKENS
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.project.manager import ProjectManager
from tests.integration.ingestion.support import nodes_of
from tests.support.records import Request
from tests.support.server import LoopbackProvider

CONFIG = ProjectConfig.local(context="llm", llm="openai:gpt-4o-mini", indexes="lexical")
LEASE = Document(
    id_="lease",
    text="The tenant may end the lease with a notice of four weeks. The deposit of 900 euros is paid back then.",
)
BIKES = Document(
    id_="bikes", text="The bicycles are to be kept in the shed behind the house, and not in the hall of the building."
)
GERMAN = Document(
    id_="haus", text="Die Haustür ist nach 22 Uhr zu schließen, und der Müll ist am Montag vor das Haus zu stellen."
)
LINES = {"tenant": "Mietverträge, Kündigungsfristen, Kautionen, 900 Euro", "bicycles": "Fahrräder, Schuppen, Hausflur"}


def reply(request: Request) -> str:
    """Return a context, with a German line for each of the English documents."""
    prompt = request.body["messages"][-1]["content"]
    context = "From the papers of a house about the duties of its tenants, which are listed one by one."
    line = next((line for word, line in LINES.items() if word in prompt), None)
    return f"{context}\n\n**de (German):** {line}" if line and "de (German)" in prompt else context


@pytest.fixture(autouse=True)
def _reply(provider: LoopbackProvider) -> None:
    provider.reply = reply


def test_a_question_finds_the_document_by_the_line_in_its_language(manager: ProjectManager) -> None:
    plain = manager.create("plain", CONFIG)
    plain.ingest([LEASE, BIKES])
    assert not plain.retrieve("Welche Kündigungsfrist gilt?").results
    project = manager.create("lines", CONFIG.changed(context_languages=["en", "german"]))
    report = project.ingest([LEASE, BIKES])
    assert (report.contexts_paid, report.context_findings) == (2, {})
    response = project.retrieve("Welche Kündigungsfrist gilt?")
    assert [hit.source.doc_id for hit in response] == ["lease"]
    assert response.languages == ("english",)
    assert [hit.source.doc_id for hit in project.retrieve("Where are bicycles kept?")] == ["bikes"]


def test_a_question_in_the_language_of_lines_has_no_level_of_confidence(manager: ProjectManager) -> None:
    project = manager.create("lines", CONFIG.changed(context_languages=["de"], indexes="hybrid"))
    project.ingest([LEASE, BIKES])
    response = project.retrieve("Welche Kündigungsfrist gilt?")
    assert (response[0].source.doc_id, response.confidence_level, response.warnings) == ("lease", None, ())
    assert project.retrieve("With which notice may the tenant end the lease?").confidence_level == "high"


def test_a_line_is_embedded_and_indexed_but_neither_quoted_nor_read_for_an_answer(manager: ProjectManager) -> None:
    from llama_index_contextual.answering.prompts import passages_prompt

    project = manager.create("lines", CONFIG.changed(context_languages=["de"]))
    project.ingest([LEASE])
    (node,) = nodes_of(project)
    line = f"de: {LINES['tenant']}"
    assert node.metadata["context"].splitlines()[-1] == line
    assert line in node.get_content(MetadataMode.EMBED)
    assert line not in node.get_content(MetadataMode.LLM)
    (hit,) = response = project.retrieve("Kündigungsfrist").results
    assert hit.spotlight is None
    prompt = passages_prompt(response)
    assert "Background: From the papers" in prompt
    assert "Kündigungsfristen" not in prompt


def test_only_languages_other_than_that_of_the_text_are_requested(
    manager: ProjectManager, provider: LoopbackProvider
) -> None:
    project = manager.create("lines", CONFIG.changed(context_languages=["en", "de"]))
    project.ingest([LEASE, GERMAN])
    prompts = {call.body["messages"][-1]["content"].rpartition("languages: ")[2] for call in provider.chat_calls}
    assert {prompt.partition(".")[0] for prompt in prompts} == {"de (German)", "en (English)"}


def test_a_missing_line_is_in_the_report(manager: ProjectManager) -> None:
    project = manager.create("lines", CONFIG.changed(context_languages=["fr"]))
    report = project.ingest([LEASE])
    assert report.context_findings == {"missing_line": 1}
    assert "1 context without a line in each of the other `context_languages`" in str(report)


def test_terms_with_numbers_that_the_document_does_not_contain_are_left_out(
    manager: ProjectManager, provider: LoopbackProvider
) -> None:
    provider.reply = lambda _request: "From the papers of a house about the duties of its tenants.\nde: Miete, 750 Euro"
    project = manager.create("lines", CONFIG.changed(context_languages=["de"]))
    project.ingest([LEASE])
    assert nodes_of(project)[0].metadata["context"].endswith("\nde: Miete")


def test_the_estimate_includes_the_lines(manager: ProjectManager) -> None:
    plain = manager.create("plain", CONFIG).estimate([LEASE, GERMAN])
    project = manager.create("lines", CONFIG.changed(context_languages=["en", "de", "fr"]))
    estimate = project.estimate([LEASE, GERMAN])
    assert plain.contexts.output_tokens == 2 * CONTEXT_TOKENS
    assert estimate.contexts.output_tokens == 2 * (CONTEXT_TOKENS + 2 * LINE_TOKENS)
    assert estimate.contexts.input_tokens > plain.contexts.input_tokens
    assert f"and a line in another language {LINE_TOKENS}" in str(estimate)


def test_the_mean_length_of_contexts_does_not_include_their_lines(manager: ProjectManager) -> None:
    project = manager.create("lines", CONFIG.changed(context_languages=["de"]))
    texts = [f"The tenant of flat {number} may end the lease at the end of the month." for number in range(20)]
    project.ingest([Document(id_=f"flat-{number}", text=text) for number, text in enumerate(texts)])
    with closing(Ledger(project.directory / LEDGER_FILE, read_only=True)) as ledger:
        whole, mean = (ledger.mean_context_tokens("openai:gpt-4o-mini", line_tokens=n) for n in (0, LINE_TOKENS))
    assert whole is not None
    assert mean == max(0, whole - LINE_TOKENS)


def test_a_context_that_is_kept_when_a_segment_is_read_differently_keeps_its_lines(manager: ProjectManager) -> None:
    project = manager.create("lines", CONFIG.changed(context_languages=["de"]))
    project.ingest([LEASE])
    with closing(Ledger(project.directory / LEDGER_FILE, read_only=True)) as ledger:
        ((kept,),) = ledger.query("SELECT context FROM chunk_contexts")
    assert kept.endswith(f"\nde: {LINES['tenant']}")


def test_an_answer_has_room_for_the_lines(manager: ProjectManager, provider: LoopbackProvider) -> None:
    manager.create("plain", CONFIG).ingest([LEASE])
    manager.create("lines", CONFIG.changed(context_languages=["de", "fr"])).ingest([LEASE])
    limits = [call.body.get("max_tokens") or call.body["max_completion_tokens"] for call in provider.chat_calls]
    assert limits == [400, 640]


def test_the_setting_needs_a_rebuild_that_pays_only_for_new_prompts(
    manager: ProjectManager, provider: LoopbackProvider
) -> None:
    project = manager.create("lines", CONFIG)
    project.ingest([LEASE])
    assert project.update_config(context_languages=["en"]) == ["context_languages"]
    assert project.rebuild().contexts_paid == 0, "the prompt of an English document is the same"
    project.update_config(context_languages=["en", "de"])
    assert project.rebuild().contexts_paid == 1
    assert project.update_config(context_languages=[]) == ["context_languages"]
    assert project.rebuild().contexts_paid == 0
    assert "\n" not in nodes_of(project)[0].metadata["context"].partition("papers")[2]
    assert len(provider.chat_calls) == 2


def test_without_the_setting_the_component_has_the_same_identity() -> None:
    assert "context_languages" not in LLMContextualizer(model="openai:gpt-4o-mini").to_dict()
    contextualizer = LLMContextualizer(model="openai:gpt-4o-mini", context_languages=["german", "de", "en"])
    assert contextualizer.to_dict()["context_languages"] == ["de", "en"]
