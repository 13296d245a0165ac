"""Embed texts that are longer than an embedding model reads: in windows, whose vectors are averaged.

Many models that run on one's own machine read 256 or 512 tokens, and ignore the rest without a word; a chunk with its
context has about 900. Each window overlaps the previous one, and begins with the context of the chunk if that leaves
most of the window for the text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from numpy.typing import NDArray

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual._utils.tokens import replace_surrogates, token_widths
from llama_index_contextual.embeddings.batching import Booking, aembed_parts, book_nothing, unit_vectors
from llama_index_contextual.embeddings.known import known_model

Span = tuple[int, int]
TokenSpans = Callable[[str], Sequence[Span]]

OVERLAP = 8
"""The overlap of two windows, as the divisor of their length."""

_MARGIN = 2  # A piece of a text may have a token more on its own than within the text.
_UNKNOWN_TOKENIZER = 0.7  # Tokens of o200k_base for a token of another vocabulary: small ones split more words.


@dataclass(frozen=True)
class Window:
    """A part of a text, as it is embedded.

    Attributes:
        text: The part, with the context before it.
        tokens: Its number of tokens without the context, which is its weight.
    """

    text: str
    tokens: int


@dataclass(frozen=True)
class WindowSplitter:
    """Splits texts into windows that an embedding model reads completely.

    Attributes:
        limit: Number of tokens that the model reads.
        room: Number of tokens of a window: fewer, as the model adds some of its own.
        spans: Returns the spans of the tokens of a text in characters.
    """

    limit: int
    room: int
    spans: TokenSpans

    def name(self, model: str) -> str:
        """Return the name under which averaged vectors of a model are stored."""
        return f"{model} in windows of {self.limit} tokens"

    def split(self, text: str, context_end: int = 0) -> list[Window]:
        """Return the windows of a text; only one if the model reads it completely.

        Args:
            text: The text.
            context_end: Length of the context at its beginning.
        """
        if text.isascii() and len(text) <= self.room:  # a token has at least one byte
            return [Window(text, 1)]
        spans = [span for span in self.spans(text) if span[0] < span[1]]
        if len(spans) <= self.room:
            return [Window(text, len(spans))]
        context = sum(1 for start, _ in spans if start < context_end)
        room = self.room - context
        head, spans = (text[:context_end], spans[context:]) if 2 * room >= self.room else ("", spans)
        windows = []
        for first, last in _even_parts(text, spans, room if head else self.room):
            part = text[spans[first][0] : spans[last - 1][1]].strip()
            if part:
                windows.append(Window(head + part, last - first))
        return windows or [Window(text, len(spans))]


def _even_parts(text: str, spans: Sequence[Span], room: int) -> list[Span]:
    """Return the indices of overlapping parts of equal length, each of at most `room` tokens, cut between words."""
    overlap = room // OVERLAP
    count = max(1, -(-(len(spans) - overlap) // (room - overlap)))
    size = min(room, -(-(len(spans) + (count - 1) * overlap) // count))
    starts = [round(at * (len(spans) - size) / (count - 1)) if count > 1 else 0 for at in range(count)]

    def begins_word(at: int) -> bool:
        start = spans[at][0]
        return text[start].isspace() or start == 0 or text[start - 1].isspace()

    parts = []
    for start in starts:
        end = start + size
        # By at most half the overlap, so that nothing is lost between two parts.
        nearby = overlap // 2
        first = next((at for at in range(start, start + nearby) if begins_word(at)), start) if start else 0
        last = next((at for at in range(end, end - nearby, -1) if at == len(spans) or begins_word(at)), end)
        parts.append((first, last))
    return parts


def window_splitter(model: BaseEmbedding, name: str, window: int | Literal["auto"] | None) -> WindowSplitter | None:
    """Return the splitter for the texts of an embedding model, or None if it cuts off texts itself or reads all.

    The number of tokens that it reads is asked of a sentence-transformers or fastembed model, and of the table of
    `known` models otherwise. Without the model's own tokenizer, tokens are estimated with a margin.

    Args:
        model: The embedding model.
        name: Its name, as in the settings.
        window: Number of tokens that the model reads; "auto" to find it out; None for no windows.
    """
    if window is None:
        return None
    inner: Any = getattr(model, "_model", None)
    known = known_model(name)
    limit = _own_limit(inner) or (known.max_tokens if known else None)
    if window != "auto":
        limit = min(window, limit or window)
    if not limit:
        return None
    tokenizer = _own_tokenizer(inner)
    if tokenizer is None:
        return WindowSplitter(limit, max(8, int(_UNKNOWN_TOKENIZER * limit)), _estimated_spans)
    prompt = getattr(model, "text_instruction", None) or ""
    own = tokenizer.num_special_tokens_to_add(False) + len(tokenizer.encode(prompt, add_special_tokens=False))
    return WindowSplitter(limit, max(8, limit - own - _MARGIN), _spans_by(tokenizer))


def _own_limit(inner: Any) -> int | None:
    """Return how many tokens a sentence-transformers or fastembed model reads, or None."""
    limit = getattr(inner, "max_seq_length", None)
    if limit is None and (tokenizer := _fastembed_tokenizer(inner)) is not None:
        limit = (tokenizer.truncation or {}).get("max_length")
    return limit if isinstance(limit, int) and limit > 0 else None


def _own_tokenizer(inner: Any) -> Any:
    """Return a tokenizer like the model's, of the package `tokenizers`, which cuts nothing off; None without one."""
    tokenizer = getattr(getattr(inner, "tokenizer", None), "backend_tokenizer", None) or _fastembed_tokenizer(inner)
    if tokenizer is None or not hasattr(tokenizer, "to_str"):
        return None
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _fastembed_tokenizer(inner: Any) -> Any:
    return getattr(getattr(inner, "model", None), "tokenizer", None)


