"""Copies of a project that processes export and import until they are killed, while versions are published."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from pathlib import Path

from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import CorruptVersionError, InputError
from llama_index_contextual.project.manager import ProjectManager

ROUNDS = 2
PUBLISH = """
import itertools, sys
from llama_index.core.schema import Document
from llama_index_contextual.project.manager import ProjectManager
project = ProjectManager(sys.argv[1]).load("docs")
print("ready", flush=True)
for edition in itertools.count(int(sys.argv[2])):
    documents = [Document(id_=f"d{n}", text=f"Document {n} of edition {edition}.") for n in range(20)]
    project.ingest(documents, wait=30)
"""
EXPORT = """
import sys
from llama_index_contextual.project.manager import ProjectManager
manager = ProjectManager(sys.argv[1])
print("ready", flush=True)
while True:
    manager.export_project("docs", sys.argv[2], ledger=False)
"""
IMPORT = """
import sys
from llama_index_contextual.project.manager import ProjectManager
manager = ProjectManager(sys.argv[1])
print("ready", flush=True)
while True:
    manager.import_project(sys.argv[2], "docs")
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a process and return when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill_after(process: subprocess.Popen[str], seconds: float) -> None:
    """Kill a process, which must still be running then."""
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return
    raise AssertionError(errors)


def test_a_copy_is_one_version_whatever_is_killed(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    draw = random.Random(seed)
    manager, elsewhere = ProjectManager(tmp_path / "here"), ProjectManager(tmp_path / "there")
    project = manager.create("docs", ProjectConfig.local(keep_versions=2))
    project.ingest([Document(id_=f"d{number}", text=f"Document {number} of edition 0.") for number in range(20)])
    path, editions = tmp_path / "docs.zip", set()
    manager.export_project("docs", path)
    for number in range(ROUNDS):
        publisher = start(PUBLISH, manager.root, 1 + 1_000 * number)
        exporter = start(EXPORT, manager.root, path)
        importer = start(IMPORT, elsewhere.root, path)
        for process in draw.sample([publisher, exporter, importer], 3):
            kill_after(process, draw.uniform(0.1, 0.8))
        elsewhere.import_project(path, "docs")
        copy = elsewhere.load("docs")
        found = {copy.read(record.doc_id).partition("edition ")[2] for record in copy.documents()}
        assert len(found) == 1
        assert len(copy.documents()) == 20
        assert copy.verify().sound
        editions |= found
    assert len(editions) > 1


def test_an_incomplete_upload_is_refused(tmp_path: Path) -> None:
    """A server without atomic uploads shows the beginning of a file, in place of the former one or over it."""
    manager, elsewhere = ProjectManager(tmp_path / "here"), ProjectManager(tmp_path / "there")
    project = manager.create("docs", ProjectConfig.local())
    files = []
    for edition in range(2):
        project.ingest([Document(id_=f"d{number}", text=f"Document {number} of {edition}.") for number in range(20)])
        manager.export_project("docs", tmp_path / "docs.zip")
        files.append((tmp_path / "docs.zip").read_bytes())
    elsewhere.import_project(tmp_path / "docs.zip")
    former, later = files
    for step in range(1, 60):
        at = len(later) * step // 60
        for data in (later[:at], later[:at] + former[at:]):
            (tmp_path / "part.zip").write_bytes(data)
            with contextlib.suppress(CorruptVersionError, InputError):
                assert not elsewhere.import_project(tmp_path / "part.zip").is_new
        assert elsewhere.load("docs").read("d7") == "Document 7 of 1."
