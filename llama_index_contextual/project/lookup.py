"""Find projects by name, and search them without importing LlamaIndex, which takes longer than a search."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import regex  # type: ignore[import-untyped]  # the package ships no types

from llama_index_contextual._utils.keywords import nearest
from llama_index_contextual.config import LOCAL, Mode, ProjectConfig
from llama_index_contextual.errors import InputError, ProjectNotFoundError, Remedy
from llama_index_contextual.index.project_file import is_project

if TYPE_CHECKING:
    from llama_index_contextual.search.live import SearchableVersion
    from llama_index_contextual.search.response import SearchResponse

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
        InputError: The name is not a valid directory name on every system, or refers to a path outside the root folder.
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
        InputError: The directory is a symbolic link.
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
        ProjectNotFoundError: There is no project with this name.
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


def search_locally(
    directory: Path, config: ProjectConfig, question: str, *, mode: Mode | None, top_k: int | None, explain: bool
) -> SearchResponse | None:
    """Search like `Project.retrieve`, but without importing LlamaIndex.

    Args:
        directory: Directory of the project.
        config: Its settings.
        question: The question.
        mode: Indexes to search; None uses `config.mode`.
        top_k: Number of results; None uses `config.top_k`.
        explain: Whether to explain the ranks of the results.

    Returns:
        The response, or None if LlamaIndex is needed for a reranker, an engine, or an embedding model other than
        `local`.

    Raises:
        InputError: The question is empty, or `top_k` is not positive.
        NoVersionError: Nothing has been ingested yet.
    """
    from llama_index_contextual.embeddings.words import WordEmbedder
    from llama_index_contextual.search.live import LiveIndexes
    from llama_index_contextual.search.search import (
        Query,
        SearchSettings,
        bounded,
        finished,
        require_positive,
        search,
    )

    if config.rerank is not None:
        return None
    text, notes = bounded(question)
    settings = SearchSettings.of(
        config,
        mode=mode or config.mode,
        k=require_positive(config.top_k if top_k is None else top_k),
        filters=None,
        explain=explain,
    )

    def run(version: SearchableVersion) -> SearchResponse | None:
        manifest = version.manifest
        if version.is_remote:
            return None
        embeds = version.has_semantic and (settings.mode != "lexical" or not version.has_lexical)
        if embeds and {manifest.embed_model, manifest.config["embed_model"]} != {LOCAL}:
            return None
        embedder = WordEmbedder() if embeds else None
        return search(Query.of(text), version.index, settings, embedder=embedder, version=version.name)

    response = LiveIndexes(directory, directory.name, _no_model).run(run)
    return None if response is None else finished(response, question, notes)


def _no_model(setting: str, built: str) -> NoReturn:
    raise AssertionError(f"{built!r} is not loaded here")  # pragma: no cover
