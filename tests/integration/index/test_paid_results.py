"""Results that were paid for at earlier commits are never paid for again: `README.md` in the folders of the data."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import FormatError
from llama_index_contextual.index.ledger_lines import export_ledger, import_ledger
from llama_index_contextual.ingestion.report import IngestReport
from llama_index_contextual.metadata import context_parts
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers.ocr import OcrEngine, engine_for
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT

DATA = ROOT / "tests" / "data"
PAID = DATA / "paid-854d896"
GONE = ("context_on_structure", "chunks_per_call")  # settings of that commit
CASES: dict[str, dict[str, Any]] = {
    case: {name: value for name, value in settings.items() if name not in GONE}
    for case, settings in json.loads((PAID / "cases.json").read_bytes()).items()
}


class Cost(NamedTuple):
    """Number of contexts and embeddings that are made again, and the price of the embeddings."""

    contexts: int = 0
    embeddings: int = 0
    tokens: int = 0
    dollars: float = 0.0


CHANGED = {
    "contexts below the structural line": Cost(contexts=1, embeddings=1, tokens=360, dollars=0.0003408),
    "contexts alone, several per call": Cost(contexts=1, embeddings=50, tokens=43_645, dollars=0.000998),
    "structural line": Cost(embeddings=34, tokens=26_877, dollars=0.00053754),
    "no context": Cost(embeddings=1, tokens=170, dollars=0.0000034),
    "windows": Cost(embeddings=1, tokens=170, dollars=0.0000034),
    "contextual embeddings": Cost(embeddings=1, tokens=164, dollars=0.00002952),
}
"""Keys that had to change since, by case.

