"""Static word embeddings with 256 dimensions from WordLlama, which needs no key, no network and no PyTorch.

The two files of the model are read from the folder of the `wordllama` package. The package itself is not imported: this
would take several times as long as the first search, configure the root logger, and copy all vectors into memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from numpy.typing import NDArray

from llama_index_contextual._utils.locks import Lock
from llama_index_contextual.config import LOCAL
from llama_index_contextual.embeddings.batching import cut_to_input, unit_vectors
from llama_index_contextual.errors import ModelError
from llama_index_contextual.index import files
from llama_index_contextual.index.analysis import cut_query

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENIZER, _WEIGHTS = "tokenizers/l2_supercat_tokenizer_config.json", "weights/l2_supercat_256.safetensors"
_DIMENSIONS = 256
_IDENTIFYING = 1 << 16  # number of bytes that distinguish one matrix from another
_LOAD_LOCK = Lock()


def embedded(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return a unit vector for each text, or a zero vector if none of its tokens is known; shape (texts, 256).

    Raises:
        ModelError: WordLlama is not installed, or one of its files is missing or damaged.
    """
    model = _model()
    means = np.zeros((len(texts), _DIMENSIONS), dtype=np.float32)
    if not texts:
        return means
    tokens = model.token_ids([text or " " for text in texts])
    if len(texts) == 1:  # a question
        means[0] = _mean(model.vectors(tokens[0]))
    else:
        distinct, places = np.unique(np.concatenate(tokens), return_inverse=True)
        vectors = model.vectors(distinct)
        ends = np.cumsum([len(ids) for ids in tokens]).tolist()
        for row, (ids, end) in enumerate(zip(tokens, ends, strict=True)):
            means[row] = _mean(vectors[places[end - len(ids) : end]])
    lengths = np.sqrt(np.add.reduce(means * means, axis=1, keepdims=True))
    units: NDArray[np.float32] = np.divide(means, np.where(lengths > 0, lengths, 1.0), dtype=np.float32)
    return units


def _mean(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean of vectors, or zeros if there are none; shape (dimensions,)."""
    mean: NDArray[np.float32] = np.add.reduce(vectors, axis=0) / np.float32(max(len(vectors), 1))
    return mean


def word_vectors(words: Sequence[str], dimensions: int | None = None) -> NDArray[np.float32]:
    """Return the sum of the subword vectors of each word; shape (words, dimensions).

    The vector of a text has the same direction as the sum of the vectors of its words.

    Args:
        words: The words, at least one.
        dimensions: Number of dimensions to return; None returns all 256.

    Raises:
        ModelError: WordLlama is not installed, or one of its files is missing or damaged.
    """
    model = _model()
    # All words are encoded together, because separate calls take several times as long.
    subwords = model.tokenizer.encode(list(words), is_pretokenized=True, add_special_tokens=False)
    starts = np.searchsorted(np.array(subwords.word_ids, dtype=np.int64), np.arange(len(words)))
    sums: NDArray[np.float32] = np.add.reduceat(model.vectors(subwords.ids, dimensions), starts, axis=0)
    return sums


@cache
def words_identity() -> str:
    """Return a checksum of the beginning of WordLlama's vectors, or "" if WordLlama is not installed."""
    spec = find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        return ""
    path = Path(spec.submodule_search_locations[0]) / _WEIGHTS
    try:
        with path.open("rb") as file:
            return xxhash.xxh3_128_hexdigest(file.read(_IDENTIFYING))
    except OSError:
        return ""


class WordEmbedder:
    """Embed questions like `WordLlamaEmbedding`, but without LlamaIndex."""

    name = LOCAL

    def unit(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the mean embedding of the given texts, scaled to length 1 unless it is zero; shape (256,)."""
        vectors = embedded([cut_to_input(cut_query(text)) for text in texts])
        vector: NDArray[np.float32] = unit_vectors(vectors.mean(axis=0, keepdims=True))[0]
        return vector


# ---- the model -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Model:
    """WordLlama's tokenizer, and one vector for each of its tokens.

    Attributes:
        tokenizer: The tokenizer.
        weights: The vectors in half precision, mapped from the file; shape (tokens, 256).
    """

    tokenizer: Tokenizer
    weights: NDArray[np.float16]

    def token_ids(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return the token ids of each text."""
        if len(texts) == 1:  # `encode_batch_fast` would start threads
            encodings = [self.tokenizer.encode(texts[0], add_special_tokens=False)]
        else:
            encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def vectors(self, ids: Sequence[int] | NDArray[np.int64], dimensions: int | None = None) -> NDArray[np.float32]:
        """Return the vectors of the given tokens; shape (tokens, dimensions)."""
        return self.weights[:, :dimensions][ids].astype(np.float32)


def _model() -> _Model:
    with _LOAD_LOCK:
        return _load()


@cache
def _load() -> _Model:
    spec = find_spec("wordllama")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            'The embedding `local` requires WordLlama: pip install "llama-index-contextual[local]"',
            setting="embed_model",
        )
    folder = Path(spec.submodule_search_locations[0])
    try:
        tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
    except Exception as error:  # the class has no errors of its own
        raise _damaged(folder / _TOKENIZER) from error
    try:
        weights = _read_weights(folder / _WEIGHTS)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(folder / _WEIGHTS) from error
    if len(weights) < tokenizer.get_vocab_size():
        raise _damaged(folder / _WEIGHTS)
    return _Model(tokenizer, weights)


def _read_weights(path: Path) -> NDArray[np.float16]:
    """Map the only tensor of a safetensors file; shape (tokens, 256).

    The file consists of the length of the header in eight bytes, the header in JSON, and the numbers.

    Source: https://huggingface.co/docs/safetensors
    """
    data = files.mmap(path, np.uint8)
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    tensor = json.loads(data[8:start].tobytes())["embedding.weight"]
    if tensor["dtype"] != "F16":
        raise ValueError(f"numbers of type {tensor['dtype']}")
    first, end = tensor["data_offsets"]
    return data[start + first : start + end].view("<f2").reshape(-1, _DIMENSIONS)


def _damaged(path: Path) -> ModelError:
    return ModelError(
        f"WordLlama's file {path} is missing or damaged: pip install --force-reinstall --no-deps wordllama",
        setting="embed_model",
    )
