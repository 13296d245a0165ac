"""A place for projects on a backend, the documents that they contain, and the comparison of their answers."""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.response import LEGS, Explanation, LegScore, RetrievalResponse
from tests.integration.backends.backends import BY_NAME, Backend
from tests.slow.faults.system import Crash
from tests.support.models import ScriptedLLM

NAME = "p"
DIMENSIONS = 64
SETTINGS: dict[str, Any] = {"chunk_size": 40, "chunk_overlap": 4, "segment_size": 400, "segment_overlap": 40}
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
        return Site(self.folder / "files", BY_NAME["files"])

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


def require_equal_evidence(one: RetrievalResponse, other: RetrievalResponse) -> None:
    """Check that two responses have the same results, scores, evidence and confidence.

    Results with equal scores may be in any order.
    """
    assert (one.mode_used, one.warnings, one.version) == (other.mode_used, other.warnings, other.version)
    assert one.confidence_level == other.confidence_level
    assert one.confidence == pytest.approx(other.confidence, abs=1e-4)
    assert [hit.rank for hit in one] == [hit.rank for hit in other]
    theirs = {hit.node_id: hit for hit in other}
    assert {hit.node_id for hit in one} == theirs.keys()
    for hit in one:
        twin = theirs[hit.node_id]
        assert (hit.text, hit.context, hit.source) == (twin.text, twin.context, twin.source)
        assert hit.get_score() == pytest.approx(twin.get_score(), rel=1e-4, abs=1e-4)
        assert (hit.relevance is None) == (twin.relevance is None)
        assert hit.relevance is None or hit.relevance == pytest.approx(twin.relevance, abs=1e-4)
        for leg in LEGS:
            require_equal_legs(getattr(hit, leg), getattr(twin, leg), leg)


def require_equal_legs(one: LegScore | None, other: LegScore | None, leg: str) -> None:
    """Check that score, rank and matched terms of a chunk in an index are the same."""
    assert (one is None) == (other is None), leg
    if one is not None and other is not None:
        assert one.score == pytest.approx(other.score, rel=1e-4, abs=1e-5), leg
        assert (one.rank, set(one.matched_terms)) == (other.rank, set(other.matched_terms)), leg


def require_equal_explanations(ones: Sequence[Explanation], others: Sequence[Explanation]) -> None:
    """Check that the reasons for the ranks are the same."""
    theirs = {item.node_id: item for item in others}
    assert {item.node_id for item in ones} == theirs.keys()
    for item in ones:
        twin = theirs[item.node_id]
        assert dict(item.shares) == pytest.approx(dict(twin.shares), rel=1e-3, abs=1e-3)
        for terms in ("in_text", "in_context", "in_structure", "missing"):
            assert set(getattr(item, terms)) == set(getattr(twin, terms)), terms


class Interruption:
    """Ends the process, as it seems, at a call of a method that writes; nothing can be written afterwards.

    Args:
        at: Number of the call, from 0; None only counts.
        end: Ends the process; by default it raises `Crash`.
    """

    def __init__(self, at: int | None, end: Callable[[], None] | None = None) -> None:
        self.at = at
        self.calls: list[str] = []
        self._end = end or _crash
        self._inside = threading.local()

    @property
    def struck(self) -> bool:
        """Whether the call was reached."""
        return self.at is not None and len(self.calls) > self.at

    @contextmanager
    def of(self, backend: Backend) -> Iterator[Interruption]:
        """Interrupt what a backend writes within the block."""
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in backend.interruptible():
                patch.setattr(owner, name, self._counted(f"{owner.__name__}.{name}", getattr(owner, name)))
            yield self

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def method(*arguments: Any, **options: Any) -> Any:
            depth = getattr(self._inside, "depth", 0)
            if not depth:  # a method that is called by another one is part of it
                if self.struck:
                    self._end()
                self.calls.append(name)
                if self.struck:
                    self._end()
            self._inside.depth = depth + 1
            try:
                return real(*arguments, **options)
            finally:
                self._inside.depth = depth

        return method


def _crash() -> None:
    raise Crash
