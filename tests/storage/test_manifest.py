"""The manifest of a version: read back as written, and refused if anything is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_index_contextual.errors import ContextualError, CorruptVersionError, FormatError
from llama_index_contextual.storage.manifest import FORMAT_VERSION, DocumentRecord, Manifest

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
records = st.builds(
    DocumentRecord,
    doc_id=texts,
    content_hash=texts,
    origin=st.one_of(st.none(), texts),
    file_name=st.one_of(st.none(), texts),
    title=st.one_of(st.none(), texts),
    chunks=st.integers(0, 9),
    tokens=st.integers(0, 9),
    characters=st.integers(0, 9),
    fallback_chunks=st.lists(texts, max_size=2),
)
manifests = st.builds(
    Manifest,
    version=texts,
    created=texts,
    package=texts,
    config=st.dictionaries(
        texts, st.one_of(st.none(), st.booleans(), st.integers(), texts, st.floats(0, 1)), max_size=3
    ),
    embed_model=st.one_of(st.none(), texts),
    dimensions=st.one_of(st.none(), st.integers(1, 9)),
    documents=st.lists(records, max_size=3),
    files=st.dictionaries(
        st.from_regex(r"[a-z]{1,5}(/[a-z.]{0,3}[a-z])?", fullmatch=True),
        st.fixed_dictionaries({"bytes": st.integers(0, 9), "xxh3": texts, "sha256": texts}),
        max_size=3,
    ),
)

MANIFEST = Manifest(
    version="v000001",
    created="2023-05-01T12:00:00+00:00",
    package="0.1.0",
    config={"chunk_size": 800},
    embed_model="local",
    dimensions=256,
    documents=[
        DocumentRecord(doc_id="a", content_hash="1", chunks=2, fallback_chunks=["x"]),
        DocumentRecord(doc_id="b", content_hash="2", chunks=3),
    ],
    files={"docstore.sqlite": {"bytes": 3, "xxh3": "0f", "sha256": "1f"}},
)


@given(manifests)
def test_a_manifest_is_read_back_as_it_was_written(manifest: Manifest) -> None:
    again = Manifest.from_json(manifest.to_json(), file="manifest.json")
    assert again.to_json() == manifest.to_json()
    for name in ("version", "created", "package", "config", "embed_model", "dimensions", "files", "format_version"):
        assert getattr(again, name) == getattr(manifest, name)
    assert [record.doc_id for record in again.documents] == [record.doc_id for record in manifest.documents]


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "a\0b"])
def test_a_file_outside_the_version_is_refused(name: str) -> None:
    manifest = replace(MANIFEST, files={name: MANIFEST.files["docstore.sqlite"]})
    with pytest.raises(CorruptVersionError, match=r"manifest.json is not a manifest"):
        Manifest.from_json(manifest.to_json(), file="manifest.json")


def test_it_counts_chunks_and_finds_documents() -> None:
    assert MANIFEST.chunks == 5
    assert MANIFEST.document("b") is MANIFEST.documents[1]
    assert MANIFEST.document("c") is None


@pytest.mark.parametrize("position", range(0, len(MANIFEST.to_json()), 3))
def test_every_flipped_bit_of_a_manifest_is_detected(position: int) -> None:
    for bit in range(8):
        data = bytearray(MANIFEST.to_json())
        data[position] ^= 1 << bit
        try:
            again = Manifest.from_json(bytes(data), file="manifest.json")
        except ContextualError:
            continue
        assert again.to_json() == MANIFEST.to_json()


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(MANIFEST.to_json()), **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"7",
        b"[]",
        b"{}",
        b"[" * 100_000,
        changed(format_version="1"),
        changed(format_version=None),
        changed(documents=None),
        changed(documents="ab"),
        changed(documents=[{"doc_id": "a"}]),
        changed(files=[]),
        changed(files={"../../elsewhere": {"bytes": 1}}),
        changed(unknown=1),
        changed(version="v000002"),
    ],
)
def test_a_file_that_is_not_a_manifest_is_refused_with_advice(data: bytes) -> None:
    with pytest.raises(CorruptVersionError, match=r"^versions/v000001/manifest.json ") as caught:
        Manifest.from_json(data, file="versions/v000001/manifest.json")
    assert caught.value.file == "versions/v000001/manifest.json"
    assert "`rollback`" in str(caught.value)
    assert "ledger" in str(caught.value)


def test_a_manifest_of_a_newer_release_is_refused_regardless_of_its_content() -> None:
    data = changed(format_version=FORMAT_VERSION + 1, documents=[], shards=7)
    with pytest.raises(
        FormatError, match=r"manifest.json has format 3, this release reads up to 2: upgrade llama-index"
    ):
        Manifest.from_json(data, file="manifest.json")


@settings(max_examples=80)
@given(
    st.one_of(
        st.binary(max_size=30),
        st.recursive(
            st.none() | st.integers() | texts,
            lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
            max_leaves=5,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_any_bytes_raise_only_errors_of_the_package(data: bytes) -> None:
    with pytest.raises(ContextualError):
        Manifest.from_json(data, file="manifest.json")