In all cases, the lines of `scan-chinese.png` are joined without a line break, which changes its only chunk. The export
does not contain the former text, so the chunk cannot be recognised.
"contexts alone, several per call": the structural line now always stands above a context that an LLM wrote.
"structural line": 33 of 50 lines had terms at their end, which are gone from the text that is embedded.
"""


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents") / "data"
    folder.mkdir()
    for path in [*(ROOT / "examples" / "data").iterdir(), ROOT / "tests" / "data" / "scan-chinese.png"]:
        if path.suffix in (".md", ".pdf", ".txt", ".png"):
            shutil.copy(path, folder)
    return folder


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    monkeypatch.setattr("llama_index_contextual.readers.documents.engine_for", lambda *_: RAPIDOCR)
    with LoopbackProvider(embedding_dimensions=16, embedding_encoding="cl100k_base") as running:
        for name, address in (("OPENAI", "OPENAI_BASE_URL"), ("VOYAGE", "VOYAGE_API_BASE")):
            monkeypatch.setenv(f"{name}_API_KEY", "any")
            monkeypatch.setenv(address, running.api_base)
        yield running


RAPIDOCR = OcrEngine("rapidocr", "3.10.0")


def unpacked(name: str, folder: Path) -> Path:
    """Return a file of the data, unpacked."""
    path = folder / name.removesuffix(".gz")
    path.write_bytes(gzip.decompress((PAID / name).read_bytes()))
    return path


def exported(project: Project, path: Path) -> dict[str, set[str]]:
    """Return the keys of what was paid for or read, by table."""
    export_ledger(project.directory, path)
    keys = defaultdict(set)
    for line in map(json.loads, path.read_bytes().splitlines()):
        if line.get("table") != "runs":
            keys[line.get("table", "contexts")].add(line["key"])
    return keys


@pytest.mark.parametrize("case", CASES)
def test_an_ingest_after_an_import_pays_only_for_keys_that_had_to_change(
    case: str, documents: Path, provider: LoopbackProvider, tmp_path: Path
) -> None:
    changed = CHANGED[case]
    project = ProjectManager(tmp_path / "knowledge").create("later", ProjectConfig(**CASES[case]))
    import_ledger(project.directory, unpacked("paid.jsonl.gz", tmp_path))
    before = exported(project, tmp_path / "before.jsonl")
    report = project.ingest([documents])
    added = {table: keys - before[table] for table, keys in exported(project, tmp_path / "after.jsonl").items()}
    assert {table: len(keys) for table, keys in added.items()} == {
        "contexts": changed.contexts,
        "embeddings": changed.embeddings,
        "pages": 0,
        **({"chunk_contexts": 50} if project.config.context == "llm" else {}),
    }
    assert (report.chunks, report.skipped, report.failures, report.contexts_paid) == (50, (), (), changed.contexts)
    assert price(report) == (changed.tokens, pytest.approx(changed.dollars))
    assert provider.totals()["paid_calls"] == bool(changed.embeddings) + changed.contexts


def price(report: IngestReport) -> tuple[int, float | None]:
    """Return the tokens that were embedded, and the dollars paid."""
    return (0, 0.0) if report.paid is None else (report.paid.embedding_tokens, report.paid.dollars)


def test_contexts_are_kept_if_the_title_or_the_running_lines_are_read_differently(
    provider: LoopbackProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_index_contextual.readers.documents.engine_for", engine_for)
    folder = DATA / "paid-a3502afc"
    documents = tmp_path / "data"
    documents.mkdir()
    for path in (folder / "manual.md", DATA / "lease.pdf"):
        shutil.copy(path, documents)
    config = ProjectConfig(context="llm", llm="openai:gpt-4.1-mini", embed_model="local", ocr=None)
    project = ProjectManager(tmp_path / "knowledge").create("later", config)
    import_ledger(project.directory, folder / "contexts.jsonl")
    expected = project.estimate([documents])
    assert (expected.known_contexts, expected.kept_contexts, expected.contexts.calls, expected.dollars) == (0, 2, 0, 0)
    report = project.ingest([documents])
    assert (report.chunks, report.contexts_kept, report.contexts_paid) == (2, 2, 0)
    assert "kept from before: 2 contexts, $0.00" in str(report)
    assert {record.file_name: record.title for record in project.documents()} == {
        "manual.md": None,
        "lease.pdf": "Lease of the Orlen Valve Works",
    }
    assert "Orlen Valve Works - Lease\n" in project.read("data/lease.pdf")
    former = {json.loads(line).get("context") for line in (folder / "contexts.jsonl").read_text().splitlines()}
    for record in project.documents():
        (chunk,) = project.chunks(record.doc_id)
        assert context_parts(chunk.metadata)[1] in former
    assert provider.totals()["paid_calls"] == 0


def test_all_keys_are_in_the_export() -> None:
    lines = [json.loads(line) for line in gzip.decompress((PAID / "paid.jsonl.gz").read_bytes()).splitlines()]
    keys = sorted((line.get("table", "contexts"), line.get("key") or line.get("run")) for line in lines)
    recorded = json.loads(gzip.decompress((PAID / "keys.json.gz").read_bytes()))
    assert keys == sorted((table, key) for case in recorded.values() for table in case for key in case[table])
    assert len(keys) == 406


def test_the_ledger_of_a_project_that_cannot_be_opened_is_exported(tmp_path: Path) -> None:
    project = tmp_path / "knowledge" / "former"
    project.mkdir(parents=True)
    unpacked("ledger.sqlite.gz", project)
    (project / "project.json").write_text('{"format_version": 2, "config": {}}')
    manager = ProjectManager(tmp_path / "knowledge")
    with pytest.raises(FormatError, match=r"export its ledger \(`ProjectManager.export_ledger`\)"):
        manager.load("former")
    rows = manager.export_ledger("former", tmp_path / "export.jsonl")
    assert (rows.contexts, rows.embeddings, rows.pages, rows.receipts) == (100, 299, 1, 6)
    assert (tmp_path / "export.jsonl").read_bytes() == unpacked("paid.jsonl.gz", tmp_path).read_bytes()


def test_an_export_by_the_former_commit_contains_the_same_contexts(
    documents: Path, provider: LoopbackProvider, tmp_path: Path
) -> None:
    former = unpacked("contexts.jsonl.gz", tmp_path).read_bytes()
    lines = unpacked("paid.jsonl.gz", tmp_path).read_bytes().splitlines(keepends=True)
    assert former == b"".join(line for line in lines if "table" not in json.loads(line))
    documents_with_text = [path for path in documents.iterdir() if path.suffix != ".png"]  # it has no scanned pages
    settings = CASES["contexts alone, several per call"]
    project = ProjectManager(tmp_path / "knowledge").create("later", ProjectConfig(**settings))
    assert import_ledger(project.directory, tmp_path / "contexts.jsonl").contexts == 100
    assert project.ingest(documents_with_text).contexts_paid == 0
    assert (len(provider.chat_calls), project.info().ledger.embeddings) == (0, 49)
