"""A folder of 40 files of all types: what is read, what is not, and a report that fits a terminal."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llama_index_contextual import Project, ProjectConfig, ProjectManager
from llama_index_contextual.cli.app import app
from llama_index_contextual.ingestion.report import IngestReport
from llama_index_contextual.readers import discovery
from tests.integration.ingestion import mixed_folder


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, IngestReport]:
    """A root folder with the project "club", next to the folder that it was ingested from, and the report."""
    folder = tmp_path_factory.mktemp("mixed")
    mixed_folder.write(folder / "club")
    project = ProjectManager(folder / "knowledge").create("club", ProjectConfig.local())
    return folder, project.ingest([folder / "club"])


@pytest.fixture
def club(template: tuple[Path, IngestReport]) -> Path:
    return template[0] / "club"


@pytest.fixture
def project(template: tuple[Path, IngestReport]) -> Project:
    """The project, to read from."""
    return ProjectManager(template[0] / "knowledge").load("club")


def test_each_file_is_ingested_or_reported(template: tuple[Path, IngestReport], club: Path) -> None:
    assert len(mixed_folder.files()) == 40
    _, report = template
    assert (len(report.added), len(report.skipped)) == (27, 13)
    assert Counter(Path(name).suffix for name in report.added) == Counter(
        Path(name).suffix for name in list(mixed_folder.files())[:27]
    )
    reasons = {Path(file.path).relative_to(club).as_posix(): file.reason for file in report.skipped}
    assert {name: reason.partition(":")[0].partition(" (")[0] for name, reason in reasons.items()} == {
        "contracts/broken.docx": "is damaged or truncated",
        "contracts/broken.pdf": "the PDF is damaged or truncated",
        "contracts/locked.docx": "is encrypted",
        "contracts/old.doc": "has the type .doc and is not read",
        "figures/bomb.xlsx": "becomes more than 50.0 million unpacked bytes from"
        f" {(club / 'figures/bomb.xlsx').stat().st_size:,} bytes",
        "figures/copy.csv": f"has the same content as {club / 'figures/boats.csv'}",
        "figures/old.xls": "has the type .xls and is not read",
        "mail/saved.msg": "has the type .msg and is not read",
        "photos.zip": "has the type .zip and is not read",
        "photos/jetty.heic": "has the type .heic and is not read",
        "slides/old.ppt": "has the type .ppt and is not read",
        "slides/renamed.pptx": "is an old Office file with a new extension",
        "web/empty.html": "is empty",
    }
    warned = sorted(Path(warning.path).name for warning in report.warnings)
    assert warned == ["budget.xlsx", "photo.eml", "preise.csv", "sums.xlsx", "todo.text"]


def test_hits_name_their_sheet_slide_and_section(project: Project) -> None:
    def first(question: str) -> str:
        return str(project.retrieve(question, top_k=1)[0].source)

    assert first("fee for an adult member") == "members.xlsx, sheets 1–2, section Members"
    assert first("new jetty outlook of the season 2024") == "season.pptx, slides 1–2, section Season 2024"
    assert first("rent of the boat house a month") == "lease.docx, section Rent"
    assert first("offer nine thousand") == "offer.eml, section Attachment: offer.docx"


def test_only_changed_files_are_read_again(
    template: tuple[Path, IngestReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(template[0], tmp_path, dirs_exist_ok=True)
    club, project = tmp_path / "club", ProjectManager(tmp_path / "knowledge").load("club")
    assert project.estimate([club], moved=True).documents == 0
    files = mixed_folder.files()
    (club / "figures/members.xlsx").write_bytes(files["figures/budget.xlsx"])
    (club / "mail/plain.eml").rename(club / "mail/keys.eml")
    (club / "figures/budget.xlsx").unlink()
    report = project.ingest([club], moved=True)
    assert sorted(report.renamed.items()) == [("club/mail/plain.eml", "club/mail/keys.eml")]
    assert report.updated == ("club/figures/members.xlsx",)
    assert len(report.unchanged) == 24

    # Unchanged documents stay, also where the extra is missing.
    monkeypatch.setattr(discovery, "find_spec", lambda name: None)
    (club / "slides/board.pptx").write_bytes(files["slides/season.pptx"])
    report = project.ingest([club])
    missing = {Path(file.path).name: file.reason for file in report.skipped if "llama-index-contextual" in file.reason}
    assert missing["broken.docx"] == 'needs further packages: pip install "llama-index-contextual[office]"'
    assert len(report.unchanged) >= 24


def test_each_line_of_the_report_fits_two_lines_of_80_columns(
    club: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(club.parent)
    runner = CliRunner()
    root = ["--root", str(tmp_path / "root")]
    assert runner.invoke(app, ["create", "club", "--local", *root]).exit_code == 0
    lines = runner.invoke(app, ["ingest", "club", "club", *root]).output.splitlines()
    reported = [line for line in lines if line.startswith(("skipped", "note"))]
    assert len(reported) == 13 + 5
    assert [line for line in reported if len(line) > 160] == []
    assert "27 added, 13 skipped; 27 chunks" in lines[-1]
