"""Postprocessors that merge adjacent chunks, fit passages into a token budget, rerank, or filter by relevance."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
from llama_index.core.instrumentation import (  # type: ignore[attr-defined]  # not in its __all__
    get_dispatcher,
)
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeRelationship, NodeWithScore, QueryBundle, TextNode
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.redaction import get_logger
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.config import AUTO, LOCAL, default
from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.embeddings.words import embedded
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.figures import figures_from_json, figures_json
from llama_index_contextual.index.analysis import Analyzer, cut_query
from llama_index_contextual.index.base import Chunk
from llama_index_contextual.index.cutting import header_of
from llama_index_contextual.index.languages import language_of_texts
from llama_index_contextual.index.units import DIMENSIONS, Units
from llama_index_contextual.readers.boundaries import Rank, structural_offsets
from llama_index_contextual.search.response import Mark
from llama_index_contextual.search.results import RetrievedChunk
from llama_index_contextual.search.spotlight import COMPARED, Matches, Spot

_dispatcher = get_dispatcher(__name__)
logger = get_logger(__name__)


class NamedPostprocessor(BaseNodePostprocessor):
    """Base class of the postprocessors, which LlamaIndex serialises under the names of their classes."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class."""
        return cls.__name__


# ---- consecutive chunks ----------------------------------------------------------------------------------------------

_MOST_UNKNOWN = 2
"""Maximum number of missing characters between linked chunks that are assumed to be white space."""

_NEIGHBOURS = (NodeRelationship.PREVIOUS, NodeRelationship.NEXT)
_OF_FIRST = (
    *(keys.PAGE_START, keys.PAGE_LABEL, keys.SEGMENT_INDEX, keys.SEGMENT_START, keys.SEGMENT_END),
    *(keys.CHUNK_INDEX, keys.TABLE_HEAD),
)
"""Metadata keys whose values are copied from the first chunk of a passage."""


@dataclass
class _ChunkRun:
    """Consecutive chunks of one document, in text order, with no text missing between them."""

    start: int
    text: str
    nodes: list[TextNode]

    def take(self, node: TextNode, max_tokens: int) -> bool:
        """Append a chunk that starts no earlier than this run, and return True.

        Return False, without appending the chunk, in three cases: text between the run and the chunk is missing, the
        run would become too long, or the texts differ where the chunk overlaps the run.
        """
        gap = _start(node) - self.start - len(self.text)
        if gap > 0 and (gap > _MOST_UNKNOWN or not _follows(self.nodes[-1], node)):
            return False
        shared, at = max(0, -gap), _start(node) - self.start
        # Wrong offsets, for example from a parser that searched for repeated text, must not garble a passage.
        if self.text[at : at + len(node.text)] != node.text[:shared]:
            return False
        between = " " if gap == 1 else "\n" * gap
        longer = self.text + between + node.text[shared:]
        if len(longer) > len(self.text) and count_tokens(longer) > max_tokens:
            return False
        self.text = longer
        self.nodes.append(node)
        return True


def _join(nodes: Iterable[TextNode], max_tokens: int) -> list[_ChunkRun]:
    """Join consecutive chunks of one document into runs, in text order, without repeating overlaps.

    Args:
        nodes: Chunks with offsets, in any order.
        max_tokens: Maximum number of tokens in a run of several chunks.
    """
    runs: list[_ChunkRun] = []
    for node in sorted(nodes, key=lambda node: (_start(node), -len(node.text))):
        if not runs or not runs[-1].take(node, max_tokens):
            runs.append(_ChunkRun(_start(node), node.text, [node]))
    return runs


def _has_span(node: object) -> bool:
    """Return whether a node has offsets that are consistent with the length of its text."""
    if not isinstance(node, TextNode) or node.ref_doc_id is None:
        return False
    start, end = node.start_char_idx, node.end_char_idx
    return start is not None and end is not None and end - start == len(node.text) > 0


def _start(node: TextNode) -> int:
    return node.start_char_idx or 0


