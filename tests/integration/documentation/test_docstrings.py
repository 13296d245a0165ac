"""Docstrings and the examples in them are correct."""

from __future__ import annotations

import ast
import builtins
import doctest
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import TypeGuard

import pytest

from llama_index_contextual import errors
from tests.support.source import PACKAGE, sources

EXAMPLES = [source.name for source in sources() if ">>>" in source.text]

Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def is_public(node: ast.AST) -> TypeGuard[Documented]:
    """Return whether somebody may use it; the signatures of an overloaded function share the docstring behind them."""
    if not isinstance(node, Documented) or node.name.startswith("_"):
        return False
    return "overload" not in map(ast.unparse, node.decorator_list)


def public_definitions() -> Iterator[tuple[str, Documented]]:
    """Yield every public class, function and method of the package with where it stands."""
    for source in sources():
        for node in source.tree.body:
            if is_public(node):
                yield f"{source.path}:{node.lineno} {node.name}", node
                for member in node.body if isinstance(node, ast.ClassDef) else ():
                    if is_public(member) and not isinstance(member, ast.ClassDef):
                        yield f"{source.path}:{member.lineno} {node.name}.{member.name}", member


def section(docstring: str, title: str) -> list[str]:
    """Return the names that a section of a Google docstring explains."""
    documents = re.search(rf"^{title}:\n((?:[ ]+.*\n?|\n)+)", docstring, re.MULTILINE)
    return re.findall(r"^ {4}\**(\w+):", documents[1], re.MULTILINE) if documents else []


def test_documented_arguments_exist() -> None:
    wrong = []
    for where, node in public_definitions():
        names = section(ast.get_docstring(node) or "", "Args")
        wrong += [f"{where}: {name}" for name in names if name not in parameters(node)]
    assert wrong == []


def parameters(node: Documented) -> set[str]:
    """Return the parameters of a function, or the fields and the parameters of `__init__` of a class."""
    if isinstance(node, ast.ClassDef):
        annotated = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
        fields = {target.id for target in annotated if isinstance(target, ast.Name)}
        makers = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
        return fields.union(*map(parameters, makers))
    arguments = node.args
    inputs = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {argument.arg for argument in inputs if argument}


def test_documented_attributes_exist() -> None:
    wrong = []
    for where, node in public_definitions():
        for name in section(ast.get_docstring(node) or "", "Attributes"):
            if name not in ast.unparse(node).replace('"', " ").replace("'", " ").split("\n", 1)[1]:
                wrong.append(f"{where}: {name}")
    assert wrong == []


def test_documented_errors_exist() -> None:
    wrong = []
    imported = {name for source in sources() for name in source.names}
    for where, node in public_definitions():
        for name in section(ast.get_docstring(node) or "", "Raises"):
            if not hasattr(errors, name) and not hasattr(builtins, name) and name not in imported:
                wrong.append(f"{where}: {name}")
    assert wrong == []


def test_the_exception_tree_is_drawn_as_it_is() -> None:
    sampled: dict[str, int] = {}
    for line in (errors.__doc__ or "").splitlines():
        if result := re.match(r"^ {4}([ │├└─]*)(\w+Error)\b", line):
            sampled[result[2]] = len(result[1]) // 4
    real = {
        name: len([base for base in result.__mro__ if issubclass(base, errors.ContextualError)]) - 1
        for name, result in vars(errors).items()
        if inspect.isclass(result) and issubclass(result, errors.ContextualError)
    }
    assert sampled == real


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_a_module_run(name: str) -> None:
    module = import_module(f"{PACKAGE}.{name}")
    examples = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert examples
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in examples:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
