"""Samples: some documents and the questions about them, so that a comparison costs less."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.questions import Evidence, Question
from llama_index_contextual.storage.manifest import DocumentRecord
from llama_index_contextual.storage.version import OpenVersion


@dataclass(frozen=True)
class Sample:
    """Some documents of a version, and the questions with their evidence in them.

    Attributes:
        questions: The questions, in the order of the set.
        left_out: Ids of the documents that are not in the sample.
        documents: Number of documents in the sample.
    """

    questions: Sequence[Question]
    left_out: frozenset[str]
    documents: int

    @property
    def is_whole(self) -> bool:
        """Whether the sample contains all documents."""
        return not self.left_out


def draw(version: OpenVersion, questions: Sequence[Question], size: int | None, *, seed: int = 0) -> Sample:
    """Draw documents with evidence at random, and return them with the questions that have all evidence in them.

    Documents without evidence fill the rest of the sample, since they compete in retrieval.

    Args:
        version: The version with the documents.
        questions: The whole question set.
        size: Maximum number of documents; None for all.
        seed: Seed of the random numbers.

    Raises:
        InputError: The size is not positive or too small for any question, or all evidence is in files that are not
            documents of the version.
    """
    require_files(version.manifest.documents, questions)
    ids = [record.doc_id for record in version.manifest.documents]
    if size is not None and size < 1:
        raise InputError(f"The sample has {size} documents: use at least one.", value=size)
    if size is None or size >= len(ids):
        return Sample(questions, frozenset(), len(ids))
    needed = _documents_of(version, questions)
    order = random.Random(seed)
    groups = sorted({group for group in needed if group}, key=sorted)
    order.shuffle(groups)
    chosen: set[str] = set()
    for group in groups:
        if len(chosen | group) <= size:
            chosen |= group
    kept = [question for question, group in zip(questions, needed, strict=True) if group and group <= chosen]
    if not kept:
        raise InputError(
            f"No question has all its evidence in a sample of {pluralize(size, 'document')}: use a larger one, and"
            f" name files or chunks in the evidence.",
            value=size,
        )
    others = [doc_id for doc_id in ids if doc_id not in chosen]
    chosen |= set(order.sample(others, min(len(others), size - len(chosen))))
    return Sample(kept, frozenset(ids) - chosen, len(chosen))


def require_files(documents: Sequence[DocumentRecord], questions: Sequence[Question]) -> None:
    """Check that at least some evidence is in the project; otherwise every figure would be zero.

    Raises:
        InputError: The evidence of every question is in files that are not documents of the project.
    """
    present = {name for record in documents for name in (record.doc_id, record.file_name)}
    items = [item for question in questions for item in question.evidence]
    if items and all(item.file is not None and item.file not in present for item in items):
        raise InputError(
            f"The evidence of {pluralize(len(questions), 'question')} is in files that the project does not have, such"
            f" as {items[0].file!r}: ingest them, or use questions about its documents.",
            value=items[0].file,
        )


def absent_files(documents: Sequence[DocumentRecord], questions: Sequence[Question]) -> list[str]:
    """Return a note if questions have evidence in files that are not documents of the project.

    Args:
        documents: The documents of the project.
        questions: The questions.
    """
    present = {name for record in documents for name in (record.doc_id, record.file_name)}
    number = sum(any(item.file not in present for item in q.evidence if item.file is not None) for q in questions)
    return [f"In files that the project does not have: evidence of {pluralize(number, 'question')}."] if number else []


def _documents_of(version: OpenVersion, questions: Sequence[Question]) -> list[frozenset[str]]:
    """Return for each question the documents of its evidence; empty if the document of an item is unknown."""
    by_name: dict[str, set[str]] = defaultdict(set)
    for record in version.manifest.documents:
        for name in (record.doc_id, record.file_name):
            if name:
                by_name[name].add(record.doc_id)
    chunk_ids = [item.chunk_id for question in questions for item in question.evidence if item.chunk_id is not None]
    by_chunk = _documents_of_chunks(version, list(dict.fromkeys(chunk_ids)))

    def documents(item: Evidence) -> set[str]:
        if item.chunk_id is not None:
            return by_chunk.get(item.chunk_id, set())
        return by_name.get(item.file or "", set())

    groups = []
    for question in questions:
        sets = [documents(item) for item in question.evidence]
        groups.append(frozenset().union(*sets) if all(sets) else frozenset())
    return groups


def _documents_of_chunks(version: OpenVersion, chunk_ids: Sequence[str]) -> dict[str, set[str]]:
    known = version.docstore.known(chunk_ids)
    nodes = version.docstore.get_nodes(known)
    return {node.node_id: {node.ref_doc_id} for node in nodes if node.ref_doc_id is not None}