def _follows(node: TextNode, other: TextNode) -> bool:
    """Return whether `other` is the next chunk of the document."""
    if node.next_node is not None and node.next_node.node_id == other.node_id:
        return True
    if other.prev_node is not None and other.prev_node.node_id == node.node_id:
        return True
    here, there = (n.metadata.get(keys.CHUNK_INDEX) for n in (node, other))
    return isinstance(here, int) and here + 1 == there


# ---- merging ---------------------------------------------------------------------------------------------------------


class MergedChunk(RetrievedChunk):
    """A passage of several chunks, with the score and evidence of its best hit."""

    chunks: list[TextNode] = Field(default_factory=list)
    """The chunks, in the order of the text."""

    def chunk_at(self, start: int) -> TextNode | None:
        """Return the first chunk that contains the character at an offset in the document, or None."""
        return next((chunk for chunk in self.chunks if _start(chunk) <= start < _start(chunk) + len(chunk.text)), None)


class AdjacentChunkMerger(NamedPostprocessor):
    """Merge consecutive hits of a document into one passage without repeating overlaps.

    A passage has the position, id, score and evidence of its best hit. Its offsets, pages and sections cover the
    whole passage, and its context contains the written context of each chunk, one per line. A run of hits that is
    longer than `max_tokens` becomes several passages. Nodes without offsets are not changed. Chunks separated by white
    space are merged only if they are linked and at most two characters apart.

    Example:
        >>> merger = AdjacentChunkMerger()
        >>> engine = project.as_query_engine(node_postprocessors=[merger])  # doctest: +SKIP
    """

    max_tokens: int = Field(default=2400, ge=1)
    """Maximum number of tokens of a passage of several chunks. The default has room for three chunks of the default
    size.
    """

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        places: dict[str, list[int]] = {}  # indexes of the hits with offsets, by document
        for place, hit in enumerate(nodes):
            if _has_span(hit.node):
                places.setdefault(hit.node.ref_doc_id or "", []).append(place)
        merged = {place: hit for place, hit in enumerate(nodes) if not _has_span(hit.node)}
        for of_document in places.values():
            distinct = {nodes[place].node.node_id: cast(TextNode, nodes[place].node) for place in of_document}
            for run in _join(distinct.values(), self.max_tokens):
                ids = {node.node_id for node in run.nodes}
                inside = [place for place in of_document if nodes[place].node.node_id in ids]
                best = min(inside, key=lambda place: (-(nodes[place].score or 0.0), place))
                merged[best] = nodes[best] if len(run.nodes) == 1 else _merge(run, nodes[best])
        return [merged[place] for place in sorted(merged)]


def _merge(run: _ChunkRun, best: NodeWithScore) -> MergedChunk:
    """Return a passage with a new node that contains the text of all chunks in a run."""
    node, first, last = cast(TextNode, best.node), run.nodes[0], run.nodes[-1]
    relationships = {k: v for k, v in node.relationships.items() if k not in _NEIGHBOURS}
    for kind, end in zip(_NEIGHBOURS, (first, last), strict=True):
        if kind in end.relationships:
            relationships[kind] = end.relationships[kind]
    whole = node.model_copy(
        update={
            "text": run.text,
            "start_char_idx": run.start,
            "end_char_idx": run.start + len(run.text),
            "metadata": _metadata(run, node),
            "relationships": relationships,
            "embedding": None,
        }
    )
    fields = {name: getattr(best, name) for name in type(best).model_fields if name in MergedChunk.model_fields}
    return MergedChunk(**{**fields, "node": whole, "chunks": run.nodes})


