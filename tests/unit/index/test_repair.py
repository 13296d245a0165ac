"""The description of a repair."""

from __future__ import annotations

from llama_index_contextual.index.verify import Repair


def test_a_repair_says_what_to_ingest_again_and_what_only_a_backup_has() -> None:
    missing = {"a.md": "/files/a.md", "note": None, "b.md": "/files/b.md"}
    first, again, lost, unnamed = Repair(version="v3", former="v2", missing=missing, unnamed=2).lines()
    assert first == "Version v3 is live: v2 without its damaged parts."
    assert again == "Ingest 2 documents again from /files/a.md, /files/b.md: a.md, b.md."
    assert lost.startswith("1 document without a file can only be ingested again, or restored with the files of v2")
    assert lost.endswith("from a backup: note.")
    assert unnamed == "The ids of 2 more documents cannot be read."
    assert Repair(version="v3", former="v2").lines() == [first]
    of_file = Repair(version="v3", former="v2", missing={"a.md": "/files/a.md"})
    assert of_file.lines()[1:] == ["Ingest 1 document again from /files/a.md: a.md."]
