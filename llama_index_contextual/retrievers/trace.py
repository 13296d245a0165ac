"""What ranking a query computed: evidence, relevance and explanation are read off it, nothing is ranked twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.config import Fusion
from llama_index_contextual.results import LegScore
from llama_index_contextual.retrievers.fusion import Hits, Scale
from llama_index_contextual.retrievers.lexical_index import QueryTerms

Evidence = dict[str, LegScore]
"""What each index said of a chunk, by the index's name."""


@dataclass(frozen=True, eq=False)
class Support:
    """What the documents say of chunks.

    Attributes:
        scores: BM25 score of each chunk's document, 0 without a term of the query; shape (n,).
        ranks: Rank of that document, from 1, equal scores sharing the best one; 0 without a term; shape (n,).
    """

    scores: NDArray[np.float32]
    ranks: NDArray[np.int64]

    def at(self, positions: NDArray[np.intp]) -> Support:
        """Return what is said of some of the chunks."""
        return Support(self.scores[positions], self.ranks[positions])


@dataclass(frozen=True)
class Recipe:
    """How rankings were fused.

    Attributes:
        by: Reciprocal ranks or scaled scores.
        weights: One for each ranking.
        k: Constant of reciprocal ranks.
        scales: Of the scores, one for each ranking; empty for reciprocal ranks.
        document_weight: Weight of what the documents' names say, in the unit of the fused scores.
        sibling_weight: Weight of the best chunk of a document.
    """

    by: Fusion
    weights: Sequence[float]
    k: float
    scales: Sequence[Scale]
    document_weight: float
    sibling_weight: float


@dataclass(frozen=True, eq=False)
class Trace:
    """A ranking and what it was made of.

    Attributes:
        hits: Rows of the document store and their scores, best first.
        name: Of an index's own ranking; None for a fused one.
        parts: What was fused.
        terms: The query as the lexical index sees it.
        scale: Gives the scale of the scores among those of everything that could have been found: their standard
            deviation counts 1. None where that is not known.
        support: What the documents say of `hits`.
        best: For each of `hits`, the score of the best chunk of its document before it was added; None where the
            documents say nothing.
        recipe: How `parts` were fused.
        warnings: Sentences about what an index left out of the query.
    """

    hits: Hits
    name: str | None = None
    parts: Sequence[Trace] = ()
    terms: QueryTerms | None = None
    scale: Callable[[], Scale] | None = None
    support: Support | None = None
    best: NDArray[np.float64] | None = None
    recipe: Recipe | None = None
    warnings: Sequence[str] = ()

    def leaves(self) -> Iterator[Trace]:
        """Yield the rankings of the indexes themselves."""
        if self.name is not None:
            yield self
        for part in self.parts:
            yield from part.leaves()

    @property
    def query_terms(self) -> QueryTerms | None:
        """The query as the first lexical index that ranked sees it."""
        return next((leaf.terms for leaf in self.leaves() if leaf.terms is not None), None)

    def evidence(self, k: int) -> list[Evidence]:
        """Return what each index, and the documents, said of the k best."""
        rows = self.hits.rows[:k].tolist()
        found: list[Evidence] = [{} for _ in rows]
        for leaf in self.leaves():
            for said, hit in zip(found, leaf._said_of(rows), strict=True):
                if hit is not None and leaf.name is not None:
                    said[leaf.name] = hit
        if self.support is not None:
            supported = zip(self.support.scores[:k].tolist(), self.support.ranks[:k].tolist(), strict=True)
            for said, (score, rank) in zip(found, supported, strict=True):
                if rank:
                    said["document"] = LegScore(score, rank)
        return found

    def _said_of(self, rows: Sequence[int]) -> list[LegScore | None]:
        at = dict(zip(self.hits.rows.tolist(), itertools.count()))
        scores = self.hits.scores.tolist()
        terms = [()] * len(rows) if self.terms is None else self.terms.matched(rows)
        return [
            None if place is None else LegScore(scores[place], place + 1, matched)
            for place, matched in zip(map(at.get, rows), terms, strict=True)
        ]
