"""Messages on the command line: none of them speaks Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from llama_index_contextual import errors
from tests.support.source import sources

ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}

# Words of Python code: calls, keyword arguments, constants, and classes of this package and of LlamaIndex.
PYTHON = re.compile(
    r"\w\((?:\.\.\.|[\w\s.,=\[\]{}'\"*…]*)\)"
    r"|(?<![\w-])[a-z_]+=(?!=|…?[A-Z]{3,}\b|\w+:)"
    r"|\b(?:True|False|None(?! of)|lambda|dict|tuple|kwargs)\b"
    r"|\bLlamaIndex (?:object|reader|template|Document)"
    r"|\bpass(?:ed)? (?:an?|the|it|them|one|both|further)\b(?! with --)"
    r"|\b(?:ProjectManager|ProjectConfig|ReadLimits|MetadataFilters?|PromptTemplate|SearchPlans?|Documents"
    r"|QueryBundle|ChatMessages|HybridRetriever|SemanticRetriever|Settings\\.|Timeouts|BlendWeights)\b"
)


# Places that no command reaches: they check arguments, models and objects that only Python code can pass.
PYTHON_ONLY = set((Path(__file__).parent / "python_only.txt").read_text().split())
LIBRARY = ("tools.",)  # for agents and MCP clients, which pass arguments


class Message(NamedTuple):
    """A message in the source: where it is raised, and its words on the command line."""

    place: str
    text: str


def text_of(node: ast.expr) -> str:
    """Return the constant parts of a text, with `…` for what is put into it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.IfExp):
        return f"{text_of(node.body)} / {text_of(node.orelse)}"
    return "…"


def messages() -> Iterator[Message]:
    """Yield the message of every error in the source."""
    for source in sources():
        for function in source.nodes:
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
                if not isinstance(node, ast.Call) or name not in ERRORS or not node.args:
                    continue
                words = [text_of(argument) for argument in node.args]
                yield Message(f"{source.name}:{function.name}", " ".join(words))
        for node in source.nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Remedy":
                yield Message(f"{source.name}:Remedy", text_of(node.args[1]))


def python_in(text: str) -> str:
    """Return the first words of a message that only Python code has, or an empty text."""
    hit = PYTHON.search(re.sub(r"`llama-index-contextual [^`]*`|such as \w+=\w+|`python -c [^`]*`", "", text))
    return "" if hit is None else hit[0]


def test_no_message_on_the_command_line_speaks_python() -> None:
    found = {message.place: message.text for message in messages() if python_in(message.text)}
    reachable = {
        place: text for place, text in found.items() if place not in PYTHON_ONLY and not place.startswith(LIBRARY)
    }
    assert reachable == {}
    assert set(found) >= PYTHON_ONLY, "remove what no longer occurs"
