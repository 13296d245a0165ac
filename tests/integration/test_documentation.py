"""Docstrings, examples and the README are correct."""

from __future__ import annotations

import ast
import builtins
import doctest
import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeGuard

import pytest
from typer.main import get_command

import llama_index_contextual
from llama_index_contextual import config, errors
from llama_index_contextual.cli.app import app
from tests.support.source import PACKAGE, ROOT, sources

README = (ROOT / "README.md").read_text(encoding="utf-8")
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


# ---- docstrings ----------------------------------------------------------------------------------------------------


def test_every_public_definition_begins_with_a_sentence() -> None:
    wrong = []
    for where, node in public_definitions():
        first = (ast.get_docstring(node) or "").partition("\n")[0]
        if not (first.endswith((".", ":")) and (first[:1].isupper() or first[:1] in "`\"'")):
            wrong.append(f"{where}: {first!r}")
    assert wrong == []


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


def test_every_setting_has_a_description() -> None:
    for name, field in config.ProjectConfig.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_a_module_run(name: str) -> None:
    module = import_module(f"{PACKAGE}.{name}")
    examples = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert examples
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in examples:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


# ---- README --------------------------------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_first_example_of_the_readme_prints_the_output_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("python")[0], "README.md", "exec"), {})
    printed = capsys.readouterr().out
    promised = blocks("text")[0].rstrip()
    head, ellipsis, _ = promised.partition(" …")
    assert ellipsis, "the block is expected to show the beginning only"
    assert printed.startswith(head)


def test_the_example_is_near_the_top_of_the_readme() -> None:
    assert README[: README.index("```python")].count("\n") < 35


def test_the_python_code_of_the_readme_compiles_and_uses_public_names() -> None:
    for block in blocks("python"):
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
                assert {alias.name for alias in node.names} <= set(llama_index_contextual.__all__)


def test_the_calls_on_a_project_in_the_code_of_the_readme_exist() -> None:
    for source in blocks("python"):
        for attribute in re.findall(r"\bproject\.(\w+)", source):
            assert hasattr(llama_index_contextual.Project, attribute), attribute


def test_the_commands_of_the_readme_exist_with_their_options() -> None:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    lines = [line for block in blocks("bash") for part in block.splitlines() for line in part.split("&&")]
    used = [shlex.split(line, comments=True)[1:] for line in lines if line.strip().startswith("llama-index-contextual")]
    assert used
    for name, *arguments in used:
        options = {option for parameter in commands[name].params for option in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("-")} <= options


def test_every_command_and_every_extra_is_in_the_readme() -> None:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    named = " ".join(re.findall(r"`([^`\n]+)`", README)) + " ".join(blocks("bash"))
    assert [name for name in commands if not re.search(rf"\b{name}\b", named)] == []
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    table = README[README.index("| extra | for |") :].partition("\n\n")[0]
    listed = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert listed - {"docs"} == extras.keys() - {"dev", "dev-all", "docs"}  # for those who work on the package


def test_every_command_but_the_servers_prints_json() -> None:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    leaves = {name: command for name, command in commands.items() if not hasattr(command, "commands")}
    leaves |= {f"{name} {leaf}": c for name, g in commands.items() for leaf, c in getattr(g, "commands", {}).items()}
    without = [name for name, c in leaves.items() if "--json" not in [opt for p in c.params for opt in p.opts]]
    assert set(without) == {"mcp", "serve"}


def test_the_links_of_the_readme_have_targets() -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_no_page_contains_paths_or_user_names_of_a_machine() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("examples/*.md")):
        assert not re.search(r"(?<![\w.])/(?:home|root|Users|work|tmp)/", page.read_text(encoding="utf-8")), page.name
