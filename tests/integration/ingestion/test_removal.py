"""Removal of documents: nothing else changes, and nothing is paid for."""

from __future__ import annotations

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import DEFAULT_LLM, ProjectConfig
from llama_index_contextual.errors import ConfigurationError, InputError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage.current import version_names
from tests.integration.ingestion.support import nodes_of, vectors_of
from tests.support.models import CountingEmbedding, ScriptedLLM

DOCUMENTS = [Document(id_=metal, text=f"The price of {metal} rose. " * 8) for metal in ("copper", "tin", "zinc")]


@pytest.fixture
def llm() -> ScriptedLLM:
    return ScriptedLLM(
        default="From the price list of metals: how the prices of copper, tin and zinc rose in the last year."
    )


@pytest.fixture
def filled(manager: ProjectManager, llm: ScriptedLLM, model: CountingEmbedding) -> Project:
    """Three documents with contexts that were paid for."""
    config = ProjectConfig.local(context="llm", chunk_size=40, chunk_overlap=4)
    project = manager.create("metals", config, llm=llm, embed_model=model)
    project.ingest(DOCUMENTS)
    return project


def test_removing_nothing_publishes_nothing(filled: Project, manager: ProjectManager) -> None:
    report = filled.remove([])
    assert (report.version, report.removed, report.unchanged) == ("v000001", (), ())
    filled.update_config(chunk_size=20, chunk_overlap=0)
    assert filled.remove([]).version == "v000001"
    assert version_names(filled.directory) == ["v000001"]
    assert manager.create("empty", ProjectConfig.local()).remove([]).version is None
    with pytest.raises(InputError, match="Project 'metals' has no document 'lead'"):
        filled.remove(["tin", "lead"])
    assert version_names(filled.directory) == ["v000001"]


def test_a_removal_applies_no_pending_settings_and_calls_no_model(
    filled: Project, llm: ScriptedLLM, model: CountingEmbedding
) -> None:
    nodes = {node.node_id: node for node in nodes_of(filled) if node.ref_doc_id != "tin"}
    vectors, calls, embedded = vectors_of(filled), len(llm.history), len(model.texts)
    assert filled.update_config(chunk_size=20, chunk_overlap=0, bm25=False, top_k=3, keep_versions=2)
    report = filled.remove("tin")
    assert (report.version, report.removed, report.unchanged) == ("v000002", ("tin",), ())
    assert report.chunks == len(nodes)
    assert (len(llm.history), len(model.texts)) == (calls, embedded)
    assert {node.node_id: node for node in nodes_of(filled)} == nodes
    assert vectors_of(filled) == {node_id: vectors[node_id] for node_id in nodes}
    assert len(filled.retrieve("price of zinc", mode="lexical")) == 3
    rebuilt = filled.rebuild()
    assert rebuilt.rebuilt == ("copper", "zinc")
    assert rebuilt.chunks > report.chunks


def test_neither_a_key_nor_a_model_is_needed(manager: ProjectManager, model: CountingEmbedding) -> None:
    manager.create("keyed", ProjectConfig(), llm=ScriptedLLM(), embed_model=model).ingest(DOCUMENTS)
    project = manager.load("keyed")
    assert project.remove(["tin", "tin"]).removed == ("tin",)
    assert [record.doc_id for record in project.documents()] == ["copper", "zinc"]
    report = manager.load("keyed", llm=ScriptedLLM(), embed_model=model).ingest(DOCUMENTS)
    assert (report.added, report.contexts_paid) == (("tin",), 0)


def test_an_empty_version_is_published_when_nothing_is_left(filled: Project) -> None:
    assert filled.remove(["zinc", "copper", "tin"]).chunks == 0
    assert not filled.retrieve("price of zinc").results
    assert filled.ingest(DOCUMENTS[:1]).contexts_paid == 0


def test_failed_contexts_are_not_retried_with_changed_settings(filled: Project, llm: ScriptedLLM) -> None:
    filled.update_config(chunk_overlap=0)
    assert filled.retry_failed().version == "v000001", "nothing has failed"
    filled.update_config(chunk_overlap=4)
    llm.enqueue(ValueError("odd answer"))
    assert len(filled.ingest([Document(id_="lead", text="Lead is heavy.")]).failures) == 1
    filled.update_config(chunk_overlap=0, llm="openai:gpt-4.1-mini")
    calls = len(llm.history)
    with pytest.raises(ConfigurationError, match=r"have changed .*\(llm, chunk_overlap\): use `rebuild`"):
        filled.retry_failed()
    assert len(llm.history) == calls
    filled.update_config(chunk_overlap=4, llm=DEFAULT_LLM)
    assert filled.retry_failed().rebuilt == ("lead",)
    assert len(llm.history) == calls + 1