def _metadata(run: _ChunkRun, best: TextNode) -> dict[str, Any]:
    first = run.nodes[0].metadata
    metadata = {**best.metadata, **{key: first[key] for key in _OF_FIRST if key in first}, **_context(run, best)}
    if keys.TABLE_HEAD not in first:
        metadata.pop(keys.TABLE_HEAD, None)
    if (section := keys.joint_section(node.metadata.get(keys.SECTION) for node in run.nodes)) is not None:
        metadata[keys.SECTION] = section
    metadata.pop(keys.PLACES, None)
    if (places := keys.joint_places((_start(node), node.metadata) for node in run.nodes)) is not None:
        metadata[keys.PLACES] = places
    figures = {each.id: each for node in run.nodes for each in figures_from_json(node.metadata.get(keys.FIGURES))}
    if figures:
        metadata[keys.FIGURES] = figures_json(figures.values())
    for key, joint in ((keys.PAGE_END, max), (keys.OCR_CONFIDENCE, min)):
        if values := [n.metadata[key] for n in run.nodes if n.metadata.get(key) is not None]:
            metadata[key] = joint(values)
    if keys.TOKEN_COUNT in metadata:
        metadata[keys.TOKEN_COUNT] = count_tokens(run.text)
    if keys.SOURCE_LINE in metadata:
        metadata[keys.SOURCE_LINE] = keys.source_line(metadata)
    return metadata


def _context(run: _ChunkRun, best: TextNode) -> dict[str, Any]:
    """Return the metadata for the context of a passage, or an empty dict if no chunk has a written context.

    The context consists of the structural line of the best hit and the written contexts of all chunks.
    """
    written = {keys.context_parts(node.metadata)[1]: node for node in reversed(run.nodes)}
    written.pop("", None)
    if not written:
        return {}
    structure, _ = keys.context_parts(best.metadata)
    before = f"{structure}\n" if structure else ""
    source = next(iter(written.values())).metadata.get(keys.CONTEXT_SOURCE)
    return {
        keys.CONTEXT: before + "\n".join(reversed(written)),
        keys.CONTEXT_WRITTEN_AT: len(before),
        **({} if source is None else {keys.CONTEXT_SOURCE: source}),
    }


# ---- sentences -------------------------------------------------------------------------------------------------------

# A word has at least two letters; in scripts without spaces, each character counts as a word.
_WORD = re.compile(r"[^\W_\u2e80-\U0003ffff]{2,}|\d|[^\W_\x00-\u2e7f]")


