"""A BM25 matrix over texts, memory-mapped: rows in, rows out."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self, cast

import bm25s
import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.errors import InputError
from llama_index_contextual.retrievers.analysis import Analyzer
from llama_index_contextual.storage import files

# bm25s sets its logger to DEBUG at import, so that every application with a root handler would see it.
logging.getLogger("bm25s").setLevel(logging.NOTSET)

SETTINGS_FILE = "settings.json"


class LexicalIndex:
    """A BM25 index over texts: rows in, rows out.

    Args:
        analyzer: Turns text into terms.
        bm25: The matrix, or None when no text has a term.
        size: Number of texts.
    """

    def __init__(self, analyzer: Analyzer, bm25: bm25s.BM25 | None, size: int) -> None:
        self.analyzer = analyzer
        self._bm25 = bm25
        self.size = size

    @classmethod
    def build(cls, texts: Iterable[str], *, language: str = "english") -> LexicalIndex:
        """Index texts; row i is the i-th text."""
        builder = LexicalIndexBuilder(language=language)
        builder.add(texts)
        return builder.build()

    def scores(self, query: str) -> NDArray[np.float32]:
        """Return the BM25 score of every row; 0 where no term of the query is found."""
        ids = self._term_ids(query)
        if not ids or self._bm25 is None:
            return np.zeros(self.size, dtype=np.float32)
        return cast("NDArray[np.float32]", self._bm25.get_scores_from_ids(list(ids.values())))

    def matched(self, query: str, rows: Sequence[int]) -> list[tuple[str, ...]]:
        """Return for each row the terms of the query that it holds."""
        found: list[list[str]] = [[] for _ in rows]
        if self._bm25 is not None:
            pointers, indices = self._bm25.scores["indptr"], self._bm25.scores["indices"]
            for term, number in self._term_ids(query).items():
                holders = indices[pointers[number] : pointers[number + 1]]
                for at in np.flatnonzero(np.isin(rows, holders)):
                    found[at].append(term)
        return [tuple(terms) for terms in found]

    def _term_ids(self, query: str) -> dict[str, int]:
        vocabulary = {} if self._bm25 is None else self._bm25.vocab_dict
        return {term: vocabulary[term] for term in self.analyzer.terms(query) if term in vocabulary}

    def save(self, directory: Path) -> None:
        """Write the index and the settings that it was built with; an index that is there is replaced."""
        files.make_directory(directory)
        for path in directory.glob("*.index.*"):
            # Writing over it would destroy the index that is being saved, where that one is mapped from it.
            files.remove(path)
        settings = {"language": self.analyzer.language, "size": self.size, "empty": self._bm25 is None}
        if (bm25 := self._bm25) is not None:
            files.let_write(directory, lambda: bm25.save(str(directory), show_progress=False))
            for path in directory.glob("*.index.*"):
                files.sync_file(path)
        files.write(directory / SETTINGS_FILE, json.dumps(settings).encode())

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Open an index, memory-mapped, with the settings that it was built with.

        Raises:
            InputError: There is none.
        """
        try:
            settings = json.loads(files.read(directory / SETTINGS_FILE))
        except FileNotFoundError as error:
            raise InputError(f"{directory} holds no lexical index: persist a LexicalRetriever there first.") from error
        bm25 = None if settings["empty"] else bm25s.BM25.load(str(directory), mmap=True, show_progress=False)
        return cls(Analyzer(settings["language"]), bm25, settings["size"])


class LexicalIndexBuilder:
    """Takes texts as they come and makes a `LexicalIndex` of them.

    Args:
        language: A Snowball stemmer's name, or `none`.
    """

    def __init__(self, *, language: str = "english") -> None:
        self._analyzer = Analyzer(language)
        self._vocabulary: dict[str, int] = {}
        self._rows: list[list[int]] = []

    def add(self, texts: Iterable[str]) -> None:
        """Add texts; their rows follow those that were added before."""
        number = self._vocabulary.setdefault
        for text in texts:
            self._rows.append([number(term, len(self._vocabulary)) for term in self._analyzer.terms(text)])

    def build(self) -> LexicalIndex:
        """Return the index."""
        if not self._vocabulary:
            return LexicalIndex(self._analyzer, None, len(self._rows))
        bm25 = bm25s.BM25(backend="numpy")
        bm25.index((self._rows, self._vocabulary), show_progress=False)
        return LexicalIndex(self._analyzer, bm25, len(self._rows))
