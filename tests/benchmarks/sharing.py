"""Try to learn something about hidden documents in every known way: `python -m tests.benchmarks.sharing`.

For each way to use a restricted project, the table shows the number of attempts, the number of attempts whose reply or
work differs from a project that never contained the hidden documents, the number of attempts whose reply contains a
word of a hidden document, and, as a control, the number of attempts that would succeed without the restriction.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.sharing import ONLY, Doors, attempts, build, outcome


@dataclass
class Row:
    """The attempts with one way to use a project.

    Attributes:
        attempts: Number of attempts.
        different: Inputs of the attempts whose reply or work depends on hidden documents.
        leaks: Inputs of the attempts whose reply contains a word of a hidden document.
        open: Number of attempts that succeed on the whole project.
    """

    attempts: int = 0
    different: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    open: int = 0


def measure(folder: Path, **settings: Any) -> dict[str, Row]:
    """Make all attempts, and return the results by door."""
    whole, visible = (build(folder / name, whole=name == "whole", **settings) for name in ("whole", "visible"))
    by_agno = Doors(whole, filters=lambda run: {"group": run.user_id})
    restricted, never, control = Doors(whole.only(ONLY)), Doors(visible), Doors(whole)
    # The page of a restricted project has no costs and versions, whatever the project contains.
    pages = Doors(visible.only(ONLY))
    pages.get("")  # reads the facets, which the other doors read for their first search
    rows: dict[str, Row] = {}
    for attempt in attempts(whole):
        row = rows.setdefault(attempt.door, Row())
        row.attempts += 1
        mine = outcome(attempt, by_agno if attempt.door.startswith("Agno") else restricted)
        theirs = outcome(attempt, pages if attempt.asked.startswith("project ") else never)
        if mine != theirs:
            row.different.append(attempt.asked)
        if mine.leaks(attempt.asked):
            row.leaks.append(attempt.asked)
        row.open += outcome(attempt, control) != theirs
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="files", help="storage of the vectors, such as qdrant:FOLDER")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), backend=options.backend)
    print(f"{'door':<18} {'attempts':>8} {'different':>9} {'words':>5} {'without restriction':>19}")
    for door, row in rows.items():
        print(f"{door:<18} {row.attempts:>8} {len(row.different):>9} {len(row.leaks):>5} {row.open:>19}")
    print(f"{'all':<18} {sum(row.attempts for row in rows.values()):>8}")
    for row in rows.values():
        for asked in dict.fromkeys([*row.different, *row.leaks]):
            print(f"  {asked}")


if __name__ == "__main__":
    main()
