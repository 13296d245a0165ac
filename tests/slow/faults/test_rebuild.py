"""`rebuild` of a damaged version restores the documents of the damaged parts, and leaves all others as they are."""

from __future__ import annotations

import gc
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document, NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.index.current import current_name, leftovers
from llama_index_contextual.index.manifest import DOCSTORE, PART_MANIFEST, RECORDS
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.response import RetrievedChunk
from tests.slow.faults.cases import attempt, open_below
from tests.slow.faults.damage import damage
from tests.slow.faults.system import FAULTS, FaultySystem, PowerLossSystem, RecordingSystem, installed
from tests.support.models import CountingEmbedding, ScriptedLLM

NAME = "p"
MODES: tuple[Mode, ...] = ("semantic", "lexical", "hybrid")
QUERIES = ("pump pressure", "valve number 3", "pâte à modeler", "loose note", "ready chunk", "owner")
DAMAGE = ("truncated", "bit 0", "removed")
PARTS = {
    "p000001": tuple(f"reports/{n:02d}.md" for n in range(12) if n != 7),
    "p000002": ("pâte.md", "owned.md"),
    "p000003": ("note", "chunks"),
}
CONFIG = ProjectConfig.local(context="llm", chunk_size=40, chunk_overlap=4, keep_versions=9)


