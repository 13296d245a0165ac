"""Public names, and what their import loads."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

import llama_index_contextual as package
from tests.support.source import PACKAGE, ROOT, sources

PUBLIC = package.__all__

ROOMS = {
    "QA": "answering.batch",
    "AnswerCache": "answering.query_engine",
    "BlendWeights": "retrievers.conversational",
    "Comparison": "evaluation.compare",
    "ConversationQuery": "retrievers",
    "DocumentTools": "tools.document_tools",
    "Evaluation": "evaluation.run",
    "Evidence": "evaluation.questions",
    "Guards": "answering.guards",
    "Judge": "answering.judge",
    "Ledger": "index.ledger",
    "Passage": "answering.citations",
    "Question": "evaluation.questions",
    "ReadLimits": "readers",
    "SearchPlan": "answering.intent",
    "Source": "search.response",
    "Timeouts": "answering.streaming",
    "SpotlightRerank": "postprocessor",
    "Price": "money.price",
    "VoyageContextualEmbedding": "embeddings.voyage",
    "aanswer_many": "answering.batch",
    "answer_many": "answering.batch",
    "assert_recall": "evaluation.run",
    "calibrate": "evaluation.calibrate",
    "check_citations": "answering.citations",
    "compare": "evaluation.compare",
    "compare_variants": "evaluation.compare",
    "evaluate": "evaluation.run",
    "evaluate_payoff": "evaluation.payoff",
    "evaluate_steps": "evaluation.steps",
    "export_ledger": "index.ledger_lines",
    "generate_questions": "evaluation.questions",
    "import_ledger": "index.ledger_lines",
    "load_questions": "evaluation.questions",
    "report_usage": "embeddings.replies",
    "sweep_answers": "evaluation.compare",
    "sweep_variants": "evaluation.compare",
    "write_questions": "evaluation.questions",
    "write_report": "evaluation.report",
}
"""Public names that are imported from where they live, with their modules."""


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
    assert {"__version__", *(name for names in package._EXPORTS.values() for name in names)} == set(PUBLIC)


@pytest.mark.parametrize(("name", "module"), ROOMS.items())
def test_every_other_public_name_is_where_it_lives(name: str, module: str) -> None:
    found = getattr(import_module(f"{PACKAGE}.{module}"), name)
    assert found.__name__ == name
    assert inspect.getdoc(found)


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


# ---- what an import costs ------------------------------------------------------------------------------------------


def test_the_bare_import_imports_nothing_else() -> None:
    assert imported_by("import llama_index_contextual") == {PACKAGE}


def test_settings_need_pydantic_only() -> None:
    needed = {PACKAGE, "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
    assert imported_by("from llama_index_contextual import ProjectConfig; ProjectConfig") <= needed


def test_help_on_the_command_line_does_not_wait_for_llama_index() -> None:
    assert imported_by("import llama_index_contextual.cli.app") & {"llama_index", "faiss", "numpy", "tiktoken"} == set()
