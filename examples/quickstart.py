"""Ingest the example documents and search them, without a key or a network."""

from pathlib import Path
from tempfile import TemporaryDirectory

from llama_index_contextual import ProjectConfig, ProjectManager

DATA = Path(__file__).parent / "data"

with TemporaryDirectory() as root:  # to keep the project, use a folder such as "knowledge"
    manager = ProjectManager(root)
    project = manager.create("utility", ProjectConfig.local())
    report = project.ingest([DATA])
    print(f"{len(report.added)} documents, {report.chunks} chunks")

    response = project.retrieve("What does error TS-999 mean?", top_k=3)
    print(response)

    text = response[0].text
    print(text[text.index("TS-999") :].partition("\n")[0])
