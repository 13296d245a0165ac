"""FAISS indexes of unit vectors: reading, writing and copying."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.files import open_file, require_open_files
from llama_index_contextual._utils.locks import Lock
from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.index import files
from llama_index_contextual.index.manifest import check_faiss
from llama_index_contextual.metadata import has_surrogate

BLOCK = 1_000
"""Maximum number of vectors to copy together; with more, FAISS would start threads, and a forked child would hang."""


def reconstructed(index: Any, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the vectors of the given rows of an index; shape (rows, dimensions)."""
    vectors = np.empty((len(rows), index.d), dtype=np.float32)
    for start in range(0, len(rows), BLOCK):
        index.reconstruct_batch(rows[start : start + BLOCK], vectors[start : start + BLOCK])
    return vectors


def copy_index(index: Any, rows: NDArray[np.int64]) -> Any:
    """Return an index in memory with the vectors of the given rows of another index."""
    copy = faiss.IndexFlatIP(index.d)
    copy.add(reconstructed(index, rows))
    return copy


_READING = Lock()  # the limit on the number of bytes is global in FAISS

# OpenMP keeps worker threads for each calling thread. A forked child lacks these threads, but would wait for them.
if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=lambda: faiss.omp_set_num_threads(1))


def write_index(index: Any, path: Path) -> None:
    """Write an index to a new file, without syncing."""

    def fill(file: Any) -> None:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))  # type: ignore[attr-defined]

    files.write_with(path, fill, sync=False)


def read_index(path: Path) -> Any:
    """Open an index, memory-mapped if the system supports it. The file must not change afterwards.

    A mapped index opens immediately, is read as needed, and is shared between processes. An index is rejected if its
    header specifies more data than the file contains.

    Args:
        path: The file.

    Raises:
        CorruptVersionError: The file is not a FAISS index, or its header does not match its size.
    """
    check_faiss(path)
    with _READING:
        before = faiss.get_deserialization_vector_byte_limit()
        faiss.set_deserialization_vector_byte_limit(path.stat().st_size)
        try:
            return _read(path)
        except RuntimeError as error:
            require_open_files()
            raise CorruptVersionError(f"{path.name} is not a FAISS index: restore it, or build it again.") from error
        finally:
            faiss.set_deserialization_vector_byte_limit(before)


def _read(path: Path) -> Any:
    if has_surrogate(str(path)):  # FAISS opens only files whose paths are valid UTF-8
        with open_file(path) as file:
            return faiss.read_index(faiss.PyCallbackIOReader(file.read))  # type: ignore[attr-defined]
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if os.name != "nt" else 0)