def best_run(text: str, query: str, max_tokens: int) -> tuple[int, int] | None:
    """Return the span of consecutive sentences that best cover a query within a token budget.

    A query word has more weight if fewer sentences contain it, and counts only once. If several spans are equally good,
    the first of the shortest spans is chosen. If no sentence contains a query word, the beginning is chosen.

    Args:
        text: The passage.
        query: The question; one-letter words are ignored.
        max_tokens: Maximum number of tokens in the span.

    Returns:
        Start and end offset, excluding white space at both ends; None if no sentence fits.

    Example:
        >>> text = "The plant opened in 1998. Error TS-999 means a dry pump. Call the operator."
        >>> start, end = best_run(text, "What does error TS-999 mean?", 12)
        >>> text[start:end]
        'Error TS-999 means a dry pump.'
    """
    sentences, query_words = split_sentences(text), set(_words(query))
    matches = [query_words.intersection(_words(text[start:end])) for start, end in sentences]
    counts = Counter(word for words in matches for word in words)
    weight = {word: math.log(1 + len(sentences) / count) for word, count in counts.items()}
    starts = [start for start, _ in sentences]
    # Include the white space after each sentence, so that a run has no more tokens than its sentences have in total.
    sizes = [count_tokens(text[start:stop]) for start, stop in pairwise([*starts, len(text)])]
    if not counts:
        fitting = [end for (_, end), tokens in zip(sentences, accumulate(sizes), strict=True) if tokens <= max_tokens]
        return (starts[0], fitting[-1]) if fitting else None
    best: tuple[float, int, int] | None = None
    span: tuple[int, int] | None = None
    # The best run starts with a sentence that contains a query word, and ends with a sentence that adds another query
    # word.
    for first in (at for at, words in enumerate(matches) if words):
        words: set[str] = set()
        value = 0.0
        tokens = 0
        for last in range(first, len(sentences)):
            tokens += sizes[last]
            if tokens > max_tokens:
                break
            new = matches[last] - words
            if not new:
                continue
            words |= new
            value += math.fsum(weight[word] for word in new)
            score = (round(value, 9), -tokens, -first)
            if best is None or score > best:
                best, span = score, (sentences[first][0], sentences[last][1])
    return span


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Return the spans of the sentences and list items, without the white space between them."""
    offsets = structural_offsets(text)
    cuts = sorted({0, len(text), *offsets[Rank.SENTENCE], *offsets[Rank.PARAGRAPH]})
    spans = []
    for start, stop in pairwise(cuts):
        piece = text[start:stop]
        if piece.strip():
            spans.append((start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())))
    return spans


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


# ---- packing ---------------------------------------------------------------------------------------------------------

SEPARATOR_TOKENS = 2
"""Number of tokens between two passages: one for an empty line, and one in reserve."""


class ContextWindowPacker(NamedPostprocessor):
    """Keep the best results that fit into a token budget, in reading order.

    Results are chosen greedily, by score if all results have a score, otherwise in the given order. A result that does
    not fit is left out or, with `compress`, cut to its best sentences before the next result is tried. If no result
    fits, the best result is cut to its best sentences even without `compress`. Documents are ordered by their best
    result, and the passages of a document are in text order. The tokens of the text that an LLM reads, including
    metadata, are counted with the o200k_base encoding.

    Use the packer before an `AdjacentChunkMerger`. Otherwise, the best part of a passage that was merged from many
    results could be cut off.

    Raises:
        ConfigurationError: Not even one sentence of the best result fits.

    Example:
        >>> packer = ContextWindowPacker(max_tokens=4000, compress=True)
        >>> engine = project.as_query_engine(node_postprocessors=[packer])  # doctest: +SKIP
    """

    max_tokens: int = Field(default=default("answer_tokens"), ge=1)
    """Maximum number of tokens of all passages together."""
    compress: bool = False
    """Whether to cut a passage that does not fit to its best run of sentences."""
    min_tokens: int = Field(default=64, ge=1)
    """Minimum number of free tokens for a compressed passage."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = "" if query_bundle is None else query_bundle.query_str
        # Do not sort by `relevance`: rerankers only change the score.
        has_scores = all(hit.score is not None for hit in nodes)
        ranked = sorted(nodes, key=lambda hit: -(hit.score or 0.0)) if has_scores else list(nodes)
        packed: list[NodeWithScore] = []
        room = self.max_tokens
        for hit in ranked:
            free = room - (SEPARATOR_TOKENS if packed else 0)
            fitting: NodeWithScore | None = hit
            if (tokens := _tokens(hit)) > free:
                fitting = _shortened(hit, query, free) if self.compress and free >= self.min_tokens else None
                tokens = 0 if fitting is None else _tokens(fitting)
            if fitting is not None:
                packed.append(fitting)
                room = free - tokens
        if ranked and not packed:
            if (shorter := _shortened(ranked[0], query, self.max_tokens)) is None:
                raise ConfigurationError(
                    f"A budget of {self.max_tokens} tokens has no room for a sentence of the best passage, with its"
                    f" source and context: increase it (`max_tokens`, or `answer_tokens` of an engine).",
                    setting="answer_tokens",
                )
            return [shorter]
        return _in_reading_order(packed)


def _in_reading_order(packed: Sequence[NodeWithScore]) -> list[NodeWithScore]:
    """Sort hits by document, and then by position in the text.

    The hits are given best first, and the document with the best hit comes first.
    """
    documents = [hit.node.ref_doc_id or hit.node.node_id for hit in packed]
    first = {document: rank for rank, document in reversed(list(enumerate(documents)))}

    def key(rank: int) -> tuple[int, int]:
        start = getattr(packed[rank].node, "start_char_idx", None)
        return first[documents[rank]], rank if start is None else start

    return [packed[rank] for rank in sorted(range(len(packed)), key=key)]


def _tokens(hit: NodeWithScore) -> int:
    """Return the number of tokens of a passage in the prompt of an engine, including its source and written context."""
    background = keys.background(hit.node.metadata)
    return count_tokens(hit.node.get_content(metadata_mode=MetadataMode.LLM)) + count_tokens(background)


