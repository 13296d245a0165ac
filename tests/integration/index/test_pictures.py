"""Pictures of figures are files of a part: stored once, checked, repaired, removed and copied with their documents."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from llama_index_contextual import Project, ProjectConfig, ProjectManager
from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.index.verify import verify_project
from tests.support.figures import PUMP, TEXT, VALVE, manual


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "docs").mkdir()
    manual(tmp_path / "docs" / "pump.pdf", [PUMP, TEXT])
    manual(tmp_path / "docs" / "valve.pdf", [VALVE])
    manager = ProjectManager(tmp_path / "projects")
    project = manager.create("manuals", ProjectConfig.local(chunk_size=200, segment_size=400))
    project.ingest([tmp_path / "docs"])
    return project


def stored(project: Project) -> list[Path]:
    return sorted(project.directory.glob("parts/*/figures/*"))


def captions(project: Project, query: str = "relief valve and pump") -> list[str]:
    return sorted({figure.caption for hit in project.retrieve(query) for figure in hit.figures})


BOTH = ["Figure 1: Cross-section of the circulation pump", "Figure 2: Spring of the relief valve"]


def test_a_hit_has_its_figures_with_their_pictures(project: Project) -> None:
    hit = project.retrieve("relief valve spring")[0]
    [figure] = hit.figures
    assert (figure.name, figure.page, figure.kind) == ("Figure 2: Spring of the relief valve", 1, "picture")
    assert hashlib.sha256(figure.read_bytes()).hexdigest() == figure.sha256
    assert figure.path in stored(project)
    assert figure.box is not None
    left, top, right, bottom = figure.box
    assert (round(left / 10), round(top / 10), round(right / 10), round(bottom / 10)) == (11, 22, 37, 40)


def test_the_figure_of_another_page_is_shown_with_the_text_that_refers_to_it(project: Project) -> None:
    hit = project.retrieve("the pump moves water from the well")[0]
    assert [figure.caption for figure in hit.near_figures] == BOTH[:1]


def test_pictures_are_stored_once(project: Project, tmp_path: Path) -> None:
    manual(tmp_path / "docs" / "both.pdf", [PUMP, VALVE])
    before = {path.name for path in stored(project)}
    assert len(before) == 2
    project.ingest([tmp_path / "docs"], replace=True)
    live = {entry.name for entry in project.directory.glob("parts/p000002*/figures/*")}
    assert live <= before


def test_they_leave_with_their_document(project: Project) -> None:
    kept = {project.retrieve("relief valve spring")[0].figures[0].file_name}
    project.remove("docs/pump.pdf")
    project.forget()
    assert {path.name for path in stored(project)} == kept
    assert captions(project) == BOTH[1:]


def test_they_stay_when_parts_are_written_again(project: Project, tmp_path: Path) -> None:
    project.rebuild(derived=True)
    assert captions(project) == BOTH
    project.update_config(chunk_size=100)
    project.rebuild()
    assert captions(project) == BOTH
    assert all(figure.read_bytes() for hit in project.retrieve("pump valve") for figure in hit.figures)
    for number in range(12):  # parts are merged
        manual(
            tmp_path / "docs" / f"new-{number}.pdf", [(f"Pump number {number}.", number, f"Figure 1: Pump {number}")]
        )
        project.ingest([tmp_path / "docs" / f"new-{number}.pdf"])
    assert all(figure.read_bytes() for hit in project.retrieve("pump", top_k=20) for figure in hit.figures)
    assert project.verify().sound


def test_a_damaged_picture_is_reported_and_does_not_prevent_a_search(project: Project) -> None:
    [first, second] = stored(project)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1] + b"x")
    report = project.verify()
    assert {problem.file for problem in report.problems} == {
        f"parts/p000001/figures/{first.name}",
        f"parts/p000001/figures/{second.name}",
    }
    assert {problem.message.split()[0] for problem in report.problems} == {"is", "has"}
    assert not report.sound
    assert [problem.file for problem in verify_project(project.directory, quick=True).problems] == [
        f"parts/p000001/figures/{first.name}"
    ]
    hits = project.retrieve("relief valve spring")
    assert hits
    with pytest.raises(CorruptVersionError, match=r"parts/p000001/figures/\w+.png (is missing|has changed)"):
        hits[0].figures[0].read_bytes()


def test_a_repair_names_the_document_of_a_damaged_picture(project: Project, tmp_path: Path) -> None:
    lost = project.retrieve("relief valve spring")[0].figures[0]
    assert lost.path is not None
    lost.path.unlink()
    repair = project.verify(repair=True).repair
    assert repair is not None
    assert list(repair.missing) == ["docs/valve.pdf"]
    assert captions(project) == BOTH[:1]
    project.ingest([tmp_path / "docs"])
    assert captions(project) == BOTH
    assert project.retrieve("relief valve spring")[0].figures[0].read_bytes()
    assert project.verify().sound


def test_without_the_setting_nothing_is_kept(tmp_path: Path) -> None:
    manual(tmp_path / "valve.pdf", [VALVE])
    project = ProjectManager(tmp_path / "projects").create("manuals", ProjectConfig.local(figures=False))
    project.ingest([tmp_path / "valve.pdf"])
    assert captions(project) == []
    assert not list(project.directory.glob("parts/*/figures*"))
