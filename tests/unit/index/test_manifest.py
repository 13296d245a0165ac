"""The manifest of a version: read back as written, and refused if anything is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llama_index_contextual.errors import CorruptVersionError, FormatError
from llama_index_contextual.index.manifest import DerivedEntry, FileEntry, Manifest, PartEntry, checksum

MANIFEST = Manifest(
    version="v000001",
    created="2023-05-01T12:00:00+00:00",
    package="0.1.0",
    config={"chunk_size": 800},
    embed_model="local",
    dimensions=256,
    documents=2,
    chunks=5,
    parts=[
        PartEntry(
            name="p000001",
            files={"docstore.sqlite": FileEntry(bytes=3, xxh3="0f", sha256="1f")},
            derived=DerivedEntry(edition=1, language="english"),
        )
    ],
)
FILE = {"bytes": 3, "xxh3": "0f", "sha256": "1f"}


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert Manifest.from_json(MANIFEST.to_json(), file="manifest.json") == MANIFEST


def changed(manifest: bytes = MANIFEST.to_json(), **changes: Any) -> bytes:
    content = {**json.loads(manifest), **changes}
    del content["xxh3"]
    return json.dumps({**content, "xxh3": checksum(content)}).encode()


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "a\0b"])
def test_a_file_outside_the_version_is_refused(name: str) -> None:
    data = changed(parts=[{"name": "p000001", "files": {name: FILE}}])
    with pytest.raises(CorruptVersionError, match=r"manifest.json is not a manifest"):
        Manifest.from_json(data, file="manifest.json")


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
        changed(format="1"),
        changed(format=None),
        changed(documents=None),
        changed(documents="ab"),
        changed(parts=[{"name": "p"}]),
        changed(parts=7),
        changed(parts=[{"name": "../p000001", "files": {}}]),
        changed(parts=[{"name": "p000001", "files": {"a": {**FILE, "bytes": "3"}}}]),
        changed(parts=[{"name": "p000001", "files": {"a": {"bytes": 3}}}]),
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


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_version_from_before_the_first_release_is_refused_and_its_contexts_can_be_taken_along(number: int) -> None:
    former = {key: value for key, value in json.loads(MANIFEST.to_json()).items() if key != "format"}
    data = changed(json.dumps(former).encode(), format_version=number)
    with pytest.raises(FormatError, match=r"^manifest.json was written before the first release: export its ledger"):
        Manifest.from_json(data, file="manifest.json")
