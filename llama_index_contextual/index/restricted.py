"""Parts of a version that contain only the visible documents.

A document is visible if it has chunks and all of them pass the filters. The visible documents are copied into memory,
and everything else, from the frequencies of terms to the scale of similarities, is computed from the copy. Nothing that
reads a restricted part can therefore depend on a hidden document. One copy is made for each combination of part and
filters.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.index.bm25 import TermCounts, TermCountsBuilder
from llama_index_contextual.index.manifest import Records
from llama_index_contextual.index.nodes import NodeTable
from llama_index_contextual.index.part import Part
from llama_index_contextual.index.units import Units

if TYPE_CHECKING:
    from llama_index.core.vector_stores.types import MetadataFilters


class RestrictedPart(Part):
    """The visible documents of a part.

    Args:
        whole: The part.
        filters: Filters returned by `restricting_filters`.

    Attributes:
        partial: Ids of the documents of which only some chunks pass the filters; these documents are hidden.
    """

    def __init__(self, whole: Part, filters: MetadataFilters) -> None:
        super().__init__(whole.directory, whole.entry)
        self.whole = whole
        self.filters = filters
        mask = whole.docstore.mask(filters)
        passing = np.zeros(whole.size, dtype=np.bool_) if mask is None else mask
        counts = np.bincount(whole.document_of[passing], minlength=len(whole.records))
        self._is_visible: NDArray[np.bool_] = (counts > 0) & (counts == whole.chunks_of)
        is_partial = (counts > 0) & ~self._is_visible
        self.partial = [whole.records[number].doc_id for number in np.flatnonzero(is_partial).tolist()]

    @property
    def _kept_rows(self) -> NDArray[np.bool_]:
        return self._is_visible[self.whole.document_of]

    @cached_property
    def records(self) -> Records:
        """The records of the visible documents."""
        return Records(self.whole.records[number] for number in np.flatnonzero(self._is_visible).tolist())

    @cached_property
    def docstore(self) -> NodeTable:
        """The chunks of the visible documents."""
        return self._with_fields(self.whole.docstore.copy(self._kept_rows, set(self.records.by_id)))

    @cached_property
    def index(self) -> Any:
        """FAISS index of the chunks of the visible documents."""
        from llama_index_contextual.index.faiss_index import copy_index

        return copy_index(self.whole.index, np.flatnonzero(self._kept_rows))

    @cached_property
    def added_in(self) -> NDArray[np.int32]:
        """Number of the version that added each row's vector; see `Part.added_in`."""
        return self.whole.added_in[self._kept_rows]

    @cached_property
    def terms(self) -> TermCounts:
        """Term counts of the chunks of the visible documents."""
        return _select(self.whole.terms, self._kept_rows)

    @cached_property
    def document_terms(self) -> TermCounts:
        """Term counts of the entries of the visible documents."""
        return _select(self.whole.document_terms, self._is_visible[self.whole.chunks_of > 0])

    @cached_property
    def units(self) -> Units:
        """The units of the chunks of the visible documents."""
        return self.whole.units.take(np.flatnonzero(self._kept_rows))


def _select(counts: TermCounts, is_kept: NDArray[np.bool_]) -> TermCounts:
    builder = TermCountsBuilder()
    builder.add_counts(counts, is_kept)
    return builder.build()
