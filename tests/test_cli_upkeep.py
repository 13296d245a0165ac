"""Commands that look after a project, where they have more to say than that it went well."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
from llama_index.core.schema import Document
from typer.testing import CliRunner, Result

from llama_index_contextual.cli import app
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.manager import ProjectManager
from llama_index_contextual.project import Project
from llama_index_contextual.storage.ledger import Ledger


@pytest.fixture
def ingested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text_folder: Path) -> Project:
    """Project "a" with one version of two documents."""
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(tmp_path / "knowledge"))
    project = ProjectManager(tmp_path / "knowledge").create("a", ProjectConfig.local())
    project.ingest([text_folder])
    return project


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result


def test_a_damaged_version_is_listed_beside_the_others(ingested: Project) -> None:
    ingested.ingest([Document(text="A note.")])
    (ingested.directory / "versions" / "v000001" / "manifest.json").write_text("nonsense")
    first, second = run("versions", "a").stdout.splitlines()
    assert first.startswith("v000001  damaged  versions/v000001/manifest.json is not a manifest")
    assert re.fullmatch(r"v000002  .*  3 documents  \d chunks  live", second)
    assert [version["damage"] is None for version in json.loads(run("versions", "a", "--json").stdout)] == [False, True]


def test_what_is_removed_for_good_is_counted(ingested: Project) -> None:
    found = json.loads(run("remove", "a", "reports/quarter.md", "--forget", "--json").stdout)
    assert found["removed"] == ["reports/quarter.md"]
    assert found["forgotten"] == {"versions": ["v000001"], "contexts": 0, "embeddings": 0, "batched_requests": 0}
    with closing(Ledger(ingested.directory / "ledger.sqlite")) as ledger:
        ledger.batches.uploaded("file", model="openai:gpt-4.1", custom_ids=["one", "two"])
    told = run("forget", "a")
    assert told.stdout == "Removed for good: 0 versions, 0 contexts, 0 embeddings.\n"
    assert told.stderr.startswith("given up 2 requests in batches: the provider may go on and charge\n")
