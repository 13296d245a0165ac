"""The best run of sentences of a passage for a query: pure, without a model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise

from llama_index_contextual.node_parser.boundaries import Rank, structural_offsets
from llama_index_contextual.node_parser.tokenizer import count_tokens

# As in most scripts a word has several letters; a letter of a script without spaces says as much as a word.
_WORD = re.compile(r"[^\W_\u2e80-\U0003ffff]{2,}|\d|[^\W_\x00-\u2e7f]")


def best_run(text: str, query: str, max_tokens: int) -> tuple[int, int] | None:
    """Return the span of the sentences, one after the other, that hold most of a query within a token budget.

    A word of the query counts the more, the fewer sentences of the passage hold it, and once however often a run holds
    it. Of equally good runs the shortest is taken, then the first; where no sentence holds any word, the beginning.

    Args:
        text: The passage.
        query: The question; words of one letter do not count.
        max_tokens: Tokens of the span, at most.

    Returns:
        First character and the one behind the last, without white space at the ends; None if none fits.

    Example:
        >>> text = "The plant opened in 1998. Error TS-999 means a dry pump. Call the operator."
        >>> start, end = best_run(text, "What does error TS-999 mean?", 12)
        >>> text[start:end]
        'Error TS-999 means a dry pump.'
    """
    sentences = split_sentences(text)
    wanted = set(_words(query))
    held = [wanted.intersection(_words(text[start:end])) for start, end in sentences]
    spread = Counter(word for words in held for word in words)
    weight = {word: math.log(1 + len(sentences) / count) for word, count in spread.items()}
    starts = [start for start, _ in sentences]
    # With the white space behind them, so that together sentences take no more than the sum.
    sizes = [count_tokens(text[start:stop]) for start, stop in pairwise([*starts, len(text)])]
    if not spread:
        last = _last_that_fits(sizes, max_tokens)
        return None if last is None else (sentences[0][0], sentences[last][1])
    best: tuple[float, int, int] | None = None
    found: tuple[int, int] | None = None
    # The best run begins with a sentence that holds a word, and ends with one that holds a new word.
    for first in (at for at, words in enumerate(held) if words):
        words: set[str] = set()
        value = 0.0
        tokens = 0
        for last in range(first, len(sentences)):
            tokens += sizes[last]
            if tokens > max_tokens:
                break
            new = held[last] - words
            if not new:
                continue
            words |= new
            value += math.fsum(weight[word] for word in new)
            score = (round(value, 9), -tokens, -first)
            if best is None or score > best:
                best, found = score, (sentences[first][0], sentences[last][1])
    return found


def sentences_about(text: str, query: str) -> list[tuple[int, int]]:
    """Return the spans of the sentences that hold a word of a query; of all sentences where none does."""
    wanted = set(_words(query))
    sentences = split_sentences(text)
    return [(start, end) for start, end in sentences if wanted.intersection(_words(text[start:end]))] or sentences


def _last_that_fits(sizes: Sequence[int], max_tokens: int) -> int | None:
    fitting = [at for at, tokens in enumerate(accumulate(sizes)) if tokens <= max_tokens]
    return fitting[-1] if fitting else None


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Return the spans of sentences and list items, without the white space between them."""
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
