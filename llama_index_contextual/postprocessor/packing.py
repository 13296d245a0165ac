"""Fit results into a token budget: keep the best ones and compress passages to their best sentences, without an LLM."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import ClassVar

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from pydantic import Field

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.readers.boundaries import Rank, structural_offsets

SEPARATOR_TOKENS = 2
"""Tokens between two passages: an empty line, and one to spare."""

# A word has at least two letters; in scripts without spaces, every character counts as a word.
_WORD = re.compile(r"[^\W_\u2e80-\U0003ffff]{2,}|\d|[^\W_\x00-\u2e7f]")


# ---- sentences -------------------------------------------------------------------------------------------------------


def best_run(text: str, query: str, max_tokens: int) -> tuple[int, int] | None:
    """Return the span of consecutive sentences that cover most of a query within a token budget.

    A word of the query has more weight if fewer sentences contain it, and counts once per run. Of equally good runs,
    the shortest one is taken, then the first. If no sentence contains a word of the query, the beginning is taken.

    Args:
        text: The passage.
        query: The question; words of one letter are ignored.
        max_tokens: Maximum number of tokens of the span.

    Returns:
        Offset of the first character and offset after the last, without white space at the ends; None if no sentence
        fits.

    Example:
        >>> text = "The plant opened in 1998. Error TS-999 means a dry pump. Call the operator."
        >>> start, end = best_run(text, "What does error TS-999 mean?", 12)
        >>> text[start:end]
        'Error TS-999 means a dry pump.'
    """
    sentences = split_sentences(text)
    query_words = set(_words(query))
    matches = [query_words.intersection(_words(text[start:end])) for start, end in sentences]
    counts = Counter(word for words in matches for word in words)
    weight = {word: math.log(1 + len(sentences) / count) for word, count in counts.items()}
    starts = [start for start, _ in sentences]
    # Including the white space after each sentence, so that a run takes no more than the sum of its sentences.
    sizes = [count_tokens(text[start:stop]) for start, stop in pairwise([*starts, len(text)])]
    if not counts:
        last = _last_that_fits(sizes, max_tokens)
        return None if last is None else (sentences[0][0], sentences[last][1])
    best: tuple[float, int, int] | None = None
    span: tuple[int, int] | None = None
    # The best run begins with a sentence that contains a word of the query, and ends with one that adds a word.
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


def sentences_about(text: str, query: str) -> list[tuple[int, int]]:
    """Return the spans of the sentences that contain a word of the query, or of all sentences if none does."""
    query_words = set(_words(query))
    sentences = split_sentences(text)
    return [(start, end) for start, end in sentences if query_words.intersection(_words(text[start:end]))] or sentences


def _last_that_fits(sizes: Sequence[int], max_tokens: int) -> int | None:
    fitting = [at for at, tokens in enumerate(accumulate(sizes)) if tokens <= max_tokens]
    return fitting[-1] if fitting else None


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


# ---- postprocessor ---------------------------------------------------------------------------------------------------


class ContextWindowPacker(BaseNodePostprocessor):
    """Keep the best results that fit into a token budget, in an order for reading.

    Results are taken greedily, by score if all have one, or else in the given order. A result that does not fit is left
    out, or compressed to its best sentences, and the next one is tried. If none fits, the best one is cut to its best
    sentences, with or without `compress`. Documents are in the order of their best results, passages of a document in
    the order of its text. Tokens are counted with o200k_base, for the text that an LLM reads, including metadata.

    Use it before an `AdjacentChunkMerger`: of a passage that is merged from many results, the best part could be cut
    away. After a merger that adds chunks, use it a second time.

    Raises:
        ConfigurationError: Not even a sentence of the best result fits; the message names the budget that it needs.

    Example:
        >>> packer = ContextWindowPacker(max_tokens=4000, compress=True)
        >>> engine = project.as_query_engine(node_postprocessors=[packer])  # doctest: +SKIP
    """

    max_tokens: int = Field(default=4000, ge=1, description="Maximum number of tokens of all passages together.")
    compress: bool = Field(
        default=False, description="Whether to cut a passage that does not fit to its best run of sentences."
    )
    min_tokens: int = Field(default=64, ge=1, description="Minimum number of free tokens for a compressed passage.")

    budget: ClassVar[str] = "max_tokens"
    """Name of the budget in messages."""

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex serialises this class."""
        return "ContextWindowPacker"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = "" if query_bundle is None else query_bundle.query_str
        ranked = _ranked(nodes)
        packed: list[_Placed] = []
        room = self.max_tokens
        for placed in ranked:
            free = room - (SEPARATOR_TOKENS if packed else 0)
            fitting = placed
            tokens = _tokens(placed.hit)
            if tokens > free:
                shorter = _shortened(placed.hit, query, free) if self.compress and free >= self.min_tokens else None
                if shorter is None:
                    continue
                fitting, tokens = replace(placed, hit=shorter), _tokens(shorter)
            packed.append(fitting)
            room = free - tokens
        if ranked and not packed:
            return [self._squeeze(ranked[0].hit, query)]
        return [placed.hit for placed in sorted(packed, key=_reading_order(packed))]

    def _squeeze(self, best: NodeWithScore, query: str) -> NodeWithScore:
        """Return the best result, if none fits, cut to the sentences that fit."""
        shorter = _shortened(best, query, self.max_tokens) or _shortest(best, query)
        if (needed := _tokens(shorter)) > self.max_tokens:
            raise ConfigurationError(
                f"{self.budget}={self.max_tokens} has no room for a sentence of the best passage, with its source and"
                f" context: allow at least {needed}.",
                setting=self.budget,
            )
        return shorter


