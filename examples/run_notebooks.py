"""Execute the notebooks of this folder and save them with their outputs: `python examples/run_notebooks.py [NAME…]`.

With `--check`, nothing is saved: the new outputs are compared with the saved ones, except for the values in VOLATILE,
and the exit code is 1 if they differ. No key and no network are used. Times, versions and paths of the machine are
removed, so that a run without changes writes the same files. Needs `pip install -e ".[dev-all]"`.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

EXAMPLES = Path(__file__).parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
# The kernel warns that other users of the machine could read its traffic; there is nothing secret in the notebooks.
QUIET = ["--log-level=ERROR"]
VOLATILE = (
    (re.compile(r"\b\d[\d,.]*(?= ?(?:s|ms|seconds)\b)"), "TIME"),
    (re.compile(r"(?<![\w.])(?:/tmp|/var|/private)/[\w./-]+"), "PATH"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\b0x[0-9a-f]+\b"), "ADDRESS"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?"), "NOW"),
)
"""Values that differ between two runs, and what they are compared as."""
NO_WIDGETS = "ignore:IProgress not found"
"""Filter for the warning of tqdm if ipywidgets is not installed."""


def execute(path: Path) -> NotebookNode:
    """Return the notebook with the outputs of a run in its own folder.

    Raises:
        CellExecutionError: A cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources=resources,
        extra_arguments=QUIET,
        coalesce_streams=True,  # otherwise the outputs depend on how fast the kernel prints
    )
    client.execute()
    return notebook


def clean(notebook: NotebookNode) -> NotebookNode:
    """Remove times, versions and widgets."""
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    for cell in notebook.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        for output in cell.get("outputs", ()):
            output.metadata = nbformat.from_dict({})
    return notebook


def shown(cell: NotebookNode) -> list[str]:
    """Return the lines that the outputs of a cell show, without volatile values; a picture is a line of its kind."""
    lines = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        text = output.get("text") or data.get("text/html") or data.get("text/plain") or ""
        for pattern, name in VOLATILE:
            text = pattern.sub(name, text)
        lines += [*text.splitlines(), *(f"<{kind}>" for kind in data if kind.startswith("image/"))]
    return lines


def differences(saved: NotebookNode, new: NotebookNode) -> Iterator[str]:
    """Yield the lines of a diff for each cell whose outputs differ."""
    for number, (before, after) in enumerate(zip(saved.cells, new.cells, strict=True), start=1):
        yield from difflib.unified_diff(
            shown(before), shown(after), f"cell {number}, saved", f"cell {number}, new", lineterm="", n=1
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute the named notebooks, or all; save or compare them, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="name of a notebook without .ipynb; default: all")
    parser.add_argument("--check", action="store_true", help="compare the outputs with the saved ones")
    options = parser.parse_args(arguments)
    for key in KEYS:
        os.environ.pop(key, None)
    os.environ["PYTHONWARNINGS"] = NO_WIDGETS
    is_changed = False
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        if options.names and path.stem not in options.names:
            continue
        started = time.perf_counter()
        new = clean(execute(path))
        if options.check:
            for line in differences(nbformat.read(path, as_version=4), new):
                is_changed = True
                sys.stdout.write(f"{line}\n")
        else:
            nbformat.write(new, path)
        sys.stdout.write(f"{path.name}: {time.perf_counter() - started:.0f} s\n")
    if is_changed:
        sys.stdout.write("Outputs differ from the saved ones: if that is right, run python examples/run_notebooks.py\n")
    return int(is_changed)


if __name__ == "__main__":
    sys.exit(main())
