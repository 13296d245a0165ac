"""The corpus of the speed benchmark: real text, and vectors of real text, extended to any size.

A chunk consists of about 3,900 characters from the given files. If there are not enough of them, the sentences of two
chunks are mixed, and so are their vectors; noise is added to each vector. The files have the layout that
`stock_speed.py` reads: chunks.jsonl, emb.npy, queries.json, qemb.npy, and an empty done_<queries>.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding

CHUNK_CHARACTERS = 3_900
CHUNKS_PER_DOCUMENT = 40
NOISE = 0.3  # length of the noise, where that of the vector is 1
_SEED = 7


def ensure_corpus(work: Path, files: Sequence[Path], questions: Sequence[str], *, chunks: int, dim: int) -> Path:
    """Write the corpus once, and return its folder.

    Args:
        work: Where the corpora are.
        files: Text to take.
        questions: Queries.
        chunks: Chunks of the corpus.
        dim: Dimensions of its vectors, at least those of the embedding.
    """
    folder = work / f"corpus_{chunks}_{dim}"
    done = folder / f"done_{len(questions)}"
    if done.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    pool = [piece for path in files for piece in _pieces(path.read_text(encoding="utf-8", errors="replace"))]
    model = WordLlamaEmbedding()
    real = unit_vectors(np.asarray(model.get_text_embedding_batch(pool), dtype=np.float32))
    with open(folder / "chunks.jsonl", "w", encoding="utf-8") as out:
        for row, (first, second) in enumerate(_pairs(len(pool), chunks)):
            out.write(json.dumps(_chunk(row, pool[first], pool[second])) + "\n")
    np.save(folder / "emb.npy", _vectors(real, chunks, dim))
    asked = np.asarray([model.get_query_embedding(question) for question in questions], dtype=np.float32)
    np.save(folder / "qemb.npy", unit_vectors(_tiled(unit_vectors(asked), dim)))
    (folder / "queries.json").write_text(json.dumps(list(questions)))
    done.touch()
    return folder


def _pieces(text: str) -> list[str]:
    """Return slices of about 3,900 characters, cut at white space."""
    found = re.findall(rf"\S.{{1,{CHUNK_CHARACTERS}}}(?=\s|$)", text, flags=re.DOTALL)
    return [piece for piece in found if len(piece) > CHUNK_CHARACTERS // 2]


def _pairs(size: int, chunks: int) -> Iterator[tuple[int, int]]:
    """Yield which two pieces a chunk is mixed of: twice the same one in the first round."""
    return (((row % size), (row + row // size) % size) for row in range(chunks))


def _chunk(row: int, first: str, second: str) -> dict[str, str | int]:
    document, position = divmod(row, CHUNKS_PER_DOCUMENT)
    text = first
    if second != first:
        ours, others = (re.split(r"(?<=[.!?])\s+", piece) for piece in (first, second))
        text = " ".join([*ours[::2], *others[1::2]])[: 2 * CHUNK_CHARACTERS]
    return {
        "id": f"chunk-{row:08d}",
        "doc_id": f"doc-{document:06d}",
        "context": f"From part {position} of document {document}. {first[:300]}",
        "text": text,
        "file_name": f"reports/{document % 97:02d}/document_{document:06d}.pdf",
        "segment": position,
        "position": position * CHUNK_CHARACTERS,
    }


def _vectors(real: NDArray[np.float32], chunks: int, dim: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(_SEED)
    out = np.empty((chunks, dim), dtype=np.float32)
    pairs = list(_pairs(len(real), chunks))
    for start in range(0, chunks, 1_000):
        part = np.asarray(pairs[start : start + 1_000])
        mixed = unit_vectors(real[part[:, 0]] + real[part[:, 1]])
        noise = rng.standard_normal((len(part), dim), dtype=np.float32) * (NOISE / np.sqrt(dim))
        out[start : start + 1_000] = unit_vectors(unit_vectors(_tiled(mixed, dim)) + noise)
    return out


def _tiled(vectors: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    return np.tile(vectors, (1, -(-dim // vectors.shape[1])))[:, :dim]
