"""Checks of the installation for the `doctor` command; they need only the packages of the command line."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement

from llama_index_contextual._utils.redaction import scrub
from llama_index_contextual._utils.text import quote_word
from llama_index_contextual._version import __version__
from llama_index_contextual.cli.common import PROGRAM
from llama_index_contextual.config import KEYS


@dataclass(frozen=True)
class Check:
    """Result of a check.

    Attributes:
        place: The installation, the projects folder, or the name of a project.
        message: Description of the state or of the problem, without API keys.
        command: Command that solves the problem; None if there is no problem.
        harmless: Whether searches work despite the problem.
    """

    place: str
    message: str
    command: str | None = None
    harmless: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", scrub(self.message))


def check_installation() -> Iterator[Check]:
    """Compare the installed packages with the requirements of this package, and look for API keys."""
    place = "Installation"
    yield Check(place, f"Python {platform.python_version()}, {PROGRAM} {__version__}")
    try:
        extras = metadata.metadata(PROGRAM).get_all("Provides-Extra", [])
    except metadata.PackageNotFoundError:
        yield Check(
            place,
            f"{PROGRAM} is used from a folder and not installed, so its requirements are not known",
            "pip install -e .",
            harmless=True,
        )
    else:
        yield from _check_packages(place, sorted({*extras} - {"all", "dev", "dev-all", "docs"}))
    yield Check(place, f"API keys in the environment: {', '.join(filter(os.environ.get, KEYS)) or 'none'}")


def _check_packages(place: str, names: Sequence[str]) -> Iterator[Check]:
    """Compare the installed packages with the requirements of this package and of its extras."""
    core = _requirements("")
    extras = {name: _requirements(name) - core for name in names}
    missing = {name: missing_packages(name) for name in names}
    complete = [name for name in names if not missing[name]]
    for requirement in sorted(core.union(*(extras[name] for name in complete)), key=str):
        version = _version(requirement)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            state = "is not installed" if version is None else f"{version} is installed"
            yield Check(
                place,
                f"{requirement.name} {state}: {requirement} is needed",
                f"pip install {quote_word(str(requirement))}",
            )
    partly = {
        name: f" (without {', '.join(missing[name])})" for name in names if len(missing[name]) < len(extras[name])
    }
    absent = ", ".join(f"{name}{partly.get(name, '')}" for name in names if missing[name])
    yield Check(place, f"extras: {', '.join(complete) or 'none'}")
    yield Check(place, f'not installed: {absent or "none"}; `pip install "{PROGRAM}[NAME]"` installs an extra')


def missing_packages(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed; none if the requirements of this package are not known.

    They are not known if this package is imported from a folder in which it was not installed.
    """
    try:
        return sorted(one.name for one in _requirements(extra) - _requirements("") if not _version(one))
    except metadata.PackageNotFoundError:
        return []


def _requirements(extra: str) -> set[Requirement]:
    """Return the requirements of this package and of one of its extras that apply to this machine."""
    requirements = map(Requirement, metadata.requires(PROGRAM) or [])
    applicable = [
        requirement
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
    ]
    return {Requirement(str(requirement).partition(";")[0]) for requirement in applicable}


def _version(requirement: Requirement) -> str | None:
    try:
        return metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return None
