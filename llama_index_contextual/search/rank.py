"""Rank the rows of an index by meaning and by words, fuse both rankings, and collect the evidence for each row.

The functions use a `ChunkIndex` and do not read any nodes. Rankings are fused by reciprocal ranks or by scores. Ties
are broken by the best rank in any ranking, then by id, so the result is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from numbers import Real
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.config import Fusion, ProjectConfig, default
from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.embeddings.languages import knows_language
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.base import ChunkIndex
from llama_index_contextual.index.bm25 import MAX_TERMS, LexicalQuery, QueryTerms
from llama_index_contextual.index.documents import DocumentIndex, DocumentScores
from llama_index_contextual.index.hits import NO_HITS, NO_SCALE, Hits, Scale
from llama_index_contextual.search.response import IndexScore

if TYPE_CHECKING:
    from llama_index.core.vector_stores.types import MetadataFilters


IndexName = Literal["semantic", "lexical"]

CANDIDATES = 200
"""Number of hits taken from each ranking before fusion.

The exact value matters little: on five question sets with local embeddings and structural contexts, the mean nDCG@10
was 64.4 with 50 hits, 65.1 with 100 hits, 65.0 with 200 hits and 64.7 with 400 hits. No number between 100 and 400 was
significantly better than 200 on any set (p ≥ 0.09).
"""

FOREIGN_WEIGHT = 0.85
"""Weight of the semantic ranking if the words of a question are in another language than the documents.

