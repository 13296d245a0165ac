"""A place for projects on a storage backend, the documents that they contain, and what they answer."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import Document, NodeWithScore
from pydantic import PrivateAttr

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index import files
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import ScriptedLLM

NAME = "p"
DIMENSIONS = 64
SETTINGS: dict[str, Any] = {"chunk_size": 40, "chunk_overlap": 4, "segment_size": 400}
QUERIES = (
    "pump valve",
    "audit of the tariff clause",
    "Report 7",
    "résumé of the harbour",
    "合同 freight",
    "quarterly turbines and boilers",
    "unheard-of zymurgy",
)

_WORDS = tuple(
    word
    for line in (
        "pump valve tariff lease quarter revenue fund court notice tenant engine filter bearing iron copper duty",
        "margin audit clause harbour vessel freight insurance premium turbine boiler sensor alarm signal threshold",
        "résumé 合同 Größe naïve",
    )
    for word in line.split()
)


class WordVectors(BaseEmbedding):
    """Sum of a random vector for each word, so that no two different texts are equally similar to a query.

    Texts that were embedded are remembered.
    """

    model_name: str = "words"
    dimensions: int = DIMENSIONS
    _texts: list[str] = PrivateAttr(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which versions identify the model."""
        return "WordVectors"

    @property
    def texts(self) -> list[str]:
        """Every text that was embedded, in order."""
        return self._texts

    def vector(self, text: str) -> list[float]:
        """Return the embedding of a text."""
        rows = [_vector(word, self.dimensions) for word in text.lower().split()]
        return [float(value) for value in np.sum(rows, axis=0)] if rows else [0.0] * self.dimensions

    def _get_text_embedding(self, text: str) -> list[float]:
        self._texts.append(text)
        return self.vector(text)

    def _get_query_embedding(self, query: str) -> list[float]:
        return self.vector(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self.vector(query)


@cache
def _vector(word: str, dimensions: int) -> Any:
    return np.random.default_rng(zlib.crc32(word.encode())).standard_normal(dimensions)


def always() -> str | None:
    return None


def no_writes() -> Sequence[tuple[type, str]]:
    return ()


@contextmanager
def unchanged(_folder: Path) -> Iterator[None]:
    yield


def damage_a_file(project: Project) -> None:
    """Change one byte in the middle of the largest file of the newest part."""
    newest = max((project.directory / "parts").iterdir())
    largest = max(files.walk(newest), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    largest.write_bytes(content)


@dataclass(frozen=True, kw_only=True)
class Backend:
    """An engine that stores the versions of projects.

    Attributes:
        name: Name of the row.
        settings: Returns the settings of a project on it, given a folder of the test.
        missing: Returns why it cannot be tested here, or None.
        environment: Context manager in which a test runs, given its folder.
        writes: Returns the methods, as (class, name), that change what the engine stores; besides those that write
            files of the project.
        damages: Each damages what the live version needs, so that `verify` must report it.
        frees_at_once: Whether what is removed has left the disk when the call returns; Qdrant frees it later.
    """

    name: str
    settings: Callable[[Path], Mapping[str, Any]]
    missing: Callable[[], str | None] = always
    environment: Callable[[Path], AbstractContextManager[None]] = unchanged
    writes: Callable[[], Sequence[tuple[type, str]]] = no_writes
    damages: Sequence[Callable[[Project], None]] = (damage_a_file,)
    frees_at_once: bool = True


FILES = Backend(name="files", settings=lambda _folder: {})


@dataclass(frozen=True)
class Site:
    """Projects on a backend, in a folder of a test.

    Attributes:
        folder: The folder.
        backend: The backend.
    """

    folder: Path
    backend: Backend

    @property
    def manager(self) -> ProjectManager:
        """The projects."""
        return ProjectManager(self.folder / "knowledge")

    def create(self, name: str = NAME, *, embed_model: BaseEmbedding | None = None, **settings: Any) -> Project:
        """Create a project that needs neither key nor network."""
        config = ProjectConfig.local(**{**SETTINGS, **self.backend.settings(self.folder), **settings})
        return self.manager.create(name, config, llm=ScriptedLLM(), embed_model=embed_model or WordVectors())

    def load(self, name: str = NAME) -> Project:
        """Open a project."""
        return self.manager.load(name, llm=ScriptedLLM(), embed_model=WordVectors())

    def on_files(self) -> Site:
        """Return a place for projects with the same documents on files."""
        return Site(self.folder / "files", FILES)

    def delete_all(self) -> None:
        """Delete the projects, so that nothing remains on a server."""
        for name in self.manager.list():
            self.manager.delete(name)


def documents(mark: int = 1, number: int = 12, *, length: int = 3) -> list[Document]:
    """Return documents of several chunks, each of which contains the mark; the words depend on the mark."""
    chance = random.Random(mark)

    def sentence(at: int) -> str:
        return f"mark{mark} report {at}: {' '.join(chance.choices(_WORDS, k=chance.randint(9, 14)))}."

    return [
        Document(
            id_=f"folder/report {at}.md",
            text="\n\n".join(sentence(at) for _ in range(1 + at % length)),
            metadata={"mark": mark, "file_name": f"report {at}.md", "share": at},
        )
        for at in range(number)
    ]


def marks(hits: Iterable[NodeWithScore]) -> set[str]:
    """Return the marks of the versions from which the results are."""
    return {word for hit in hits for word in hit.node.get_content().split() if word.startswith("mark")}


def answers(project: Project, queries: Sequence[str] = QUERIES, **options: Any) -> list[list[tuple[str, float]]]:
    """Return the ids and scores of the results of some queries."""
    return [
        [(hit.node_id, pytest.approx(hit.get_score(), abs=1e-6)) for hit in project.retrieve(query, **options)]
        for query in queries
    ]
