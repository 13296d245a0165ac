"""Projects of all earlier formats can be opened and queried."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest
from llama_index.core.schema import Document

from llama_index_contextual import config
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.storage.manifest import FORMAT_VERSION, checksum
from tests.slow.faults.golden import CONTEXT, FORMATS, NAME, make
from tests.support.documents import MARKDOWN, TEXT
from tests.support.models import CountingEmbedding, ScriptedLLM

MARKDOWN_ID, TEXT_ID = "golden-documents/quarter.md", "golden-documents/manual.txt"


def load_copy(written: Path, tmp_path: Path) -> Project:
    """Return a copy of the project, since opening it makes a lock."""
    shutil.copytree(written, tmp_path / "root")
    return load(tmp_path)


def load(tmp_path: Path) -> Project:
    """Return the copy."""
    return ProjectManager(tmp_path / "root").load(
        NAME, llm=ScriptedLLM(default=CONTEXT), embed_model=CountingEmbedding(dimensions=16)
    )


every_format = pytest.mark.parametrize("written", FORMATS, ids=[path.name for path in FORMATS])


def test_there_is_a_project_of_every_format() -> None:
    assert [path.name for path in FORMATS] == [f"format-{number}" for number in range(1, FORMAT_VERSION + 1)]
    for number, path in enumerate(FORMATS, start=1):
        manifests = [json.loads(file.read_bytes()) for file in path.rglob("manifest.json")]
        assert {manifest["format_version"] for manifest in manifests} == {number}


@every_format
def test_a_project_is_sound_and_answers(written: Path, tmp_path: Path) -> None:
    golden = load_copy(written, tmp_path)
    assert list(golden.verify().problems) == []
    best = golden.retrieve("error TS-999 pump")[0]
    assert best.source.doc_id == TEXT_ID
    assert (best.context or "").endswith(CONTEXT)
    assert best.semantic is not None
    assert best.lexical is not None
    assert golden.read(MARKDOWN_ID) == MARKDOWN
    assert golden.read(TEXT_ID) == TEXT
    assert [(v.name, v.documents, v.live) for v in golden.versions()] == [("v000001", 1, False), ("v000002", 2, True)]


@every_format
def test_a_project_of_an_earlier_format_can_be_updated(written: Path, tmp_path: Path) -> None:
    golden = load_copy(written, tmp_path)
    with contextlib.closing(Ledger(golden.directory / LEDGER_FILE)) as ledger:
        paid = ledger.info()
    assert paid.contexts > 0
    assert paid.embeddings == paid.contexts
    folder = tmp_path / "golden-documents"
    folder.mkdir()
    (folder / "quarter.md").write_text(MARKDOWN, encoding="utf-8")
    (folder / "manual.txt").write_text(TEXT + "\nError TS-300 is new.\n", encoding="utf-8")
    report = golden.ingest([folder], moved=True)
    assert (report.unchanged, report.updated) == ((MARKDOWN_ID,), (TEXT_ID,))
    assert golden.retrieve("TS-300")[0].source.doc_id == TEXT_ID
    assert golden.rollback() == "v000002"
    assert all(problem.harmless for problem in golden.verify().problems)  # paths of files were not recorded then


# ---- versions of an earlier format next to one of the current format -------------------------------------------------


def found(project: Project) -> list[Any]:
    """Return everything that searches of all modes find."""
    return [
        [(hit.node_id, hit.text, hit.context, round(hit.score, 5)) for hit in project.retrieve(query, mode=mode)]
        for query in ("error TS-999 pump", "second quarter revenue", "valve")
        for mode in get_args(config.Mode)
    ]


@pytest.fixture(params=FORMATS, ids=[path.name for path in FORMATS])
def before(request: pytest.FixtureRequest, tmp_path: Path) -> list[Any]:
    """What a project has found to which this release has then added a document."""
    golden = load_copy(request.param, tmp_path)
    results = found(golden)
    golden.update_config(keep_versions=5)
    golden.ingest([Document(id_="note", text="A note on turbines.")])
    return results


def formats(project: Project) -> dict[str, int]:
    manifests = sorted(project.directory.glob("versions/*/manifest.json"))
    return {path.parent.name: json.loads(path.read_bytes())["format_version"] for path in manifests}


def test_the_next_version_has_the_current_format_and_the_former_one_can_be_returned_to(
    before: list[Any], tmp_path: Path
) -> None:
    project = load(tmp_path)
    assert formats(project)["v000003"] == FORMAT_VERSION
    assert list(project.verify().problems) == []
    assert project.retrieve("turbines")[0].source.doc_id == "note"
    assert {record.doc_id for record in project.documents()} == {MARKDOWN_ID, TEXT_ID, "note"}
    assert project.read(TEXT_ID) == TEXT
    assert project.rollback() == "v000002"
    assert found(project) == before
    project.remove(MARKDOWN_ID)
    assert formats(project)["v000004"] == FORMAT_VERSION
    assert [record.doc_id for record in project.documents()] == [TEXT_ID]
    assert project.rollback("v000003") == "v000003"
    assert project.retrieve("turbines")[0].source.doc_id == "note"
    assert list(project.verify().problems) == []


@pytest.mark.parametrize("live", ["v000003", "v000002"])
def test_a_damaged_version_that_is_not_live_is_removed_by_a_repair(
    before: list[Any], tmp_path: Path, live: str
) -> None:
    project = load(tmp_path)
    project.rollback(live)
    answers = found(project)
    next(path for path in (project.directory / "versions" / "v000001").rglob("*") if path.is_file()).unlink()
    assert [problem.harmless for problem in project.verify().problems] == [True]
    repaired = project.verify(repair=True)
    assert (list(repaired.problems), "v000001" in repaired.versions) == ([], False)
    assert found(project) == answers


def test_forget_keeps_the_live_version_alone(before: list[Any], tmp_path: Path) -> None:
    project = load(tmp_path)
    answers = found(project)
    assert set(project.forget().versions) == {"v000001", "v000002"}
    assert formats(project) == {"v000003": FORMAT_VERSION}
    assert found(project) == answers
    assert list(project.verify().problems) == []


def test_forget_keeps_a_live_version_of_an_earlier_format(before: list[Any], tmp_path: Path) -> None:
    project = load(tmp_path)
    project.rollback("v000002")
    assert set(project.forget().versions) == {"v000001", "v000003"}
    assert found(project) == before
    assert list(project.verify().problems) == []
    assert not any(b"turbines" in path.read_bytes() for path in project.directory.rglob("*") if path.is_file())
    project.ingest([Document(id_="note", text="A note on turbines.")])
    assert project.retrieve("turbines")[0].source.doc_id == "note"


@every_format
def test_a_project_keeps_the_settings_it_was_created_with(written: Path, tmp_path: Path) -> None:
    recorded = json.loads((written / NAME / "project.json").read_bytes())["config"]
    golden = load_copy(written, tmp_path)
    assert {name: getattr(golden.config, name) for name in recorded} == recorded
    assert golden.config.answer_tokens == 8000, "what concerns no index takes the default of today"
    assert golden.update_config(top_k=5) == [], "and nothing waits for a rebuild"


def record(project_dir: Path, **settings: Any) -> None:
    """Make a project one whose settings were recorded otherwise; None stands for a setting that is not recorded."""
    for path in [project_dir / "project.json", *project_dir.rglob("manifest.json")]:
        content = json.loads(path.read_bytes())
        del content["xxh3"]
        content["config"] = {
            k: v for k, v in (content["config"] | settings).items() if v is not None or k not in settings
        }
        path.write_text(json.dumps({**content, "xxh3": checksum(content)}))


def test_a_project_that_was_recorded_with_former_defaults_keeps_them(tmp_path: Path) -> None:
    golden = load_copy(FORMATS[-1], tmp_path)
    record(golden.directory, fusion="rrf", semantic_weight=0.5, lexical_weight=0.5, candidates=100)
    kept = load(tmp_path).config
    assert (kept.fusion, kept.semantic_weight, kept.lexical_weight, kept.candidates) == ("rrf", 0.5, 0.5, 100)


def test_a_version_without_a_recorded_setting_uses_its_former_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = load_copy(FORMATS[-1], tmp_path)
    forgotten = ("fusion", "semantic_weight", "lexical_weight", "language")
    record(golden.directory, **dict.fromkeys(forgotten))
    # As if stemming had been introduced since: mixed with what is not stemmed, an index would find neither.
    monkeypatch.setattr(config, "FORMER_DEFAULTS", {**config.FORMER_DEFAULTS, "language": "none"})
    golden = load(tmp_path)
    assert [getattr(golden.config, name) for name in forgotten] == ["rrf", 0.5, 0.5, "none"]
    assert golden.update_config(top_k=5) == [], "nothing waits for a rebuild"
    golden.remove(TEXT_ID)
    built_with = golden._live.current().manifest.config
    assert [built_with[name] for name in forgotten] == ["rrf", 0.5, 0.5, "none"]
    assert golden.update_config(language="english") == ["language"]


def test_a_project_file_written_by_hand_uses_current_defaults(tmp_path: Path) -> None:
    directory = tmp_path / "root" / "by-hand"
    directory.mkdir(parents=True)
    (directory / "project.json").write_text('{"format_version": 1, "config": {"embed_model": "local"}}')
    assert ProjectManager(tmp_path / "root").load("by-hand").config == ProjectConfig(embed_model="local")


def test_the_golden_project_is_never_regenerated() -> None:
    with pytest.raises(InputError, match="never made anew"):
        make(FORMATS[0])