The lexical ranking then finds only names and numbers. With multilingual-e5-small, German questions about English
articles found the answer first in 51 % of the cases with the weight 0.35, 67 % with 0.8, 70 % with 0.9 and 68 % with 1.
"""

_UNIT_TOLERANCE = 1e-6


_DEFAULT_WEIGHTS = (default("semantic_weight"), 1 - default("semantic_weight"))


@dataclass(frozen=True, kw_only=True)
class FusionSettings:
    """Settings for the fusion of rankings. The defaults are those of a project.

    Attributes:
        by: Whether to fuse reciprocal ranks or scaled scores.
        weights: One weight per ranking; their sum is 1. By default, for the semantic and the lexical ranking.
        rrf_k: Constant used in reciprocal rank fusion.
        candidates: Number of hits to fuse from each ranking.
        document_weight: Weight of the document scores. If it is 0, documents do not affect the scores at all:
            otherwise, the score of a document's best chunk is added to each of its chunks, and score fusion gives more
            weight to terms that are rare within the document.
    """

    by: Fusion = default("fusion")
    weights: Sequence[float] = _DEFAULT_WEIGHTS
    rrf_k: float = default("rrf_k")
    candidates: int = CANDIDATES
    document_weight: float = default("document_weight")

    @classmethod
    def of(cls, config: ProjectConfig) -> FusionSettings:
        """Return the settings for the semantic and the lexical ranking of a project."""
        return cls(
            by=config.fusion,
            weights=(config.semantic_weight, 1 - config.semantic_weight),
            rrf_k=config.rrf_k,
            document_weight=config.document_weight,
        )

    def for_language(self, model: str, language: str, foreign: str = "") -> FusionSettings:
        """Return settings for documents in a language.

        If the embedding model does not know this language, the default weight of the semantic ranking is halved. If the
        question is in another language, and the model knows both, the weight is `FOREIGN_WEIGHT`.

        Args:
            model: Name of the embedding model.
            language: Language of the question or, if no documents are in it, of most documents.
            foreign: Language of the question, if no documents and no lines of contexts are in it.
        """
        if self.weights != _DEFAULT_WEIGHTS:
            return self
        is_known = knows_language(model, language)
        if is_known and not (foreign and knows_language(model, foreign)):
            return self
        semantic = FOREIGN_WEIGHT if is_known else _DEFAULT_WEIGHTS[0] / 2
        return replace(self, weights=(semantic, 1 - semantic))


@dataclass(frozen=True, eq=False)
class RankedList:
    """The ranking of one index.

    Attributes:
        name: Name of the index.
        hits: Rows and scores, best first.
        scale: Zero point and unit of the scores, measured over all chunks.
        terms: The terms of the query, for the lexical index only.
        vector: The query's embedding as a unit vector, for the semantic index only.
        model: Name of the model that computed the embedding.
        warnings: Messages about parts of the query that were not searched for in the index.
    """

    name: IndexName
    hits: Hits
    scale: Scale
    terms: QueryTerms | None = None
    vector: NDArray[np.float32] | None = None
    model: str = ""
    warnings: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Evidence:
    """Scores and ranks of the first n hits of a ranking in each index, by index name.

    Attributes:
        scores: Score of each hit in the index, or 0 if the hit has no rank there; shape (n,).
        ranks: Rank of each hit in the index, starting at 1, or 0; shape (n,). The rank in the document index is that of
            the hit's document.
        terms: The terms of the query that the lexical index contains.
        matches: Whether each of these terms occurs in each hit that has a rank in the lexical index; shape (terms, n).
    """

    scores: Mapping[str, NDArray[np.floating]]
    ranks: Mapping[str, NDArray[np.int64]]
    terms: Sequence[str]
    matches: NDArray[np.bool_]

    def of_hits(self) -> list[dict[str, IndexScore]]:
        """Return the score of each hit in each index in which it has a rank."""
        evidence: list[dict[str, IndexScore]] = [{} for _ in range(self.matches.shape[1])]
        matched_terms = [tuple(compress(self.terms, matches)) for matches in self.matches.T.tolist()]
        for name, scores in self.scores.items():
            for hit, score, rank, terms in zip(
                evidence, scores.tolist(), self.ranks[name].tolist(), matched_terms, strict=True
            ):
                if rank:
                    hit[name] = IndexScore(score, rank, terms if name == "lexical" else ())
        return evidence


@dataclass(frozen=True, eq=False)
class Ranking:
    """A ranking and the rankings that it was fused from.

    Attributes:
        hits: Rows and scores, best first.
        ids: Node id of each row of the index.
        lists: The ranking of a single index, or the rankings of the indexes that were fused.
        fusion: Settings of the fusion; None for the ranking of a single index.
        document_weight: Weight of the document scores, in the unit of the chunk scores.
        support: Scores of the documents that the hits belong to; None if there is no document index.
        best: For each hit, the score of the best chunk of its document.
        shared_terms: For each hit, the number that was subtracted from its score for terms that also occur elsewhere in
            its document.
        spotlight: The numbers that were added to the scores of the first n hits for the words and the meaning of their
            best sentence or row; shape (n, 2). See the `spotlight` module.
    """

    hits: Hits
    ids: Sequence[str] = field(repr=False)
    lists: Sequence[RankedList]
    fusion: FusionSettings | None = None
    document_weight: float = 0.0
    support: DocumentScores | None = None
    best: NDArray[np.float64] | None = None
    shared_terms: NDArray[np.float64] | None = None
    spotlight: NDArray[np.float64] | None = None

    def with_spotlight(self, shares: NDArray[np.float64]) -> tuple[Ranking, list[int]]:
        """Add nonnegative shares to the scores of the first hits, and sort the hits again.

        Args:
            shares: The shares of the first n hits; shape (n, 2).

        Returns:
            The new ranking, and the previous position of each of its first n hits.
        """
        count = len(shares)
        all_shares = np.zeros(len(self.hits.rows))
        all_shares[:count] = shares.sum(axis=1)
        hits, before = add_support(self.hits, all_shares)
        ranking = replace(
            self,
            hits=hits,
            support=None if self.support is None else self.support.at(before),
            best=None if self.best is None else self.best[before],
            shared_terms=None if self.shared_terms is None else self.shared_terms[before],
            spotlight=shares[before[:count]],
        )
        return ranking, before[:count].tolist()

    def first(self, k: int) -> list[tuple[str, float]]:
        """Return the node ids and scores of the k best hits."""
        hits = self.hits.first(k)
        return [(self.ids[row], score) for row, score in zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)]

    def list_of(self, name: IndexName) -> RankedList | None:
        """Return the ranking of an index, or None if it was not searched."""
        return next((ranked for ranked in self.lists if ranked.name == name), None)

    @property
    def terms(self) -> QueryTerms | None:
        """The terms of the query; None if the lexical index was not searched."""
        return next((ranked.terms for ranked in self.lists if ranked.terms is not None), None)

    def evidence(self, k: int) -> Evidence:
        """Return the scores and ranks of the k best hits in each index, including the document index."""
        rows = self.hits.rows[:k]
        scores: dict[str, NDArray[np.floating]] = {}
        ranks: dict[str, NDArray[np.int64]] = {}
        known: Sequence[str] = ()
        matches = np.zeros((0, len(rows)), dtype=np.bool_)
        for ranked in self.lists:
            if not len(ranked.hits.rows):
                scores[ranked.name], ranks[ranked.name] = np.zeros(len(rows)), np.zeros(len(rows), dtype=np.int64)
                continue
            is_hit = ranked.hits.rows == rows[:, None]
            places = is_hit.argmax(axis=1)
            exists = is_hit[np.arange(len(rows)), places]
            scores[ranked.name] = np.where(exists, ranked.hits.scores[places], 0.0)
            ranks[ranked.name] = np.where(exists, places + 1, 0)
            if ranked.terms is not None:
                known, matches = ranked.terms.known, ranked.terms.contain(rows) & exists
        if self.support is not None:
            scores["document"], ranks["document"] = self.support.scores[: len(rows)], self.support.ranks[: len(rows)]
        return Evidence(scores, ranks, known, matches)


def semantic_list(
    index: ChunkIndex, embedding: object, k: int, filters: MetadataFilters | None = None, *, model: str
) -> RankedList:
    """Rank by the cosine similarity of a query's embedding.

    Args:
        index: The index.
        embedding: The query's embedding; a zero vector has no hits.
        k: Number of hits.
        filters: Metadata filters; only chunks that pass them are ranked.
        model: Name of the embedding model, for messages.

    Raises:
        InputError: The embedding does not fit the index, or contains values that are not finite numbers.
    """
    vector = _checked(embedding, index.dimensions, model)
    if not vector.any():
        warning = (
            f"The query's embedding by {model!r} is zero: the semantic index finds nothing for it; rephrase the query."
        )
        return RankedList("semantic", NO_HITS, NO_SCALE, warnings=(warning,))
    hits, scale = index.rank_vectors(vector, k, filters)
    return RankedList("semantic", hits, scale, vector=vector, model=model)


def lexical_list(index: ChunkIndex, query: LexicalQuery, k: int, filters: MetadataFilters | None = None) -> RankedList:
    """Rank the rows with a BM25 score above 0."""
    if index.lexical is None:
        return RankedList("lexical", NO_HITS, NO_SCALE)
    terms = index.lexical.query(query)
    hits, scale = index.rank_terms(terms, k, filters)
    warnings = tuple(_corrections(terms))
    if terms.omitted:
        warnings += (
            f"The query has {MAX_TERMS + terms.omitted:,} different terms: only the {MAX_TERMS} with the largest"
            f" weights were searched lexically.",
        )
    return RankedList("lexical", hits, scale, terms, warnings=warnings)


def _corrections(terms: QueryTerms) -> Iterator[str]:
    """Yield a message for each word of a query that no passage contains and whose spelling was corrected."""
    words: dict[str, list[str]] = {}
    for variant in terms.variants.values():
        if variant.kind == "spelling":
            words.setdefault(variant.of, []).append(variant.word)
    for word, others in words.items():
        yield f"No passage contains {word!r}: passages with {' or '.join(map(repr, others))} were searched instead."


def fuse_lists(
    lists: Sequence[RankedList],
    ids: Sequence[str],
    settings: FusionSettings,
    *,
    documents: DocumentIndex | None = None,
    query: LexicalQuery = "",
) -> Ranking:
    """Fuse rankings and add the scores of the documents.

    If only one of several rankings has a weight above 0, the result has the order of that ranking.

    Args:
        lists: The rankings; only their first `settings.candidates` hits are used.
        ids: Node id of each row.
        settings: The fusion settings.
        documents: The document index; None adds no document scores.
        query: The query for the document index, if the lexical index was not searched.
    """
    weights = settings.weights
    rankings = [
        ranked.hits.first(settings.candidates if weight else 0) for ranked, weight in zip(lists, weights, strict=True)
    ]
    hits = fuse_hits(
        rankings,
        weights,
        by=settings.by,
        k=settings.rrf_k,
        scales=[ranked.scale for ranked in lists],
        names=ids,
    )
    ranking = Ranking(hits, ids, lists, settings)
    if documents is None or not settings.document_weight or (len(lists) > 1 and max(weights) == 1.0):
        return ranking
    # Spelling is corrected with the vocabulary of the chunks, because the document entries contain too few words.
    terms = ranking.terms
    support = documents.support(query if terms is None else terms.counts, hits.rows)
    if settings.by == "rrf":
        weight = settings.document_weight
        shares = reciprocal_shares(support.ranks, weight, k=settings.rrf_k)
    else:
        # Scores have no fixed range, so the weight is relative to the best score. It grows with the documents' length.
        weight = settings.document_weight * documents.emphasis * float(hits.scores.max(initial=0.0))
        shares = scaled_shares(support.scores.astype(np.float64), weight)
    best = best_of_group(hits.scores + shares, documents.rows[hits.rows])
    shared = _shared_terms(lists, rankings, hits, documents, settings)
    supported, before = add_support(hits, shares - shared + best)
    return Ranking(
        supported,
        ids,
        lists,
        settings,
        document_weight=weight,
        support=support.at(before),
        best=best[before],
        shared_terms=shared[before],
    )


def _shared_terms(
    lists: Sequence[RankedList],
    rankings: Sequence[Hits],
    hits: Hits,
    documents: DocumentIndex,
    settings: FusionSettings,
) -> NDArray[np.float64]:
    """Return the part of each score that is due to terms that also occur in other chunks of the document."""
    shared = np.zeros(len(hits.rows))
    if settings.by == "rrf":
        return shared
    for ranked, ranking, weight in zip(lists, rankings, settings.weights, strict=True):
        if ranked.terms is not None and ranked.scale.unit > 0 and len(ranking.rows):
            of_rows = np.zeros(len(documents.rows))
            of_rows[ranking.rows] = documents.shared_terms(ranked.terms, ranking.rows)
            shared += weight * of_rows[hits.rows] / ranked.scale.unit
    return shared


def _checked(embedding: object, dimensions: int | None, model: str) -> NDArray[np.float32]:
    """Check that a query's embedding fits an index, and return it as a unit vector, or unchanged if it is zero."""
    try:
        # Ignoring overflow, by which numbers too large for 32 bits become infinite, takes longer than the conversion.
        if isinstance(embedding, np.ndarray) and embedding.dtype == np.float32:
            vector = embedding
        else:
            with np.errstate(over="ignore"):
                vector = np.asarray(embedding, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The query's embedding is not a list of numbers: pass an embedding by {model!r}, or none.",
            value=embedding,
        ) from error
    if vector.ndim != 1 or len(vector) != (dimensions or len(vector)):
        raise InputError(
            f"The query's embedding has {' × '.join(map(str, vector.shape)) or 'no'} dimensions, the index"
            f" {dimensions}: search with the embedding model that built the index ({model!r} is set).",
            value=embedding,
        )
    if not np.isfinite(vector).all():
        raise InputError(
            f"The query's embedding ({len(vector)} dimensions, as many as the index has) contains NaN or infinity:"
            f" embed the query again with {model!r}.",
            value=embedding,
        )
    if abs(math.sqrt(np.einsum("i,i->", vector, vector)) - 1.0) < _UNIT_TOLERANCE:
        return vector
    return np.asarray(unit_vectors(vector[None])[0])


