"""Derived data of an earlier release or of other settings: searched as they are, and made again without a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.derived import DERIVED
from llama_index_contextual.index.manifest import read_manifest
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import current_name, version_directory
from llama_index_contextual.ingestion.report import IngestReport
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import run
from tests.support.editions import make_first_edition, make_outdated
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.trees import write

SETTINGS: dict[str, Any] = {"context": "llm", "llm": "openai:gpt-4.1-mini", "chunk_size": 40, "chunk_overlap": 0}
TEXTS = {"a": "The pumps of the plant run dry at noon.", "b": "A valve of brass was replaced.", "c": "Nothing leaks."}
QUERY = "pumping valves"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with two parts, the second of two documents."""
    models: dict[str, Any] = {"llm": ScriptedLLM(), "embed_model": CountingEmbedding()}
    project = ProjectManager(tmp_path / "knowledge").create("plant", ProjectConfig.local(**SETTINGS), **models)
    write(tmp_path / "files" / "note.md", "# Note\n\nThe note of a day.")
    project.ingest([document("a"), tmp_path / "files"])
    project.ingest([document("b"), document("c")])
    return project


def document(doc_id: str) -> Document:
    return Document(id_=doc_id, text=TEXTS[doc_id])


def load(project: Project) -> Project:
    """Open the project again, with models that must not be called to embed or to write contexts."""
    manager = ProjectManager(project.directory.parent)
    return manager.load(project.name, llm=ScriptedLLM(), embed_model=CountingEmbedding())


def calls(project: Project) -> tuple[int, int]:
    """Return the numbers of contexts that were written and of texts that were embedded."""
    llm, embed_model = project.state.llm, project.embed_model
    assert isinstance(llm, ScriptedLLM)
    assert isinstance(embed_model, CountingEmbedding)
    return len(llm.history), len(embed_model.texts)


def ranking(project: Project, mode: Any = "hybrid", query: str = QUERY) -> list[tuple[str, float]]:
    return [(hit.node_id, round(hit.score, 6)) for hit in project.retrieve(query, mode=mode)]


def editions(project: Project) -> list[tuple[int, str | None]]:
    """Return the edition and the language of each part of the live version."""
    name = current_name(project.directory)
    assert name is not None
    parts = read_manifest(version_directory(project.directory, name)).parts
    return [(entry.derived.edition, entry.derived.language) for entry in parts]


def vectors(project: Project) -> dict[str, list[float]]:
    name = current_name(project.directory)
    assert name is not None
    with contextlib.closing(OpenVersion(version_directory(project.directory, name))) as version:
        rows = version.index.vectors(np.arange(len(version.index.ids)))
        return dict(zip(version.index.ids, rows.tolist(), strict=True))


def test_derived_data_of_an_earlier_release_are_searched_as_they_are(project: Project) -> None:
    semantic = ranking(project, "semantic")
    make_outdated(project.directory)
    old = load(project)
    assert ranking(old, "lexical") == []
    assert [name for name, _ in ranking(old, "semantic")] == [name for name, _ in semantic]
    assert {name for name, _ in ranking(old)} == {name for name, _ in semantic}
    assert ranking(old.only({"ref_doc_id": "a"}), "lexical") == []


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_derived_data_without_a_file_are_made_from_the_chunks(project: Project, mode: str) -> None:
    before = ranking(project, mode)
    make_outdated(project.directory, has_files=False)
    assert ranking(load(project), mode) == before != []
    assert load(project).verify().sound


@pytest.mark.parametrize("mode", ["semantic", "lexical", "hybrid"])
def test_a_version_of_the_first_edition_is_searched_exported_and_extended(tmp_path: Path, mode: str) -> None:
    models: dict[str, Any] = {"llm": ScriptedLLM(), "embed_model": CountingEmbedding()}
    project = ProjectManager(tmp_path / "knowledge").create("plant", ProjectConfig.local(**SETTINGS), **models)
    project.ingest([Document(id_="a", text=TEXTS["a"], metadata={"site": "north"}), document("b")])
    before, nodes = ranking(project, mode), [project.chunks(doc_id) for doc_id in ("a", "b")]

    make_first_edition(project.directory)
    old = load(project)
    assert ranking(old, mode) == before != []
    assert [old.chunks(doc_id) for doc_id in ("a", "b")] == nodes
    assert old.read("a") == TEXTS["a"]
    assert [name for name, _ in ranking(old.only({"site": "north"}), mode)] == [nodes[0][0].node_id]
    assert old.verify().sound
    old.export(tmp_path / "export")

    old.ingest([document("c")])
    assert calls(old) == (1, 1)
    assert set(editions(old)) == {(DERIVED, "auto")}
    assert [old.chunks(doc_id) for doc_id in ("a", "b")] == nodes
    assert {name for name, _ in before} <= {name for name, _ in ranking(load(project), mode)}
    old.remove(["a"])  # the part is written without its chunks
    assert load(project).chunks("b") == nodes[1]
    assert load(project).verify().problems == []


