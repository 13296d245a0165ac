"""Published files are memory-mapped by readers: this package never modifies or truncates one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.compare import compare_variants
from llama_index_contextual.evaluation.questions import Evidence, Question
from llama_index_contextual.index.ledger_lines import export_ledger, import_ledger
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import CountingEmbedding

_PUBLISHED = re.compile(r"/(versions/v|parts/p)[\d-]+/")


class OpenFiles:
    """Published files that stay open, as a reader keeps them, and what they held when they were published."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: dict[int, tuple[str, bytes, int]] = {}
        self._known: set[int] = set()

    def look(self) -> None:
        """Open the files that are new."""
        for path in sorted(self._root.glob("*/[vp]*s/[vp]*/**/*")):
            if path.is_file() and _PUBLISHED.search(str(path)) and path.stat().st_ino not in self._known:
                descriptor = os.open(path, os.O_RDONLY)
                self._known.add(path.stat().st_ino)  # kept by the descriptor: no other file gets it
                self._open[descriptor] = str(path), path.read_bytes(), path.stat().st_mtime_ns

    def changed(self) -> list[str]:
        """Return the files whose content has changed since, wherever they are now."""
        return [
            name
            for descriptor, (name, content, modified) in self._open.items()
            if os.fstat(descriptor).st_mtime_ns != modified or os.pread(descriptor, 1 << 30, 0) != content
        ]

    def close(self) -> None:
        """Close them all."""
        for descriptor in self._open:
            os.close(descriptor)


def documents(*names: str) -> list[Document]:
    return [Document(id_=name, text=f"The {name} runs dry, and the {name} valve is closed.") for name in names]


def live_through(project: Project, folder: Path) -> Iterator[str]:
    """Do everything that can be done with a project, and yield the name of each operation."""
    for name in ("pump", "motor", "filter", "heater"):
        project.ingest(documents(name))
        yield "ingest"
    for mode in ("semantic", "lexical", "hybrid"):
        project.retrieve("pump", mode=mode)  # type: ignore[arg-type]
        yield "retrieve"
    project.update_config(chunk_size=400, chunk_overlap=40)
    project.rebuild()
    yield "rebuild"
    project.rollback()
    yield "rollback"
    project.retry_failed()
    yield "retry_failed"
    project.export(folder / "export")
    yield "export"
    export_ledger(project.directory, folder / "contexts.jsonl")
    import_ledger(project.directory, folder / "contexts.jsonl")
    yield "contexts"
    (project.directory / "versions" / "v000099.building").mkdir()
    (project.directory / "versions" / "v000099.building" / "left.over").write_bytes(b"")
    project.verify()
    project.verify(repair=True)
    yield "verify"
    project.ingest(documents("sensor"), replace=True)
    yield "replace"
    project.ingest(documents("tariff"))
    project.remove("tariff")
    yield "remove"
    project.ingest(documents("quince", "medlar"))
    calls = [Question(text="quince", evidence=[Evidence(text="The quince runs dry")])]
    compare_variants(project, calls, variants=("none", "structural"))
    yield "compare"
    project.remove("quince", forget=True)
    yield "forget"


def test_no_operation_modifies_or_truncates_a_published_file(tmp_path: Path) -> None:
    manager = ProjectManager(tmp_path / "root")
    project = manager.create("p", ProjectConfig.local(context="none"), embed_model=CountingEmbedding())
    stored, done = OpenFiles(tmp_path / "root"), []
    for name in live_through(project, tmp_path):
        done.append(name)
        stored.look()
        assert stored.changed() == [], name
    manager.delete("p")
    assert stored.changed() == []
    assert len(set(done)) > 10
    stored.close()


def test_a_version_is_not_persisted_over_its_own_files(tmp_path: Path) -> None:
    project = ProjectManager(tmp_path).create("p", ProjectConfig.local(context="none"), embed_model=CountingEmbedding())
    project.ingest(documents("pump", "motor"))
    stored = OpenFiles(tmp_path)
    stored.look()
    before = project.retrieve("pump").to_dict()
    with pytest.raises(InputError, match="is a published version: persist into another directory"):
        project.storage_context.persist(str(project.state.live.current().directory))
    assert stored.changed() == []
    assert project.retrieve("pump").to_dict() == before
    stored.close()
