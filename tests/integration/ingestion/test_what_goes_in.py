"""Inputs without text, missing paths, files that change during a run, unstorable metadata, and counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document, TextNode

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.versions import version_names
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers import DocumentReader, content_hash, read_documents
from tests.integration.ingestion.support import MANUAL, ids, nodes_of
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.nodes import chunk
from tests.support.pdf_files import RawPdf, lines, pdf_of
from tests.support.trees import write


def scan(pages: int = 2) -> bytes:
    """Return a PDF whose pages are images."""
    pdf = RawPdf()
    image = pdf.stream(
        b"\x00", b"/Type/XObject/Subtype/Image/Width 1/Height 1/ColorSpace/DeviceGray/BitsPerComponent 8"
    )
    for _ in range(pages):
        pdf.page(b"q 600 0 0 800 0 0 cm /Im Do Q", resources=b"/XObject<</Im %d 0 R>>" % image)
    return pdf.data()


# ---- the hash is that of the bytes that were read --------------------------------------------------------------------

FORMATS: dict[str, Callable[[str], bytes]] = {
    "a.txt": str.encode,
    "latin.txt": lambda text: f"{text} au café".encode("cp1252"),
    "wide.txt": lambda text: text.encode("utf-16"),
    "a.md": lambda text: f"# Title\n\n{text}".encode(),
    "a.pdf": lambda text: pdf_of([lines([text])]).data(),
}


@pytest.mark.parametrize(("name", "engine"), [*((name, "pypdf") for name in FORMATS), ("a.pdf", "pdfium")])
def test_a_file_that_changes_before_parsing_is_identified_by_the_parsed_content(
    name: str, engine: str, manager: ProjectManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ProjectConfig.local(context="none", indexes="lexical", mode="lexical", pdf_engine=engine)
    project = manager.create("swapped", config)
    first, second = (FORMATS[name](text) for text in ("The pump runs.", "The pump is out of order."))
    path = write(tmp_path / name, first)
    real = DocumentReader._parse

    def swapped(self: DocumentReader, ref: Any) -> Any:
        path.write_bytes(second)
        try:
            return real(self, ref)
        finally:
            path.write_bytes(first)

    with monkeypatch.context() as patch:
        patch.setattr(DocumentReader, "_parse", swapped)
        project.ingest([path])
    assert "out of order" in project.read(name)
    (record,) = project.documents()
    path.write_bytes(second)
    assert record.content_hash == content_hash(path)
    path.write_bytes(first)
    assert list(project.ingest([path]).updated) == [name]
    assert "The pump runs." in project.read(name)
    assert list(project.ingest([path]).unchanged) == [name]


def test_metadata_is_asked_for_once_and_compared_with_the_stored_values(counted: Project, text_folder: Path) -> None:
    values = iter(["IV", "V", "V"])
    for version, expected in ((1, "IV"), (2, "V"), (2, "V")):
        report = counted.ingest([text_folder / "manual.txt"], file_metadata=lambda _: {"fund": next(values)})
        assert {node.metadata["fund"] for node in nodes_of(counted)} == {expected}
        assert report.version == f"v{version:06}"


# ---- what has no text ------------------------------------------------------------------------------------------------

OCR = "has no text layer: set `ocr` to 'auto' to have it read by OCR, and ingest it again"


@pytest.mark.parametrize("engine", ["pypdf", "pdfium"])
def test_a_scanned_pdf_is_skipped_with_advice(engine: str, manager: ProjectManager, tmp_path: Path) -> None:
    project = manager.create("scans", ProjectConfig.local(context="none", pdf_engine=engine, ocr=None))
    write(tmp_path / "docs/scan.pdf", scan())
    write(tmp_path / "docs/scan (1).pdf", scan())
    write(tmp_path / "docs/text.md", "# Text\n\nHere.")
    report = project.ingest([tmp_path / "docs"])
    assert list(report.added) == ["docs/text.md"]
    reasons = {Path(file.path).name: file.reason for file in report.skipped}
    assert reasons.keys() == {"scan.pdf", "scan (1).pdf"}
    assert reasons["scan (1).pdf"] == OCR
    assert reasons["scan.pdf"].startswith("has the same content as ")
    assert "docs/scan.pdf" not in {record.doc_id for record in project.documents()}


@pytest.mark.parametrize("text", ["", "  \n", "\u200b"])
def test_empty_documents_and_nodes_are_skipped_with_advice(counted: Project, text: str) -> None:
    inputs = [Document(id_="full", text="Full."), Document(id_="void", text=text), TextNode(id_="n", text=text)]
    report = counted.ingest(inputs)
    assert list(report.added) == ["full"]
    assert [(file.path, file.reason) for file in report.skipped] == [
        ("void", "is a Document without text: add text, or omit it"),
        ("n", "is a node without text: add text, or omit it"),
    ]
    with pytest.raises(InputError, match=r"There is nothing to ingest\. void: is a Document without text"):
        counted.ingest(inputs[1:], replace=True)


# ---- paths that lead nowhere -----------------------------------------------------------------------------------------


def test_a_missing_path_is_reported_if_other_files_were_read_and_removes_none(
    counted: Project, text_folder: Path
) -> None:
    report = counted.ingest([text_folder, text_folder / "nowhere"])
    assert len(report.added) == 2
    assert [(file.path, file.reason, file.absent) for file in report.skipped] == [
        (str(text_folder / "nowhere"), "does not exist", True)
    ]
    assert counted.ingest([text_folder, text_folder / "nowhere"]).version == "v000001"
    assert version_names(counted.directory) == ["v000001"]
    assert counted.estimate([text_folder, text_folder / "nowhere"]).skipped[0].absent
    message = r"nowhere: does not exist\. Because all .* removed: correct the path, or leave"
    with pytest.raises(InputError, match=message):
        counted.ingest([text_folder / "manual.txt", text_folder / "nowhere"], replace=True)
    assert len(ids(counted)) == 2


# ---- counts ----------------------------------------------------------------------------------------------------------


def test_counts_refer_to_the_inputs_of_the_call(counted: Project, text_folder: Path) -> None:
    counted.ingest([Document(id_=f"note {n}", text=f"Note {n}.") for n in range(5)])
    counted.ingest([text_folder])
    report = counted.ingest([text_folder])
    assert report.summary().startswith("0 added, 2 unchanged;")
    report = counted.ingest([text_folder / "manual.txt", Document(id_="note 1", text="Note 1.")])
    assert list(report.unchanged) == [MANUAL, "note 1"] or list(report.unchanged) == ["note 1", MANUAL]
    assert counted.remove("note 1").summary().startswith("0 added, 1 removed;")
    assert len(counted.rebuild().unchanged) == 6
    assert counted.retry_failed().unchanged == ()


# ---- contexts that come with nodes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("context", "source"),
    [("none", "llm"), ("structural", "llm"), ("llm", "structural"), ("llm", "given"), ("llm", "none"), ("llm", None)],
)
def test_a_context_that_comes_with_a_node_is_kept(
    manager: ProjectManager, model: CountingEmbedding, context: Any, source: str | None
) -> None:
    llm = ScriptedLLM()
    project = manager.create("second", ProjectConfig.local(context=context), llm=llm, embed_model=model)
    metadata = {"context": "From another project.", **({"context_source": source} if source else {})}
    project.ingest([chunk("a", "Costs fell.", doc_id="d", metadata=metadata), chunk("b", "Costs rose.", doc_id="d")])

    def check() -> None:
        node = nodes_of(project)[0]
        assert node.metadata["context"] == "From another project."
        assert node.metadata["context_source"] == (source if source in ("llm", "structural") else "given")
        assert project.retrieve("another project").results[0].node_id == "a"

    check()
    assert len(llm.history) == (1 if context == "llm" else 0)
    project.update_config(context="structural" if context != "structural" else "none")
    project.rebuild()
    check()
    assert nodes_of(project)[1].metadata["context_source"] == ("structural" if context != "structural" else "none")


# ---- metadata --------------------------------------------------------------------------------------------------------


def circular() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["itself"] = [value]
    return value


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


ODD: dict[str, tuple[Callable[[], Any], str]] = {
    "tuple keys": (lambda: {(1, 2): "x"}, "'odd' in its metadata cannot be written as JSON"),
    "circular": (circular, "'odd' in its metadata cannot be written as JSON"),
    "deep": (lambda: nested(3_000), "'odd' in its metadata is nested too deeply: use simple values"),
}
UNSTORABLE: dict[str, tuple[Callable[[], Any], str]] = {
    **ODD,
    "infinite": (lambda: [float("inf")], "'odd' in its metadata is not a finite number"),
    "bytes": (lambda: b"x", "'odd' in its metadata is of type bytes"),
    "set": (lambda: {"a": {1}}, "'odd' in its metadata is of type set"),
    "object": (object, "'odd' in its metadata is of type object"),
}


def with_metadata(kind: type[TextNode], value: Any, key: Any = "odd") -> TextNode:
    node = kind(id_="n", text="Some text. More of it.")
    node.metadata[key] = value
    return node


@pytest.mark.parametrize("kind", [Document, TextNode])
@pytest.mark.parametrize("name", UNSTORABLE)
def test_metadata_that_cannot_be_stored_is_refused_with_a_message(
    counted: Project, name: str, kind: type[TextNode]
) -> None:
    make, message = UNSTORABLE[name]
    with pytest.raises(InputError) as caught:
        counted.ingest([with_metadata(kind, make())])
    assert f"'n' cannot be ingested: the value of {message}" in str(caught.value)
    with pytest.raises(InputError, match=r"'n' cannot be ingested: its metadata has a key of type tuple: use text"):
        counted.ingest([with_metadata(kind, "x", key=("a", "b"))])


@pytest.mark.parametrize("parser", [SegmentNodeParser(), ChunkNodeParser()], ids=["segment", "chunk"])
@pytest.mark.parametrize("kind", [Document, TextNode])
def test_a_node_parser_refuses_metadata_that_cannot_be_stored(kind: type[TextNode], parser: Any) -> None:
    for make, message in ODD.values():
        with pytest.raises(InputError) as caught:
            parser([with_metadata(kind, make())])
        assert f"Node 'n' cannot be parsed: the value of {message}" in str(caught.value)
    with pytest.raises(InputError, match=r"'n' cannot be parsed: its metadata has a key of type tuple: use text"):
        parser([with_metadata(kind, "x", key=("a", "b"))])


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"fund": "IV"}, r"file_metadata must be a function from a path to a dict, got dict: pass `lambda path"),
        ("fund", r"file_metadata must be a function from a path to a dict, got str"),
        (lambda _: ["fund"], r"file_metadata must return a dict, got list"),
        (lambda _: {("a", "b"): 1}, r"A key of the metadata of a file must be a non-empty string"),
        (lambda _: {"odd": circular()}, r"The value of the metadata 'odd' of a file cannot be written as JSON"),
        (lambda _: {"odd": nested(3_000)}, r"The value of the metadata 'odd' of a file is nested too deeply"),
        (lambda _: {"odd": float("nan")}, r"The value of the metadata 'odd' of a file is not a finite number"),
    ],
)
def test_file_metadata_of_a_wrong_type_is_refused(
    counted: Project, text_folder: Path, facts: Any, message: str
) -> None:
    for call in (counted.ingest, counted.estimate, read_documents):
        with pytest.raises(InputError, match=message):
            call([text_folder], file_metadata=facts)  # type: ignore[operator]


# ---- Documents of LlamaIndex's own readers ---------------------------------------------------------------------------


def test_pages_of_one_file_are_documents_that_are_told_apart(project: Project) -> None:
    facts = {"file_name": "fruit.pdf", "file_path": "/data/fruit.pdf"}
    pages = [
        Document(id_=f"fruit.pdf_part_{n}", text=f"About cherry number {n}.", metadata={**facts, "page_label": str(n)})
        for n in (1, 2, 3)
    ]
    assert len(project.ingest(pages).added) == 3
    hit = project.retrieve("cherry number 2", top_k=1)[0]
    assert (str(hit.source), hit.source.page_label, hit.source.file_name) == ("fruit.pdf, page 2", "2", "fruit.pdf")
    assert hit.node.metadata["source"] == "Source: fruit.pdf, page 2"
    assert len(project.ingest(pages).unchanged) == 3
