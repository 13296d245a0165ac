"""What a reading of the contracts does to retrieval: BM25, WordLlama, and both, over chunks of about 800 tokens.

`SentenceSplitter` cuts the chunks. A change of a few characters moves every cut after it, so each figure is the mean
over chunk sizes of 700, 800 and 900 tokens, and readings are compared question by question.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import wordllama
from llama_index.core.node_parser import SentenceSplitter
from numpy.typing import NDArray

from tests.benchmarks.sets import KS, Question, words

SIZES = (700, 800, 900)
CANDIDATES = 100
LEXICAL = 0.7  # of the fused score
LEGS = ("BM25", "WordLlama", "both")

Scores = NDArray[np.float64]  # question, leg, k


class Retrieval:
    """Scores readings of the same documents against the same questions."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self._questions = questions
        self._model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
        self._embedded = self._embed([question.text for question in questions])
        self._tokens = _tokens([question.text for question in questions])

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.nan_to_num(self._model.embed(list(texts), norm=True))

    def recall(self, texts: Mapping[str, str], *, prefixes: Mapping[str, str] | None = None) -> Scores:
        """Return recall at each k of each leg for each question.

        Args:
            texts: File name to text.
            prefixes: File name to a text that is put before each chunk of the file, as a context would be.
        """
        return np.mean([self._recall(texts, prefixes or {}, size) for size in SIZES], axis=0)

    def _recall(self, texts: Mapping[str, str], prefixes: Mapping[str, str], size: int) -> Scores:
        splitter = SentenceSplitter(chunk_size=size, chunk_overlap=size // 10)
        chunks = [(name, chunk) for name, text in texts.items() for chunk in splitter.split_text(text)]
        indexed = [f"{prefixes.get(name, '')}{chunk}" for name, chunk in chunks]
        lexical = bm25s.BM25()
        lexical.index(_tokens(indexed), show_progress=False)
        semantic = self._embedded @ self._embed(indexed).T
        holds = _Holders(chunks)
        out = np.zeros((len(self._questions), len(LEGS), len(KS)))
        for at, question in enumerate(self._questions):
            hits = [holds.of(item) for item in question.evidence]
            bm25 = lexical.get_scores(self._tokens[at])
            for leg, scores in enumerate((bm25, semantic[at], _fused(bm25, semantic[at]))):
                ranks = {chunk: rank for rank, chunk in enumerate(np.argsort(-scores, kind="stable")[: max(KS)])}
                best = [min((ranks.get(chunk, CANDIDATES) for chunk in chunks), default=CANDIDATES) for chunks in hits]
                out[at, leg] = [np.mean([rank < k for rank in best]) for k in KS]
        return out


class _Holders:
    """Knows which chunks hold an evidence item."""

    def __init__(self, chunks: Sequence[tuple[str, str]]) -> None:
        self._words = [Counter(words(text)) for _, text in chunks]
        self._of_file: dict[str, list[int]] = defaultdict(list)
        for at, (name, _) in enumerate(chunks):
            self._of_file[name].append(at)

    def of(self, item: Mapping[str, Any]) -> list[int]:
        """Return the chunks of the same file with at least 80 % of the item's words."""
        need = item["words"]
        return [
            at
            for at in self._of_file[item["file"]]
            if sum(min(n, self._words[at][word]) for word, n in need.items()) >= 0.8 * need.total()
        ]


def _tokens(texts: Sequence[str]) -> list[list[str]]:
    import Stemmer

    stemmer = Stemmer.Stemmer("english")
    return bm25s.tokenize(list(texts), stopwords="english", stemmer=stemmer, show_progress=False, return_ids=False)


def _fused(lexical: Any, semantic: Any) -> Any:
    top = np.union1d(np.argsort(-lexical)[:CANDIDATES], np.argsort(-semantic)[:CANDIDATES])
    fused = np.full(len(lexical), -1.0)
    fused[top] = LEXICAL * _scaled(lexical[top]) + (1 - LEXICAL) * _scaled(semantic[top])
    return fused


def _scaled(scores: Any) -> Any:
    return (scores - scores.min()) / (np.ptp(scores) + 1e-9)


def line(label: str, scores: Scores, before: Scores | None = None) -> str:
    """Return recall of each leg in per cent, and the mean difference to another reading with its standard error."""
    parts = [f"{label:34s}"]
    for leg, name in enumerate(LEGS):
        parts.append(f"{name} " + " ".join(f"{100 * value:5.1f}" for value in scores[:, leg].mean(axis=0)))
        if before is not None:
            change = 100 * (scores[:, leg] - before[:, leg]).mean(axis=1)
            parts.append(f"({change.mean():+5.2f} ± {change.std() / len(change) ** 0.5:.2f})")
    return "  ".join(parts)
