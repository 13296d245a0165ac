"""Comparison of the headers of FAISS and NumPy files with the size of the file, before either library reads it.

FAISS allocates as much memory as a header claims, so a damaged header can terminate the process.
"""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.index.manifest import damage_error

_FLAT_IP = b"IxFI"
# fourcc, dimensions, vectors, two unused numbers, is_trained, metric, and the number of floats that follow.
_FLAT_HEADER = struct.Struct("<4siqqq?iQ")
_INNER_PRODUCT = 0
_FLOAT = 4
_MAX_HEADER = 10_000
_NPY_START = 10  # bytes of a NumPy file before its header: magic string, version, and length of the header


def check_faiss(path: Path, *, shown: str | None = None) -> None:
    """Check that a flat FAISS index is as long as its header says. Indexes of other types are not checked.

    Raises:
        CorruptVersionError: The file is not a FAISS index, or its header does not match its size.
    """
    shown = shown or path.name
    with open(path, "rb") as file:
        head = file.read(_FLAT_HEADER.size)
    if not head.startswith(b"I"):
        raise damage_error(shown, "is not a FAISS index")
    if not head.startswith(_FLAT_IP):
        return
    if len(head) < _FLAT_HEADER.size:
        raise damage_error(shown, "ends inside its header")
    _, dimensions, vectors, _, _, _, metric, floats = _FLAT_HEADER.unpack(head)
    size = path.stat().st_size - _FLAT_HEADER.size
    if (
        dimensions <= 0
        or vectors < 0
        or metric != _INNER_PRODUCT
        or floats != dimensions * vectors
        or size != floats * _FLOAT
    ):
        raise damage_error(
            shown, f"claims to contain {vectors} vectors of {dimensions} numbers, but has a different size"
        )


def check_npy(path: Path, *, shown: str | None = None) -> None:
    """Check that a NumPy file is an array of numbers, and as long as its header says.

    Raises:
        CorruptVersionError: The file is not an array of numbers, or its header does not match its size.
    """
    shown = shown or path.name
    with open(path, "rb") as file:
        try:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("unknown version")
            shape, _, kind = np.lib.format.read_array_header_1_0(file, max_header_size=_MAX_HEADER)
        except (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
            raise damage_error(shown, f"is not a NumPy array ({type(error).__name__})") from error
        start = file.tell()
    if kind.kind not in "iuf" or any(length < 0 for length in shape):
        raise damage_error(shown, f"is an array of {kind} instead of numbers")
    if path.stat().st_size != start + prod(shape) * kind.itemsize:
        raise damage_error(shown, f"claims to have the shape {shape}, but has a different size")


def mapped_integers(path: Path) -> NDArray[np.int32]:
    """Return the array in a NumPy file of 32-bit integers with one dimension, memory-mapped.

    Unlike `np.load`, it does not parse the header, which takes longer than opening a small file.
    """
    with open(path, "rb") as file:
        start = _NPY_START + int.from_bytes(file.read(_NPY_START)[-2:], "little")
    # Slicing a memory-mapped array is slow; slicing a view of the same memory is not.
    return np.asarray(np.memmap(path, np.int32, "r", start)).view(np.ndarray)
