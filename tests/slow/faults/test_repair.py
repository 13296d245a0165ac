"""`verify --repair` publishes a version without damaged parts, and names their documents."""

from __future__ import annotations

import gc
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document, NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.index.manifest import DOCSTORE, FAISS_FILE, RECORDS, UNITS_FILE
from llama_index_contextual.index.verify import Repair
from llama_index_contextual.index.versions import current_name, leftovers
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.results import RetrievedChunk
from tests.slow.faults.cases import attempt, open_below
from tests.slow.faults.damage import damage
from tests.slow.faults.system import FAULTS, FaultySystem, PowerLossSystem, RecordingSystem, installed
from tests.support.models import CountingEmbedding, ScriptedLLM

NAME = "p"
MODES: tuple[Mode, ...] = ("semantic", "lexical", "hybrid")
QUERIES = ("pump pressure", "valve number 3", "pâte à modeler", "loose note", "ready chunk", "owner")
DAMAGE = ("truncated", "bit 0", "removed")
PARTS = {
    "p000004": tuple(f"reports/{n:02d}.md" for n in range(12) if n != 7),
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
    # The mean and the deviation of all scores depend on the order of the parts in their last digits.
    return tuple(round(one.score, 4) if one is not None else -1.0 for one in (hit, *legs))


def calls(project: Project) -> tuple[Sequence[str], Sequence[str]]:
    """Return what was sent to the LLM, and which texts were embedded."""
    llm, model = project.state.llm, project.embed_model
    assert isinstance(llm, ScriptedLLM)
    assert isinstance(model, CountingEmbedding)
    return llm.history, model.texts


def parts_of(project: Project) -> set[str]:
    return {part.directory.name for part in project.state.live.current().parts}


def ingest_again(root: Path, sound: Path) -> None:
    """Ingest the files and the folder again, and remove the document that had been removed."""
    project, folder = load(root), sound / "reports"
    project.ingest([folder / "pâte.md", folder / "owned.md"], file_metadata=facts)
    project.ingest([folder], file_metadata=facts)
    project.remove([record.doc_id for record in project.documents() if record.doc_id == "reports/07.md"])
    assert calls(project) == ([], [])


def repaired(root: Path) -> Repair:
    """Repair a project, and return the repair of its live version."""
    report = load(root).verify(repair=True)
    assert report.sound
    assert report.repair is not None
    return report.repair


def spoil(path: Path, kind: str = "bit 0", seed: int = 0) -> None:
    assert damage(path, kind, path, random.Random(seed))


@pytest.mark.parametrize("part", ["p000004", "p000002"])
def test_damage_of_any_file_is_repaired_by_ingesting_the_named_documents_without_a_call(
    part: str, sound: Path, tmp_path: Path
) -> None:
    before = answers(load(sound / "root"))
    pristine = sound / "root" / NAME / "parts" / part
    names = [path.relative_to(sound / "root") for path in sorted(pristine.rglob("*")) if path.is_file()]
    assert {path.name for path in names} >= {DOCSTORE, RECORDS, "counts.bin"}
    for number, name in enumerate(names):
        case = Case(sound, tmp_path / f"{number}")
        live = current_name(case.directory)
        spoil(case.root / name, DAMAGE[number % len(DAMAGE)], number)
        problem = next(one for one in load(case.root).verify().problems if not one.harmless)
        assert f" verify {NAME} --repair " in problem.remedy, (name, problem)
        repair = repaired(case.root)
        assert (repair.former, repair.version != live) == (live, True), name
        if "bm25" in name.parts or name.name == UNITS_FILE:
            assert (repair.missing, repair.unnamed, repair.remade) == ({}, 0, len(PARTS[part])), name
            assert parts_of(load(case.root)) > PARTS.keys() - {part}, name
            assert case.answers() == before, name
            assert calls(load(case.root)) == ([], [])
            assert load(case.root).verify(repair=True).problems == [], name
            continue
        is_named = name.name != RECORDS
        assert repair.missing.keys() == ({*PARTS[part]} if is_named else set()), name
        assert repair.unnamed == (0 if is_named else len(PARTS[part])), name
        assert all((path or "").startswith(str(sound / "reports")) for path in repair.missing.values()), name
        assert parts_of(load(case.root)) == PARTS.keys() - {part}
        ingest_again(case.root, sound)
        assert case.answers() == before, name
        assert load(case.root).verify(repair=True).problems == [], "the second repair removes the damaged version"
    gc.collect()
    assert open_below(tmp_path) == []


@pytest.mark.parametrize("kind", ["truncated", "removed"])
def test_documents_whose_chunks_are_lost_are_named_and_ingested_again_without_a_call(
    kind: str, sound: Path, tmp_path: Path
) -> None:
    before = answers(load(sound / "root"))
    case = Case(sound, tmp_path)
    spoil(case.directory / "parts" / "p000004" / DOCSTORE, kind)
    repair = repaired(case.root)
    folder = str(sound / "reports")
    assert repair.missing == dict.fromkeys(PARTS["p000004"], folder)
    assert any(line.startswith(f"Ingest 11 documents again from {folder}: ") for line in repair.lines())
    (problem,) = load(case.root).verify().problems
    assert problem.harmless
    assert f" ingest {NAME} {folder} " in problem.remedy, "a repair that was killed before it printed its report"
    project = load(case.root)
    assert project.ingest([folder]).contexts_paid == 0
    project.remove(["reports/07.md"])
    assert calls(project) == ([], [])
    assert case.answers() == before
    assert load(case.root).verify(repair=True).problems == []


def test_documents_without_a_file_are_named_and_stay_in_the_damaged_version_until_the_second_repair(
    sound: Path, tmp_path: Path
) -> None:
    case = Case(sound, tmp_path)
    path = case.directory / "parts" / "p000003" / DOCSTORE
    backup = path.read_bytes()
    spoil(path, "truncated", 1)
    with pytest.raises(CorruptVersionError, match=r"`verify\(repair=True\)`"):
        load(case.root).rebuild()
    problem = next(one for one in load(case.root).verify().problems if not one.harmless)
    assert problem.documents == ("note", "chunks")
    repair = repaired(case.root)
    assert repair.missing == {"note": None, "chunks": None}
    assert "2 documents without a file can only be ingested again" in repair.lines()[-1]
    assert {record.doc_id for record in load(case.root).documents()} == {*PARTS["p000004"], *PARTS["p000002"]}
    path.write_bytes(backup)
    project = load(case.root)
    project.rollback(repair.former)
    assert project.read("note") == "A loose note without a file."
    assert project.verify().sound


def test_an_interrupted_repair_can_be_repeated(sound: Path, tmp_path: Path) -> None:
    before = answers(load(sound / "root"))

    def spoiled(into: Path) -> Case:
        case = Case(sound, into)
        for part, name in (("p000004", "bm25/counts.bin"), ("p000002", FAISS_FILE)):
            (case.directory / "parts" / part / name).unlink()
        return case

    def repair(disk: Path) -> None:
        load(disk).verify(repair=True)

    with installed(system := RecordingSystem()):
        repair(spoiled(tmp_path / "whole").root)
    assert len(system.log) > 15
    for at in range(1, len(system.log), 5):
        case = spoiled(tmp_path / f"fault{at}")
        fault = FAULTS[at % len(FAULTS)]
        error = attempt(repair, case.root, FaultySystem(at, fault, after=False))
        assert error is not None
        repair(case.root)
        ingest_again(case.root, sound)
        assert case.answers() == before, (at, fault)
        case = spoiled(tmp_path / f"power{at}")
        power = PowerLossSystem(case.root, at, skip=frozenset())
        attempt(repair, case.root, power)
        power.lose_power(1)
        repair(case.root)
        ingest_again(case.root, sound)
        assert case.answers() == before, at
        assert leftovers(case.directory) == []
    case = spoiled(tmp_path / "end")
    power = PowerLossSystem(case.root, None, skip=frozenset())
    attempt(repair, case.root, power)
    power.lose_power(1)
    ingest_again(case.root, sound)
    assert case.answers() == before, "a completed repair survives a power cut"


def test_a_repair_killed_before_it_reports_loses_no_name_of_a_document(sound: Path, tmp_path: Path) -> None:
    before = answers(load(sound / "root"))
    folder = str(sound / "reports")

    def spoiled(into: Path) -> Case:
        case = Case(sound, into)
        for part, name in (("p000004", DOCSTORE), ("p000002", FAISS_FILE)):
            (case.directory / "parts" / part / name).unlink()
        return case

    def repair(disk: Path) -> None:
        load(disk).verify(repair=True)

    with installed(system := RecordingSystem()):
        repair(spoiled(tmp_path / "whole").root)
    for at in range(2, len(system.log), 5):
        case = spoiled(tmp_path / f"fault{at}")
        fault = FAULTS[at % len(FAULTS)]
        assert attempt(repair, case.root, FaultySystem(at, fault, after=False)) is not None
        project = load(case.root)
        if not project.verify().sound:
            project.verify(repair=True)
        remedies = [problem.remedy for problem in project.verify().problems]
        assert any(f" ingest {NAME} {folder} " in remedy for remedy in remedies), (at, fault, remedies)
        ingest_again(case.root, sound)
        assert case.answers() == before, (at, fault)
