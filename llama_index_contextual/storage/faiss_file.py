"""A FAISS index as a file: written through the one place for files, read with care and mapped where it can be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import faiss

from llama_index_contextual._utils.forks import in_child, new_lock
from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.storage import files
from llama_index_contextual.storage.headers import check_faiss

_READING = new_lock()  # FAISS has one limit for all readers

# OpenMP keeps threads for each thread that calls it: in a child, those of the one that forked are gone, and it would
# wait for them.
in_child(lambda: faiss.omp_set_num_threads(1))


def write_index(index: Any, path: Path) -> None:
    """Write an index to a new file and sync it."""

    def fill(file: Any) -> None:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))  # type: ignore[attr-defined]

    files.write_with(path, fill)


def read_index(path: Path, *, mapped: bool) -> Any:
    """Read an index, none of whose parts is longer than its file.

    Args:
        path: The file.
        mapped: Whether the file will not change: it is then opened at once, read where it is needed, and shared between
            processes, where the system allows it.

    Raises:
        CorruptVersionError: The file is no FAISS index, or not as long as it says.
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
