"""The manifest of a version: read back as written, and refused if anything is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.errors import ContextualError, CorruptVersionError, FormatError
from llama_index_contextual.storage.manifest import (
    FORMAT_VERSION,
    Manifest,
    PartEntry,
    PartManifest,
    checksum,
)
from llama_index_contextual.storage.part import ranges
from tests.support.source import ROOT

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
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


FORMER = (ROOT / "tests/data/format-2/golden/versions/v000002/manifest.json").read_bytes()


def changed(manifest: bytes = MANIFEST.to_json(), **changes: Any) -> bytes:
    content = {**json.loads(manifest), **changes}
    del content["xxh3"]
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


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "a\0b"])
def test_a_file_outside_the_version_is_refused(name: str) -> None:
    manifest = replace(PART, files={name: FILES["docstore.sqlite"]})
    with pytest.raises(CorruptVersionError, match=r"part.json is not a manifest"):
        PartManifest.from_json(manifest.to_json(), file="part.json")
    with pytest.raises(CorruptVersionError, match=r"manifest.json is not a manifest"):
        Manifest.from_json(changed(FORMER, files={name: FILES["docstore.sqlite"]}), file="manifest.json")


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
        changed(FORMER, documents="ab"),
        changed(FORMER, files={"../../elsewhere": {"bytes": 1}}),
        changed(FORMER, unknown=1),
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