def _shortened(hit: NodeWithScore, query: str, free: int) -> NodeWithScore | None:
    """Return a hit cut to the sentences that best cover the query within `free` tokens, or None if no sentence fits."""
    node = hit.node
    if not isinstance(node, TextNode):
        return None
    allowance = free - _tokens(hit) + count_tokens(node.text)
    while allowance > 0 and (span := best_run(node.text, query, allowance)) is not None:
        shorter = _cut_hit(hit, node, *span)
        if (excess := _tokens(shorter) - free) <= 0:
            return shorter
        allowance -= excess  # the text may take more tokens together with the metadata than on its own
    return None


def _cut_hit(hit: NodeWithScore, node: TextNode, start: int, end: int) -> NodeWithScore:
    """Return a hit whose node contains only part of the text, with matching offsets."""
    text = node.text[start:end]
    update: dict[str, object] = {"text": text, "embedding": None}
    if node.start_char_idx is not None and node.end_char_idx is not None:
        update |= {"start_char_idx": node.start_char_idx + start, "end_char_idx": node.start_char_idx + end}
    if keys.TOKEN_COUNT in node.metadata:
        update["metadata"] = {**node.metadata, keys.TOKEN_COUNT: count_tokens(text)}
    return hit.model_copy(update={"node": node.model_copy(update=update)})


# ---- relevance -------------------------------------------------------------------------------------------------------


class RelevancePostprocessor(NamedPostprocessor):
    """Replace the score of each hit with its relevance, and optionally drop hits below a cut-off.

    The score of a hybrid search is a weighted sum without a fixed range, comparable only within one search, so a fixed
    cut-off such as `SimilarityPostprocessor(similarity_cutoff=0.5)` is meaningless. `relevance` is the estimated
    probability that a passage is relevant. If a hit has no relevance because its search does not estimate it, all hits
    keep their scores, none are dropped, and a warning is logged.

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> from llama_index_contextual import RetrievedChunk
        >>> hits = [
        ...     RetrievedChunk(node=TextNode(text="a"), score=6.4, relevance=0.7),
        ...     RetrievedChunk(node=TextNode(text="b"), score=2.1, relevance=0.1),
        ... ]
        >>> kept = RelevancePostprocessor(relevance_cutoff=0.5).postprocess_nodes(hits)
        >>> [(hit.text, hit.score) for hit in kept]
        [('a', 0.7)]
    """

    relevance_cutoff: float | None = Field(default=None, ge=0, le=1)
    """Lowest relevance of a hit that is kept; None keeps all hits."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        relevances = [getattr(hit, "relevance", None) for hit in nodes]
        if None in relevances:
            logger.warning("The search estimated no relevance: the hits keep their scores, and none is dropped.")
            return nodes
        scored = [hit.model_copy(update={"score": p}) for hit, p in zip(nodes, relevances, strict=True)]
        return [hit for hit in scored if hit.get_score() >= (self.relevance_cutoff or 0.0)]


# ---- reranking -------------------------------------------------------------------------------------------------------


_PLACE_WEIGHT = 0.2  # of each of the two places that `SpotlightRerank` finds


class SpotlightRerank(NamedPostprocessor):
    """Rerank nodes by their best sentence or table row.

    In a chunk of 800 tokens, usually only one place answers the question. This reranker finds two places in each node.
    The first is the sentence or row that contains most of the question's words or similar words, weighted by their
    rarity among the nodes. The second is the sentence or row that is closest to the question in meaning. The scores of
    both are added to the score of the node with a weight of 0.2, in units of standard deviation. The reranker takes a
    few milliseconds and needs no API key, no network, and no model except WordLlama's word vectors.

    The nodes may come from any retriever, with or without scores. If at least half of the first
    `candidates` nodes are source code, the order is not changed.

    Requires the `local` extra (`pip install "llama-index-contextual[local]"`).

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> texts = ("Fees are due in May.\\nThe pump is green.", "The garden fee is 3 euros.\\nFees are due.")
        >>> nodes = [NodeWithScore(node=TextNode(text=text), score=0.5) for text in texts]
        >>> SpotlightRerank(top_n=1).postprocess_nodes(nodes, query_str="What is the garden fee?")[0].text
        'The garden fee is 3 euros.\\nFees are due.'
    """

    top_n: int | None = Field(default=None, gt=0)
    """Number of nodes to return; None returns all of them."""
    candidates: int = Field(default=COMPARED, gt=0)
    """Number of first nodes that are reranked; the others follow."""
    language: str = default("language")
    """Language of the texts: `auto` to recognise it, its name, or `none`."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("SpotlightRerank needs the question: pass query_str= or query_bundle=.")
        first, others = nodes[: self.candidates], nodes[self.candidates :]
        _dispatcher.event(
            ReRankStartEvent(query=query_bundle, nodes=nodes, top_n=self.top_n or len(nodes), model_name=LOCAL)
        )
        texts = [hit.node.get_content(MetadataMode.NONE) for hit in first] if self.language == AUTO else []
        analyzer = _analyzer(language_of_texts(texts) if self.language == AUTO else self.language)
        units = Units.of(map(_passage, first), analyzer)
        matches = Matches.of(units, {}, None)
        if 2 * np.count_nonzero(matches.is_code) < len(first):
            first = self._reranked(first, units, cut_query(query_bundle.query_str), analyzer)
        result = [*first, *others][: self.top_n]
        _dispatcher.event(ReRankEndEvent(nodes=result))
        return result

    def _reranked(
        self, nodes: Sequence[NodeWithScore], units: Units, question: str, analyzer: Analyzer
    ) -> list[NodeWithScore]:
        vector = unit_vectors(embedded([question])[:, :DIMENSIONS])[0]
        spots = Matches.of(units, _term_rarity(units, analyzer.query_terms(question)), vector).spots()
        ranked = [-rank if hit.score is None else hit.score for rank, hit in enumerate(nodes)]
        scores = (
            _standardised(ranked)
            + _PLACE_WEIGHT * _standardised([spot.words for spot in spots])
            + _PLACE_WEIGHT * _standardised([spot.meaning for spot in spots])
        )
        order = np.argsort(-scores, kind="stable").tolist()
        return [_marked(nodes[at], float(scores[at]), spots[at], rank) for rank, at in enumerate(order, start=1)]


