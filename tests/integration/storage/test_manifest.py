"""The manifest of a version: read back as written, and refused if anything is wrong."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_index_contextual.errors import ContextualError, CorruptVersionError, FormatError
from llama_index_contextual.storage.manifest import (
    FORMAT_VERSION,
    DocumentRecord,
    Manifest,
    PartEntry,
    PartManifest,
    checksum,
)
from llama_index_contextual.storage.part import ranges

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
numbers = st.integers(0, 9)
described = st.dictionaries(
    st.from_regex(r"[a-z]{1,5}(/[a-z.]{0,3}[a-z])?", fullmatch=True),
    st.fixed_dictionaries({"bytes": numbers, "xxh3": texts, "sha256": texts}),
    max_size=3,
)
entries = st.builds(
    PartEntry,
    name=st.from_regex(r"p[0-9]{6}(-[0-9])?", fullmatch=True),
    xxh3=texts,
    gone=st.sets(numbers, max_size=9).map(ranges),
)
part_manifests = st.builds(
    PartManifest,
    part=texts,
    documents=numbers,
    chunks=numbers,
    dimensions=st.one_of(st.none(), st.integers(1, 9)),
    files=described,
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
    documents=numbers,
    chunks=numbers,
    size=numbers,
    parts=st.lists(entries, max_size=3),
)

MANIFEST = Manifest(
    version="v000001",
    created="2023-05-01T12:00:00+00:00",
    package="0.1.0",
    config={"chunk_size": 800},
    embed_model="local",
    dimensions=256,
    documents=2,
    chunks=5,
    parts=[PartEntry(name="p000001", xxh3="0f", gone=[(3, 5)])],
)
FILES = {"docstore.sqlite": {"bytes": 3, "xxh3": "0f", "sha256": "1f"}}
PART = PartManifest(part="p000001", documents=2, chunks=5, dimensions=256, files=FILES)


def former(**changes: Any) -> bytes:
    """Return a manifest of format 2."""
    content: dict[str, Any] = {
        "version": "v000001",
        "created": "2023-05-01T12:00:00+00:00",
        "package": "0.1.0",
        "config": {"chunk_size": 800},
        "embed_model": "local",
        "dimensions": 256,
        "documents": [
            asdict(DocumentRecord(doc_id="a", content_hash="1", chunks=2, fallback_chunks=["x"])),
            asdict(DocumentRecord(doc_id="b", content_hash="2", chunks=3)),
        ],
        "files": FILES,
        "format_version": 2,
        **changes,
    }
    return json.dumps({**content, "xxh3": checksum(content)}).encode()


@given(manifests)
def test_a_manifest_is_read_back_as_it_was_written(manifest: Manifest) -> None:
    again = Manifest.from_json(manifest.to_json(), file="manifest.json")
    assert again.to_json() == manifest.to_json()
    assert again == replace(manifest, parts=again.parts)
    assert [(part.name, list(part.gone)) for part in again.parts] == [
        (part.name, list(part.gone)) for part in manifest.parts
    ]


@given(part_manifests)
def test_the_manifest_of_a_part_is_read_back_as_it_was_written(manifest: PartManifest) -> None:
    assert PartManifest.from_json(manifest.to_json(), file="part.json") == manifest


@given(st.lists(records, max_size=3), described.filter(bool))
def test_a_manifest_of_an_earlier_format_has_the_records_and_files(
    given_records: list[DocumentRecord], files: dict[str, Any]
) -> None:
    data = former(documents=[asdict(record) for record in given_records], files=files)
    manifest = Manifest.from_json(data, file="manifest.json")
    assert [record.doc_id for record in manifest.records] == [record.doc_id for record in given_records]
    assert (manifest.documents, manifest.chunks) == (len(given_records), sum(record.chunks for record in given_records))
    assert manifest.files == files
    assert manifest.parts == ()


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "a\0b"])
def test_a_file_outside_the_version_is_refused(name: str) -> None:
    manifest = replace(PART, files={name: FILES["docstore.sqlite"]})
    with pytest.raises(CorruptVersionError, match=r"part.json is not a manifest"):
        PartManifest.from_json(manifest.to_json(), file="part.json")
    with pytest.raises(CorruptVersionError, match=r"manifest.json is not a manifest"):
        Manifest.from_json(former(files={name: FILES["docstore.sqlite"]}), file="manifest.json")


@pytest.mark.parametrize("manifest", [MANIFEST, PART], ids=["version", "part"])
def test_every_flipped_bit_of_a_manifest_is_detected(manifest: Manifest | PartManifest) -> None:
    content = manifest.to_json()
    for position in range(0, len(content), 3):
        for bit in range(8):
            data = bytearray(content)
            data[position] ^= 1 << bit
            try:
                again = type(manifest).from_json(bytes(data), file="manifest.json")
            except ContextualError:
                continue
            assert again.to_json() == content


def changed(**changes: Any) -> bytes:
    content = {**json.loads(MANIFEST.to_json()), **changes}
    del content["xxh3"]
    return json.dumps({**content, "xxh3": checksum(content)}).encode()


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
        former(documents=[{"doc_id": "a"}]),
        former(documents="ab"),
        former(files=[]),
        former(files={"../../elsewhere": {"bytes": 1}}),
        former(unknown=1),
        former(format_version=0.5, documents=None),
        changed(parts=[{"name": "p"}]),
        changed(parts=7),
        changed(parts=[{"name": "../p000001", "xxh3": "0f", "gone": []}]),
        changed(parts=[{"name": "p000001", "xxh3": "0f", "gone": [[3, 2]]}]),
        changed(parts=[{"name": "p000001", "xxh3": "0f", "gone": [[-3, 2]]}]),
        changed(unknown=1),
        json.dumps({**json.loads(MANIFEST.to_json()), "version": "v000002"}).encode(),
    ],
)
def test_a_file_that_is_not_a_manifest_is_refused_with_advice(data: bytes) -> None:
    with pytest.raises(CorruptVersionError, match=r"^versions/v000001/manifest.json ") as caught:
        Manifest.from_json(data, file="versions/v000001/manifest.json")
    assert caught.value.file == "versions/v000001/manifest.json"
    assert "`rollback`" in str(caught.value)
    assert "ledger" in str(caught.value)


def test_a_manifest_of_a_newer_release_is_refused_regardless_of_its_content() -> None:
    data = changed(format_version=FORMAT_VERSION + 1, documents=0, shards=7)
    with pytest.raises(
        FormatError, match=r"manifest.json has format 4, this release reads up to 3: upgrade llama-index"
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
