"""Derived data of a part, which are made from its stored chunks without calling a model.

bm25/              lexical index of the chunks
bm25/documents/    index of documents by name and opening
units.bin          sentences, table rows and other units of the chunks

The manifest records the edition of the derived data of each part, and the settings that they depend on. If they differ
from the current edition and settings, the part is searched as it is, and the next writer makes its derived data again.

To add a kind of derived data, write it in `DerivedBuilder`, read it in `Part`, and increase `DERIVED`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index.bm25 import LexicalIndexBuilder
from llama_index_contextual.index.documents import document_entry
from llama_index_contextual.index.manifest import BM25_DIRECTORY, DOCUMENTS_DIRECTORY, UNITS_FILE, DerivedEntry
from llama_index_contextual.index.units import UnitsBuilder

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.index.part import Part

DERIVED = 1
"""Edition of the derived data. It must be increased when the same chunks no longer result in the same derived data."""


def current_entry(config: ProjectConfig) -> DerivedEntry:
    """Return the manifest entry of derived data that this release makes with the given settings."""
    return DerivedEntry(edition=DERIVED, language=config.language if config.builds_lexical else None)


class DerivedBuilder:
    """Builder of the derived data of a part.

    Args:
        language: Language of the lexical indexes, or None if there are no lexical indexes.
    """

    def __init__(self, language: str | None) -> None:
        self._terms = None if language is None else LexicalIndexBuilder(language=language)
        self._document_terms = None if language is None else LexicalIndexBuilder(language=language)
        self._units = UnitsBuilder(None if self._terms is None else self._terms.analyzer)

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Make the derived data of a document from its chunks, at least one."""
        if self._terms is not None and self._document_terms is not None:
            from llama_index.core.schema import MetadataMode

            self._terms.add_texts(node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes)
            self._document_terms.add_texts([document_entry(nodes)])
        for node in nodes:
            self._units.add(node.get_content(), node.metadata)

    def remake(self, part: Part, is_kept: NDArray[np.bool_]) -> None:
        """Make the derived data of the documents of another part again from their chunks.

        Args:
            part: The part.
            is_kept: For each document of the part, whether it is added; shape (documents,).
        """
        nodes = part.docstore.iterate()
        for document, size in zip(is_kept.tolist(), part.chunks_of.tolist(), strict=True):
            chunks = list(islice(nodes, size))
            if document and chunks:
                self.add(chunks)

    def copy(self, part: Part, is_kept: NDArray[np.bool_]) -> None:
        """Copy the derived data of another part, which must have been made with the same settings; see `remake`."""
        if self._terms is not None and self._document_terms is not None:
            self._terms.add_counts(part.terms, is_kept[part.document_of])
            self._document_terms.add_counts(part.document_terms, is_kept[part.chunks_of > 0])
        self._units.add_units(part.units.take(np.flatnonzero(is_kept[part.document_of])))

    def save(self, directory: Path) -> None:
        """Write the derived data to the directory of the part, without syncing."""
        if self._terms is not None and self._document_terms is not None:
            self._terms.build().save(directory / BM25_DIRECTORY)
            self._document_terms.build().save(directory / DOCUMENTS_DIRECTORY)
        self._units.build().save(directory / UNITS_FILE)
