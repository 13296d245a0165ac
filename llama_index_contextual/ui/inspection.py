"""Show a project as one HTML file: explained searches, documents with segments and chunks, versions and costs.

The file has the same content as the views of the workbench and uses the same templates. It loads no other files and
runs no scripts.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path

from llama_index_contextual import metadata as keys
from llama_index_contextual.errors import ReadError
from llama_index_contextual.index import files
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.results import RetrievalResponse, RetrievedChunk
from llama_index_contextual.ui.overview import Segment, project_values, segments_of
from llama_index_contextual.ui.pages import Originals
from llama_index_contextual.ui.passage import MarkedPage, passage_view
from llama_index_contextual.ui.search import Result, confidence_words, results_of
from llama_index_contextual.ui.views import Links, analyzer_of, make_templates

STYLESHEETS = ("workbench.css", "passage.css")


def inspection_page(
    project: Project, questions: Sequence[str] = (), *, top_k: int = 10, document_folders: Sequence[Path] = ()
) -> str:
    """Return a self-contained page about the live version of a project.

    Args:
        project: The project.
        questions: Queries whose results the page explains.
        top_k: Number of results for each query.
        document_folders: Folders with copies of the original files, for images of their pages, if the files are no
            longer where they were ingested.

    Raises:
        NoVersionError: Nothing has been ingested yet.
    """
    analyzer = analyzer_of(project)  # fails if there is no version
    searches = []
    originals = Originals(document_folders)
    try:
        for question in questions:
            response = project.retrieve(question, top_k=top_k, explain=True)
            pages = {hit.node_id: _pages(project, hit, question, originals) for hit in response}
            searches.append(_Search(response, results_of(response, analyzer), confidence_words(response), pages))
    finally:
        originals.renderer.close()
    documents = [_document(project, record) for record in project.documents()]
    static = package_files(__package__).joinpath("static")
    style = "".join(static.joinpath(name).read_text(encoding="utf-8") for name in STYLESHEETS)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        make_templates()
        .get_template("inspection.html")
        .render(
            project=project,
            searches=searches,
            documents=documents,
            links=FileLinks(project.name, documents),
            style=style,
            policy=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'",
            **project_values(project),
        )
    )


def write_page(
    project: Project,
    path: Path,
    questions: Sequence[str] = (),
    *,
    top_k: int = 10,
    document_folders: Sequence[Path] = (),
) -> Path:
    """Write `inspection_page` to a file, replacing an existing one, and return its path.

    Raises:
        InputError: The folder does not exist.
    """
    files.require_folder(path)
    page = inspection_page(project, questions, top_k=top_k, document_folders=document_folders)
    files.replace(path, page.encode("utf-8", "replace"))
    return path


@dataclass(frozen=True)
class _Search:
    """A query with its results.

    Attributes:
        response: The response.
        results: The results as displayed.
        confidence: Whether the documents answer the query, as a sentence.
        pages: The pages of each result by its id; none if the file has no pages or was not found.
    """

    response: RetrievalResponse
    results: Sequence[Result]
    confidence: str
    pages: Mapping[str, Sequence[_Page]]


@dataclass(frozen=True)
class _Page:
    """A page of a result with the passage marked.

    Attributes:
        page: The page.
        of: Number of pages of the file.
        file_name: Name of the file.
        image: The image of the page as a data URL.
    """

    page: MarkedPage
    of: int
    file_name: str
    image: str


def _pages(project: Project, hit: RetrievedChunk, question: str, originals: Originals) -> list[_Page]:
    view = passage_view(project, hit.node_id, question=question, originals=originals)
    if view is None or view.original.kind != "pages":
        return []
    file = originals.find(view.record)
    shown = []
    for page in view.original.pages:
        if page.marks is None:
            continue
        try:
            image = base64.b64encode(originals.renderer.image(file, page.number)).decode()
        except ReadError:
            continue  # the text of the passage is on the page in any case
        shown.append(_Page(page, view.original.file_pages, view.file_name, f"data:image/png;base64,{image}"))
    return shown


@dataclass(frozen=True)
class _Document:
    """A document with its chunks.

    Attributes:
        record: The record of the document in the version.
        segments: The segments of the document.
        segment_count: Number of segments.
    """

    record: DocumentRecord
    segments: Sequence[Segment]
    segment_count: int


def _document(project: Project, record: DocumentRecord) -> _Document:
    nodes = project.chunks(record.doc_id)
    count = len({node.metadata.get(keys.SEGMENT_INDEX) for node in nodes})
    return _Document(record, segments_of(nodes, record), count)


class FileLinks(Links):
    """Addresses of the sections of the file.

    Args:
        project: Name of the project.
        documents: The documents in the file.
    """

    is_file = True

    def __init__(self, project: str, documents: Sequence[_Document]) -> None:
        super().__init__(project)
        self._documents = {one.record.doc_id: f"document-{number}" for number, one in enumerate(documents, start=1)}
        chunks = (chunk for one in documents for segment in one.segments for chunk in segment.chunks)
        self._chunks = {chunk.node_id: f"chunk-{number}" for number, chunk in enumerate(chunks, start=1)}

    def anchor(self, node_id: str) -> str:
        """Return the id of the element of a chunk."""
        return self._chunks.get(node_id, "documents")

    def passage(self, node_id: str, q: str = "") -> str:
        """Return the address of a chunk."""
        return f"#{self.anchor(node_id)}"

    def document_anchor(self, doc_id: str) -> str:
        """Return the id of the section of a document."""
        return self._documents.get(doc_id, "documents")

    def document(self, doc_id: str, **parameters: object) -> str:
        """Return the address of the section of a document."""
        return f"#{self.document_anchor(doc_id)}"