def _spans_by(tokenizer: Any) -> TokenSpans:
    def spans(text: str) -> Sequence[Span]:
        offsets: Sequence[Span] = tokenizer.encode(replace_surrogates(text), add_special_tokens=False).offsets
        return offsets

    return spans


def _estimated_spans(text: str) -> Sequence[Span]:
    ends = np.cumsum(token_widths(replace_surrogates(text)), dtype=np.int64).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


async def aembed_windows(
    model: BaseEmbedding,
    texts: Sequence[Sequence[Window]],
    *,
    name: str,
    policy: RetryPolicy | None = None,
    booking: Booking = book_nothing,
) -> AsyncGenerator[tuple[list[int], NDArray[np.float32]], None]:
    """Yield the unit vectors of texts in windows: the mean of those of the windows, weighted by their tokens.

    The arguments, errors and results are those of `aembed_parts`; the indices are those of the texts.
    """
    owners = [(at, window) for at, windows in enumerate(texts) for window in windows]
    sums: dict[int, NDArray[np.float32]] = {}
    waiting = {at: len(windows) for at, windows in enumerate(texts)}
    parts = aembed_parts(model, [window.text for _, window in owners], name=name, policy=policy, booking=booking)
    async with aclosing(parts) as answers:
        async for places, vectors in answers:
            complete = []
            for place, vector in zip(places, vectors, strict=True):
                at, window = owners[place]
                weighted = vector if len(texts[at]) == 1 else vector * np.float32(window.tokens)
                sums[at] = sums[at] + weighted if at in sums else weighted
                waiting[at] -= 1
                if not waiting[at]:
                    complete.append(at)
            if complete:
                rows = np.stack([sums.pop(at) for at in complete])
                averaged = np.array([len(texts[at]) > 1 for at in complete])
                if averaged.any():  # others stay as they are, bit by bit
                    rows[averaged] = await asyncio.to_thread(unit_vectors, rows[averaged])
                yield complete, rows
