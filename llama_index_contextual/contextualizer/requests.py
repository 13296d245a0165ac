"""Calls for contexts as data: what is sent for which chunks, and under which keys the answers are kept. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from llama_index.core.schema import BaseNode

from llama_index_contextual.contextualizer.prompts import group_suffix, header, prefix, suffix
from llama_index_contextual.contextualizer.segments import Segment
from llama_index_contextual.metadata import SECTION
from llama_index_contextual.node_parser.tokenizer import count_tokens
from llama_index_contextual.storage.ledger import content_key
from llama_index_contextual.templates import ContextPrompt

ChunksPerCall = int | Literal["all"]

MAX_CHUNKS_PER_CALL = 100
"""More contexts than these would not fit into the answer of most models."""

RESPONSE_FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "contexts",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "contexts": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"id": {"type": "integer"}, "context": {"type": "string"}},
                        "required": ["id", "context"],
                        "additionalProperties": False,
                    },
                }
            },
            "required": ["contexts"],
            "additionalProperties": False,
        },
    },
}
"""What a call for several contexts asks for, in OpenAI's words. It is part of the cached prefix, so it never varies."""


@dataclass(frozen=True)
class Usage:
    """Tokens of a call by the provider's own count; None where it gave none.

    Attributes:
        input_tokens: Tokens of the prompt, the cached ones included.
        cached_tokens: Those of them that the provider took from its cache.
        output_tokens: Tokens of the answer.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None

    def share(self, count: int, place: int) -> Usage:
        """Return the part of one of `count` contexts of a call; the parts of all places add up to the whole."""
        parts = (self.input_tokens, self.cached_tokens, self.output_tokens)
        return Usage(*(None if n is None else n // count + (place < n % count) for n in parts))


@dataclass(frozen=True)
class ContextRequest:
    """One call: a prefix that is the same for all calls of a segment, and what is asked.

    Attributes:
        segment: Where the chunks stand.
        chunks: The chunks whose contexts are asked for.
        prefix: Header and segment.
        suffix: The chunk with its own section path, or the ids of several.
        keys: Under which the context of each chunk is kept; see `context_key`.
        prefix_tokens: Tokens of the prefix (o200k_base).
        ids: Numbers by which several chunks are named, one per chunk; empty where the chunk itself is in the suffix
            and the answer is its context.
    """

    segment: Segment
    chunks: tuple[BaseNode, ...]
    prefix: str
    suffix: str
    keys: tuple[str, ...]
    prefix_tokens: int
    ids: tuple[int, ...] = ()

    @property
    def prompt(self) -> str:
        """The whole prompt."""
        return self.prefix + self.suffix

    @property
    def response_format(self) -> dict[str, Any] | None:
        """The form of the answer, for providers that can be held to one."""
        return RESPONSE_FORMAT if self.ids else None

    @cached_property
    def suffix_tokens(self) -> int:
        """Tokens of the suffix (o200k_base)."""
        return count_tokens(self.suffix)

    @property
    def input_tokens(self) -> int:
        """Tokens of the prompt's text (o200k_base), without what the chat format adds."""
        return self.prefix_tokens + self.suffix_tokens

    @cached_property
    def cache_key(self) -> str:
        """The same for all calls that share a prefix, so that a provider can bring them to the same machine."""
        return hashlib.sha256(self.prefix.encode("utf-8", "replace")).hexdigest()[:32]


def context_key(segment: Segment, chunk: BaseNode, *, prompt: ContextPrompt, model: str) -> str:
    """Return the key of a context: template, model, header, segment, chunk.

    How many chunks a call asks for is not part of it, so a change of `chunks_per_call` pays for nothing again. Nor is
    the document's opening: a few words at its head would otherwise change the keys of all its chunks. A chunk's own
    section is, where another chunk has the same text in another section.
    """
    text = chunk.get_content()
    section = [str(chunk.metadata.get(SECTION))] if text in segment.ambiguous else []
    return content_key(prompt.identity, model, header(segment, opening=False), segment.text, text, *section)


def plan_requests(
    segment: Segment,
    chunks: Sequence[BaseNode],
    *,
    prompt: ContextPrompt,
    model: str,
    chunks_per_call: ChunksPerCall = 1,
) -> list[ContextRequest]:
    """Return the calls for the contexts of some chunks of a segment; chunks with the same key are asked for once.

    Args:
        segment: The segment.
        chunks: Those of its chunks that need a context.
        prompt: The template.
        model: Name of the LLM, as provider:name.
        chunks_per_call: 1 is the published method; with more, chunks are marked in the segment instead of repeated.
    """
    wanted: dict[str, BaseNode] = {}
    for chunk in chunks:
        wanted.setdefault(context_key(segment, chunk, prompt=prompt, model=model), chunk)
    size = MAX_CHUNKS_PER_CALL if chunks_per_call == "all" else min(chunks_per_call, MAX_CHUNKS_PER_CALL)
    if size == 1 or len(wanted) == 1:
        return single_requests(segment, wanted, prompt=prompt)
    return group_requests(segment, wanted, prompt=prompt, size=size)


def group_requests(
    segment: Segment, wanted: dict[str, BaseNode], *, prompt: ContextPrompt, size: int
) -> list[ContextRequest]:
    """Return calls that ask for up to `size` chunks each by their marks.

    Args:
        segment: The segment.
        wanted: Chunks by their keys.
        prompt: The template.
        size: Chunks of a call, at most.
    """
    numbers = {chunk.node_id: number for number, chunk in enumerate(segment.chunks, start=1)}
    shared = prefix(prompt, segment, marked=True)
    tokens = count_tokens(shared)

    def requests() -> Iterator[ContextRequest]:
        items = list(wanted.items())
        for at in range(0, len(items), size):
            keys, group = zip(*items[at : at + size], strict=True)
            ids = tuple(numbers[chunk.node_id] for chunk in group)
            yield ContextRequest(segment, group, shared, group_suffix(prompt, segment, ids), keys, tokens, ids)

    return list(requests())


def single_requests(segment: Segment, wanted: dict[str, BaseNode], *, prompt: ContextPrompt) -> list[ContextRequest]:
    """Return one call for each chunk, as the published method has it."""
    shared = prefix(prompt, segment)
    tokens = count_tokens(shared)
    return [
        ContextRequest(segment, (chunk,), shared, suffix(prompt, segment, chunk), (key,), tokens)
        for key, chunk in wanted.items()
    ]
