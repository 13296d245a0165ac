"""A project that only reads, and in which only some of the documents exist; see `Project.only`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual.errors import InputError
from llama_index_contextual.ingestion.state import ProjectState
from llama_index_contextual.project.project import Project

READING = frozenset(
    {"only", "documents", "chunks", "read", "retrieve", "retrieve_many", "as_retriever", "as_query_engine"}
    | {"adocuments", "achunks", "aread", "aretrieve", "aretrieve_many", "as_chat_engine"}
    | {"as_tool", "as_tools", "document_tools"}
)
"""Methods that a restricted project has; all others change or describe the whole project."""


class RestrictedProject(Project):
    """A project that only reads the documents that pass filters.

    Args:
        project: The project.
        filters: Filters returned by `restricting_filters`.
    """

    is_restricted = True

    def __init__(self, project: Project, filters: MetadataFilters) -> None:
        self.__dict__.update(project.__dict__)
        self.state = _RestrictedState(project.state, filters)


class _RestrictedState(ProjectState):
    """The state of a restricted project, with which functions in lower layers cannot open the whole version."""

    def __init__(self, whole: ProjectState, filters: MetadataFilters) -> None:
        self.__dict__.update(whole.__dict__)
        self.live = whole.live.restricted(filters)

    def open_live(self) -> NoReturn:
        """Raise an error, because the version is opened for changes."""
        _refuse("opening the whole version")


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        _refuse(f"`{name}`")

    return refuse


def _refuse(what: str) -> NoReturn:
    raise InputError(f"A restricted project only reads, so {what} is not possible: use the project without `only`.")


for _name, _member in vars(Project).items():
    if callable(_member) and not _name.startswith("_") and _name not in READING:
        setattr(RestrictedProject, _name, _refusal(_name))
