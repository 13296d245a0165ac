"""Amount of code that a search and an ingest run: `python -m tests.benchmarks.rooms`.

Prints the size of the package, and the numbers of modules and functions of the package that are entered by a search in
three documents and by the ingest of a Markdown file. They are counted by `sys.setprofile` in every thread, without
lambdas and comprehensions. `--list` lists the modules.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import llama_index_contextual
from llama_index_contextual import ProjectConfig, ProjectManager
from tests.support.examples import DATA

PACKAGE = Path(llama_index_contextual.__file__).parent


def entered(work: Callable[[], object]) -> Counter[str]:
    """Return how many functions of each module of the package are entered while `work` runs."""
    functions: set[tuple[str, str, int]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<"):
            functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Counter(Path(file).relative_to(PACKAGE).as_posix() for file, _, _ in functions)


def lines_of_code(path: Path) -> int:
    """Return the lines of a module that hold code: neither blank, nor comment, nor docstring."""
    text = path.read_text(encoding="utf-8")
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in skipped
        for number, line in enumerate(text.splitlines(), start=1)
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the modules with the numbers of their functions")
    arguments = parser.parse_args()
    modules = sorted(PACKAGE.rglob("*.py"))
    total = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules)
    print(f"package: {len(modules)} modules, {total} lines, {sum(map(lines_of_code, modules))} lines of code")
    with tempfile.TemporaryDirectory() as root:
        manager = ProjectManager(root)
        documents = sorted(path for path in DATA.iterdir() if path.suffix in (".md", ".txt"))[:4]
        searched = manager.create("searched", ProjectConfig.local())
        searched.ingest(documents[:3])
        searched.retrieve("What does error TS-999 mean?")  # indexes are opened by the first search
        ingested = manager.create("ingested", ProjectConfig.local())
        ways: dict[str, Callable[[], object]] = {
            "search": lambda: searched.retrieve("Which chlorine value is required in the high zone?"),
            "ingest": lambda: ingested.ingest([next(path for path in documents if path.suffix == ".md")]),
        }
        for name, work in ways.items():
            counts = entered(work)
            print(f"{name}: {len(counts)} modules, {counts.total()} functions")
            if arguments.list:
                print("".join(f"  {number:3d}  {module}\n" for module, number in counts.most_common()))


if __name__ == "__main__":
    main()
