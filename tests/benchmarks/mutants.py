"""Change the package in one place at a time, and check whether a test fails: `python -m tests.benchmarks.mutants`.

    pytest tests --cov --cov-context=test --cov-report=        # records in .coverage which test runs which line
    python -m tests.benchmarks.mutants draw --seed 27 > mutants.jsonl
    python -m tests.benchmarks.mutants run mutants.jsonl > result.jsonl

`draw` takes half of the mutants from the most critical code (search, storage, ledger, cost, chunking, what belongs to a
version, citations) and half from the rest of the package, or all of them from the paths that it is given, such as
`search/ index/ledger.py`; all are in lines that a test runs. A mutant is identified by its function and the text of the
expression, so a list can also be used at later commits.

`run` forks a process for each mutant, which imports the changed package. It first runs the tests that run the line and
the tests named after the module, and then the other tests in the same files, because a line in a shared fixture is
recorded only for the first test that uses it. A mutant is killed if a test fails, or if the tests take more than four
times the budget.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import coverage
import pytest

from tests.support.source import PACKAGE, ROOT

CRITICAL = (
    "search/",
    "index/",
    "ingestion/",
    "node_parser/",
    "contextualizer/cost.py",
    "contextualizer/sending.py",
    "answering/citations.py",
)
HANGS = 1_800
"""Seconds after which a mutant counts as hanging, however loaded the machine is."""
OPTIONS = (
    "-q",
    "-p",
    "no:xdist",
    "-p",
    "no:randomly",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:cov",
    "--override-ini=addopts=",
)
KILLED, SURVIVED, TIMEOUT, LOST = "killed", "survived", "timeout", "lost"

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        module: Path of the module within the package.
        function: Qualified name of the function ("Class.method").
        before: The statement or expression, as `ast.unparse` writes it.
        number: How many equal ones precede it in the function.
        after: What replaces it.
    """

    module: str
    function: str
    before: str
    number: int
    after: str


def main() -> None:
    """Draw mutants, or run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    draw_options, run_options = commands.add_parser("draw"), commands.add_parser("run")
    for options in (draw_options, run_options):
        options.add_argument("--coverage", default=".coverage", help="coverage data with one context for each test")
    draw_options.add_argument("--seed", type=int, required=True)
    draw_options.add_argument("--count", type=int, default=300)
    draw_options.add_argument("paths", nargs="*", help="folders and modules of the package; all if none is given")
    run_options.add_argument("mutants", type=Path)
    run_options.add_argument("--jobs", type=int, default=os.cpu_count())
    run_options.add_argument("--budget", type=float, default=60, help="seconds of tests after which a mutant survives")
    arguments = parser.parse_args()
    if arguments.command == "draw":
        for mutant in draw(arguments.seed, arguments.count, coverage_data(arguments.coverage), arguments.paths):
            print(json.dumps(asdict(mutant)))
    else:
        run(arguments)


def coverage_data(path: str) -> coverage.CoverageData:
    """Read which tests run which lines."""
    data = coverage.CoverageData(path)
    data.read()
    return data


def draw(seed: int, count: int, data: coverage.CoverageData, paths: Sequence[str] = ()) -> list[Mutant]:
    """Draw mutants at random, each from another expression, from lines that a test runs."""
    chosen = random.Random(seed)
    drawn: list[Mutant] = []
    groups = [modules_in(paths)] if paths else [modules_in(CRITICAL), modules_outside(CRITICAL)]
    for group in groups:
        pool = []
        for module in group:
            file = ROOT / PACKAGE / module
            lines = {line for line, tests in data.contexts_by_lineno(str(file)).items() if any(tests)}
            pool += candidates(module, file.read_text(encoding="utf-8"), lines)
        drawn += [chosen.choice(expression) for expression in chosen.sample(pool, count // len(groups))]
    return drawn


def modules_in(paths: Iterable[str]) -> list[str]:
    """Return the modules in these folders, relative to the package; a path that does not exist is an error."""
    modules = set()
    for path in paths:
        place = ROOT / PACKAGE / path
        files = place.rglob("*.py") if place.is_dir() else [place]
        names = {file.relative_to(ROOT / PACKAGE).as_posix() for file in files if file.is_file()}
        if not names:
            raise SystemExit(f"The package contains no module {path!r}.")
        modules |= names
    return sorted(modules)


def modules_outside(paths: Iterable[str]) -> list[str]:
    """Return the modules of the package that are not in these folders."""
    return sorted(set(modules_in([""])) - set(modules_in(paths)))


def candidates(module: str, text: str, lines: set[int]) -> Iterator[list[Mutant]]:
    """Yield the possible mutants of each expression or statement of a module that stands on one of these lines."""
    for name, function in functions(ast.parse(text)):
        seen: dict[str, int] = {}
        for node in own_nodes(function):
            before = ast.unparse(node)
            number = seen[before] = seen.get(before, -1) + 1
            found = [ast.unparse(after) for after in mutations(node)] if node.lineno in lines else []
            found = [after for after in found if after != before]
            if found:
                yield [Mutant(module, name, before, number, after) for after in found]


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions of a module and of its classes with their qualified names; nested ones belong to theirs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def own_nodes(function: ast.AST) -> Iterator[Any]:
    """Yield the statements and expressions of a function's body in a fixed order, without its docstring."""
    for statement in function.body:  # type: ignore[attr-defined]
        for node in ast.walk(statement):
            if isinstance(node, ast.stmt | ast.expr):
                yield node


