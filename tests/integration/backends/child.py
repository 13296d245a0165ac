"""Processes that use a project at the same time as the tests: `python -m THIS ACTION BACKEND FOLDER …`.

prepare BACKEND FOLDER            create the project and publish a version with the mark 1
ingest BACKEND FOLDER MARK [AT]   publish a version with a mark; with AT, be killed at that call that writes
read BACKEND FOLDER               query until FOLDER/stop exists, then print what was seen as JSON
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from tests.integration.backends.backends import BY_NAME
from tests.integration.backends.site import QUERIES, Interruption, Site, documents, marks

READY, STOP = "ready\n", "stop"


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)


def ingest(site: Site, mark: int, at: int | None = None) -> int:
    """Publish a version, and return the number of calls that write."""
    with Interruption(at, kill_this_process).of(site.backend) as interruption:
        site.load().ingest(documents(mark))
    return len(interruption.calls)


def read(site: Site) -> None:
    """Ask again and again, and print the number of answers, the versions, and what is wrong."""
    project = site.load()
    project.retrieve(QUERIES[0])
    sys.stdout.write(READY)
    sys.stdout.flush()
    number, versions, wrong = 0, set[str | None](), list[str]()
    while number == 0 or not (site.folder / STOP).exists():
        response = project.retrieve(QUERIES[number % len(QUERIES)])
        versions.add(response.version)
        if len(marks(response)) != 1:
            wrong.append(f"{response.version}: {sorted(marks(response))}")
        number += 1
    sys.stdout.write(json.dumps({"answers": number, "versions": sorted(map(str, versions)), "wrong": wrong}))


def main(action: str, backend: str, folder: str, *rest: str) -> None:
    """Run an action."""
    site = Site(Path(folder), BY_NAME[backend])
    with site.backend.environment(site.folder):
        if action == "prepare":
            site.create().ingest(documents(1))
            sys.stdout.write(str(ingest(site, 2)))
        elif action == "ingest":
            ingest(site, *map(int, rest))
        else:
            read(site)


if __name__ == "__main__":
    main(*sys.argv[1:])
