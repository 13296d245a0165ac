"""Records of the documents of a version are found by id, file and content."""

from __future__ import annotations

from llama_index_contextual.index.manifest import DocumentRecord, Records


def record(doc_id: str, content: str = "1", path: str | None = None) -> DocumentRecord:
    return DocumentRecord(doc_id=doc_id, content_hash=content, path=path)


LIST = [record("B", "2"), record("c", "1", "y"), record("a", "3", "x"), record("b", "2", "z")]


def test_a_document_is_found_by_id_path_and_content() -> None:
    records = Records(LIST)
    assert list(records) == LIST
    assert records.get("a") is LIST[2]
    assert records.get("unknown") is None
    assert records.with_path("x") is LIST[2]
    assert records.with_path("unknown") is None
    assert list(records.with_content("1")) == [LIST[1]]
    assert list(records.with_content("2")) == [LIST[0], LIST[3]]
    assert Records().get("a") is None
