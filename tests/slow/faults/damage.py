"""Ways to damage a file, and a child process that asks damaged projects: `python -m tests.slow.faults.damage < JSON`.

The child reads a list of folders, loads the project in each and asks it three questions; for each folder it prints the
error of this package that came, or the answers.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from llama_index_contextual.errors import ContextualError
from tests.slow.faults.cases import NAME, ROOT, load

KINDS = ("truncated", "shortened", "zero page", "emptied", "appended", "removed", "swapped")
PAGE = 4096


def damage(path: Path, kind: str, other: Path, chance: random.Random) -> bool:
    """Damage a file, and return whether it has another content now.

    Args:
        path: The file.
        kind: How: one of `KINDS`, or `bit N` for the N-th drawn bit.
        other: The same file of another version.
        chance: Draws places.
    """
    content = path.read_bytes()
    changed = bytearray(content)
    if kind == "removed":
        path.unlink()
        return True
    if kind == "swapped":
        changed = bytearray(other.read_bytes()) if other.is_file() else changed
    elif kind == "truncated":
        del changed[len(changed) // 2 :]
    elif kind == "shortened":
        del changed[-1:]
    elif kind == "emptied":
        changed.clear()
    elif kind == "appended":
        changed += b"\0"
    elif kind == "zero page":
        at = chance.randrange(0, max(1, len(changed) - PAGE + 1))
        changed[at : at + PAGE] = bytes(len(changed[at : at + PAGE]))
    elif changed:
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    path.unlink()  # a file that is emptied and written anew may wait for the disk
    path.write_bytes(changed)
    return bytes(changed) != content


def damaged_projects(
    disk: Path, into: Path, *, live: str, other: str, bits: int, seed: int
) -> Iterator[tuple[str, str, Path]]:
    """Yield (file, kind of damage, folder) for every file of the live version and every kind of damage."""
    chance = random.Random(seed)
    project = disk / ROOT / NAME
    directories = [Path("versions") / live, Path("parts") / live.replace("v", "p")]
    names = sorted(p.relative_to(project) for d in directories for p in (project / d).rglob("*") if p.is_file())
    for name in names:
        same = Path(name.as_posix().replace(live[1:], other[1:]))
        for number, kind in enumerate((*KINDS, *(f"bit {n}" for n in range(bits)))):
            copy = into / f"{'-'.join(name.parts)}-{number}" / "disk"
            shutil.copytree(disk, copy)
            if damage(copy / ROOT / NAME / name, kind, project / same, chance):
                yield name.as_posix(), kind, copy
            else:
                shutil.rmtree(copy.parent)


def main() -> None:
    """Ask every project."""
    for folder in json.load(sys.stdin):
        try:
            project = load(Path(folder))
            response = [
                [chunk.text for chunk in project.retrieve(query)] for query in ("alpha", "beta report", "mark2")
            ]
        except ContextualError as error:
            response = [type(error).__name__, getattr(error, "file", None)]
        sys.stdout.write(f"{json.dumps(response)}\n")


if __name__ == "__main__":
    main()
