"""A project of any format that there has been opens and answers for ever."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from llama_index_contextual.errors import InputError
from llama_index_contextual.manager import ProjectManager
from llama_index_contextual.project import Project
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.storage.manifest import FORMAT_VERSION
from tests.faults.golden import CONTEXT, FORMATS, NAME, make
from tests.support.documents import MARKDOWN, TEXT
from tests.support.models import CountingEmbedding, ScriptedLLM

MARKDOWN_ID, TEXT_ID = "golden-documents/quarter.md", "golden-documents/manual.txt"


def load_copy(written: Path, tmp_path: Path) -> Project:
    """Return a copy of the project, since opening it makes a lock."""
    shutil.copytree(written, tmp_path / "root")
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
    assert best.context == CONTEXT
    assert best.semantic is not None
    assert best.lexical is not None
    assert golden.read(MARKDOWN_ID) == MARKDOWN
    assert golden.read(TEXT_ID) == TEXT
    assert [(v.name, v.documents, v.live) for v in golden.versions()] == [("v000001", 1, False), ("v000002", 2, True)]


@every_format
def test_a_project_goes_on(written: Path, tmp_path: Path) -> None:
    golden = load_copy(written, tmp_path)
    with contextlib.closing(Ledger(golden.directory / LEDGER_FILE)) as ledger:
        paid = ledger.info()
    assert paid.contexts > 0
    assert paid.embeddings == paid.contexts
    folder = tmp_path / "golden-documents"
    folder.mkdir()
    (folder / "quarter.md").write_text(MARKDOWN, encoding="utf-8")
    (folder / "manual.txt").write_text(TEXT + "\nError TS-300 is new.\n", encoding="utf-8")
    report = golden.ingest([folder])
    assert (report.unchanged, report.updated) == ((MARKDOWN_ID,), (TEXT_ID,))
    assert golden.retrieve("TS-300")[0].source.doc_id == TEXT_ID
    assert golden.rollback() == "v000002"
    assert list(golden.verify().problems) == []


def test_the_golden_project_is_never_made_anew() -> None:
    with pytest.raises(InputError, match="never made anew"):
        make(FORMATS[0])
