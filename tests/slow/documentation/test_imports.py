"""What importing and using the package loads, in processes of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.integration.test_architecture import LAYERS, level_of, part_of
from tests.integration.test_public_surface import imported_by, run
from tests.support.documents import write_texts
from tests.support.source import PACKAGE, sources

# What belongs to an extra, to a provider, or to the command line; a search imports none of it.
HEAVY = {
    "agno",
    "click",
    "genai_prices",
    "lxml",
    "mammoth",
    "matplotlib",
    "mcp",
    "openai",
    "openpyxl",
    "pandas",
    "pptx",
    "pypdf",
    "pypdfium2",
    "qdrant_client",
    "ray",
    "rich",
    "scipy",
    "torch",
}
HEAVY |= {"transformers", "typer", "wordllama"}

ALONE = """
import json, os, sys
from importlib import import_module

def forget(names):
    for name in names:
        sys.modules.pop(name, None)

layers, broken = json.loads(sys.argv[1]), []
for layer in layers:
    for name in layer:
        import_module(name)
for number, layer in enumerate(layers):
    forget(name for above in layers[number:] for name in above)
    for name in layer:
        if not (child := os.fork()):
            try:
                import_module(name)
            except BaseException:
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            broken.append(name)
    for name in layer:
        import_module(name)
print(json.dumps(broken))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_every_module_can_be_imported_alone() -> None:
    """Import each module in a process that has only the layers below it, and the dependencies."""
    # `__main__` runs the command line; a module that derives from a class of an extra needs the extra.
    extras = {
        "embeddings.fastembed": importlib.util.find_spec("fastembed"),
        "embeddings.huggingface": importlib.util.find_spec("llama_index.embeddings.huggingface"),
        "ingestion.ray": importlib.util.find_spec("ray"),
    }
    names = [source.name for source in sources() if source.name != "__main__" and extras.get(source.name, True)]
    layers: list[list[str]] = [[] for _ in LAYERS]
    for name in names:
        layers[level_of(part_of(name)) if name else 0].append(f"{PACKAGE}.{name}".rstrip("."))
    assert run(ALONE, json.dumps(layers)) == []


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process of its own looks like after it has imported all names, and after it has used a project."""
    folder = write_texts(tmp_path_factory.mktemp("library") / "reports")
    response: dict[str, Any] = run(
        "import json, logging, sys\n"
        "from pathlib import Path\n"
        "from llama_index_contextual import *\n"
        "imported = sorted(sys.modules)\n"
        "folder = Path(sys.argv[1])\n"
        "project = ProjectManager(folder.parent / 'knowledge').create('a', ProjectConfig.local())\n"
        "project.ingest([folder])\n"
        "best = project.retrieve('error TS-999')[0].source.file_name\n"
        "root = logging.getLogger()\n"
        "levels = {n: l.level for n, l in root.manager.loggerDict.items() if isinstance(l, logging.Logger)}\n"
        "print(json.dumps({'best': best, 'handlers': root.handlers, 'level': root.level, 'bm25s': levels['bm25s'],\n"
        "    'imported': imported, 'used': sorted(sys.modules)}))",
        str(folder),
    )
    return response


@pytest.fixture(scope="module")
def foreign() -> set[str]:
    """What bm25s imports of its own accord, where it is installed: SciPy."""
    return imported_by("import bm25s")


def test_all_names_together_import_no_provider_and_no_terminal(process: dict[str, Any], foreign: set[str]) -> None:
    results = {name.partition(".")[0] for name in process["imported"]}
    assert {PACKAGE, "llama_index", "bm25s"} <= results
    assert results & HEAVY - foreign == set()


def test_used_as_a_library_it_prints_nothing_and_leaves_the_root_logger_alone(
    process: dict[str, Any], foreign: set[str]
) -> None:
    assert process["best"] == "manual.txt"
    assert (process["handlers"], process["level"], process["bm25s"]) == ([], 30, 0)
    assert {name.partition(".")[0] for name in process["used"]} & HEAVY <= foreign


SEARCH_OPTIONS = [(), ("--explain",), ("--mode", "lexical", "--json"), ("--full", "-k", "1")]


@pytest.mark.parametrize("options", SEARCH_OPTIONS, ids=str)
def test_the_command_search_answers_without_llamaindex_as_the_project_does(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "manual.txt").write_text("Error TS-999 means that the pump runs dry.\n\nThe sensor needs no oil.")
    ProjectManager(tmp_path).create("a", ProjectConfig.local()).ingest([folder])
    command = ["search", "a", "error TS-999", "--root", str(tmp_path), *options]
    through_project = "import llama_index_contextual.cli.answer as s\ns._search_locally = lambda *_, **_o: None"
    answers = {}
    for prepare in ("", through_project):
        program = (
            f"import sys\n{prepare}\n"
            "from llama_index_contextual.cli.app import main\n"
            f"sys.argv = ['llama-index-contextual', *{command!r}]\n"
            "try:\n"
            "    main()\n"
            "finally:\n"
            "    print(any(name.startswith('llama_index.') for name in sys.modules), file=sys.stderr)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        answers[prepare] = done.stdout, done.stderr.splitlines()[-1]
    assert answers[""] == (answers[through_project][0], "False")
    assert answers[through_project][1] == "True"
