"""Headers of FAISS and NumPy files that do not match the size of the file are refused."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.storage.headers import check_faiss, check_npy


@pytest.fixture
def index(tmp_path: Path) -> Path:
    flat = faiss.IndexFlatIP(4)
    flat.add(np.eye(3, 4, dtype=np.float32))
    faiss.write_index(flat, str(tmp_path / "vectors.faiss"))
    return tmp_path / "vectors.faiss"


def test_sound_files_pass(index: Path, tmp_path: Path) -> None:
    check_faiss(index)
    for array in (np.arange(5), np.ones((2, 3), dtype=np.float32), np.zeros(0, dtype=np.int32)):
        np.save(tmp_path / "array.npy", array)
        check_npy(tmp_path / "array.npy")


def test_an_index_of_another_kind_is_left_to_faiss(tmp_path: Path) -> None:
    faiss.write_index(faiss.IndexHNSWFlat(4, 8, faiss.METRIC_INNER_PRODUCT), str(tmp_path / "graph.faiss"))
    check_faiss(tmp_path / "graph.faiss")


def test_a_changed_byte_of_a_header_is_detected_before_faiss_reads_it(index: Path) -> None:
    sound = index.read_bytes()
    header = len(sound) - 4 * 3 * 4
    missed = []
    for position in range(header):
        index.write_bytes(sound[:position] + bytes([sound[position] ^ 0x40]) + sound[position + 1 :])
        try:
            check_faiss(index)
        except CorruptVersionError:
            continue
        missed.append(position)
    # Two numbers that FAISS does not use, the flag of being trained, and the letters of other kinds of index.
    assert set(missed) <= {1, 2, 3, *range(16, 32), 32}


@pytest.mark.parametrize("content", [b"", b"IxFI", b"nonsense", b"IxFI" + bytes(20)])
def test_a_file_that_is_not_an_index_is_refused(content: bytes, index: Path) -> None:
    index.write_bytes(content)
    with pytest.raises(CorruptVersionError, match=r"^the index "):
        check_faiss(index, shown="the index")


@pytest.mark.parametrize("cut", [-1, -5, 40])
def test_an_index_of_a_wrong_size_is_refused(cut: int, index: Path) -> None:
    content = index.read_bytes()
    index.write_bytes(content[:cut] if cut < 0 else content + bytes(cut))
    with pytest.raises(
        CorruptVersionError, match=r"claims to contain 3 vectors of 4 numbers, but has a different size"
    ):
        check_faiss(index)


def test_arrays_of_objects_or_of_a_wrong_size_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(CorruptVersionError, match=r"is an array of object instead of numbers"):
        check_npy(path)
    np.save(path, np.arange(10))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptVersionError, match=r"claims to have the shape \(10,\), but has a different size"):
        check_npy(path)
    for content in (
        b"",
        b"\x93NUMPY",
        b"nonsense" * 20,
        whole.replace(b"'<i8'", b"'<j8'"),
        whole.replace(b"\x01\x00", b"\x09\x00", 1),
    ):
        path.write_bytes(content)
        with pytest.raises(CorruptVersionError, match=r"^array.npy is not a NumPy array"):
            check_npy(path)
