"""The projects of these tests, and time for the pages that they draw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.ui.pages import PageRenderer
from tests.support.documents import pdf_bytes, write_texts

PATIENCE = 300.0


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """Let pages take as long as they need, except where a test sets a limit."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("seconds", "waiting_seconds"):
            patch.setitem(PageRenderer.__init__.__kwdefaults__, name, PATIENCE)
        yield


FACTS: dict[str, dict[str, Any]] = {
    "quarter.md": {"kind": "report", "year": 2024, "running_footer": "Haldermoor"},
    "manual.txt": {"kind": "manual", "year": 2025, "running_footer": "Port Averly"},
    "tariff.pdf": {"kind": "tariff", "year": 2025},
}


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the projects "reports" of three documents, "long" of many, and "empty"; no test changes them."""
    folder = tmp_path_factory.mktemp("views")
    manager = ProjectManager(folder / "knowledge")
    texts = write_texts(folder / "texts")
    (texts / "tariff.pdf").write_bytes(pdf_bytes())
    project = manager.create("reports", ProjectConfig.local())
    project.ingest([texts], file_metadata=lambda path: FACTS[Path(path).name])
    many = [Document(text=f"Pump {number} of the plant.", id_=f"pump-{number:03}") for number in range(150)]
    whole = Document(
        text="\n\n".join(f"Valve {number}. " + "It opens and closes. " * 30 for number in range(400)), id_="valves"
    )
    manager.create("long", ProjectConfig.local(indexes="lexical")).ingest([*many, whole])
    manager.create("empty", ProjectConfig.local())
    return folder / "knowledge"


@pytest.fixture
def filled(root: Path) -> Project:
    """The project of three documents."""
    return ProjectManager(root).load("reports")
