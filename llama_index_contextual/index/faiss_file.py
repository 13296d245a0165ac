"""Writing and reading of FAISS index files; a file that does not change is memory-mapped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import faiss

from llama_index_contextual._utils.forks import in_child, new_lock
from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.index import files
from llama_index_contextual.index.check import check_faiss

_READING = new_lock()  # FAISS has one global limit for all readers

# OpenMP keeps worker threads per calling thread. In a forked child they no longer exist, and it would wait for them.
in_child(lambda: faiss.omp_set_num_threads(1))


def write_index(index: Any, path: Path) -> None:
    """Write an index to a new file and sync it."""

    def fill(file: Any) -> None:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))  # type: ignore[attr-defined]

    files.write_with(path, fill)


def read_index(path: Path, *, mapped: bool) -> Any:
    """Read an index, and refuse one whose header claims more data than the file has.

    Args:
        path: The file.
        mapped: Whether to map the file into memory if the system allows it; it must not change afterwards. A mapped
            index opens at once, is read as needed, and is shared between processes.

    Raises:
        CorruptVersionError: The file is not a FAISS index, or its header does not match its size.
    """
    check_faiss(path)
    flags = faiss.IO_FLAG_MMAP_IFC if mapped and os.name != "nt" else 0
    with _READING:
        before = faiss.get_deserialization_vector_byte_limit()
        faiss.set_deserialization_vector_byte_limit(path.stat().st_size)
        try:
            return faiss.read_index(str(path), flags)
        except RuntimeError as error:
            raise CorruptVersionError(f"{path.name} is not a FAISS index: restore it, or build it again.") from error
        finally:
            faiss.set_deserialization_vector_byte_limit(before)
