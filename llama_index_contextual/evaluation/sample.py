"""Draw a sample of documents that represents a collection, and the questions that it can answer.

Documents are drawn systematically from a list that is sorted by folder, file type and length, so that each of them is
represented in proportion.

Source: Cochran, "Sampling Techniques", 3rd edition, 1977, chapter 8.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TypeVar

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.questions import Evidence, Question, ResultChunk, ids_by_name, require_files
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.search.results import RetrievedChunk

T = TypeVar("T")

_Place = tuple[str, str, int, str]

EVIDENCE_SHARE = 0.75
"""Maximum fraction of a sample that is drawn from the documents with evidence if there are enough others."""


def draw_sample(
    version: OpenVersion, questions: Sequence[Question], size: int | None, *, seed: int = 0
) -> tuple[Sequence[Question], frozenset[str]]:
    """Draw a representative sample of documents.

    Up to three quarters of the sample are documents that contain the evidence of questions. The rest are other
    documents.

    Args:
        version: The version with the documents.
        questions: The whole question set; if it is empty, all documents are drawn alike.
        size: Maximum number of documents; None for all.
        seed: Number that determines the sample.

    Returns:
        The questions whose evidence is in the sample, and the ids of the documents that are not in the sample.

    Raises:
        InputError: The size is not positive or is too small for the evidence of any question, or the version contains
            none of the files with evidence.
    """
    require_files(version.records, questions)
    ids = frozenset(record.doc_id for record in version.records)
    if size is not None and size < 1:
        raise InputError(f"The sample has {size} documents: use at least one.", value=size)
    if size is None or size >= len(ids):
        return questions, frozenset()
    evidence_groups = _documents_of(version, questions)
    places = {record.doc_id: _place(record) for record in version.records}
    groups = {group for group in evidence_groups if group}
    other_ids = ids.difference(*groups)
    limit = max(math.ceil(EVIDENCE_SHARE * size), size - len(other_ids))
    generator = random.Random(seed)
    sample: frozenset[str] = frozenset()
    for group in _drawn(groups, limit, generator, lambda group: tuple(sorted(map(places.__getitem__, group)))):
        if len(sample | group) <= limit:
            sample |= group
    sample_questions = [
        question for question, group in zip(questions, evidence_groups, strict=True) if group and group <= sample
    ]
    if questions and not sample_questions:
        raise InputError(
            f"No question has all its evidence in a sample of {pluralize(size, 'document')}: use a larger one.",
            value=size,
        )
    additions = _drawn(other_ids, size - len(sample), generator, lambda doc_id: (places[doc_id],))
    sample = sample.union(additions[: size - len(sample)])
    return sample_questions, ids - sample


def _place(record: DocumentRecord) -> _Place:
    """Return the sort key of a document: folder, file type, length, and id."""
    path = PurePosixPath(record.doc_id)
    return str(path.parent), path.suffix.lower(), record.tokens, record.doc_id


def _drawn(
    items: Collection[T], size: int, generator: random.Random, key: Callable[[T], tuple[_Place, ...]]
) -> list[T]:
    """Return all items, beginning with `size` of them at equal distances in their sorted order.

    The others follow in random order.
    """
    sequence = sorted(items, key=key)
    if size >= len(sequence):
        return generator.sample(sequence, len(sequence))
    step = len(sequence) / max(size, 1)
    start = generator.random() * step
    places = {int(start + number * step) for number in range(size)}
    first = [item for place, item in enumerate(sequence) if place in places]
    remainder = [item for place, item in enumerate(sequence) if place not in places]
    return [*first, *generator.sample(remainder, len(remainder))]


def _documents_of(version: OpenVersion, questions: Sequence[Question]) -> list[frozenset[str]]:
    """Return the ids of the documents that contain the evidence of each question.

    The set is empty if no document is known for an item of the evidence.
    """
    items = {item for question in questions for item in question.evidence}
    by_name = ids_by_name(version.records)
    documents: dict[Evidence, set[str]] = {item: by_name.get(item.file or "", set()) for item in items}
    if without_file := {item for item in items if item.file is None}:
        documents |= _documents_with(version, without_file)
    return [_union([documents[item] for item in question.evidence]) for question in questions]


def _documents_with(version: OpenVersion, items: Collection[Evidence]) -> Mapping[Evidence, set[str]]:
    """Return the ids of the documents of which a passage contains an item."""
    documents: dict[Evidence, set[str]] = {item: set() for item in items}
    for node in version.docstore.iterate():
        passage = ResultChunk(RetrievedChunk(node=node))
        for item in items:
            if node.ref_doc_id is not None and item.is_in(passage):
                documents[item].add(node.ref_doc_id)
    return documents


def _union(documents: Sequence[set[str]]) -> frozenset[str]:
    return frozenset[str]().union(*documents) if all(documents) else frozenset()
