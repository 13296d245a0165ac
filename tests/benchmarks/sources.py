"""Sync a project with an S3 server, a WebDAV server and a web server on this machine during random changes and outages.

Each source is changed 500 times. After every tenth part of the changes, it is synced without a connection, with cut
replies, and then undisturbed. In the end, the project is compared with a single ingest of the source, and the password
of the source is searched in all files of the project and in the log.

    python -m tests.benchmarks.sources
    python -m tests.benchmarks.sources --changes 100 --seed 7
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tenacity

from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.readers import remote
from tests.support.sources import SECRET, files_with, s3_history, web_history, webdav_history

HISTORIES: dict[str, Callable[[ProjectManager, Path, int, int], list[str]]] = {
    "s3": s3_history,
    "webdav": webdav_history,
    "http": web_history,
}


def main() -> None:
    """Run the histories and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    remote.RETRYING = remote.RETRYING.copy(wait=tenacity.wait_none())
    for name, history in HISTORIES.items():
        log = io.StringIO()
        handler = logging.StreamHandler(log)
        logger = logging.getLogger("llama_index_contextual")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            stack.callback(logger.removeHandler, handler)
            manager = ProjectManager(Path(folder) / "projects")
            problems = history(manager, Path(folder), arguments.changes, arguments.seed)
            secrets = files_with(manager.root, SECRET) + (["log"] if SECRET in log.getvalue() else [])
            documents = len(manager.load("synced").documents())
        print(
            f"{name}: {arguments.changes} changes, {documents} documents, {len(problems)} problems,"
            f" password in {len(secrets)} places, {time.monotonic() - started:.0f} s"
        )
        for problem in problems:
            print(f"  {problem}")


if __name__ == "__main__":
    main()
