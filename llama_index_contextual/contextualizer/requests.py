"""Calls for contexts as data: what is sent for which chunks, and under which keys the answers are kept. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from llama_index.core.schema import BaseNode

from llama_index_contextual.contextualizer.prompts import group_suffix, header, prefix, suffix
from llama_index_contextual.contextualizer.segments import Segment
from llama_index_contextual.metadata import SECTION
from llama_index_contextual.node_parser.tokenizer import count_tokens
from llama_index_contextual.storage.ledger import ContentKeys
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
        written_tokens: Tokens of the prompt that the provider put into its cache.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    written_tokens: int | None = None

    def share(self, count: int, place: int) -> Usage:
        """Return the part of one of `count` contexts of a call; the parts of all places add up to the whole."""
        parts = (self.input_tokens, self.cached_tokens, self.output_tokens, self.written_tokens)
        return Usage(*(None if n is None else n // count + (place < n % count) for n in parts))


@dataclass(frozen=True)
class Prefix:
    """What all calls of a segment begin with; its counts are made once for all of them.

    Attributes:
        text: Header and segment.
    """

    text: str

    @cached_property
    def tokens(self) -> int:
        """Tokens of the text (o200k_base)."""
        return count_tokens(self.text)

    @cached_property
    def cache_key(self) -> str:
        """A short hash of the text."""
        return hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest()[:32]


@dataclass(frozen=True)
class ContextRequest:
    """One call: a prefix that is the same for all calls of a segment, and what is asked.

    Attributes:
        segment: Where the chunks stand.
        chunks: The chunks whose contexts are asked for.
        shared: Header and segment.
        suffix: The chunk with its own section path, or the ids of several.
        keys: Under which the context of each chunk is kept; see `keyed`.
        ids: Numbers by which several chunks are named, one per chunk; empty where the chunk itself is in the suffix
            and the answer is its context.
    """

    segment: Segment
    chunks: tuple[BaseNode, ...]
    shared: Prefix
    suffix: str
    keys: tuple[str, ...]
    ids: tuple[int, ...] = ()

    @property
    def prefix(self) -> str:
        """Header and segment."""
        return self.shared.text

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the prefix (o200k_base)."""
        return self.shared.tokens

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

    @property
    def cache_key(self) -> str:
        """The same for all calls that share a prefix, so that a provider can bring them to the same machine."""
        return self.shared.cache_key


def keyed(
    segment: Segment, chunks: Sequence[BaseNode], *, prompt: ContextPrompt, model: str
) -> dict[str, list[BaseNode]]:
    """Return chunks of a segment by the keys of their contexts: template, model, header, segment, chunk.

    How many chunks a call asks for is not part of a key, so a change of `chunks_per_call` pays for nothing again. Nor
    is the document's opening: a few words at its head would otherwise change the keys of all its chunks. A chunk's own
    section is, where another chunk has the same text in another section.
    """
    keys = ContentKeys(prompt.identity, model, header(segment, opening=False), segment.text)
    found: dict[str, list[BaseNode]] = {}
    for chunk in chunks:
        text = chunk.get_content()
        section = [str(chunk.metadata.get(SECTION))] if text in segment.ambiguous else []
        found.setdefault(keys.key(text, *section), []).append(chunk)
    return found


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
        chunks_per_call: See `plan_keyed`.
    """
    wanted = {key: same[0] for key, same in keyed(segment, chunks, prompt=prompt, model=model).items()}
    return plan_keyed(segment, wanted, prompt=prompt, chunks_per_call=chunks_per_call)


def plan_keyed(
    segment: Segment, wanted: Mapping[str, BaseNode], *, prompt: ContextPrompt, chunks_per_call: ChunksPerCall
) -> list[ContextRequest]:
    """Return the calls for the contexts of some chunks of a segment, which are given by their keys.

    Args:
        segment: The segment.
        wanted: Chunks by the keys of their contexts; see `keyed`.
        prompt: The template.
        chunks_per_call: 1 is the published method; with more, chunks are marked in the segment instead of repeated.
    """
    size = MAX_CHUNKS_PER_CALL if chunks_per_call == "all" else min(chunks_per_call, MAX_CHUNKS_PER_CALL)
    if size == 1 or len(wanted) == 1:
        return single_requests(segment, wanted, prompt=prompt)
    return group_requests(segment, wanted, prompt=prompt, size=size)


def group_requests(
    segment: Segment, wanted: Mapping[str, BaseNode], *, prompt: ContextPrompt, size: int
) -> list[ContextRequest]:
    """Return calls that ask for up to `size` chunks each by their marks.

    Args:
        segment: The segment.
        wanted: Chunks by their keys.
        prompt: The template.
        size: Chunks of a call, at most.
    """
    numbers = {chunk.node_id: number for number, chunk in enumerate(segment.chunks, start=1)}
    shared = Prefix(prefix(prompt, segment, marked=True))

    def requests() -> Iterator[ContextRequest]:
        items = list(wanted.items())
        for at in range(0, len(items), size):
            keys, group = zip(*items[at : at + size], strict=True)
            ids = tuple(numbers[chunk.node_id] for chunk in group)
            yield ContextRequest(segment, group, shared, group_suffix(prompt, segment, ids), keys, ids)

    return list(requests())


def single_requests(segment: Segment, wanted: Mapping[str, BaseNode], *, prompt: ContextPrompt) -> list[ContextRequest]:
    """Return one call for each chunk, as the published method has it."""
    shared = Prefix(prefix(prompt, segment))
    return [
        ContextRequest(segment, (chunk,), shared, suffix(prompt, segment, chunk), (key,))
        for key, chunk in wanted.items()
    ]