def mutations(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in place of a node."""
    match node:
        case ast.Compare(ops=[operator, *_]) if type(operator) in _COMPARISONS:
            yield ast.Compare(node.left, [_COMPARISONS[type(operator)](), *node.ops[1:]], node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
            yield node.values[0]
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)
        case ast.IfExp():
            yield node.body
            yield node.orelse
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.AugAssign():
            yield ast.Pass()
        case ast.If():
            yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)


class _Replace(ast.NodeTransformer):
    def __init__(self, target: ast.AST, after: ast.AST) -> None:
        self.target, self.after = target, after

    def visit(self, node: ast.AST) -> Any:
        return self.after if node is self.target else super().visit(node)


def changed(mutant: Mutant) -> tuple[Path, ast.Module, int] | None:
    """Return the module of a mutant with its change, and the line; None where no such expression exists any more."""
    own = ROOT / PACKAGE / mutant.module
    others = sorted(path for path in (ROOT / PACKAGE).rglob("*.py") if path != own)
    for path in ([own] if own.exists() else []) + others:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name, function in functions(tree):
            if name != mutant.function:
                continue
            same = [node for node in own_nodes(function) if ast.unparse(node) == mutant.before]
            if len(same) > mutant.number:
                target = same[mutant.number]
                after: ast.AST = ast.parse(mutant.after).body[0]
                if isinstance(target, ast.expr):
                    assert isinstance(after, ast.Expr)
                    after = after.value
                line = target.lineno
                _Replace(target, ast.copy_location(after, target)).visit(tree)
                return path, ast.fix_missing_locations(tree), line
    return None


class _Import(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of the package with its change."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        parts = path.relative_to(ROOT).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.path, self.tree = path, tree

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        spec = importlib.machinery.ModuleSpec(
            name, self, origin=str(self.path), is_package=self.path.stem == "__init__"
        )
        spec.has_location = True
        return spec

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.tree, str(self.path), "exec", dont_inherit=True), module.__dict__)


class _Deadline:
    """A plugin that stops when the budget is used up, and remembers how long each test took."""

    def __init__(self, seconds: float) -> None:
        self.end = time.process_time() + seconds

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if time.process_time() > self.end:
            pytest.exit("the budget is used up", returncode=0)


def tests_of(path: Path, line: int, data: coverage.CoverageData) -> tuple[list[str], list[str]]:
    """Return the tests that run a line, and the modules they stand in."""
    contexts = data.contexts_by_lineno(str(path)).get(line, [])
    tests = sorted({context.rpartition("|")[0] for context in contexts if "|" in context})
    modules = sorted({test.partition("::")[0] for test in tests if "/slow/" not in test})
    random.Random(0).shuffle(tests)
    return sorted(tests, key=partial(_distance, path)), modules


def _distance(path: Path, test: str) -> tuple[bool, bool, bool]:
    """Tests of the same name come first, then those of the same directory; slow ones last."""
    return "/slow/" in test, f"test_{path.stem}.py" not in test, f"/{path.parent.name}/" not in test


def attempt(mutant: Mutant, data: coverage.CoverageData, known: set[str], budget: float) -> dict[str, Any]:
    """Run the tests of a mutant in a forked process."""
    found = changed(mutant)
    if found is None:
        return {**asdict(mutant), "result": LOST}
    path, tree, line = found
    tests, modules = tests_of(path, line, data)
    if not tests:
        return {**asdict(mutant), "result": SURVIVED, "tests": 0}
    reading, writing = multiprocessing.Pipe(duplex=False)
    selected = [test for test in (*tests, *modules) if test in known]
    child = multiprocessing.get_context("fork").Process(target=_child, args=(path, tree, selected, budget, writing))
    child.start()
    writing.close()
    code = None
    if reading.poll(HANGS):
        with contextlib.suppress(EOFError):
            code = reading.recv()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.join()
    return {
        **asdict(mutant),
        "result": TIMEOUT if code is None else SURVIVED if code in (0, 5) else KILLED,
        "tests": len(tests),
        "code": code,
    }


def _child(path: Path, tree: ast.Module, selected: list[str], budget: float, answer: Any) -> None:
    """Run tests against a changed module, out of sight."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (int(4 * budget), int(4 * budget)))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    sys.meta_path.insert(0, _Import(path, tree))
    answer.send(int(pytest.main([*OPTIONS, "-x", *selected], plugins=[_Deadline(budget)])))
    os._exit(0)


def known_tests() -> set[str]:
    """Return the ids of all tests and their modules, as pytest collects them here."""
    output = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, "--collect-only", "tests"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    tests = {line for line in output.splitlines() if "::" in line}
    return tests | {test.partition("::")[0] for test in tests}


def run(arguments: argparse.Namespace) -> None:
    """Print a line for each mutant, and the sum."""
    mutants = [Mutant(**json.loads(line)) for line in arguments.mutants.read_text(encoding="utf-8").splitlines()]
    data = coverage_data(arguments.coverage)
    for module in (
        "llama_index.core",
        "llama_index.llms.openai",
        "faiss",
        "hypothesis",
        "typer",
        "rich",
        "httpx",
        "mcp",
        "agno.agent",
        "starlette.testclient",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    known, count = known_tests(), dict[str, int]()
    os.chdir(ROOT)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(lambda mutant: attempt(mutant, data, known, arguments.budget), mutants):
            count[row["result"]] = count.get(row["result"], 0) + 1
            print(json.dumps(row), flush=True)
    print(count, file=sys.stderr)


if __name__ == "__main__":
    main()