# ---- fusion arithmetic -----------------------------------------------------------------------------------------------

ScoredIds = Sequence[tuple[str, float]]
"""Pairs of a node id and its score, best first."""


def reciprocal_rank_fusion(
    rankings: Sequence[ScoredIds], weights: Sequence[float], *, k: float = 60.0
) -> list[tuple[str, float]]:
    """Fuse by weighted reciprocal ranks: score(d) = sum over rankings of weight / (k + rank(d)); ranks start at 1.

    Args:
        rankings: The rankings, each best first and without repeated ids.
        weights: One weight per ranking.
        k: Constant; the larger it is, the smaller the differences between the first ranks.

    Source: Cormack, Clarke, Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning
    Methods", SIGIR 2009 (unweighted, k = 60).

    Example:
        >>> reciprocal_rank_fusion([[("a", 9.0), ("b", 8.0)], [("b", 0.5)]], [0.5, 0.5], k=1)
        [('b', 0.41666666666666663), ('a', 0.25)]
    """
    return _by_name(rankings, weights, "rrf", k)


def score_fusion(rankings: Sequence[ScoredIds], weights: Sequence[float]) -> list[tuple[str, float]]:
    """Fuse by weighted scores.

    The scores of each ranking are scaled to a range from 0 to 1, based on its own lowest and highest score. A hit that
    is missing from a ranking has a score of 0 there.

    Args:
        rankings: The rankings, each best first and without repeated ids. If all scores of a ranking are equal, each
            score counts as 1.
        weights: One weight per ranking.

    Source: convex combination, Bruch, Gai, Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", TOIS 2023.

    Example:
        >>> score_fusion([[("a", 9.0), ("b", 7.0), ("c", 5.0)], [("b", 0.5)]], [0.5, 0.5])
        [('b', 0.75), ('a', 0.5), ('c', 0.0)]
    """
    return _by_name(rankings, weights, "score", 0.0)


