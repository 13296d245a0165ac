"""The notebooks of the examples as they are saved; `.ci/run` executes them and compares their outputs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.examples import EXAMPLES

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))

_MACHINE = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp|private|var)/|[A-Z]:\\\\Users")


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    """The cells of a notebook that are code or markdown."""
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def code(cell: dict[str, Any]) -> str:
    """The source of a cell."""
    return "".join(cell["source"])


def outputs(path: Path) -> list[dict[str, Any]]:
    """All outputs of a notebook."""
    return [output for cell in cells(path, "code") for output in cell["outputs"]]


_FIGURE = re.compile(r"(?<![\w.@-])\d[\d,]*(?:\.\d+)?(?![\w-])")
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "twenty")
_WORDS = dict(zip(_NUMBERS, [*map(str, range(2, 13)), "20"], strict=True))
_CONSTANTS = re.compile(r"<!-- constants: (.*?) -->")
_NOT_PROSE = re.compile(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL)
_SMALL = frozenset("1234")
"""Figures that count things in sight, such as "two contexts"."""


def printed(path: Path) -> str:
    """The text of all outputs that a reader sees."""
    shown = (o["text"] if o["output_type"] == "stream" else o["data"].get("text/plain", ()) for o in outputs(path))
    return "\n".join("".join(text) for text in shown)


def figures(text: str) -> set[str]:
    """The figures of a text, in digits and in words."""
    words = {_WORDS[word] for word in re.findall(r"[a-z]+", text.lower()) if word in _WORDS}
    return {figure.rstrip(",") for figure in _FIGURE.findall(text)} | words


def unfounded(markdown: str, output: str) -> set[str]:
    """The figures in a cell of prose that no output contains, and that are not declared in a comment.

    Code in backquotes and targets of links are not prose. A comment such as `<!-- constants: 800, 8,000 -->` declares
    figures that are settings, prices of another run, or measured elsewhere.
    """
    declared = {text.strip() for part in _CONSTANTS.findall(markdown) for text in part.split(", ")}
    declared |= {_WORDS[word] for word in declared & _WORDS.keys()}
    return figures(_NOT_PROSE.sub(" ", markdown)) - figures(output) - declared - _SMALL


def test_a_figure_that_no_output_contains_is_noticed() -> None:
    output = "27 questions\nllm        93.3\n1,024 tokens; $0.17, 5 documents"
    assert unfounded("The 27 questions reach 93.3 for $0.17, with 1,024 tokens, in five documents.", output) == set()
    assert unfounded("The 28 questions reach 93.4 for $0.18, in six documents.", output) == {"28", "93.4", "0.18", "6"}
    assert unfounded("Up to 800 tokens, `top_k=50`, [9](09.ipynb).\n<!-- constants: 800, 9 -->", output) == set()
    assert unfounded("It is 3.3 points, not 93.3.", output) == {"3.3"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestSavedNotebook:
    def test_every_cell_was_executed_in_order_and_none_failed(self, path: Path) -> None:
        counts = [cell["execution_count"] for cell in cells(path, "code")]
        assert counts == list(range(1, len(counts) + 1))
        assert outputs(path)
        kinds = {output["output_type"] for output in outputs(path)}
        assert kinds <= {"stream", "execute_result", "display_data"}

    def test_no_output_contains_machine_paths_or_times(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        assert not _MACHINE.search(text)
        assert '"execution"' not in text
        assert json.loads(text)["metadata"]["kernelspec"]["name"] == "python3"

    def test_imported_names_exist_in_the_package(self, path: Path) -> None:
        for cell in cells(path, "code"):
            for node in ast.walk(ast.parse(code(cell))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("llama_index_contextual"):
                    result = __import__(node.module or "", fromlist=["*"])
                    assert [alias.name for alias in node.names if not hasattr(result, alias.name)] == []

    def test_the_figures_in_the_prose_are_those_of_the_outputs(self, path: Path) -> None:
        output = printed(path)
        wrong = {code(cell).split("\n")[0]: unfounded(code(cell), output) for cell in cells(path, "markdown")}
        assert {where: numbers for where, numbers in wrong.items() if numbers} == {}
