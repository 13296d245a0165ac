"""Search an index: all steps from the query to the response.

`search` embeds the query, ranks by meaning and by words, fuses the rankings, fetches the best hits, reranks the first
hits by their best sentence, estimates the confidence, explains the order, and reranks with a model. It works with any
`ChunkIndex`. Asynchronous callers run it in a thread; to await the reranker, they run `find_candidates` in a thread.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.locks import searching
from llama_index_contextual._utils.redaction import get_logger
from llama_index_contextual.config import SPOTLIGHT, MinRelevance, Mode, ProjectConfig, RerankThreshold, default
from llama_index_contextual.embeddings.batching import cut_to_input
from llama_index_contextual.embeddings.languages import knows_language
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.analysis import cut_query, cut_text, normalise_query
from llama_index_contextual.index.base import Chunk, ChunkIndex
from llama_index_contextual.index.languages import foreign_language
from llama_index_contextual.search.confidence import (
    RANKED,
    SCORED_HITS,
    ConfidenceEstimate,
    coverages,
    estimate_confidence,
    unknown_words,
)
from llama_index_contextual.search.explain import NEAR_MISSES, explain, explain_hit, explain_reranked
from llama_index_contextual.search.rank import (
    Evidence,
    FusionSettings,
    RankedList,
    Ranking,
    fuse_lists,
    lexical_list,
    semantic_list,
)
from llama_index_contextual.search.response import (
    BaseHit,
    Explanation,
    Hit,
    Mark,
    QueryBlend,
    RerankerUse,
    SearchResponse,
    Standing,
    UnknownWord,
)
from llama_index_contextual.search.spotlight import (
    COMPARED,
    COMPARED_OF_MANY,
    Matches,
    Spot,
    answer_to_the_rest,
    match_units,
    spotlight_shares,
)

if TYPE_CHECKING:
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.search.rerank import Reranked, Reranker

logger = get_logger(__name__)

DEPTH = 1_000
"""Number of hits of each index among which the place of an expected document is looked for."""

_WORD = re.compile(r"\w+")
_POSSESSIVE = re.compile(r"['’]s$")
_PUNCTUATION = ".,;:?!()[]\"'“”‘’"

Embedding = Sequence[float] | NDArray[np.float32] | None
"""The embedding of a query, which need not be normalised; None in lexical mode."""


R = TypeVar("R", bound=SearchResponse)


class Embeds(Protocol):
    """Protocol for objects that embed queries.

    Attributes:
        name: Name of the embedding model.
    """

    name: str

    def unit(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the mean embedding of texts, scaled to length 1 unless it is zero; shape (dimensions,)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Query:
    """A question, prepared for the search by `Query.of`.

    Attributes:
        text: The question.
        embedded: Texts whose mean embedding is used for the semantic index.
        embedding: The embedding, if it is already known.
        lexical: Text for the lexical indexes: the question, or texts with the weight of each of their terms.
    """

    text: str
    embedded: Sequence[str]
    embedding: Embedding = None
    lexical: str | Sequence[tuple[str, float]]

    @property
    def weighted(self) -> Sequence[tuple[str, float]]:
        """The texts for the lexical indexes, with their weights."""
        return ((self.lexical, 1.0),) if isinstance(self.lexical, str) else self.lexical

    @classmethod
    def of(
        cls,
        text: str,
        *,
        embedded: Sequence[str] | None = None,
        embedding: Embedding = None,
        lexical: Sequence[tuple[str, float]] = (),
    ) -> Query:
        """Create a query whose texts are normalised, so that white space and Unicode forms do not affect the results.

        Args:
            text: The question.
            embedded: Texts whose mean embedding is used; None for the question.
            embedding: The embedding, if it is already known.
            lexical: Texts for the lexical indexes with their weights; empty for the question.
        """
        text = cut_query(text)
        return cls(
            text=text,
            embedded=(text,) if embedded is None else tuple(map(cut_query, embedded)),
            embedding=embedding,
            lexical=tuple((cut_query(other), weight) for other, weight in lexical) or text,
        )


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings for a search. The defaults are those of a project.

    Attributes:
        mode: Indexes to search. If the version lacks one of them, only the other index is used, with a warning.
        k: Number of results.
        filters: Metadata filters; only chunks that pass them are ranked.
        fusion: Fusion settings for both rankings.
        acronyms: The user's acronyms and their long forms. If a question contains one form, the other is added.
        spotlight: Whether the first hits are reranked by their best sentence or row.
        rerank_candidates: Number of hits that a reranker reads.
        rerank_threshold: Probability from the reranker below which hits are dropped; None keeps all hits, and "auto"
            is 0.3 for models that return probabilities.
        min_confidence: Confidence below which the level is "low"; None uses the default.
        min_relevance: Limit for the relevance; the results end with the last hit that reaches it, and the hits after it
            are folded away. "auto" uses a limit that keeps almost all of the evidence, and adds the hit that answers a
            part of the question on which the others say nothing. None has no limit. If there is a reranker, only its
            own `rerank_threshold` applies.
        explain: Whether to explain the order of the results.
    """

    mode: Mode = default("mode")
    k: int = default("top_k")
    filters: MetadataFilters | None = None
    fusion: FusionSettings = field(default_factory=FusionSettings)
    acronyms: Mapping[str, str] = field(default_factory=dict)
    spotlight: bool = default("rerank") is not None
    rerank_candidates: int = default("rerank_candidates")
    rerank_threshold: RerankThreshold = default("rerank_threshold")
    min_confidence: float | None = default("min_confidence")
    min_relevance: MinRelevance = None
    explain: bool = False

    @classmethod
    def of(
        cls,
        config: ProjectConfig,
        *,
        mode: Mode,
        k: int,
        filters: MetadataFilters | None,
        min_relevance: MinRelevance = None,
        explain: bool = False,
    ) -> SearchSettings:
        """Return the settings for a search in a project."""
        if min_relevance == "auto" and config.min_relevance is not None:
            min_relevance = config.min_relevance
        return cls(
            mode=mode,
            k=k,
            filters=filters,
            fusion=FusionSettings.of(config),
            acronyms=config.acronym_table,
            spotlight=config.rerank is not None,
            rerank_candidates=config.rerank_candidates,
            rerank_threshold=config.rerank_threshold,
            min_confidence=config.min_confidence,
            min_relevance=min_relevance,
            explain=explain,
        )