def fuse_hits(
    rankings: Sequence[Hits],
    weights: Sequence[float],
    *,
    by: Literal["rrf", "score"],
    k: float = 60.0,
    scales: Sequence[Scale] | None = None,
    names: Sequence[str] | None = None,
) -> Hits:
    """Fuse rankings of rows in the same way as `reciprocal_rank_fusion` and `score_fusion`.

    Args:
        rankings: The rankings, each best first.
        weights: One weight per ranking.
        by: Whether to fuse reciprocal ranks or scaled scores.
        k: Constant used in reciprocal rank fusion.
        scales: Scale of the scores of each ranking; None maps the lowest score of a ranking to 0, and the highest to 1.
        names: Id of each row, by which ties are broken; None breaks ties by row number.

    Example:
        >>> one, other = Hits(np.array([7, 3]), np.array([9.0, 8.0])), Hits(np.array([3]), np.array([0.5]))
        >>> fuse_hits([one, other], [0.5, 0.5], by="rrf", k=1).rows.tolist()
        [3, 7]
    """
    everything = np.concatenate([np.zeros(0, dtype=np.int64), *(hits.rows for hits in rankings)])
    rows, where = _distinct(everything)
    shares = np.zeros((len(rankings), len(rows)))
    best = np.full(len(rows), len(everything))
    start = 0
    for number, (hits, weight) in enumerate(zip(rankings, weights, strict=True)):
        at = where[start : (start := start + len(hits.rows))]
        ranks = np.arange(1, len(at) + 1)
        if by == "rrf":
            shares[number, at] = share_of_rank(ranks, weight, k=k)
        else:
            shares[number, at] = share_of_score(hits.scores, weight, scale=scales[number] if scales else None)
        best[at] = np.minimum(best[at], ranks)
    if len(rankings) > 2:
        shares.sort(axis=0)  # equal sums stay equal regardless of the order of the rankings
    scores: NDArray[np.float64] = shares.sum(axis=0)
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    for start, stop in _runs(ordered[1:] == ordered[:-1]):
        order[start:stop] = sorted(
            order[start:stop], key=lambda at: (best[at], rows[at] if names is None else names[int(rows[at])])
        )
    return Hits(rows[order], ordered)


