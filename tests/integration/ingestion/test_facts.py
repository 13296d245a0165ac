"""Facts about a document: embedded and read with their names, and shown to the LLM that writes contexts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document, MetadataMode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual.answering.prompts import passages_prompt
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.node_parser import ChunkNodeParser
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import CountingEmbedding, ScriptedLLM

NAMED = "fund: Halpha, quarter: Q4 2024"
CONTEXT = "The quarterly report of the fund describes how its returns developed over the last three months."


def facts(path: str) -> dict[str, Any]:
    return {"fund": "Halpha", "quarter": "Q4 2024", "note": None} if "report" in path else {}


def make(tmp_path: Path, **settings: Any) -> tuple[Project, ScriptedLLM, Path]:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "report.txt").write_text("Returns rose by 3 %.", encoding="utf-8")
    (folder / "other.txt").write_text("Costs fell.", encoding="utf-8")
    llm = ScriptedLLM(default=CONTEXT)
    config = ProjectConfig.local(context="llm", **settings)
    project = ProjectManager(tmp_path / "root").create("p", config, llm=llm, embed_model=CountingEmbedding())
    project.ingest([folder], file_metadata=facts)
    return project, llm, folder


def chunk_of(project: Project, name: str) -> Any:
    nodes = project.storage_context.docstore.docs.values()
    return next(node for node in nodes if node.metadata["file_name"] == name)


def test_facts_are_embedded_and_read_with_their_names_and_shown_to_the_llm(tmp_path: Path) -> None:
    project, llm, _ = make(tmp_path)
    node = chunk_of(project, "report.txt")
    for mode in (MetadataMode.EMBED, MetadataMode.LLM):
        content = node.get_content(metadata_mode=mode)
        assert content.count("Halpha") == content.count(NAMED) == 1
        assert "None" not in content
    assert f"Facts: {NAMED}\n" in passages_prompt(project.retrieve("returns").to_nodes())
    assert "Facts" not in chunk_of(project, "other.txt").get_content(metadata_mode=MetadataMode.ALL)
    asked = {"report" if "Returns rose" in prompt else "other": prompt for prompt in llm.history}
    assert f"Title: report.txt\nFacts: {NAMED}\n" in asked["report"]
    assert "Facts" not in asked["other"]


def test_facts_still_filter_and_keep_their_values(tmp_path: Path) -> None:
    project, _, _ = make(tmp_path)
    filters = MetadataFilters(filters=[MetadataFilter(key="fund", value="Halpha")])
    assert [hit.source.file_name for hit in project.retrieve("costs", filters=filters)] == ["report.txt"]
    lexical = project.retrieve("quarter", mode="lexical")
    assert lexical[0].source.file_name == "report.txt", "the name of a fact can be found"


def test_lists_of_a_file_filter_and_do_not_change_until_the_user_changes_them(tmp_path: Path) -> None:
    project, _, folder = make(tmp_path)

    def groups(path: str) -> dict[str, Any]:
        return {"groups": ("hr", "finance"), "owner": {"name": "Ada"}} if "report" in path else {"groups": ["hr"]}

    assert len(project.ingest([folder], file_metadata=groups).updated) == 2
    assert "groups: hr; finance" in chunk_of(project, "report.txt").get_content(metadata_mode=MetadataMode.EMBED)
    for group, names in (("hr", {"other.txt", "report.txt"}), ("finance", {"report.txt"})):
        visible = project.only({"groups": {"any": [group, "all"]}})
        assert {record.file_name for record in visible.documents()} == names
    assert len(project.ingest([folder], file_metadata=groups).unchanged) == 2


def test_figures_of_facts_count_as_those_of_the_passage(tmp_path: Path) -> None:
    project, llm, _ = make(tmp_path)
    llm.enqueue("In 2024 returns rose by 3 % [Source 1].")
    response: Any = project.as_query_engine(similarity_top_k=1, min_confidence=0.0).query("How did returns develop?")
    assert response.citations.unsupported == ()


@pytest.mark.parametrize(
    ("hidden", "embedded", "read"),
    [
        ({}, "fund: Halpha, tags: a; b", "fund: Halpha, tags: a; b"),
        ({"excluded_embed_metadata_keys": ["tags"]}, "fund: Halpha", "fund: Halpha\n['a', 'b']"),
        ({"excluded_llm_metadata_keys": ["tags"]}, "fund: Halpha, tags: a; b", "Halpha"),
        ({"excluded_embed_metadata_keys": ["fund", "tags"]}, "", "Halpha\n['a', 'b']"),
    ],
    ids=["all", "embed", "llm", "none"],
)
def test_keys_that_the_user_excludes_stay_excluded(hidden: dict[str, Any], embedded: str, read: str) -> None:
    document = Document(text="Returns rose.", metadata={"fund": "Halpha", "tags": ["a", "b"]}, **hidden)
    (node,) = ChunkNodeParser().get_nodes_from_documents([document])
    seen = {mode: node.get_content(metadata_mode=mode) for mode in (MetadataMode.EMBED, MetadataMode.LLM)}
    assert seen[MetadataMode.EMBED].removesuffix("Returns rose.").strip() == embedded
    lines = seen[MetadataMode.LLM].removesuffix("Returns rose.").strip().splitlines()
    assert sorted(lines) == sorted(read.splitlines())


# ---- facts of earlier calls ------------------------------------------------------------------------------------------


def stored_facts(project: Project) -> dict[str, Any]:
    """Return the fund and the title of each document, by its file name."""
    nodes = project.storage_context.docstore.docs.values()
    return {n.metadata["file_name"]: (n.metadata.get("fund"), n.metadata.get("title")) for n in nodes}


KEPT = {"report.txt": ("Halpha", None), "other.txt": (None, None)}


@pytest.mark.parametrize("method", ["ingest", "sync_folders"])
def test_a_call_without_facts_keeps_those_of_unchanged_and_of_changed_files(tmp_path: Path, method: str) -> None:
    project, llm, folder = make(tmp_path)
    update = getattr(project, method)
    calls = len(llm.history)
    assert update([folder]).version == "v000001", "nothing has changed"
    assert project.estimate([folder]).documents == 0
    (folder / "report.txt").write_text("Returns fell by 4 %.", encoding="utf-8")
    report = update([folder])
    assert (list(report.updated), len(llm.history)) == (["files/report.txt"], calls + 1)
    assert stored_facts(project) == KEPT
    assert f"Facts: {NAMED}\n" in llm.history[-1]
    assert update([folder]).version == report.version


@pytest.mark.parametrize("method", ["ingest", "sync_folders"])
def test_a_renamed_file_keeps_its_facts_and_its_context_until_there_are_others(tmp_path: Path, method: str) -> None:
    project, llm, folder = make(tmp_path)
    calls = len(llm.history)
    (folder / "report.txt").rename(folder / "renamed.txt")
    report = getattr(project, method)([folder])
    assert dict(report.renamed) == {"files/report.txt": "files/renamed.txt"}
    assert stored_facts(project) == {"renamed.txt": ("Halpha", None), "other.txt": (None, None)}
    assert len(llm.history) == calls
    getattr(project, method)([folder], file_metadata=lambda path: {"fund": "Beta"})
    assert stored_facts(project) == {"renamed.txt": ("Beta", None), "other.txt": ("Beta", None)}
    getattr(project, method)([folder], file_metadata=lambda path: {})
    assert stored_facts(project) == {"renamed.txt": (None, None), "other.txt": (None, None)}


def test_files_with_the_same_content_and_other_facts_are_documents_of_their_own(tmp_path: Path) -> None:
    project = ProjectManager(tmp_path / "root").create("p", ProjectConfig.local())
    for fund in ("a", "b"):
        (tmp_path / fund).mkdir()
        (tmp_path / fund / f"{fund}.txt").write_text("Returns rose.", encoding="utf-8")
        assert len(project.ingest([tmp_path / fund], file_metadata=lambda path: {"fund": Path(path).stem}).added) == 1
    assert stored_facts(project) == {"a.txt": ("a", None), "b.txt": ("b", None)}
    (tmp_path / "b" / "b.txt").rename(tmp_path / "b" / "c.txt")
    report = project.ingest([tmp_path / "b"], file_metadata=lambda path: {"fund": Path(path).stem})
    assert dict(report.renamed) == {"b/b.txt": "b/c.txt"}
    assert stored_facts(project) == {"a.txt": ("a", None), "c.txt": ("c", None)}


def test_a_title_given_as_a_fact_is_told_from_the_title_of_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ("given", "own"):
        (folder / f"{name}.md").write_text(f"---\nauthor: Jo\n---\n# Title of {name}\n\nA text.", encoding="utf-8")
    project = ProjectManager(tmp_path / "root").create("p", ProjectConfig.local())
    project.ingest(
        [folder], file_metadata=lambda path: {"fund": "Halpha"} | ({"title": "T"} if path.endswith("given.md") else {})
    )
    expected = {"given.md": ("Halpha", "T"), "own.md": ("Halpha", "Title of own")}
    assert stored_facts(project) == expected
    assert project.sync_folders([folder]).version == "v000001", "recognized by the content hash"
    (folder / "own.md").write_text("# Another title\n\nA text.", encoding="utf-8")
    project.sync_folders([folder])
    assert stored_facts(project) == expected | {"own.md": ("Halpha", "Another title")}


def test_metadata_of_the_file_itself_is_no_fact(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.md").write_text("---\nauthor: Jo\n---\n# A\n\nA text.", encoding="utf-8")
    project = ProjectManager(tmp_path / "root").create("p", ProjectConfig.local())
    project.ingest([folder])
    (folder / "a.md").write_text("---\neditor: Al\n---\n# A\n\nA text.", encoding="utf-8")
    project.ingest([folder])
    (node,) = project.storage_context.docstore.docs.values()
    assert (node.metadata.get("author"), node.metadata.get("editor")) == (None, "Al")