def load(root: Path, name: str = NAME) -> Project:
    return ProjectManager(root).load(name, llm=ScriptedLLM(), embed_model=CountingEmbedding())


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with three parts, and the folder of its files, both of which no test changes."""
    base = tmp_path_factory.mktemp("sound")
    folder = base / "reports"
    folder.mkdir()
    project = ProjectManager(base / "root").create(NAME, CONFIG, llm=ScriptedLLM(), embed_model=CountingEmbedding())
    for number in range(12):
        text = f"# Report {number}\n\nPump pressure of report {number}.\n\n## Valve\n\nThe valve number {number} leaks."
        (folder / f"{number:02d}.md").write_text(text, encoding="utf-8")
    project.ingest([folder])
    (folder / "pâte.md").write_text("# Pâte\n\nLa pâte à modeler sèche.\n", encoding="utf-8")
    (folder / "owned.md").write_text("# Owned\n\nA report with an owner.\n", encoding="utf-8")
    project.ingest([folder / "pâte.md", folder / "owned.md"], file_metadata=facts)
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="chunks")}
    chunks = [TextNode(id_=f"c{n}", text=f"Ready chunk {n}.", relationships=source) for n in range(2)]
    project.ingest([Document(id_="note", text="A loose note without a file."), *chunks])
    project.remove("reports/07.md")
    return base


def facts(path: str) -> dict[str, Any]:
    return {"owner": "Zoë"} if "owned" in path else {}


class Case:
    """A copy of the project; the files of its documents are those of the original project."""

    def __init__(self, sound: Path, into: Path) -> None:
        shutil.copytree(sound / "root", into / "root")
        self.root = into / "root"
        self.directory = self.root / NAME
        self.project = load(self.root)

    def answers(self) -> list[Any]:
        return answers(load(self.root))


def answers(project: Project) -> list[Any]:
    """Return everything that searches find; equal scores are ranked in the order of the parts, which may change."""
    return [
        sorted((hit.source.doc_id, hit.node_id, hit.text, hit.context, scores(hit)) for hit in response)
        for mode in MODES
        for query in QUERIES
        for response in (project.retrieve(query, mode=mode, top_k=50),)
    ]


def scores(hit: RetrievedChunk) -> tuple[float, ...]:
    legs = (hit.semantic, hit.lexical, hit.document)
    return tuple(round(one.score, 5) if one is not None else -1.0 for one in (hit, *legs))


def calls(project: Project) -> tuple[Sequence[str], Sequence[str]]:
    """Return what was sent to the LLM, and which texts were embedded."""
    llm, model = project._llm, project.embed_model
    assert isinstance(llm, ScriptedLLM)
    assert isinstance(model, CountingEmbedding)
    return llm.history, model.texts


def parts_of(project: Project) -> set[str]:
    return {part.part.directory.name for part in project._live.current().parts}


@pytest.mark.parametrize("part", PARTS)
def test_damage_of_any_file_is_undone_by_a_rebuild_of_its_part_alone(part: str, sound: Path, tmp_path: Path) -> None:
    before = answers(load(sound / "root"))
    pristine = sound / "root" / NAME / "parts" / part
    names = [path.relative_to(sound / "root") for path in sorted(pristine.rglob("*")) if path.is_file()]
    assert {path.name for path in names} >= {DOCSTORE, RECORDS, PART_MANIFEST, "counts.npy"}
    for number, name in enumerate(names):
        case = Case(sound, tmp_path / f"{number}")
        live = current_name(case.directory)
        damage(case.root / name, DAMAGE[number % len(DAMAGE)], case.root / name, random.Random(number))
        assert load(case.root).verify().problems
        if name.name == DOCSTORE and part == "p000003":
            continue  # documents without files; see below
        problem = next(one for one in load(case.root).verify().problems if not one.harmless)
        assert f" rebuild {NAME} " in problem.remedy, (name, problem)
        project = load(case.root)
        report = project.rebuild()
        assert set(report.rebuilt) == set(PARTS[part]), name
        assert (report.lost, report.lost_unnamed, report.contexts_paid) == ((), 0, 0)
        assert calls(project) == ([], []), name
        assert parts_of(project) == {*(PARTS.keys() - {part}), report.version.replace("v", "p")}  # type: ignore[union-attr]
        assert case.answers() == before, name
        assert load(case.root).verify().sound
        assert report.version != live
        del project
    gc.collect()
    assert open_below(tmp_path) == []


def spoil_documents_without_files(case: Case) -> None:
    path = case.directory / "parts" / "p000003" / DOCSTORE
    damage(path, "truncated", path, random.Random(1))


def test_documents_that_cannot_be_restored_are_named_and_nothing_changes(sound: Path, tmp_path: Path) -> None:
    case = Case(sound, tmp_path)
    spoil_documents_without_files(case)
    live = current_name(case.directory)
    with pytest.raises(CorruptVersionError) as caught:
        load(case.root).rebuild()
    assert caught.value.documents == ("note", "chunks")
    assert str(caught.value).startswith("parts/p000003/docstore.sqlite has ")
    assert (
        "2 documents cannot be restored: note (it was not read from a file); chunks (it was not read from a file)."
        in str(caught.value)
    )
    assert "`rebuild(allow_loss=True)` and ingest these documents again" in str(caught.value)
    assert current_name(case.directory) == live
    problem = next(one for one in load(case.root).verify().problems if not one.harmless)
    assert problem.documents == ("note", "chunks")
    assert "2 documents cannot be restored" in problem.message
    report = load(case.root).rebuild(allow_loss=True)
    assert (set(report.rebuilt), report.lost) == (set(), ("note", "chunks"))
    assert "2 lost" in report.summary()
    assert "lost note: ingest it again" in str(report)
    project = load(case.root)
    assert {record.doc_id for record in project.documents()} == {*PARTS["p000001"], *PARTS["p000002"]}
    project.ingest([Document(id_="note", text="A loose note without a file.")])
    assert load(case.root).verify().sound


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: path.write_text("Other text.", encoding="utf-8"), "its file has changed"),
        (lambda path: path.unlink(), "its file does not exist"),
    ],
)
def test_a_file_that_has_changed_or_is_gone_is_not_taken_for_the_original(
    change: Callable[[Path], object], reason: str, sound: Path, tmp_path: Path
) -> None:
    shutil.copytree(sound, tmp_path / "copy")
    folder = tmp_path / "copy" / "reports"
    project = load(tmp_path / "copy" / "root")
    project.ingest([folder], moved=True)
    for part in (project.directory / "parts").iterdir():
        if part.name != "p000003":
            (part / DOCSTORE).unlink(missing_ok=True)
    change(folder / "03.md")
    with pytest.raises(CorruptVersionError, match=reason) as caught:
        load(tmp_path / "copy" / "root").rebuild()
    assert "reports/03.md" in caught.value.documents


def test_a_rebuild_with_changed_settings_applies_them_to_all_documents(sound: Path, tmp_path: Path) -> None:
    case = Case(sound, tmp_path)
    load(case.root).update_config(chunk_size=60)
    (case.directory / "parts" / "p000001" / "default__vector_store.faiss").unlink()
    (case.directory / "parts" / "p000002" / RECORDS).unlink()
    report = load(case.root).rebuild()
    assert set(report.rebuilt) == {doc_id for ids in PARTS.values() for doc_id in ids}
    assert load(case.root).verify().sound


def test_an_interrupted_rebuild_can_be_repeated(sound: Path, tmp_path: Path) -> None:
    before = answers(load(sound / "root"))

    def spoiled(into: Path) -> Case:
        case = Case(sound, into)
        for part, name in (("p000001", DOCSTORE), ("p000003", "default__vector_store.faiss")):
            (case.directory / "parts" / part / name).unlink()
        return case

    with installed(system := RecordingSystem()):
        load(spoiled(tmp_path / "whole").root).rebuild()
    assert len(system.log) > 40
    for at in range(1, len(system.log), 17):
        case = spoiled(tmp_path / f"fault{at}")
        fault = FAULTS[at % len(FAULTS)]
        error = attempt(lambda disk: load(disk).rebuild(), case.root, FaultySystem(at, fault, after=False))
        assert error is not None
        load(case.root).rebuild()
        assert case.answers() == before, (at, fault)
        case = spoiled(tmp_path / f"power{at}")
        power = PowerLossSystem(case.root, at, skip=frozenset())
        attempt(lambda disk: load(disk).rebuild(), case.root, power)
        power.lose_power(1)
        load(case.root).rebuild()
        assert case.answers() == before, at
        assert leftovers(case.directory) == []
    case = spoiled(tmp_path / "end")
    power = PowerLossSystem(case.root, None, skip=frozenset())
    attempt(lambda disk: load(disk).rebuild(), case.root, power)
    power.lose_power(1)
    assert case.answers() == before, "a completed rebuild survives a power cut"
