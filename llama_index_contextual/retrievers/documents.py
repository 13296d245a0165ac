"""Index of documents, whose scores support their chunks.

A question often names its document ("the agreement between A and B", "the MergeScheduler") while the passage with the
answer does not. The index therefore has one BM25 entry per document: file name, title and opening. Fusion also adds a
share of the score of a document's best chunk to each of its chunks, which has no effect on the order if every document
has a single chunk or there is a single document.

Source: document evidence in addition to passage evidence, as in Callan, "Passage-Level Evidence in Document Retrieval",
SIGIR 1994; the best passage as the score of the document, as in Dai, Callan, "Deeper Text Understanding for IR with
Contextual Neural Language Modeling", SIGIR 2019 (MaxP).
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from llama_index.core.schema import BaseNode
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual.errors import InputError
from llama_index_contextual.retrievers.base import DocumentScores
from llama_index_contextual.retrievers.bm25 import LexicalIndex, LexicalIndexBuilder, LexicalQuery
from llama_index_contextual.storage import files
from llama_index_contextual.storage.docstore import SQLiteDocumentStore

OPENING_CHARACTERS = 400
ROWS_FILE = "rows.npy"

_ORDINARY_CHUNKS = 10  # mean number of chunks of a document for which the weight is as set
_JOINTS = re.compile(r"[_\W]+")


def document_entry(nodes: Sequence[BaseNode]) -> str:
    """Return the indexed text of a document: the words of its file name, its title, and its first 400 characters.

    Args:
        nodes: Its chunks, at least one.
    """
    first = min(nodes, key=lambda node: getattr(node, "start_char_idx", None) or 0)
    name, title = first.metadata.get(keys.FILE_NAME), first.metadata.get(keys.TITLE)
    return " ".join([_JOINTS.sub(" ", name or ""), title or "", first.get_content()[:OPENING_CHARACTERS]]).strip()


class DocumentIndex:
    """A BM25 index over documents, with the document of each chunk.

    Args:
        lexical_index: The index; row i is the i-th document.
        rows: The row of the document for each chunk, in the order of the document store.
    """

    def __init__(self, lexical_index: LexicalIndex, rows: NDArray[np.int32]) -> None:
        self.lexical_index = lexical_index
        self.rows = rows

    def support(self, query: LexicalQuery, chunks: NDArray[np.int64]) -> DocumentScores:
        """Return score and rank of the document of each chunk, given by its row; equal scores share the best rank."""
        scores = self.lexical_index.scores(query)
        ordered = np.sort(scores)
        of_chunks = scores[self.rows[chunks]]
        ranks = len(ordered) - np.searchsorted(ordered, of_chunks, side="right") + 1
        return DocumentScores(of_chunks, np.where(of_chunks > 0, ranks, 0))

    def save(self, directory: Path) -> None:
        """Write the index with its settings."""
        self.lexical_index.save(directory)
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, self.rows, version=(1, 0))
        files.write(directory / ROWS_FILE, buffer.getvalue())

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Open an index, memory-mapped.

        Raises:
            InputError: The directory has no index.
        """
        index = LexicalIndex.load(directory)
        rows = np.load(directory / ROWS_FILE, mmap_mode="r")
        return cls(index, np.asarray(rows))  # the same memory; indexing a `memmap` takes longer


@dataclass
class DocumentIndexBuilder:
    """Build a `DocumentIndex` from documents that are added in the order of the document store.

    Args:
        language: A Snowball stemmer's name, or `none`.
    """

    language: str = "english"
    _rows: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._entries = LexicalIndexBuilder(language=self.language)
        self._size = 0

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Add a document by its chunks, at least one."""
        self._entries.add([document_entry(nodes)])
        self._rows += [self._size] * len(nodes)
        self._size += 1

    def build(self) -> DocumentIndex:
        """Return the index."""
        return DocumentIndex(self._entries.build(), np.asarray(self._rows, dtype=np.int32))


class DocumentLeg:
    """The index of documents as part of a fusion: it adds to the scores of candidates, but no candidates.

    Args:
        index: The index of documents.
        docstore: The document store with the chunks.

    Raises:
        InputError: Index and document store do not belong together.
    """

    def __init__(self, index: DocumentIndex, docstore: SQLiteDocumentStore) -> None:
        if len(index.rows) != len(docstore):
            raise InputError(
                f"The document index covers {len(index.rows)} chunks, the document store {len(docstore)}: they do not"
                f" belong together."
            )
        self._index = index
        documents = int(index.rows.max(initial=-1)) + 1
        self._mean_chunks = len(index.rows) / max(1, documents)

    @property
    def emphasis(self) -> float:
        """Factor of the documents' weight by their length: 1 for ten chunks, more for longer documents.

        The best of many chunks has a high score by chance, so the weight grows with the logarithm of the mean number of
        chunks of a document.
        """
        return math.log1p(self._mean_chunks) / math.log1p(_ORDINARY_CHUNKS)

    def support(self, query: LexicalQuery, rows: NDArray[np.int64]) -> DocumentScores:
        """Return score and rank of each chunk's document."""
        return self._index.support(query, rows)

    def of(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the row of each chunk's document among the documents."""
        return self._index.rows[rows]
