"""Static word embeddings with 256 dimensions from WordLlama, which needs no key, no network and no PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.locks import Lock
from llama_index_contextual.config import LOCAL
from llama_index_contextual.embeddings.batching import cut_to_input, unit_vectors
from llama_index_contextual.errors import ModelError
from llama_index_contextual.index.analysis import cut_query

_LOAD_LOCK = Lock()


def embedded(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return a unit vector for each text, or a zero vector if none of its tokens is known; shape (texts, 256).

    Raises:
        ModelError: WordLlama is not installed.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        vectors = _model().embed([text or " " for text in texts], norm=True)
    return np.nan_to_num(np.asarray(vectors, dtype=np.float32))


def word_vectors(words: Sequence[str], dimensions: int | None = None) -> NDArray[np.float32]:
    """Return the sum of the subword vectors of each word; shape (words, dimensions).

    The vector of a text has the same direction as the sum of the vectors of its words.

    Args:
        words: The words, at least one.
        dimensions: Number of dimensions to return; None returns all 256.

    Raises:
        ModelError: WordLlama is not installed.
    """
    model = _model()
    # All words are encoded together, because padded encodings of single words take several times as long.
    subwords = model.tokenizer.encode(list(words), is_pretokenized=True, add_special_tokens=False)
    starts = np.searchsorted(subwords.word_ids, np.arange(len(words)))
    sums: NDArray[np.float32] = np.add.reduceat(model.embedding[:, :dimensions][subwords.ids], starts, axis=0)
    return sums


class WordEmbedder:
    """Embed questions like `WordLlamaEmbedding`, but without LlamaIndex."""

    name = LOCAL

    def unit(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the mean embedding of the given texts, scaled to length 1 unless it is zero; shape (256,)."""
        vectors = embedded([cut_to_input(cut_query(text)) for text in texts])
        vector: NDArray[np.float32] = unit_vectors(vectors.mean(axis=0, keepdims=True))[0]
        return vector


def _model() -> Any:
    with _LOAD_LOCK:
        return _load()


@cache
def _load() -> Any:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        import wordllama
    except ImportError as error:
        raise ModelError(
            'The embedding `local` requires WordLlama: pip install "llama-index-contextual[local]"',
            setting="embed_model",
        ) from error
    # Importing wordllama configures the root logger, which belongs to the application, so restore it.
    root.handlers[:], root.level = handlers, level
    # The loader looks for the tokenizer in the cache folder. The package's own folder contains the tokenizer and the
    # model.
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
