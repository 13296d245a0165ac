"""Short names for what people type from memory: search, ask, chat, quote, where, k and wait."""

from __future__ import annotations

import copy
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document
from llama_index.llms.openai_like import OpenAILike

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ProjectExistsError, ProjectLockedError
from llama_index_contextual.index.project_file import write_lock
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.server import LoopbackProvider

TEXT = "# Pumps\n\n## Oil\n\nThe pump of station four needs a litre of oil. It is red.\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "pump.md").write_text(TEXT)
    project = ProjectManager(tmp_path / "knowledge").create("p", ProjectConfig.local())
    project.ingest([tmp_path / "pump.md"])
    return project


async def test_search_is_retrieve_and_a_hit_has_its_quotation_and_place(project: Project) -> None:
    hit = project.search("How much oil does the pump need?", top_k=1)[0]
    assert hit == project.retrieve("How much oil does the pump need?", top_k=1)[0]
    assert hit == (await project.asearch("How much oil does the pump need?", top_k=1))[0]
    assert hit.quote.startswith("The pump of station four needs a litre of oil.")
    assert hit.where == "pump.md, section Pumps > Oil"


@pytest.mark.parametrize(
    ("method", "arguments", "hint"),
    [
        ("retrieve", {"k": 3}, "did you mean 'top_k'?"),
        ("search", {"limit": 3}, "did you mean 'top_k'?"),
        ("retrieve", {"where": {"kind": "a"}}, "did you mean 'filters'?"),
        ("ask", {"model": "a"}, "did you mean 'llm'?"),
        ("ingest", {"timeout": 3}, "did you mean 'wait'?"),
        ("ingest", {"budget": 3}, "did you mean 'max_cost'?"),
    ],
)
def test_other_names_of_arguments_are_answered_with_a_hint(
    project: Project, method: str, arguments: dict[str, Any], hint: str
) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(project, method)("pump", **arguments)
    assert str(caught.value).endswith(hint)


async def test_ask_and_chat_answer_with_citations_and_chat_remembers(project: Project) -> None:
    with LoopbackProvider(reply=lambda _: "It needs a litre of oil [Source 1].") as provider:
        llm = OpenAILike(
            model="qwen",
            is_chat_model=True,
            api_base=provider.api_base,
            api_key="any",
            max_retries=0,
            context_window=9_999,
        )
        answer = project.ask("How much oil?", llm=llm, top_k=1)
        assert [number for number, _ in answer.cited_sources] == [1]
        assert str(await project.aask("How much oil?", llm=llm)) == str(answer)
        project.state.llm = llm
        assert len(project.chat("How much oil?").cited_sources) == 1
        assert len((await project.achat("And the colour?")).cited_sources) == 1
        messages = provider.chat_calls[-1].body["messages"]
        assert any("How much oil?" in str(message["content"]) for message in messages[:-1])
        project.chat("And the colour?", reset=True)
        assert not any("How much oil?" in str(one["content"]) for one in provider.chat_calls[-1].body["messages"])


def test_ingest_waits_for_another_writer(project: Project) -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with write_lock(project.directory):
            held.set()
            release.wait(60)

    writer = threading.Thread(target=hold)
    writer.start()
    assert held.wait(60)
    documents = [Document(id_="new", text="A valve.")]
    with pytest.raises(ProjectLockedError):
        project.ingest(documents)
    started = time.monotonic()
    with pytest.raises(ProjectLockedError):
        project.ingest(documents, wait=0.3)
    assert time.monotonic() - started >= 0.3
    threading.Timer(0.3, release.set).start()
    assert project.ingest(documents, wait=60).added == ("new",)
    writer.join()


def test_an_existing_project_is_named_and_a_deleted_one_leaves_nothing(project: Project, tmp_path: Path) -> None:
    manager = ProjectManager(tmp_path / "knowledge")
    (tmp_path / "odd.xyz").write_bytes(b"\x00\x01")
    project.ingest([tmp_path / "odd.xyz", tmp_path / "pump.md"])
    with pytest.raises(ProjectExistsError, match="exists already"):
        manager.create("p")
    manager.delete("p")
    assert not project.directory.exists()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sync", "use sync_folders(folders)"),
        ("delete", "use remove(doc_ids), or ProjectManager.delete(name)"),
        ("evaluate", "use evaluate(project, questions) of llama_index_contextual.evaluation.run"),
        ("query", "use ask(question)"),
        ("add", "use ingest(files)"),
        ("refresh_ref_docs", "use sync_folders(folders)"),
        ("aquery", "use aask(question)"),
        ("similarity_search", "use search(question)"),
        ("as_index", "use index"),
        ("persist", "use ingest(files), which writes the project to disk"),
        ("nonsense", "has no attribute 'nonsense'"),
    ],
)
def test_names_of_other_packages_are_answered_with_the_name_here(project: Project, name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(hint)):
        getattr(project, name)
    assert not hasattr(project, name)


def test_places_of_hits_are_answered_with_the_name_here(project: Project) -> None:
    response = project.retrieve("pump")
    hit = response[0]
    for name, hint in {"page": "source.page_start", "file_name": "source.file_name", "content": "use text"}.items():
        with pytest.raises(AttributeError, match=re.escape(hint)):
            getattr(hit, name)
    with pytest.raises(AttributeError, match="use results"):
        getattr(response, "hits")  # noqa: B009 - mypy knows that there is no such attribute
    assert hit.model_copy() == copy.deepcopy(hit) == hit


def test_a_project_made_from_a_name_is_answered_with_the_manager() -> None:
    with pytest.raises(TypeError, match=re.escape("opened with ProjectManager(root).load(name)")):
        Project("office")  # type: ignore[arg-type]


TWELVE = {
    "query": "use ask(question)",
    "as_retriever(similarity_top_k=1).retrieve('pump')": 1,
    "as_query_engine": None,
    "add": "use ingest(files)",
    "delete": "use remove(doc_ids)",
    "index": None,
    "search('pump')[0].score": None,
    "search('pump')[0].text": TEXT.strip(),
    "search('pump')[0].metadata['file_name']": "pump.md",
    "search('pump')[0].page": "use source.page_start",
    "search('pump', similarity_top_k=1)": None,
    "search('pump').source_nodes": "use results",
}


@pytest.mark.parametrize("call", TWELVE)
def test_twelve_calls_from_memory_are_right_or_answered_with_what_to_do(project: Project, call: str) -> None:
    expected = TWELVE[call]
    if isinstance(expected, str) and expected.startswith("use "):
        with pytest.raises(AttributeError, match=re.escape(expected)):
            eval(f"project.{call}", {"project": project})
        return
    result = eval(f"project.{call}", {"project": project})
    if isinstance(expected, int):
        assert len(result) == expected
    else:
        assert result == expected if expected is not None else result is not None


def test_a_manager_answers_open_with_load(project: Project) -> None:
    with pytest.raises(AttributeError, match=re.escape("use load(name)")):
        getattr(ProjectManager(project.directory.parent), "open")  # noqa: B009
