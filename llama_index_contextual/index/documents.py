"""Index of whole documents, whose scores are added to the scores of their chunks.

A question often mentions a document ("the agreement between A and B", "the MergeScheduler") when the passage with the
answer does not. The index therefore has one BM25 entry per document: file name, title and opening. When rankings are
fused, each chunk also receives a share of the score of the best chunk in its document. This does not affect the order
if every document has a single chunk or if there is only one document.

The name of a document does not distinguish its chunks: every chunk of the contract between A and B may mention A.
A term in a chunk is therefore weighted by its rarity in the other chunks of the document. The score of the best chunk
shows how well the term matches the document.

Source: document evidence is added to passage evidence as in Callan, "Passage-Level Evidence in Document Retrieval",
SIGIR 1994. The score of the best passage represents the document as in Dai and Callan, "Deeper Text Understanding for
IR with Contextual Neural Language Modeling", SIGIR 2019 (MaxP). A document's term probabilities are smoothed with the
probabilities in the collection as in Zhai and Lafferty, "A Study of Smoothing Methods for Language Models Applied to
Ad Hoc Information Retrieval", SIGIR 2001.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual.index.analysis import DEFAULT_LANGUAGE, is_period
from llama_index_contextual.index.bm25 import (
    PERIOD_WEIGHT,
    LexicalIndex,
    LexicalQuery,
    QueryTerms,
)

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

OPENING_CHARACTERS = 400

_ORDINARY_CHUNKS = 10  # mean number of chunks per document at which `emphasis` is 1
# Number of chunks above which a document's own frequencies outweigh the frequencies in all documents. A value of 30
# raises nDCG@10 by a point for contracts, but lowers it by a point for code with LLM contexts, which use the same words
# for all chunks of a file.
_PRIOR_CHUNKS = 100
_CACHED_SHARES = 1_000_000  # maximum number of rows in the cache, eight bytes each
_JOINTS = re.compile(r"(\d{4}-\d\d-\d\d)(?!\d)|[_\W]+")  # dates are not split


def document_entry(nodes: Sequence[BaseNode]) -> str:
    """Return the indexed text of a document: the words of its file name, its title, and its first 400 characters.

    Args:
        nodes: Chunks of the document, at least one.
    """
    first = min(nodes, key=lambda node: getattr(node, "start_char_idx", None) or 0)
    name, title = (keys.label_of(first.metadata, key) for key in (keys.FILE_NAME, keys.TITLE))
    words = _JOINTS.sub(lambda match: match[1] or " ", name)
    return " ".join([words, title, first.get_content()[:OPENING_CHARACTERS]]).strip()


class DocumentIndex:
    """A BM25 index of documents, with a mapping of chunks to documents.

    Args:
        lexical_index: The index; row i is the i-th document.
        rows: The row of each chunk's document; the chunks are in the order of the document store.
    """

    def __init__(self, lexical_index: LexicalIndex, rows: NDArray[np.int32]) -> None:
        self.lexical_index = lexical_index
        self.rows = rows
        self._shares: LRUCache[str, NDArray[np.float64]] = LRUCache(_CACHED_SHARES, len)

    @classmethod
    def build(cls, documents: Iterable[Sequence[BaseNode]], *, language: str = DEFAULT_LANGUAGE) -> DocumentIndex:
        """Build an index of documents, each given as its chunks, in the order of the document store."""
        chunks = list(documents)
        rows = np.repeat(np.arange(len(chunks), dtype=np.int32), [len(nodes) for nodes in chunks])
        return cls(LexicalIndex.build(map(document_entry, chunks), language=language), rows)

    @cached_property
    def emphasis(self) -> float:
        """Factor for the weight of document scores, which is 1 if documents have ten chunks on average.

        The best of many chunks can have a high score by chance, so the weight grows with the logarithm of the mean
        number of chunks per document.
        """
        return math.log1p(np.bincount(self.rows, minlength=1).mean()) / math.log1p(_ORDINARY_CHUNKS)

    def support(self, query: LexicalQuery, chunks: NDArray[np.int64]) -> DocumentScores:
        """Return, for each of the chunks, the score and the rank of its document.

        Documents with equal scores share the best rank.

        Fiscal years and quarters have full weight, because they identify documents rather than passages.
        """
        counts = query if isinstance(query, Mapping) else self.lexical_index.query(query).counts
        counts = {term: weight / (PERIOD_WEIGHT if is_period(term) else 1.0) for term, weight in counts.items()}
        scores = self.lexical_index.scores(counts)
        ordered = np.sort(scores)
        of_chunks = scores[self.rows[chunks]]
        ranks = len(ordered) - np.searchsorted(ordered, of_chunks, side="right") + 1
        return DocumentScores(of_chunks, np.where(of_chunks > 0, ranks, 0))

    def shared_terms(self, terms: QueryTerms, chunks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the part of each chunk's BM25 score that is due to terms also found elsewhere in its document.

        This is the difference between the score and a second score, for which the idf of a term is computed within the
        document, as the negative logarithm of the probability that a chunk of the document contains the term. This
        probability is estimated from the other chunks of the document and from all documents, which count as 100
        additional chunks. If a document has only one chunk, the difference is 0.

        Args:
            terms: The query in the index of chunks.
            chunks: Rows of the chunks.
        """
        shared = np.zeros(terms.size)
        if terms.known:
            values = [terms.counts[term] * share for term, share in zip(terms.known, self._shared(terms), strict=True)]
            np.add.at(shared, terms.rows, np.concatenate(values))
        return shared[chunks]

    def _shared(self, terms: QueryTerms) -> list[NDArray[np.float64]]:
        """Return, for each term, `shared_terms` of each chunk that contains it, if the term had weight 1."""
        shares = self._shares.get_all(terms.known)
        missing = [at for at, share in enumerate(shares) if share is None]
        if missing:
            postings = [terms.postings[at] for at in missing]
            sizes = [len(rows) for rows, _ in postings]
            documents = self.rows[np.concatenate([rows for rows, _ in postings])]
            stops = [*itertools.accumulate(sizes)]
            # The chunks of a document are consecutive, and so are the postings of a term.
            is_first = np.ones(len(documents), dtype=np.bool_)
            np.not_equal(documents[1:], documents[:-1], out=is_first[1:])
            is_first[stops[:-1]] = True
            firsts = np.flatnonzero(is_first)
            holders = np.append(firsts[1:], len(documents)) - firsts
            others = self._sizes[documents[firsts]] - 1
            # The idf is the negative logarithm of this.
            probabilities = (np.repeat(terms.frequencies[missing], sizes)[firsts] + 0.5) / (terms.size + 1)
            within = (holders - 1 + _PRIOR_CHUNKS * probabilities) / (others + _PRIOR_CHUNKS)
            parts = np.where(others > 0, 1 - np.log(within) / np.log(probabilities), 0.0)
            computed = np.concatenate([scores for _, scores in postings]) * np.repeat(parts, holders)
            # Copies, so that the cache does not keep the array of all terms.
            new = [computed[stop - size : stop].copy() for size, stop in zip(sizes, stops, strict=True)]
            self._shares.put_all(zip([terms.known[at] for at in missing], new, strict=True))
            for at, share in zip(missing, new, strict=True):
                shares[at] = share
        return [share for share in shares if share is not None]

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        """Number of chunks of each document."""
        return np.bincount(self.rows)


@dataclass(frozen=True, eq=False)
class DocumentScores:
    """Score and rank of each chunk's document.

    Attributes:
        scores: BM25 score of the document, 0 if it contains no query term; shape (n,).
        ranks: Rank of the document, starting at 1; documents with equal scores share the best rank; 0 if the score is
            0; shape (n,).
    """

    scores: NDArray[np.float32]
    ranks: NDArray[np.int64]

    def at(self, positions: NDArray[np.intp]) -> DocumentScores:
        """Return the scores and ranks at the given positions."""
        return DocumentScores(self.scores[positions], self.ranks[positions])