WRITES: dict[str, Callable[[Project, Path], IngestReport]] = {
    "ingest": lambda project, _: project.ingest([document("a"), Document(id_="new", text="")]),
    "ingest of a new document": lambda project, files: project.ingest([files / "new.md"]),
    "sync": lambda project, files: project.sync_folders([files]),
    "remove": lambda project, _: project.remove(["c"]),
    "rebuild": lambda project, _: project.rebuild(),
    "rebuild, derived": lambda project, _: project.rebuild(derived=True),
    "retry": lambda project, _: project.retry_failed(),
}


@pytest.mark.parametrize("write_version", WRITES.values(), ids=WRITES.keys())
def test_the_next_write_makes_outdated_derived_data_again_without_a_model(
    write_version: Callable[[Project, Path], IngestReport], project: Project, tmp_path: Path
) -> None:
    lexical, stored = ranking(project, "lexical"), vectors(project)
    make_outdated(project.directory)
    (tmp_path / "new").mkdir()
    old = load(project)
    folder = tmp_path / "files"
    if write_version is WRITES["ingest of a new document"]:
        write(folder / "new.md", "# New\n\nA page.")
    report = write_version(old, folder)
    assert report.version == current_name(project.directory) == "v000003"
    assert set(editions(project)) == {(DERIVED, "auto")}
    new_chunks = len(vectors(project).keys() - stored.keys())
    assert calls(old) == (new_chunks, new_chunks)
    assert {name: vector for name, vector in vectors(project).items() if name in stored}.items() <= stored.items()
    expected = {name for name, _ in lexical}
    assert {name for name, _ in ranking(load(project), "lexical")} == expected
    if not report.removed and not report.added:
        assert ranking(load(project), "lexical") == lexical
    assert load(project).verify().problems == []


def test_a_project_with_current_derived_data_is_not_written_again(project: Project) -> None:
    assert load(project).ingest([document("a")]).version == "v000002"
    assert load(project).rebuild().version == "v000002"


def test_a_dry_run_does_not_write_derived_data(project: Project, tmp_path: Path) -> None:
    make_outdated(project.directory)
    assert load(project).sync_folders([tmp_path / "files"], dry_run=True).version == "v000002"
    assert set(editions(project)) == {(DERIVED - 1, "auto")}


def test_other_versions_keep_their_derived_data(project: Project) -> None:
    make_outdated(project.directory)
    load(project).rebuild(derived=True)
    load(project).rollback("v000002")
    assert set(editions(project)) == {(DERIVED - 1, "auto")}
    assert ranking(load(project), "semantic")


def test_rebuild_derived_works_on_current_data_too_and_needs_documents(project: Project, tmp_path: Path) -> None:
    before = ranking(project)
    report = load(project).rebuild(derived=True)
    assert sorted(report.rebuilt) == ["a", "b", "c", "files/note.md"]
    assert (report.version, ranking(load(project))) == ("v000003", before)
    empty = ProjectManager(tmp_path / "empty").create("empty", ProjectConfig.local())
    with pytest.raises(InputError, match="There is nothing to ingest"):
        empty.rebuild(derived=True)


def test_a_change_of_the_language_is_applied_by_any_write_without_a_model(project: Project) -> None:
    assert project.update_config(language="german") == ["language"]
    assert project.estimate().documents == 0
    other = load(project)
    assert sorted(other.rebuild().rebuilt) == ["a", "b", "c", "files/note.md"]
    assert set(editions(project)) == {(DERIVED, "german")}
    other.update_config(language="none")
    other.remove(["c"])
    assert set(editions(project)) == {(DERIVED, "none")}
    assert calls(other) == (0, 0)
    assert ranking(load(project), "lexical", "pumps")
    assert ranking(load(project), "lexical", "pumping") == []  # there is no stemmer


def test_lexical_indexes_are_added_and_removed_without_a_model(project: Project) -> None:
    before, stored = ranking(project), vectors(project)
    other = load(project)
    other.update_config(indexes="semantic")
    other.rebuild()
    assert set(editions(project)) == {(DERIVED, None)}
    assert not list(project.directory.glob("parts/p000003*/bm25"))
    assert other.update_config(language="german") == []  # without a lexical index, it has no effect
    other.update_config(indexes="hybrid", language="auto")
    other.rebuild()
    assert set(editions(project)) == {(DERIVED, "auto")}
    assert (calls(other), ranking(load(project)), vectors(project)) == ((0, 0), before, stored)


def test_settings_that_need_a_model_are_not_applied_with_the_derived_data(project: Project) -> None:
    other = load(project)
    other.update_config(chunk_size=30, language="german")
    other.rebuild(derived=True)
    assert calls(other) == (0, 0)
    manifest = read_manifest(version_directory(project.directory, "v000003"))
    assert (manifest.config["chunk_size"], manifest.config["language"]) == (40, "german")


def test_damaged_derived_data_are_made_again_by_a_repair(project: Project) -> None:
    before, stored = ranking(project), vectors(project)
    for name in ("p000001/bm25/counts.bin", "p000001/units.bin", "p000002/bm25/documents/terms.bin"):
        (project.directory / "parts" / name).write_bytes(b"")
    result = run("verify", "plant", "--repair", "--root", project.directory.parent)
    assert result.code == 0
    assert result.out.splitlines()[:2] == [
        "Version v000003 is live: v000002 without its damaged files.",
        "The derived data of 4 documents were made again.",
    ]
    assert (ranking(load(project)), vectors(project)) == (before, stored)
    assert load(project).verify(repair=True).problems == []
