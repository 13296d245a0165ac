"""The root folder of projects: create, list, load, delete."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import (
    ConfigurationError,
    FormatError,
    InputError,
    ProjectError,
    ProjectExistsError,
    ProjectNotFoundError,
)
from llama_index_contextual.project import Project
from llama_index_contextual.storage import files
from llama_index_contextual.storage.ledger import LEDGER_FILE

PROJECT_FILE = "project.json"
FORMAT_VERSION = 1
MAX_NAME_LENGTH = 64

_NAME = re.compile(r"[^\W_][\w -]*(?:\.[\w -]+)*", re.UNICODE)
_WINDOWS_NAMES = frozenset({"con", "prn", "aux", "nul", *(f"{d}{n}" for d in ("com", "lpt") for n in range(10))})


class ProjectManager:
    """The projects of one root folder.

    Args:
        root: The folder; it is created with the first project.

    Example:
        >>> manager = ProjectManager("knowledge")  # doctest: +SKIP
        >>> project = manager.create("contracts", ProjectConfig.local())  # doctest: +SKIP
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def create(
        self,
        name: str,
        config: ProjectConfig | None = None,
        *,
        llm: LLM | None = None,
        embed_model: BaseEmbedding | None = None,
    ) -> Project:
        """Create an empty project.

        Args:
            name: Letters, digits, spaces, `-`, `_` and single dots, at most 64 characters.
            config: Its settings; None takes the defaults.
            llm: Writes contexts and answers, instead of the one that the settings name.
            embed_model: Embeds chunks and queries, instead of the one that the settings name.

        Raises:
            InputError: The name cannot be that of a directory everywhere.
            ProjectExistsError: A project of that name is there already.
        """
        directory = self.root / check_name(name)
        if (taken := self._directory_like(name)) is not None:
            raise ProjectExistsError(
                f"Project {taken.name!r} is there already: load it, delete it, or take another name.", name=name
            )
        config = config or ProjectConfig()
        files.make_directory(directory)
        content = {"format_version": FORMAT_VERSION, "name": name, "config": config.model_dump()}
        files.replace(directory / PROJECT_FILE, json.dumps(content, ensure_ascii=False, indent=2).encode())
        files.sync_directory(self.root)
        return Project(directory, config, llm=llm, embed_model=embed_model)

    def load(self, name: str, *, llm: LLM | None = None, embed_model: BaseEmbedding | None = None) -> Project:
        """Open a project.

        Raises:
            ProjectNotFoundError: There is none of that name.
            ProjectError: Its project.json is damaged.
            FormatError: A newer release wrote it.
        """
        directory = self._existing(name)
        return Project(directory, _read_config(directory), llm=llm, embed_model=embed_model)

    def list(self) -> list[str]:
        """Return the names of all projects, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if (path / PROJECT_FILE).is_file())

    def delete(self, name: str, *, keep_ledger: bool = False) -> None:
        """Delete a project for good.

        Args:
            name: Its name.
            keep_ledger: Leave `ledger.sqlite`, so that a project of the same name pays for no context again.

        Raises:
            ProjectNotFoundError: There is none of that name.
        """
        directory = self._existing(name)
        files.remove(directory / PROJECT_FILE)
        for path in list(directory.iterdir()):
            if not (keep_ledger and path.name == LEDGER_FILE):
                (files.remove_tree if path.is_dir() else files.remove)(path)
        if not keep_ledger:
            files.remove_tree(directory)

    def _existing(self, name: str) -> Path:
        directory = self.root / check_name(name)
        if not (directory / PROJECT_FILE).is_file():
            known = ", ".join(self.list()) or "none yet"
            raise ProjectNotFoundError(
                f"There is no project {name!r} in {self.root}; projects there: {known}.", name=name
            )
        return directory

    def _directory_like(self, name: str) -> Path | None:
        """Return the project whose name only differs in case or Unicode form, which some systems take for the same."""
        folded = _folded(name)
        return next((self.root / other for other in self.list() if _folded(other) == folded), None)


def check_name(name: str) -> str:
    """Return the name of a project.

    Raises:
        InputError: It cannot be the name of a directory on every system, or would leave the root folder.
    """
    if not name:
        raise InputError("A project needs a name.", value=name)
    stem = name.split(".")[0].strip().casefold()
    fits = len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) and name == name.strip()
    if not fits or stem in _WINDOWS_NAMES or unicodedata.normalize("NFKC", name) != name:
        raise InputError(
            f"{name[:80]!r} cannot be the name of a project: use letters, digits, spaces, '-', '_' and single dots,"
            f" beginning with a letter or digit, at most {MAX_NAME_LENGTH} characters.",
            value=name,
        )
    return name


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def _read_config(directory: Path) -> ProjectConfig:
    try:
        raw = json.loads(files.read(directory / PROJECT_FILE))
        if raw["format_version"] > FORMAT_VERSION:
            raise FormatError(
                f"Project {directory.name!r} has format {raw['format_version']}, this release reads up to"
                f" {FORMAT_VERSION}: upgrade llama-index-contextual.",
                name=directory.name,
            )
        return ProjectConfig(**raw["config"])
    except ConfigurationError as error:
        raise ProjectError(f"{directory.name}/{PROJECT_FILE}: {error}", name=directory.name) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ProjectError(
            f"{directory.name}/{PROJECT_FILE} is damaged ({type(error).__name__}): restore it, or create the project"
            f" again; contexts in its ledger are not paid for twice.",
            name=directory.name,
        ) from error