@dataclass(frozen=True)
class _Placed:
    hit: NodeWithScore
    rank: int  # by score
    place: int  # in the given list


def _ranked(nodes: Sequence[NodeWithScore]) -> list[_Placed]:
    # Not by `relevance`: a reranker only changes the score.
    scores = [hit.score for hit in nodes if hit.score is not None]
    order = list(range(len(nodes)))
    if len(scores) == len(nodes):
        order.sort(key=lambda at: -scores[at])
    return [_Placed(nodes[at], rank, at) for rank, at in enumerate(order)]


def _reading_order(packed: Sequence[_Placed]) -> Callable[[_Placed], tuple[int, int, int]]:
    """Return a sort key: documents by their best result, then passages by their position in the text."""
    first: dict[str, int] = {}
    for placed in packed:
        document = _document(placed.hit)
        first[document] = min(placed.rank, first.get(document, placed.rank))

    def key(placed: _Placed) -> tuple[int, int, int]:
        start = getattr(placed.hit.node, "start_char_idx", None)
        return first[_document(placed.hit)], placed.rank if start is None else start, placed.place

    return key


def _document(hit: NodeWithScore) -> str:
    return hit.node.ref_doc_id or hit.node.node_id


def _tokens(hit: NodeWithScore) -> int:
    return count_tokens(hit.node.get_content(metadata_mode=MetadataMode.LLM))


def _shortened(hit: NodeWithScore, query: str, free: int) -> NodeWithScore | None:
    """Return a hit with its best run of sentences that fits, or None if none fits."""
    node = hit.node
    if not isinstance(node, TextNode):
        return None
    around = _tokens(hit) - count_tokens(node.text)
    allowance = free - around
    while allowance > 0:
        span = best_run(node.text, query, allowance)
        if span is None:
            return None
        shorter = hit.model_copy(update={"node": _cut(node, *span)})
        if (excess := _tokens(shorter) - free) <= 0:
            return shorter
        allowance -= excess  # together with the metadata, the text may take more tokens than alone
    return None


def _shortest(hit: NodeWithScore, query: str) -> NodeWithScore:
    """Return a hit with the shortest sentence about the query; unchanged if its node has no text."""
    node = hit.node
    if not isinstance(node, TextNode):
        return hit
    single = (hit.model_copy(update={"node": _cut(node, *span)}) for span in sentences_about(node.text, query))
    return min(single, key=_tokens, default=hit)


def _cut(node: TextNode, start: int, end: int) -> TextNode:
    """Return a node with a part of its text and the offsets of that part."""
    text = node.text[start:end]
    update: dict[str, object] = {"text": text, "embedding": None}
    if node.start_char_idx is not None and node.end_char_idx is not None:
        update |= {"start_char_idx": node.start_char_idx + start, "end_char_idx": node.start_char_idx + end}
    if keys.TOKEN_COUNT in node.metadata:
        update["metadata"] = {**node.metadata, keys.TOKEN_COUNT: count_tokens(text)}
    return node.model_copy(update=update)