def search(
    query: Query,
    index: ChunkIndex,
    settings: SearchSettings,
    *,
    embedder: Embeds | None = None,
    reranker: Reranker | None = None,
    rerank_reason: str = "",
    turn: AbstractContextManager[object] | None = None,
    version: str | None = None,
) -> SearchResponse:
    """Search an index.

    Args:
        query: The query; it is embedded if the mode requires an embedding and the query has none.
        index: The index.
        settings: Settings for the search.
        embedder: Embedder for the query; not needed in lexical mode.
        reranker: Reranker for the best hits; None keeps their order.
        rerank_reason: Reason why this reranker was selected, or none, for the response.
        turn: Lock that is held while the search ranks; the vectors are scanned before, in parallel.
        version: Name of the version, for the response.

    Raises:
        InputError: The query's embedding does not fit the index, or a filter is invalid.
        ModelError: The embedding model or the reranker cannot be reached.
    """
    candidates = find_candidates(
        query,
        index,
        settings,
        embedder=embedder,
        reranker=reranker,
        rerank_reason=rerank_reason,
        turn=turn,
        version=version,
    )
    return candidates.respond()


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The best hits of a search, for the response or for a reranker.

    Attributes:
        query: The query.
        settings: Settings for the search.
        mode: The mode that was used.
        hits: The hits, best first.
        estimate: The relevance of the hits, and the confidence.
        rest: Index of the hit below the limit that answers another part of the question, or None.
        warnings: Messages about the mode and about parts of the query that were not used.
        explanations: Explanations of the hits and of the near misses; empty unless requested.
        unknown_words: Words of the question that no document contains.
        blend: The texts that were searched for, or None if this was only the question.
        reranker: Reranker for the hits; None keeps their order.
        rerank_reason: Reason why this reranker was selected, or none.
        version: Name of the version, or None.
        languages: Languages in which the texts are analysed; see `SearchResponse`.
        foreign: Languages of the question and of the documents, if the search cannot relate them.
    """

    query: Query
    settings: SearchSettings
    mode: Mode
    hits: Sequence[Hit]
    estimate: ConfidenceEstimate
    rest: int | None
    warnings: Sequence[str]
    explanations: tuple[list[Explanation], list[Explanation]]
    unknown_words: Sequence[UnknownWord]
    blend: QueryBlend | None
    reranker: Reranker | None
    rerank_reason: str
    version: str | None
    languages: Sequence[str] = ()
    foreign: tuple[str, str] | None = None

    def respond(self) -> SearchResponse:
        """Rerank the hits, if there is a reranker, and return the response."""
        reranked, started = None, time.perf_counter()
        if self.reranker is not None:
            reranked = self.reranker.rerank(self.query.text, self.hits, threshold=self.settings.rerank_threshold)
        return _response(self, reranked, time.perf_counter() - started)

    async def arespond(self) -> SearchResponse:
        """Asynchronous version of `respond`, which awaits the reranker."""
        reranked, started = None, time.perf_counter()
        if self.reranker is not None:
            reranked = await self.reranker.arerank(self.query.text, self.hits, threshold=self.settings.rerank_threshold)
        return _response(self, reranked, time.perf_counter() - started)


def find_candidates(
    query: Query,
    index: ChunkIndex,
    settings: SearchSettings,
    *,
    embedder: Embeds | None = None,
    reranker: Reranker | None = None,
    rerank_reason: str = "",
    turn: AbstractContextManager[object] | None = None,
    version: str | None = None,
) -> Candidates:
    """Return the best hits before they are reranked by a model, with the estimates of their relevance.

    Arguments and errors are those of `search`.
    """
    mode, warnings = usable_mode(index, settings.mode)
    embedding: Embedding = query.embedding
    if mode != "lexical" and embedding is None and embedder is not None:
        warnings += too_long(query)
        embedding = embedder.unit(query.embedded)
    k = settings.k if reranker is None else max(settings.k, settings.rerank_candidates)
    count = k + NEAR_MISSES if settings.explain else k
    # A fused ranking has more than k hits anyway, and ranking more could change its order. A single index is ranked to
    # the same depth for all usual values of k, so that the probabilities do not depend on k.
    depth = max(settings.fusion.candidates, k) if mode == "hybrid" else max(RANKED, count)
    expanded = _with_acronyms(query, settings.acronyms)
    model = "" if embedder is None else embedder.name
    language = "" if index.lexical is None else foreign_language(query.text, index.lexical.analyzer)
    with searching():
        semantic = semantic_list(index, embedding, depth, settings.filters, model=model) if mode != "lexical" else None
        with turn or nullcontext():
            ranking = rank(expanded or query, semantic, index, settings, mode, depth, model=model, foreign=language)
            best = with_best_units(index, ranking, query.text, results=k, rerank=settings.spotlight)
            ranking, spots, covered = best[:3]
            evidence = ranking.evidence(count)
            hits = hits_of(ranking, index.fetch(ranking.hits.rows[:count].tolist()), evidence, spots)
            unknown = [] if ranking.terms is None or language else unknown_words(ranking.terms, query.text)
            estimate = estimate_confidence(
                ranking,
                evidence,
                covered,
                question=query.text,
                language=language,
                unknown=unknown,
                is_filtered=settings.filters is not None,
                low=settings.min_confidence,
            )
    for hit, relevance in zip(hits, estimate.relevances, strict=False):
        hit.relevance = relevance
    foreign = unrelated_languages(language, index, mode, model) if language else None
    shown = sure_results(hits[:k], estimate.cut) if settings.min_relevance == "auto" else 0
    rest = best.rest(len(hits[:k]), shown)
    return Candidates(
        query=query,
        settings=settings,
        mode=mode,
        hits=hits[:k],
        estimate=estimate,
        rest=rest,
        warnings=[
            *warnings,
            *_foreign_warning(foreign),
            *(warning for ranked in ranking.lists for warning in ranked.warnings),
        ],
        explanations=explain(ranking, hits, settings.k) if settings.explain else ([], []),
        unknown_words=unknown,
        blend=None if expanded is None else QueryBlend(lexical=tuple(expanded.weighted)),
        reranker=reranker,
        rerank_reason=rerank_reason,
        version=version,
        languages=() if index.lexical is None else index.lexical.analyzer.languages,
        foreign=foreign,
    )


def rank(
    query: Query,
    semantic: RankedList | None,
    index: ChunkIndex,
    settings: SearchSettings,
    mode: Mode,
    depth: int,
    *,
    model: str,
    foreign: str = "",
) -> Ranking:
    """Rank the best chunks by words if the mode requires it, and fuse both rankings in hybrid mode.

    Args:
        query: The query.
        semantic: The ranking by meaning; None in lexical mode.
        index: The index.
        settings: Settings for the search.
        mode: The mode of the search.
        depth: Number of chunks in each ranking.
        model: Name of the embedding model.
        foreign: Language of the query if it is not one of those of the documents, otherwise "".
    """
    words = query.lexical
    lists = [] if semantic is None else [semantic]
    if mode != "semantic":
        lists.append(lexical_list(index, words, depth, settings.filters))
    if mode != "hybrid":
        return Ranking(lists[0].hits, index.ids, lists)
    fusion = settings.fusion
    if index.lexical is not None:
        analyzer = index.lexical.analyzer
        has_lines = foreign in analyzer.context_languages
        language = analyzer.language_among_texts(query.text)
        fusion = fusion.for_language(model, language, "" if has_lines else foreign)
    if fusion.candidates != depth:
        fusion = replace(fusion, candidates=depth)
    return fuse_lists(lists, index.ids, fusion, documents=index.documents, query=words)


def find_standing(
    query: Query, index: ChunkIndex, settings: SearchSettings, ids: Collection[str], *, embedder: Embeds | None = None
) -> Standing:
    """Find out where the best of some chunks stands in the ranking of a question before a model reranks it.

    Args:
        query: The question.
        index: The index to search.
        settings: Settings for the search.
        ids: Ids of the chunks.
        embedder: Embedder for the question.
    """
    mode, _ = usable_mode(index, settings.mode)
    embedding = embedder.unit(query.embedded) if mode != "lexical" and embedder is not None else query.embedding
    expanded = _with_acronyms(query, settings.acronyms) or query
    depth = max(settings.fusion.candidates, settings.k, DEPTH)
    model = "" if embedder is None else embedder.name
    language = "" if index.lexical is None else foreign_language(query.text, index.lexical.analyzer)
    semantic = semantic_list(index, embedding, depth, settings.filters, model=model) if mode != "lexical" else None
    ranking = rank(expanded, semantic, index, settings, mode, depth, model=model, foreign=language)
    ranking, spots, *_ = with_best_units(index, ranking, query.text, results=settings.k, rerank=settings.spotlight)
    unknown = [] if ranking.terms is None or language else unknown_words(ranking.terms, query.text)
    rows = ranking.hits.rows.tolist()
    at = next((at for at, row in enumerate(rows) if index.ids[row] in ids), None)
    if at is None:
        return Standing(query.text, None, len(rows), settings.k, tuple(unknown))
    hits = hits_of(ranking, index.fetch(rows[: at + 1]), ranking.evidence(at + 1), spots)
    return Standing(query.text, explain_hit(ranking, hits, settings.k), len(rows), settings.k, tuple(unknown))


class BestUnits(NamedTuple):
    """The best sentence or row of each of the first chunks of a ranking.

    Attributes:
        ranking: The ranking, with its new order if it was reranked.
        spots: The best sentence or row of each of its first chunks.
        covered: The share of the question that one sentence or row of each of them covers.
        matches: The sentences and rows, in the order of the passages before they were reranked.
        former: The former place of each of the first chunks.
    """

    ranking: Ranking
    spots: list[Spot]
    covered: NDArray[np.float64]
    matches: Matches
    former: NDArray[np.int64]

    def rest(self, results: int, shown: int) -> int | None:
        """Return the index of the result that answers another part of the question; see `answer_to_the_rest`.

        Args:
            results: Number of results.
            shown: Number of those that are shown anyway.
        """
        if not 0 < shown < min(results, len(self.spots)):
            return None
        marked = self.matches.marked(self.spots, self.former)[:results]
        return answer_to_the_rest(marked, list(self.matches.weights.values()), shown)


def with_best_units(index: ChunkIndex, ranking: Ranking, question: str, *, results: int, rerank: bool) -> BestUnits:
    """Find the best sentence or row of each of the first chunks of a ranking.

    Args:
        index: The index that was ranked.
        ranking: The ranking.
        question: The question to compare the chunks with.
        results: Number of results; if it is above 20, more hits are compared.
        rerank: Whether the scores of the best sentences or rows are added to the scores in the ranking.
    """
    compared = 0 if not rerank else COMPARED if results <= COMPARED else COMPARED_OF_MANY
    rows = ranking.hits.rows[: max(compared, SCORED_HITS, results)]
    matches = match_units(ranking, index.units(rows), question, index.lexical)
    spots, covered = matches.spots(), coverages(ranking, matches)
    former = np.arange(len(spots))
    if rerank and spots:
        shares = spotlight_shares(ranking, spots[:compared], matches)
        ranking, before = ranking.with_spotlight(shares)
        spots[:compared] = map(spots.__getitem__, before)
        covered[: len(before)] = covered[before]
        former[: len(before)] = before
    return BestUnits(ranking, spots, covered, matches, former)


def hits_of(ranking: Ranking, chunks: Sequence[Chunk], evidence: Evidence, spots: Sequence[Spot] = ()) -> list[Hit]:
    """Build the hits for the first rows of a ranking.

    Args:
        ranking: The ranking.
        chunks: The chunks of its first hits.
        evidence: The evidence for at least these hits.
        spots: The best sentences or rows of the first chunks; other hits have no mark.
    """
    rows = zip(chunks, ranking.hits.scores.tolist(), evidence.of_hits(), strict=False)
    hits = [
        Hit(
            chunk=chunk,
            rank=rank,
            score=score,
            semantic=scores.get("semantic"),
            lexical=scores.get("lexical"),
            document=scores.get("document"),
        )
        for rank, (chunk, score, scores) in enumerate(rows, start=1)
    ]
    for hit, spot in zip(hits, spots, strict=False):
        if spot.end > spot.start:
            hit.spotlight = Mark.of(hit.chunk, spot.start, spot.end)
    return hits


def _use(candidates: Candidates, reranked: Reranked | None, seconds: float) -> RerankerUse | None:
    """Describe the reranker of a search, or the reason why there was none."""
    reranker, reason = candidates.reranker, candidates.rerank_reason
    if reranker is None or reranked is None:
        return RerankerUse(name=SPOTLIGHT, reason=reason) if reason else None
    return RerankerUse(
        name=reranker.name,
        reason=reason or "passed to the search",
        device=reranker.device,
        passages=len(reranked.decisions),
        windows=reranked.windows,
        batch_size=reranker.batch_size,
        threshold=reranked.threshold,
        seconds=seconds,
    )


def _response(candidates: Candidates, reranked: Reranked | None, seconds: float) -> SearchResponse:
    """Build the response, with the hits in the order chosen by the reranker if they were reranked."""
    hits, estimate, (explanations, near_misses) = candidates.hits, candidates.estimate, candidates.explanations
    settings, notes = candidates.settings, [*candidates.warnings]
    if reranked is not None:
        notes += reranked.warnings
        if hits and not reranked.hits:
            notes.append(
                f"The reranker dropped all {len(hits)} hits: none has a probability of at least"
                f" {reranked.threshold:g}, the `rerank_threshold` setting."
            )
            estimate = ConfidenceEstimate((), 0.0, "none")
        if settings.explain:
            explanations, near_misses = explain_reranked([*explanations, *near_misses], reranked, settings.k)
        hits = [replace(hit, rank=rank) for rank, hit in enumerate(reranked.hits, start=1)]
    hits = hits[: settings.k]
    cut = estimate.cut if settings.min_relevance == "auto" else settings.min_relevance
    results = len(hits) if cut is None or reranked is not None else sure_results(hits, cut)
    if reranked is None and (rest := candidates.rest) is not None:
        hits = [*hits[:results], hits[rest], *hits[results:rest], *hits[rest + 1 :]]
        results += 1
    return SearchResponse(
        query=candidates.query.text,
        mode_requested=settings.mode,
        mode_used=candidates.mode,
        warnings=tuple(notes),
        results=tuple(hits[:results]),
        folded=tuple(hits[results:]),
        unknown_words=tuple(candidates.unknown_words),
        confidence=estimate.confidence,
        confidence_level=estimate.level,
        version=candidates.version,
        blend=candidates.blend,
        reranker=_use(candidates, reranked, seconds),
        explanations=tuple(explanations),
        near_misses=tuple(near_misses[:NEAR_MISSES]),
        languages=candidates.languages,
        foreign=candidates.foreign,
    )


def sure_results(hits: Sequence[BaseHit], min_relevance: float) -> int:
    """Return the number of hits up to the last one that is relevant enough."""
    is_sure = ((hit.relevance or 0.0) >= min_relevance for hit in hits)
    return max((number for number, sure in enumerate(is_sure, start=1) if sure), default=0)


# ---- the query -------------------------------------------------------------------------------------------------------


def usable_mode(index: ChunkIndex, requested: Mode) -> tuple[Mode, list[str]]:
    """Return the mode to use and a list of warnings.

    If the index does not support the requested mode, another mode is used, and the list contains a warning.
    """
    has = {"semantic": index.dimensions is not None, "lexical": index.lexical is not None}
    if (requested == "hybrid" and all(has.values())) or has.get(requested):
        return requested, []
    used: Mode = "semantic" if has["semantic"] else "lexical"
    missing = " and ".join(name for name, exists in has.items() if not exists)
    return used, [f"Mode {requested!r} was requested, but there is no {missing} index: answered with {used!r}."]


def too_long(query: Query) -> list[str]:
    """Return a warning for each query text that is too long to embed in full."""
    lengths = [(len(cut_to_input(text)), len(text)) for text in query.embedded]
    return [
        f"The query is longer than an embedding model accepts: only its beginning, {limit:,} characters, was embedded."
        for limit, length in lengths
        if limit < length
    ]


def unrelated_languages(language: str, index: ChunkIndex, mode: Mode, model: str) -> tuple[str, str] | None:
    """Return the languages of a question and of the documents if the search cannot relate them, otherwise None.

    They are related by an embedding model that knows both, or by lines of contexts in the language of the question.

    Args:
        language: Language of the question, which is not that of the documents.
        index: The index.
        mode: The mode of the search.
        model: Name of the embedding model.
    """
    if index.lexical is None or language in index.lexical.analyzer.context_languages:
        return None
    of_documents = index.lexical.analyzer.languages[0]
    is_known = mode != "lexical" and knows_language(model, language) and knows_language(model, of_documents)
    return None if is_known else (language, of_documents)


def _foreign_warning(languages: tuple[str, str] | None) -> list[str]:
    if languages is None:
        return []
    of_question, of_documents = map(str.capitalize, languages)
    return [
        f"The question is in {of_question}, and most documents are in {of_documents}: ask in {of_documents}, set"
        f" `context_languages`, or choose an `embed_model` that knows both languages."
    ]


def _with_acronyms(query: Query, table: Mapping[str, str]) -> Query | None:
    """Add the missing forms of the acronyms in a query and return the new query, or None if no form is missing.

    Both forms have the same meaning, so the terms of an added form together have the weight of one term of the
    question.
    """
    if not table:
        return None
    added = [(text, round(1 / max(1, len(_WORD.findall(text))), 3)) for text in missing_forms(query.text, table)]
    return replace(query, lexical=(*query.weighted, *added)) if added else None


def missing_forms(question: str, table: Mapping[str, str]) -> tuple[str, ...]:
    """Return the long form of each acronym in a question, and the acronym of each long form, unless both are present.

    Acronyms are case-sensitive ("IT" is not "it"), but long forms are not.

    Example:
        >>> missing_forms("How is PP&E measured?", {"PP&E": "Property, plant and equipment"})
        ('Property, plant and equipment',)
    """
    words = dict.fromkeys(_POSSESSIVE.sub("", word.strip(_PUNCTUATION)) for word in question.split())
    folded = f" {_folded(question)} "
    present = {short for short, long in table.items() if f" {_folded_form(long)} " in folded}
    shown = {table[short] for short in present}
    longs = [table[word] for word in words if word in table and table[word] not in shown]
    return tuple(dict.fromkeys([*longs, *(short for short in table if short in present and short not in words)]))


@lru_cache(maxsize=1_000)
def _folded_form(long: str) -> str:
    """Return the folded long form of an acronym, which is compared with every question."""
    return _folded(long)


def _folded(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))


def limit_text(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the normalised part of a question that is searched, and a warning if the question was cut.

    Raises:
        InputError: The question is empty.
    """
    whole = normalise_query(text)
    if not whole:
        raise InputError("The query is empty: ask a question.", value=text)
    part = cut_text(whole)
    if len(part) == len(whole):
        return part, ()
    return part, (
        f"The query has {len(whole):,} characters: only its beginning, {len(part):,} characters, was searched.",
    )


