"""Find the sentence or table row of a source that supports each statement of an answer, without a model.

A statement is a sentence or list item of an answer. It is compared with the units of the passages that the model read:
by their words, of which rare ones count most, by their meaning, and by the figures of the statement, which the unit or
those next to it must contain. A statement that cites sources is looked up in these first, and in the others if they do
not support it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual.embeddings.words import embedded, words_identity
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.cutting import Kind, header_of
from llama_index_contextual.index.languages import language_of_texts
from llama_index_contextual.index.numbers import number_matches, numbers_in
from llama_index_contextual.index.units import DIMENSIONS, Units
from llama_index_contextual.search.response import Source

SupportStatus = Literal["supported", "elsewhere", "not_found"]

SUPPORTED, ELSEWHERE = 0.3, 1.35
"""Smallest score of a unit that supports a statement, and factor by which a unit of another source must score higher
than all units of the cited sources to be preferred. `python -m tests.benchmarks.support` prints the effect.
"""

MIN_TERMS = 2
"""Smallest number of terms in a statement; shorter texts, such as "Yes.", state nothing that could be looked up."""

_OF_NEIGHBOUR, _OF_HEADER, _OF_MEANING = 0.5, 0.5, 0.35
_WITHOUT_FIGURES = 0.28  # factor for a unit that contains none of the figures of a statement
_COMPARED = 20  # number of units whose figures are compared

Floats = NDArray[np.float64]


class SourcePassage(Protocol):
    """A passage that an answer may cite."""

    @property
    def text(self) -> str:
        """The original text."""

    @property
    def head(self) -> str:
        """Facts about the document, and column headers."""

    @property
    def source(self) -> Source:
        """The place of the passage."""


@dataclass(frozen=True)
class Evidence:
    """A unit of a passage that supports a statement.

    Attributes:
        number: Number of the passage, starting at 1.
        start: Offset of the unit in the passage.
        end: Offset after the unit.
        score: How well the unit supports the statement, from 0 to 1.
    """

    number: int
    start: int
    end: int
    score: float


class EvidenceFinder:
    """Finds the unit of a passage that supports a statement.

    Args:
        passages: The passages; the first has the number 1.

    Example:
        >>> from llama_index_contextual.answering.citations import Passage
        >>> text = "Food keeps long.\\nBoil all water for three minutes."
        >>> finder = EvidenceFinder([Passage(text), Passage("Stay calm.")])
        >>> best = finder.best("Water must be boiled for 3 minutes.")
        >>> best.number, best.start, best.end
        (1, 17, 50)
    """

    def __init__(self, passages: Sequence[SourcePassage]) -> None:
        self._texts = [passage.text for passage in passages]
        self._headers = [_header(passage) for passage in passages]
        self._analyzer = Analyzer(language_of_texts(self._texts) or "none", has_periods=True)
        self._units = Units.of(zip(self._texts, self._headers, strict=True), self._analyzer)
        self._is_text = self._units.kinds >= int(Kind.TEXT)
        firsts = self._units.firsts.astype(np.int64)
        self._numbers = np.repeat(np.arange(1, len(passages) + 1), firsts[1:] - firsts[:-1])
        self._figures: dict[int, set[Decimal]] = {}

    def term_count(self, text: str) -> int:
        """Return the number of distinct terms of a text."""
        return len(set(self._analyzer.terms(text)))

    def best(self, statement: str, numbers: Collection[int] = (), known: Collection[Decimal] = ()) -> Evidence | None:
        """Return the unit that supports a statement best, or None if there are no units.

        Args:
            statement: The statement, without citations.
            numbers: Numbers of the passages to search; empty for all.
            known: Figures that need not be in the unit, such as those of the question.
        """
        is_searched = self._is_text & np.isin(self._numbers, list(numbers)) if numbers else self._is_text
        if not is_searched.any():
            return None
        scores = self._scores(statement)
        scores[~is_searched] = -1.0
        figures = [values for _, values in number_matches(statement) if values.isdisjoint(known)]
        for at in np.argsort(-scores, kind="stable")[:_COMPARED].tolist() if figures else ():
            missing = sum(values.isdisjoint(self._figures_near(at)) for values in figures) / len(figures)
            scores[at] *= 1 - (1 - _WITHOUT_FIGURES) * missing
        at = int(scores.argmax())
        return Evidence(
            int(self._numbers[at]), int(self._units.starts[at]), int(self._units.ends[at]), float(scores[at])
        )

    def support(
        self, statement: str, *, cited: Collection[int], nearby: Collection[int] = (), known: Collection[Decimal] = ()
    ) -> tuple[SupportStatus, Evidence | None]:
        """Return whether a source supports a statement, and the unit that does.

        Args:
            statement: The statement, without citations.
            cited: Numbers of the sources that it cites; empty to search all sources.
            nearby: Numbers of the sources that the text around it cites, which are preferred if it cites none.
            known: Figures that need not be in the unit, such as those of the question.

        Returns:
            The status: "supported" if a cited source supports the statement, or any source if it cites none,
            "elsewhere" if only another source does, and "not_found" otherwise. The evidence is None if the status is
            "not_found".
        """
        best = self.best(statement, known=known)
        if best is None or best.score < SUPPORTED:
            return "not_found", None
        numbers = cited or nearby
        own = self.best(statement, numbers, known) if numbers else best
        if own is not None and own.score * ELSEWHERE > best.score:
            return "supported", own
        return ("elsewhere" if cited else "supported"), best

    def _scores(self, statement: str) -> Floats:
        """Return how well each unit supports a statement, apart from its figures."""
        units, terms = self._units, list(dict.fromkeys(self._analyzer.terms(statement)))
        contains = units.contain(terms).astype(np.float64)
        of_text = contains * self._is_text
        weights = np.log1p(self._is_text.sum() / np.maximum(of_text.sum(axis=1), 0.5))
        near = np.zeros_like(of_text)
        near[:, 1:] = of_text[:, :-1]
        near[:, :-1] = np.maximum(near[:, :-1], of_text[:, 1:])
        header = contains[:, units.firsts[:-1].astype(np.int64)][:, self._numbers - 1]
        covered = np.maximum(of_text, np.maximum(_OF_NEIGHBOUR * near, _OF_HEADER * header))
        scores: Floats = weights @ covered / max(float(weights.sum()), 1e-9)
        if words_identity():
            vector = embedded([statement])[0, :DIMENSIONS]
            meaning = units.similarities(vector / (np.linalg.norm(vector) or np.float32(1.0)))
            scores = (1 - _OF_MEANING) * scores + _OF_MEANING * np.maximum(meaning, 0.0)
        return scores

    def _figures_near(self, at: int) -> set[Decimal]:
        """Return the figures in a unit, in those before and after it, and in the header of the passage."""
        if at not in self._figures:
            number = int(self._numbers[at])
            first, last = (max(0, at - 1), min(len(self._numbers) - 1, at + 1))
            start = int(self._units.starts[first]) if self._numbers[first] == number else int(self._units.starts[at])
            end = int(self._units.ends[last]) if self._numbers[last] == number else int(self._units.ends[at])
            header = header_of(self._headers[number - 1])
            self._figures[at] = numbers_in(f"{header}\n{self._texts[number - 1][start:end]}")
        return self._figures[at]


def _header(passage: SourcePassage) -> dict[str, str | None]:
    source = passage.source
    return {
        keys.TITLE: source.title,
        keys.FILE_NAME: source.file_name,
        keys.SECTION: source.section,
        keys.TABLE_HEAD: passage.head,
    }
