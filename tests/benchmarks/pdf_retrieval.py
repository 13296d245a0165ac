"""What a reading of the contracts does to retrieval: BM25, WordLlama, and both, over chunks of about 800 tokens.

`SentenceSplitter` cuts the chunks. A change of a few characters moves every cut after it, so each figure is the mean
over chunk sizes of 700, 800 and 900 tokens, and readings are compared question by question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

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
    """Scores readings of the same documents against the same questions; what readings have in common is done once."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self._questions = questions
        self._model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
        self._embedded = self._embed([question.text for question in questions])
        self._tokens = _tokens([question.text for question in questions])
        self._cut: dict[tuple[str, str, int], _Cut] = {}
        self._indexed: dict[tuple[str, str, str, int], _Indexed] = {}

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
        cuts = {name: self._document(name, text, size) for name, text in texts.items()}
        indexed = [self._index(name, text, prefixes.get(name, ""), size) for name, text in texts.items()]
        starts = dict(zip(cuts, accumulate((len(cut.chunks) for cut in cuts.values()), initial=0), strict=False))
        lexical = bm25s.BM25()
        lexical.index([tokens for one in indexed for tokens in one.tokens], show_progress=False)
        semantic = self._embedded @ np.concatenate([one.vectors for one in indexed]).T
        out = np.zeros((len(self._questions), len(LEGS), len(KS)))
        for at, question in enumerate(self._questions):
            files = [item["file"] for item in question.evidence]
            hits = [
                [starts[file] + chunk for chunk in cuts[file].holders[at, number]] for number, file in enumerate(files)
            ]
            bm25 = lexical.get_scores(self._tokens[at])
            for leg, scores in enumerate((bm25, semantic[at], _fused(bm25, semantic[at]))):
                ranks = {chunk: rank for rank, chunk in enumerate(np.argsort(-scores, kind="stable")[: max(KS)])}
                best = [min((ranks.get(chunk, CANDIDATES) for chunk in chunks), default=CANDIDATES) for chunks in hits]
                out[at, leg] = [np.mean([rank < k for rank in best]) for k in KS]
        return out

    def _document(self, name: str, text: str, size: int) -> _Cut:
        key = (name, text, size)
        if key not in self._cut:
            chunks = SentenceSplitter(chunk_size=size, chunk_overlap=size // 10).split_text(text)
            counts = [Counter(words(chunk)) for chunk in chunks]
            holders = {
                (at, number): [chunk for chunk, have in enumerate(counts) if _holds(have, item["words"])]
                for at, question in enumerate(self._questions)
                for number, item in enumerate(question.evidence)
                if item["file"] == name
            }
            self._cut[key] = _Cut(chunks, holders)
        return self._cut[key]

    def _index(self, name: str, text: str, prefix: str, size: int) -> _Indexed:
        key = (name, text, prefix, size)
        if key not in self._indexed:
            chunks = [prefix + chunk for chunk in self._document(name, text, size).chunks]
            self._indexed[key] = _Indexed(_tokens(chunks), self._embed(chunks))
        return self._indexed[key]


class _Cut(NamedTuple):
    """The chunks of a document, and for each question and item of evidence those that hold it."""

    chunks: list[str]
    holders: dict[tuple[int, int], list[int]]


class _Indexed(NamedTuple):
    """What is indexed of the chunks of a document."""

    tokens: list[list[str]]
    vectors: NDArray[np.float32]


def _holds(have: Mapping[str, int], need: Mapping[str, int]) -> bool:
    """Whether a chunk has at least 80 % of the words of an item."""
    return sum(min(n, have[word]) for word, n in need.items()) >= 0.8 * sum(need.values())


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
