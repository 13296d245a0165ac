"""Context relevance: how similar the embeddings of a question and of the first passages are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from numpy.typing import NDArray

FIRST = 5
"""Passages of a question that are looked at."""


def context_relevance(embed_model: BaseEmbedding, answers: Sequence[tuple[str, Sequence[str]]]) -> list[float]:
    """Return for each question the mean cosine similarity with its first five passages; 0 without any.

    It needs no evidence and measures no correctness: passages that share the question's words are similar to it,
    whether they answer it or not. Each text is embedded once, without its context.

    Args:
        embed_model: Any LlamaIndex embedding.
        answers: (question, passages, best first).
    """
    texts = list(dict.fromkeys(text for _, passages in answers for text in passages[:FIRST]))
    vectors = dict(zip(texts, map(_unit, embed_model.get_text_embedding_batch(texts)), strict=True)) if texts else {}
    found = []
    for question, passages in answers:
        query = _unit(embed_model.get_query_embedding(question)) if passages else None
        found.append(float(np.mean([query @ vectors[text] for text in passages[:FIRST]])) if query is not None else 0.0)
    return found


def _unit(vector: Sequence[float]) -> NDArray[np.float64]:
    row = np.nan_to_num(np.asarray(vector, dtype=np.float64))
    length = float(np.linalg.norm(row))
    return row / length if length else row
