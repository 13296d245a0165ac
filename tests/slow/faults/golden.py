"""A tiny project of each format, kept permanently: `python -m tests.slow.faults.golden DIRECTORY`.

A later release must open it as it is; it is never made anew, or it would no longer be what the first release wrote.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.storage.lock import LOCK_FILE
from tests.support.documents import MARKDOWN, TEXT
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.source import ROOT

FORMATS = sorted((ROOT / "tests" / "data").glob("format-*"))
NAME = "golden"
CONTEXT = "From the second quarter of Orlen Valve Works, or from its bench manual."


def make(directory: Path) -> None:
    """Write the project, with two versions and a ledger, into a new directory."""
    if directory.exists():
        raise InputError(f"{directory} is there already: a golden project is never made anew.")
    documents = directory.with_name("golden-documents")
    documents.mkdir(parents=True)
    model = CountingEmbedding(dimensions=16)
    project = ProjectManager(directory).create(
        NAME, ProjectConfig.local(context="llm"), llm=ScriptedLLM(default=CONTEXT), embed_model=model
    )
    (documents / "quarter.md").write_text(MARKDOWN, encoding="utf-8")
    project.ingest([documents])
    (documents / "manual.txt").write_text(TEXT, encoding="utf-8")
    project.ingest([documents])
    (project.directory / LOCK_FILE).unlink()
    shutil.rmtree(documents)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