def _distinct(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct numbers and the place of each number among them, like `np.unique` with less overhead."""
    order = numbers.argsort(kind="stable")
    ordered = numbers[order]
    is_first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    places = np.empty(len(ordered), dtype=np.int64)
    places[order] = is_first.cumsum() - 1
    return ordered[is_first], places


def share_of_rank(ranks: NDArray[np.int64], weight: float, *, k: float) -> NDArray[np.float64]:
    """Return weight / (k + rank) for each rank; ranks start at 1."""
    return weight / (k + ranks.astype(np.float64))


def share_of_score(scores: NDArray[np.float64], weight: float, *, scale: Scale | None = None) -> NDArray[np.float64]:
    """Return weight * scaled score for each score; without a scale, the scores are scaled by `min_max`."""
    zero, unit = scale or min_max(scores)
    return weight * ((scores - zero) / unit if unit > 0 else np.ones(len(scores)))


def min_max(scores: NDArray[np.float64]) -> Scale:
    """Return the scale that maps the lowest score to 0 and the highest to 1.

    Example:
        >>> min_max(np.array([7.0, 9.0, 5.0]))
        Scale(zero=5.0, unit=4.0)
    """
    if len(scores) == 0:
        return Scale(0.0, 0.0)
    low, high = float(scores.min()), float(scores.max())
    return Scale(low, high - low)


def normalise_weights(weights: Sequence[float], count: int) -> list[float]:
    """Return the weights divided by their sum.

    Raises:
        ValueError: `count` is 0 or differs from the number of weights, a weight is negative or not a finite number, or
            all weights are zero.
    """
    if count == 0:
        raise ValueError("there is nothing to fuse: pass at least one ranking")
    if not isinstance(weights, list | tuple) or not all(isinstance(weight, Real) for weight in weights):
        raise ValueError(f"the weights {weights!r} must be a list of numbers")
    if len(weights) != count:
        raise ValueError(f"there are {len(weights)} weights for {count} rankings: pass one weight per ranking")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError(f"the weights {list(weights)} must be finite and not negative")
    largest = max(weights)
    if largest == 0:
        raise ValueError("the weights are all 0: set at least one of them above 0")
    scaled = [weight / largest for weight in weights]  # the sum of large weights could be infinite
    total = math.fsum(scaled)
    return [weight / total for weight in scaled]


def add_support(hits: Hits, shares: NDArray[np.float64]) -> tuple[Hits, NDArray[np.intp]]:
    """Add a share to each score and sort again; ties keep the order of the hits.

    Args:
        hits: The hits, best first.
        shares: The number to add to each score; shape (n,).

    Returns:
        The hits in the new order, and the previous position of each.

    Example:
        >>> hits, before = add_support(Hits(np.array([7, 8, 9]), np.array([0.5, 0.25, 0.25])), np.array([0, 0, 0.5]))
        >>> hits.rows.tolist(), hits.scores.tolist(), before.tolist()
        ([9, 7, 8], [0.75, 0.5, 0.25], [2, 0, 1])
    """
    scores = hits.scores + shares
    order = np.argsort(-scores, kind="stable")
    return Hits(hits.rows[order], scores[order]), order


def best_of_group(scores: NDArray[np.float64], groups: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the largest score in the group of each score.

    Args:
        scores: The scores; shape (n,).
        groups: The group of each score; shape (n,).

    Example:
        >>> best_of_group(np.array([3.0, 1.0, 2.0]), np.array([7, 7, 5])).tolist()
        [3.0, 3.0, 2.0]
    """
    best = np.full(groups.max(initial=-1) + 1, -np.inf)
    np.maximum.at(best, groups, scores)
    return best[groups]


def scaled_shares(scores: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    """Return weight * (score / largest score)² for each score; the scores must not be negative.

    Because of the square, documents that contain only common words of the query have little weight.

    Example:
        >>> scaled_shares(np.array([4.0, 0.0, 1.0]), 0.8).tolist()
        [0.8, 0.0, 0.05]
    """
    largest = scores.max(initial=0.0)
    return weight * (scores / largest) ** 2 if largest > 0 else np.zeros(len(scores))


def reciprocal_shares(ranks: NDArray[np.int64], weight: float, *, k: float) -> NDArray[np.float64]:
    """Return weight / (k + rank) for each rank, and 0 for rank 0; several items may have the same rank.

    Example:
        >>> reciprocal_shares(np.array([1, 1, 0, 3]), 0.5, k=1).tolist()
        [0.25, 0.25, 0.0, 0.125]
    """
    return np.where(ranks > 0, share_of_rank(ranks, weight, k=k), 0.0)


def _by_name(
    rankings: Sequence[ScoredIds], weights: Sequence[float], by: Literal["rrf", "score"], k: float
) -> list[tuple[str, float]]:
    names = sorted({name for ranking in rankings for name, _ in ranking})
    row = {name: at for at, name in enumerate(names)}
    arrays = [
        Hits(
            np.fromiter((row[name] for name, _ in ranking), dtype=np.int64, count=len(ranking)),
            np.fromiter((score for _, score in ranking), dtype=np.float64, count=len(ranking)),
        )
        for ranking in rankings
    ]
    fused = fuse_hits(arrays, weights, by=by, k=k)
    return [(names[at], score) for at, score in zip(fused.rows.tolist(), fused.scores.tolist(), strict=True)]


def _runs(equal: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return (start, stop) for every run of equal items, given whether each item i equals item i + 1."""
    runs: list[tuple[int, int]] = []
    for place in np.flatnonzero(equal).tolist():
        start = runs.pop()[0] if runs and runs[-1][1] == place + 1 else place
        runs.append((start, place + 2))
    return runs