@cache  # not an attribute of the reranker, which can then be copied
def _analyzer(language: str) -> Analyzer:
    return Analyzer(language)


def _marked(hit: NodeWithScore, score: float, spot: Spot, rank: int) -> RetrievedChunk:
    """Return a copy of a hit with a new score, a new rank, and a mark on the sentence or row that matches best."""
    chunk = hit if isinstance(hit, RetrievedChunk) else RetrievedChunk.of(rank, hit)
    mark = Mark.of(Chunk.from_node(hit.node), spot.start, spot.end) if spot.end > spot.start else None
    return chunk.model_copy(update={"score": score, "rank": rank, "spotlight": mark})


def _passage(hit: NodeWithScore) -> tuple[str, Mapping[str, object]]:
    """Return a node's text and the metadata to compare with a question: what is embedded before the text."""
    before = hit.node.get_metadata_str(mode=MetadataMode.EMBED)
    metadata = hit.node.metadata if header_of(hit.node.metadata) else {keys.TITLE: before}
    return hit.node.get_content(MetadataMode.NONE), {**metadata, keys.CONTEXT: before}


def _term_rarity(units: Units, terms: Sequence[str]) -> Mapping[str, float]:
    """Return the inverse document frequency of each distinct term that the passages contain."""
    distinct, passages = list(dict.fromkeys(terms)), units.rows
    contains = np.logical_or.reduceat(units.contain(distinct), units.firsts[:-1], axis=1)
    counts = zip(distinct, np.count_nonzero(contains, axis=1).tolist(), strict=True)
    return {term: math.log(1 + (passages - count + 0.5) / (count + 0.5)) for term, count in counts if count}


def _standardised(values: Sequence[float]) -> NDArray[np.float64]:
    """Return the standard scores (z-scores) of values, or zeros if all values are equal."""
    array = np.asarray(values, dtype=np.float64)
    deviation = float(array.std())
    return (array - array.mean()) / deviation if deviation > 0 else np.zeros(len(array))
