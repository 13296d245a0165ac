"""Headers of FAISS files that do not match the size of the file are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest

from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.index.faiss_index import read_index
from llama_index_contextual.index.manifest import check_faiss

# Dimensions, number of vectors and size of the data in the header of a flat index.
HUGE = [
    (at, value.to_bytes(4 if at in (4, 12) else 8, "little"))
    for at, value in ((4, 2**31 - 1), (4, 0), (8, 2**40), (12, 2**31 - 1), (37, 2**40))
]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    flat = faiss.IndexFlatIP(4)
    flat.add(np.eye(3, 4, dtype=np.float32))
    faiss.write_index(flat, str(tmp_path / "vectors.faiss"))
    return tmp_path / "vectors.faiss"


@pytest.mark.parametrize("content", [b"", b"IxFI", b"nonsense", b"IxFI" + bytes(20)])
def test_a_file_that_is_not_an_index_is_refused(content: bytes, index: Path) -> None:
    index.write_bytes(content)
    with pytest.raises(CorruptVersionError, match=r"^the index "):
        check_faiss(index, label="the index")


@pytest.mark.parametrize(
    "change",
    [
        *(lambda content: content[:-1], lambda content: content[:-5], lambda content: content + bytes(40)),
        *(
            lambda content, at=at, number=number: content[:at] + number + content[at + len(number) :]
            for at, number in HUGE
        ),
    ],
)
def test_a_faiss_header_that_asks_for_another_size_is_refused_before_faiss_reads_it(
    change: Callable[[bytes], bytes], index: Path
) -> None:
    index.write_bytes(change(index.read_bytes()))
    with pytest.raises(CorruptVersionError, match=r"claims to contain \d+ vectors of \d+ numbers, but has a different"):
        check_faiss(index)
    with pytest.raises(CorruptVersionError, match="claims to contain"):
        read_index(index)