def with_warnings(response: R, warnings: Sequence[str]) -> R:
    """Return a response with additional warnings before its existing warnings."""
    return replace(response, warnings=(*warnings, *response.warnings)) if warnings else response


def complete_response(response: SearchResponse, question: str, notes: Sequence[str]) -> SearchResponse:
    """Return a response with the question as it was asked and additional warnings.

    If the mode that was used differs from the requested mode, a warning is also logged.
    """
    if response.mode_used != response.mode_requested:
        logger.warning(response.warnings[0])
    response = with_warnings(response, notes)
    return response if response.query == question else replace(response, query=question)


def number_of_results(similarity_top_k: int | None, top_k: int | None, default: int) -> int:
    """Return the number of results, which may be given as `similarity_top_k` (LlamaIndex's name) or as `top_k`.

    Raises:
        InputError: Both are given, and their values differ.
    """
    if None not in (similarity_top_k, top_k) and similarity_top_k != top_k:
        raise InputError(
            f"similarity_top_k is {similarity_top_k!r} and top_k is {top_k!r}, but both set the number of results:"
            f" pass one of them.",
            value=(similarity_top_k, top_k),
        )
    given = top_k if similarity_top_k is None else similarity_top_k
    return default if given is None else given


def require_relevance(value: object) -> MinRelevance:
    """Check that a value of `min_relevance` is a probability, "auto" or None, and return it.

    Raises:
        InputError: It is something else.
    """
    if value is None or value == "auto":
        return cast("MinRelevance", value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f'min_relevance cannot be {value!r}: use a number from 0 to 1, "auto" or None.', value=value)
    return float(value)


def require_positive(k: object, name: str = "top_k", what: str = "result") -> int:
    """Check that a number is a positive integer, which may be a NumPy integer, and return it as an int.

    Args:
        k: The number.
        name: Name of the argument, for the message.
        what: Name of the counted items in the singular, for the message.

    Raises:
        InputError: The number is not a whole number, or not positive.
    """
    try:
        number = None if isinstance(k, bool) else operator.index(k)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise InputError(f"{name} is {k!r}: it must be a whole number of at least 1.", value=k)
    if number < 1:
        raise InputError(f"{name} is {number}: request at least one {what}.", value=k)
    return number
