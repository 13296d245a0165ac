"""Projects of all earlier formats can be opened and continued, with the settings that they were created with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from llama_index_contextual import config
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index.manifest import FORMAT_VERSION, checksum
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.documents import MARKDOWN, TEXT
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.source import ROOT
from tests.support.trees import write

FORMATS = sorted((ROOT / "tests" / "data").glob("format-*"))
CONTEXT = "From the second quarter of Orlen Valve Works, or from its bench manual."
MARKDOWN_ID, TEXT_ID = "golden-documents/quarter.md", "golden-documents/manual.txt"


def load(root: Path) -> Project:
    return ProjectManager(root).load(
        "golden", llm=ScriptedLLM(default=CONTEXT), embed_model=CountingEmbedding(dimensions=16)
    )


def copy_of(written: Path, tmp_path: Path) -> Project:
    shutil.copytree(written, tmp_path / "root")
    return load(tmp_path / "root")


def test_there_is_a_project_of_every_format() -> None:
    assert [path.name for path in FORMATS] == [f"format-{number}" for number in range(1, FORMAT_VERSION + 1)]


@pytest.mark.parametrize("written", FORMATS, ids=lambda path: path.name)
def test_a_project_of_an_earlier_format_answers_and_is_continued(written: Path, tmp_path: Path) -> None:
    project = copy_of(written, tmp_path)
    recorded = json.loads((written / "golden" / "project.json").read_bytes())["config"]
    assert {name: getattr(project.config, name) for name in recorded} == recorded
    assert list(project.verify().problems) == []
    best = project.retrieve("error TS-999 pump")[0]
    assert (best.source.doc_id, (best.context or "").endswith(CONTEXT)) == (TEXT_ID, True)
    assert best.semantic is not None
    assert best.lexical is not None
    assert (project.read(MARKDOWN_ID), project.read(TEXT_ID)) == (MARKDOWN, TEXT)
    assert [(v.name, v.documents, v.live) for v in project.versions()] == [("v000001", 1, False), ("v000002", 2, True)]
    answers = [(hit.node_id, round(hit.score, 5)) for hit in project.retrieve("valve")]

    write(tmp_path / "golden-documents" / "quarter.md", MARKDOWN)
    write(tmp_path / "golden-documents" / "manual.txt", TEXT + "\nError TS-300 is new.\n")
    report = project.ingest([tmp_path / "golden-documents"], moved=True)
    assert (report.unchanged, report.updated) == ((MARKDOWN_ID,), (TEXT_ID,))
    assert project.retrieve("TS-300")[0].source.doc_id == TEXT_ID
    assert project.rollback() == "v000002"
    assert [(hit.node_id, round(hit.score, 5)) for hit in project.retrieve("valve")] == answers
    assert project.verify().sound


def test_a_version_without_a_recorded_setting_uses_its_former_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project_dir = copy_of(FORMATS[-1], tmp_path).directory
    forgotten = ("fusion", "semantic_weight", "lexical_weight", "language")
    for path in [project_dir / "project.json", *project_dir.rglob("manifest.json")]:
        content = json.loads(path.read_bytes())
        del content["xxh3"]
        content["config"] = {key: value for key, value in content["config"].items() if key not in forgotten}
        path.write_text(json.dumps({**content, "xxh3": checksum(content)}))
    # As if stemming had been introduced since: mixed with what is not stemmed, an index would find neither.
    monkeypatch.setattr(config, "FORMER_DEFAULTS", {**config.FORMER_DEFAULTS, "language": "none"})
    project = load(tmp_path / "root")
    assert [getattr(project.config, name) for name in forgotten] == ["rrf", 0.5, 0.5, "none"]
    assert project.update_config(top_k=5) == [], "nothing waits for a rebuild"
    project.remove(TEXT_ID)
    built_with = project._live.current().manifest.config
    assert [built_with[name] for name in forgotten] == ["rrf", 0.5, 0.5, "none"]
    assert project.update_config(language="english") == ["language"]


def test_a_project_file_written_by_hand_uses_current_defaults(tmp_path: Path) -> None:
    write(tmp_path / "by-hand" / "project.json", '{"format_version": 1, "config": {"embed_model": "local"}}')
    assert ProjectManager(tmp_path).load("by-hand").config == ProjectConfig(embed_model="local")
