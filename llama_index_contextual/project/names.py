"""Names of projects, and the directories that have them."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import regex  # type: ignore[import-untyped]  # the package ships no types

from llama_index_contextual._utils.keywords import nearest
from llama_index_contextual.errors import InputError, ProjectNotFoundError, Remedy
from llama_index_contextual.index.project_file import is_project

MAX_NAME_LENGTH = 64
MAX_NAME_BYTES = 255

# Letters, digits and combining marks, except invisible ones (fillers, joiners, variation selectors).
_NAME = regex.compile(
    r"(?V1)[[\p{L}\p{N}]--\p{DI}] [[\p{L}\p{N}\p{M}_\-\ ]--\p{DI}]* (?:\.[[\p{L}\p{N}\p{M}_\-\ ]--\p{DI}]+)*",
    regex.VERBOSE,
)
_WINDOWS_NAMES = frozenset({"con", "prn", "aux", "nul", *(f"{d}{n}" for d in ("com", "lpt") for n in range(10))})


def check_name(name: str) -> str:
    """Return the name of a project if it is valid.

    Raises:
        InputError: It is not a valid directory name on every system, or leads out of the root folder.
    """
    if not isinstance(name, str) or not name:
        raise InputError("A project needs a name.", value=name)
    stem = name.split(".")[0].strip().casefold()
    fits = len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) and not name.endswith(" ")
    if fits and stem in _WINDOWS_NAMES:
        raise InputError(f"{name!r} is reserved on Windows: choose another name.", value=name)
    if not fits or len(name.encode()) > MAX_NAME_BYTES or unicodedata.normalize("NFKC", name) != name:
        raise InputError(
            f"{name[:80]!r} is not a valid project name: use letters, digits, spaces, '-', '_' and single dots,"
            f" beginning with a letter or digit, at most {MAX_NAME_LENGTH} characters.",
            value=name,
        )
    return name


def no_link(directory: Path) -> Path:
    """Return the directory of a project if it is not a link.

    Raises:
        InputError: It is a link to another place.
    """
    if directory.is_symlink():
        raise InputError(
            f"{directory} is a symbolic link: a project is a directory in its root folder; open the project that the"
            f" link points to through its own root folder.",
            value=directory.name,
        )
    return directory


def project_names(root: Path) -> list[str]:
    """Return the names of the projects in a root folder, sorted."""
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if is_project(path) and not path.is_symlink())


def existing_project(root: Path, name: str) -> Path:
    """Return the directory of a project.

    Raises:
        InputError: The name is invalid, or the directory is a link.
        ProjectNotFoundError: There is no project of that name.
    """
    directory = no_link(root / check_name(name))
    if not is_project(directory):
        names = project_names(root)
        known = f"projects there: {', '.join(names) or 'none yet'}"
        create = "create one with `llama-index-contextual create {project} --local`"
        raise ProjectNotFoundError(
            f"There is no project {name!r} in {root}{nearest(name, names)}",
            name=name,
            remedy=Remedy(known, known if names else create),
        )
    return directory
