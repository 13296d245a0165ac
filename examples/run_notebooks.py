"""Execute the notebooks of this folder and save them with their outputs: `python examples/run_notebooks.py [NAME…]`.

No key and no network are used. Times, versions and paths of the machine are removed, so that a run without changes
writes the same files. Needs `pip install -e ".[dev-all]"`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

EXAMPLES = Path(__file__).parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
# The kernel warns that other users of the machine could read its traffic; there is nothing secret in the notebooks.
QUIET = ["--log-level=ERROR"]
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


def main(names: list[str]) -> None:
    """Execute and save the named notebooks, or all."""
    for key in KEYS:
        os.environ.pop(key, None)
    os.environ["PYTHONWARNINGS"] = NO_WIDGETS
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        started = time.perf_counter()
        nbformat.write(clean(execute(path)), path)
        sys.stdout.write(f"{path.name}: {time.perf_counter() - started:.0f} s\n")


if __name__ == "__main__":
    main(sys.argv[1:])
