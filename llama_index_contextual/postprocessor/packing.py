"""The best results that fit a token budget, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from pydantic import Field

from llama_index_contextual import metadata as keys
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.node_parser.tokenizer import count_tokens
from llama_index_contextual.postprocessor.sentences import best_run, sentences_about

SEPARATOR_TOKENS = 2
"""Tokens between two passages: an empty line, and one to spare."""


class ContextWindowPacker(BaseNodePostprocessor):
    """Keeps the best results that fit a token budget, and puts them in the order in which a reader wants them.

    Results are taken greedily, by score where each has one, else as they come; one that does not fit is left out, or
    compressed to its best sentences, and the next is tried. Where none fits, the best one is cut to its best sentences,
    with `compress` or without. Documents come in the order of their best result, and passages of a document in the
    order of its text. Tokens are o200k_base's, of what an LLM reads (metadata included).

    Put it before an `AdjacentChunkMerger`: of a passage that was merged from many results, the best might be what is
    cut away. Behind one that adds chunks, put it once more.

    Raises:
        ConfigurationError: Not even a sentence of the best result fits; the message names the budget that it needs.

    Example:
        >>> packer = ContextWindowPacker(max_tokens=4000, compress=True)
        >>> engine = project.as_query_engine(node_postprocessors=[packer])  # doctest: +SKIP
    """

    max_tokens: int = Field(default=4000, ge=1, description="Tokens of all passages together, at most.")
    compress: bool = Field(
        default=False, description="Whether a passage that does not fit is cut to its best run of sentences."
    )
    min_tokens: int = Field(default=64, ge=1, description="Room below which nothing is compressed any more.")

    budget: ClassVar[str] = "max_tokens"
    """Name of the budget in messages."""

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "ContextWindowPacker"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = "" if query_bundle is None else query_bundle.query_str
        ranked = _ranked(nodes)
        chosen: list[_Placed] = []
        room = self.max_tokens
        for placed in ranked:
            free = room - (SEPARATOR_TOKENS if chosen else 0)
            fitting = placed
            tokens = _tokens(placed.hit)
            if tokens > free:
                shorter = _shortened(placed.hit, query, free) if self.compress and free >= self.min_tokens else None
                if shorter is None:
                    continue
                fitting, tokens = replace(placed, hit=shorter), _tokens(shorter)
            chosen.append(fitting)
            room = free - tokens
        if ranked and not chosen:
            return [self._squeezed(ranked[0].hit, query)]
        return [placed.hit for placed in sorted(chosen, key=_reading_order(chosen))]

    def _squeezed(self, best: NodeWithScore, query: str) -> NodeWithScore:
        """Return the best result, which is alone, cut to the sentences that fit."""
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
    place: int  # in the list that was given


def _ranked(nodes: Sequence[NodeWithScore]) -> list[_Placed]:
    # Not by `relevance`: whoever reranks writes a score, and knows of nothing else.
    scores = [hit.score for hit in nodes if hit.score is not None]
    order = list(range(len(nodes)))
    if len(scores) == len(nodes):
        order.sort(key=lambda at: -scores[at])
    return [_Placed(nodes[at], rank, at) for rank, at in enumerate(order)]


def _reading_order(chosen: Sequence[_Placed]) -> Callable[[_Placed], tuple[int, int, int]]:
    first: dict[str, int] = {}
    for placed in chosen:
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
    """Return a hit with its best run of sentences that fits, or None."""
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
        allowance -= excess  # joined to its metadata, a text may have a token more
    return None


def _shortest(hit: NodeWithScore, query: str) -> NodeWithScore:
    """Return a hit with that sentence about the query that takes the fewest tokens; whole where it is not a text."""
    node = hit.node
    if not isinstance(node, TextNode):
        return hit
    single = (hit.model_copy(update={"node": _cut(node, *span)}) for span in sentences_about(node.text, query))
    return min(single, key=_tokens, default=hit)


def _cut(node: TextNode, start: int, end: int) -> TextNode:
    """Return a node of a part of its text, with the offsets of that part."""
    text = node.text[start:end]
    update: dict[str, object] = {"text": text, "embedding": None}
    if node.start_char_idx is not None and node.end_char_idx is not None:
        update |= {"start_char_idx": node.start_char_idx + start, "end_char_idx": node.start_char_idx + end}
    if keys.TOKEN_COUNT in node.metadata:
        update["metadata"] = {**node.metadata, keys.TOKEN_COUNT: count_tokens(text)}
    return node.model_copy(update=update)
