"""Public names, and what their import loads."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import llama_index_contextual as package
from tests.support.documents import write_texts
from tests.support.source import PACKAGE, ROOT, sources

PUBLIC = package.__all__
# What belongs to an extra, to a provider, or to the command line; whoever searches a project imports none of it.
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


def run(script: str, *arguments: str) -> Any:
    """Run Python code in a process of its own and return what it prints as JSON."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def imported_by(statement: str) -> set[str]:
    """Return the top-level packages, but for the standard library's, that a statement imports in a fresh process."""
    results = run(
        "import json, sys\n"
        "before = set(sys.modules)\n"
        f"{statement}\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    )
    return {name for name in results if name not in sys.stdlib_module_names and not name.startswith("_")}


# ---- names ---------------------------------------------------------------------------------------------------------


def test_the_public_names_are_sorted_and_each_has_its_module() -> None:
    # The order of ruff's RUF022: names in capitals come first.
    assert sorted(PUBLIC, key=lambda name: (not name.isupper(), name)) == PUBLIC
    assert sorted(PUBLIC) == dir(package)
    assert len(set(PUBLIC)) == len(PUBLIC)
    assert {"__version__", *package._MODULES} == set(PUBLIC)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "__version__"])
def test_every_public_name_has_a_docstring(name: str) -> None:
    passages = getattr(package, name)
    assert passages.__name__ == name
    assert passages.__module__.startswith(PACKAGE)
    first = (inspect.getdoc(passages) or "").partition("\n")[0]
    assert first[:1].isupper(), first
    assert first.endswith("."), first


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="'llama_index_contextual' has no attribute 'Projekt'"):
        package.Projekt  # noqa: B018


def test_type_checkers_see_the_same_objects_as_the_interpreter() -> None:
    tree = next(source.tree for source in sources() if not source.name)
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    promised = {
        alias.name: getattr(import_module(str(node.module)), alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert promised == {name: getattr(package, name) for name in PUBLIC if name != "__version__"}


def test_the_package_is_marked_as_typed() -> None:
    assert (Path(package.__file__).parent / "py.typed").is_file()


# ---- what an import costs ------------------------------------------------------------------------------------------


def test_the_bare_import_imports_nothing_else() -> None:
    assert imported_by("import llama_index_contextual") == {PACKAGE}


def test_settings_need_pydantic_only() -> None:
    needed = {PACKAGE, "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
    assert imported_by("from llama_index_contextual import ProjectConfig; ProjectConfig") <= needed


def test_help_on_the_command_line_does_not_wait_for_llama_index() -> None:
    assert imported_by("import llama_index_contextual.cli.app") & {"llama_index", "faiss", "numpy", "tiktoken"} == set()


def broken_alone(statement: str, names: Sequence[str]) -> dict[str, str]:
    """Run a statement for each `name`, every time as if nothing of the package had been imported, and return errors."""
    broken: dict[str, str] = run(
        "import json, sys\n"
        "from importlib import import_module\n"
        "broken = {}\n"
        "for name in json.loads(sys.argv[1]):\n"
        "    for module in [m for m in sys.modules if m.partition('.')[0] == 'llama_index_contextual']:\n"
        "        del sys.modules[module]\n"
        "    try:\n"
        f"        {statement}\n"
        "    except Exception as error:\n"
        "        broken[name] = repr(error)\n"
        "print(json.dumps(broken))",
        json.dumps(sorted(names)),
    )
    return broken


def test_every_public_name_can_be_imported_first() -> None:
    # One name of each module is enough: they come from the same import.
    first = {getattr(package, name).__module__: name for name in PUBLIC if name != "__version__"}
    assert broken_alone("getattr(import_module('llama_index_contextual'), name)", list(first.values())) == {}


def test_every_module_can_be_imported_alone() -> None:
    # `__main__` runs the command line; a module that derives from a class of an extra needs the extra.
    extras = {
        "embeddings.fastembed": importlib.util.find_spec("fastembed"),
        "embeddings.huggingface": importlib.util.find_spec("llama_index.embeddings.huggingface"),
        "ingestion.executors.ray": importlib.util.find_spec("ray"),
    }
    names = [source.name for source in sources() if source.name != "__main__" and extras.get(source.name, True)]
    modules = [f"{PACKAGE}.{name}".rstrip(".") for name in names]
    assert broken_alone("import_module(name)", modules) == {}


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
    assert {PACKAGE, "llama_index", "faiss", "bm25s"} <= results
    assert results & HEAVY - foreign == set()


def test_used_as_a_library_it_prints_nothing_and_leaves_the_root_logger_alone(
    process: dict[str, Any], foreign: set[str]
) -> None:
    assert process["best"] == "manual.txt"
    assert (process["handlers"], process["level"], process["bm25s"]) == ([], 30, 0)
    assert {name.partition(".")[0] for name in process["used"]} & HEAVY <= {"wordllama"} | foreign
