"""Change the package in one place at a time, and check whether a test fails: `python -m tests.benchmarks.mutants`.

    pytest tests --cov --cov-context=test --cov-report=        # records in .coverage which test runs which line
    python -m tests.benchmarks.mutants draw --seed 27 > mutants.jsonl
    python -m tests.benchmarks.mutants run mutants.jsonl > result.jsonl

`draw` takes half of the mutants from the most critical code (search, storage, ledger, cost, chunking, what belongs to a
version, citations) and half from the rest of the package, or all of them from the paths that it is given, such as
`search/ index/ledger.py`; all are in lines that a test runs. A mutant is identified by its function and the text of the
expression, so a list can also be used at later commits.

`run` collects all tests once, and then forks a process for each mutant, which replaces the code of the function. It
first runs the tests that run the line and the tests named after the module, and then the other tests in the same files,
because a line in a shared fixture is recorded only for the first test that uses it. A mutant is killed if a test fails,
or if the tests take more than four times the budget.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import json
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn, TextIO

import coverage
import pytest

from tests.support.source import PACKAGE, ROOT

CRITICAL = (
    "search/",
    "index/",
    "ingestion/",
    "node_parser/",
    "money/",
    "contextualizer/sending.py",
    "answering/citations.py",
)
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
    "--capture=no",
    "--override-ini=addopts=",
)
KILLED, SURVIVED, LOST = "killed", "survived", "lost"

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


@dataclass(frozen=True)
class _Change:
    """A changed function, and the tests that may notice it."""

    mutant: Mutant
    code: CodeType
    functions: Sequence[FunctionType]
    items: Sequence[pytest.Item]

    def attempt(self, budget: float) -> NoReturn:
        """Run the tests in this process until one fails or the budget is used up, and exit."""
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(4 * budget), int(4 * budget)))
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        for function in self.functions:
            function.__code__ = self.code
        end = time.process_time() + budget
        for item, following in pairwise([*self.items, None]):
            assert item is not None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                os._exit(1)
            if time.process_time() > end:
                break
        os._exit(0)


class _Mutants:
    """A plugin that forks a process for each mutant, once pytest has collected the tests."""

    def __init__(self, arguments: argparse.Namespace, output: TextIO) -> None:
        self.output = output
        self.jobs, self.budget = arguments.jobs, arguments.budget
        self.data = coverage_data(arguments.coverage)
        lines = arguments.mutants.read_text(encoding="utf-8").splitlines()
        self.mutants = [Mutant(**json.loads(line)) for line in lines]
        self.running: dict[int, _Change] = {}
        self.count: Counter[str] = Counter()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests of each mutant."""
        gc.unfreeze()  # the suite hides the functions from the collector, and thus from `gc.get_objects`
        by_id = {item.nodeid: item for item in session.items}
        by_module: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            by_module.setdefault(item.nodeid.partition("::")[0], []).append(item)
        for mutant in self.mutants:
            change = self.change_of(mutant, by_id, by_module)
            if isinstance(change, str):
                self.report(mutant, change)
                continue
            while len(self.running) >= self.jobs:
                self.wait()
            if (process := os.fork()) == 0:
                change.attempt(self.budget)
            self.running[process] = change
        while self.running:
            self.wait()
        return True

    def change_of(
        self, mutant: Mutant, by_id: dict[str, pytest.Item], by_module: dict[str, list[pytest.Item]]
    ) -> _Change | str:
        """Return the change of a mutant, or the result if there is nothing to run."""
        replaced = changed(mutant)
        if replaced is None:
            return LOST
        path, tree, line = replaced
        tests, modules = tests_of(path, line, self.data)
        near = [by_id[test] for test in tests if test in by_id]
        items = list(dict.fromkeys([*near, *(item for name in modules for item in by_module.get(name, ()))]))
        code = code_of(compile(tree, str(path), "exec", dont_inherit=True), mutant.function, line)
        functions = [one for one in gc.get_objects() if isinstance(one, FunctionType) and is_same(one.__code__, code)]
        if code is None or not functions:
            return LOST
        return _Change(mutant, code, functions, items) if items else SURVIVED

    def wait(self) -> None:
        """Wait for a process, and report its result."""
        process, status = os.wait()
        if (change := self.running.pop(process, None)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            self.report(change.mutant, KILLED if status else SURVIVED, tests=len(change.items), status=status)

    def report(self, mutant: Mutant, result: str, **details: int) -> None:
        """Print the result of a mutant."""
        self.count[result] += 1
        print(json.dumps({**asdict(mutant), "result": result, **details}), file=self.output, flush=True)


def code_of(module: CodeType, name: str, line: int) -> CodeType | None:
    """Return the code of the function with this qualified name that contains a line."""
    codes, matches = [module], []
    while codes:
        code = codes.pop()
        codes += [one for one in code.co_consts if isinstance(one, CodeType)]
        if code.co_qualname == name and code.co_firstlineno <= line:
            matches.append(code)
    return max(matches, key=lambda code: code.co_firstlineno, default=None)


def is_same(one: CodeType, other: CodeType | None) -> bool:
    """Return whether two codes belong to the same function, changed or not."""
    if other is None or one.co_qualname != other.co_qualname:
        return False
    return (one.co_filename, one.co_firstlineno) == (other.co_filename, other.co_firstlineno)


def run(arguments: argparse.Namespace) -> None:
    """Print a line for each mutant, and the sum."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # pytest prints to stderr
    plugin = _Mutants(arguments, output)
    os.chdir(ROOT)
    pytest.main([*OPTIONS, "tests"], plugins=[plugin])
    print(dict(plugin.count), file=sys.stderr)


if __name__ == "__main__":
    main()
