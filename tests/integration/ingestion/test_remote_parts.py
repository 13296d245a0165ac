"""Versions whose vectors an engine keeps: what is sent, what is dropped, and changes of the backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BackendError, CorruptVersionError
from llama_index_contextual.index import files, qdrant
from llama_index_contextual.index.qdrant import QdrantEngine, open_engine, read_collection
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import CountingEmbedding

pytest.importorskip("qdrant_client")


def documents(mark: str, number: int = 6) -> list[Document]:
    return [Document(text=f"{mark} report {at} about pump {at}", id_=f"d{at}") for at in range(number)]


@pytest.fixture
def project(manager: ProjectManager) -> Iterator[Project]:
    """A project in an engine."""
    config = ProjectConfig.local(backend="qdrant::memory:", keep_versions=9)
    yield manager.create("p", config, embed_model=CountingEmbedding())
    manager.delete("p")


def engine_of(project: Project) -> QdrantEngine:
    return open_engine(project.directory)


def everything(project: Project) -> int:
    """Return the number of points of a project."""
    engine: Any = engine_of(project)
    return int(engine._client.count(engine.collection.name, exact=True).count)


def test_a_changed_document_is_sent_and_the_others_are_not(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.ingest(documents("old"))
    sent = []
    write = qdrant.QdrantEngine.write

    def watched(self: Any, vectors: Any) -> None:
        sent.extend(vectors)
        write(self, vectors)

    monkeypatch.setattr(qdrant.QdrantEngine, "write", watched)
    project.ingest([Document(text="new report", id_="d3")])
    assert [vector.doc_id for vector in sent] == ["d3"]
    assert [vector.added_in for vector in sent] == [2]
    assert everything(project) == 7
    assert project.read("d3") == "new report"


def test_no_file_contains_the_key_of_the_server(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", "qd-secret-key")
    project.ingest(documents("one"))
    for path in files.walk(project.directory):
        assert b"qd-secret-key" not in path.read_bytes(), path


def test_forget_and_removal_leave_no_points(project: Project) -> None:
    project.ingest(documents("one"))
    project.ingest(documents("two"))
    project.remove("d2", forget=True)
    assert everything(project) == 5
    assert project.verify().problems == []


def test_a_failed_run_leaves_points_that_nobody_sees_and_the_next_run_drops(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.ingest(documents("one"))
    with monkeypatch.context() as patch:
        patch.setattr(qdrant.QdrantEngine, "mark_removed", _fail)
        with pytest.raises(BackendError):
            project.ingest(documents("two", 3))
    assert project.retrieve("report").version == "v000001"
    assert len(project.retrieve("report", top_k=50)) == 6
    assert everything(project) == 9
    (problem,) = project.verify().problems
    assert problem.harmless
    assert problem.message == "names a collection with 3 vectors left by an interrupted run"
    assert project.verify(repair=True).problems == []
    assert everything(project) == 6
    project.ingest(documents("two", 3))
    assert project.read("d1") == documents("two")[1].text


def _fail(*_: Any) -> None:
    raise BackendError("It does not answer.")


def lose(project: Project, *key: Any) -> None:
    """Let the engine lose the vector of a chunk."""
    engine: Any = engine_of(project)
    engine._client.delete(engine.collection.name, [qdrant.point_id(*key)])


def test_a_document_with_a_lost_chunk_is_named_by_a_repair_and_ingested_again(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.md").write_text(f"# Note {number}\n\nThe pump {number}.", encoding="utf-8")
    project.ingest(folder)
    engine = engine_of(project)
    keys = {project.live_version.docstore.get_nodes([key[0]])[0].ref_doc_id: key for key in engine.keys(1)}
    lose(project, *keys["notes/4.md"])
    report = project.verify()
    assert not report.sound
    assert "notes/4.md" in report.problems[0].message
    repair = project.verify(repair=True).repair
    assert repair is not None
    assert (repair.version, repair.missing) == ("v000002", {"notes/4.md": str(folder)})
    assert len(project.retrieve("pump", top_k=50)) == 4
    (problem,) = project.verify().problems
    assert problem.harmless
    assert f" ingest {project.name} {folder} " in problem.remedy
    project.ingest(folder)
    assert len(project.retrieve("pump", top_k=50)) == 5
    assert project.verify().sound
    assert project.verify(repair=True).problems == []


def test_a_repair_drops_the_vectors_of_a_damaged_part(project: Project) -> None:
    project.ingest(documents("one"))
    project.ingest([Document(text="one more", id_="x")])
    (project.directory / "parts" / "p000001" / "docstore.sqlite").write_bytes(b"")
    repair = project.verify(repair=True).repair
    assert repair is not None
    assert len(repair.missing) == 6
    assert len(project.retrieve("one more report", top_k=50)) == 1
    assert everything(project) == 7  # those of the damaged version too, which stays
    assert project.verify(repair=True).problems == []


def test_an_engine_that_does_not_answer_is_a_problem_but_no_damage(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.ingest(documents("one"))
    with monkeypatch.context() as patch:
        patch.setattr(qdrant.QdrantEngine, "count", _fail)
        (problem,) = project.verify().problems
        assert "could not be checked" in problem.message
        with pytest.raises(BackendError):
            project.verify(repair=True)
    assert project.verify().problems == []


def test_a_rebuild_moves_the_documents_to_an_engine_and_back(manager: ProjectManager) -> None:
    project = manager.create("p", ProjectConfig.local(), embed_model=CountingEmbedding())
    project.ingest(documents("one"))
    texts = [hit.text for hit in project.retrieve("pump 3")]
    assert project.update_config(backend="qdrant::memory:") == ["backend"]
    project.rebuild()
    assert everything(project) == 6
    assert [hit.text for hit in project.retrieve("pump 3")] == texts
    project.ingest([Document(text="one more", id_="x")])
    project.rollback("v000001")
    assert [hit.text for hit in project.retrieve("pump 3")] == texts
    project.rollback("v000003")
    project.update_config(backend="files")
    project.rebuild()
    assert len(project.retrieve("pump report", top_k=50)) == 7
    assert project.verify().problems == []
    project.forget()
    assert read_collection(project.directory) is None
    manager.delete("p")


def test_a_version_that_lacks_chunks_is_not_published(project: Project) -> None:
    project.ingest(documents("one"))
    lose(project, *next(iter(engine_of(project).keys(1))))
    with pytest.raises(CorruptVersionError, match=r"has 6 vectors .* instead of 7, so it is not published: call"):
        project.ingest([Document(text="new", id_="n")])
    assert [version.name for version in project.versions()] == ["v000001"]
    assert project.ingest(documents("two"), replace=True).version == "v000002"
    assert project.verify(repair=True).sound


def test_a_version_that_a_writer_removes_during_a_check_is_not_damaged(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.update_config(keep_versions=2)
    project.ingest(documents("one"))
    project.ingest(documents("two"))
    count = qdrant.QdrantEngine.count

    def counted_late(self: Any, version: int) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(qdrant.QdrantEngine, "count", count)
            if len(project.versions()) == 2 and version == 1:
                project.ingest(documents("three"))
        return count(self, version)

    monkeypatch.setattr(qdrant.QdrantEngine, "count", counted_late)
    assert project.verify().problems == []
    assert [version.name for version in project.versions()] == ["v000002", "v000003"]


def test_parts_whose_chunks_are_lost_are_not_merged(project: Project) -> None:
    for number in range(9):
        project.ingest([Document(text=f"report {number}", id_=f"d{number}")])
    lose(project, *next(key for key in engine_of(project).keys(9) if key[1] == 8))
    with pytest.raises(CorruptVersionError, match=r"lacks the chunk .*: run `verify`"):
        project.ingest([Document(text="new", id_="n")])
    assert project.retrieve("report").version == "v000009"


@pytest.mark.parametrize("indexes", ["lexical", "semantic"])
def test_without_a_lexical_or_a_semantic_index_the_other_one_works(indexes: Any, manager: ProjectManager) -> None:
    config = ProjectConfig.local(backend="qdrant::memory:", indexes=indexes)
    project = manager.create("one", config, embed_model=CountingEmbedding())
    project.ingest(documents("one"))
    for number in range(10):
        project.ingest([Document(text=f"more {number}", id_=f"m{number}")])
    assert project.retrieve("report 3 pump", top_k=1).results
    assert project.verify().problems == []
    manager.delete("one")
