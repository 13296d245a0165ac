"""All that recordings and question sets import from the package: the only module to change if its internals move.

The rest works with plain values: ids, scores and evidence as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.schema import BaseNode, Document
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual import ConversationalRetriever, Project, ProjectConfig, ProjectManager, RetrievalResponse
from llama_index_contextual.evaluation.run import recall as recall
from llama_index_contextual.readers.documents import read_documents as read_documents
from llama_index_contextual.readers.pdf.pages import PdfEngine as PdfEngine
from llama_index_contextual.retrievers import ConversationQuery
from llama_index_contextual.search.results import RetrievedChunk as RetrievedChunk

INDEX_NAMES = ("semantic", "lexical", "document")
SOURCE = ("doc_id", "file_name", "title", "section", "page_start", "page_end", "start_char", "end_char")


def ingested(root: Path, name: str, inputs: Sequence[Path | Document | BaseNode]) -> tuple[Project, list[str]]:
    """Return a new project of local settings with the inputs, and the messages of its ingest."""
    project = ProjectManager(root).create(name, ProjectConfig.local())
    report = project.ingest(list(inputs))  # type: ignore[arg-type]  # paths or nodes
    skipped = [f"{Path(file.path).name}: {file.reason}" for file in report.skipped]
    return project, sorted([*skipped, *(f"{Path(one.path).name}: {one.message}" for one in report.warnings)])


def documents_of(project: Project) -> list[dict[str, Any]]:
    """Return the documents of a project, with their texts."""
    fields = ("doc_id", "file_name", "title", "chunks", "tokens")
    return [
        {name: getattr(record, name) for name in fields} | {"text": project.read(record.doc_id)}
        for record in project.documents()
    ]


def answers(project: Project, questions: Sequence[str], **options: Any) -> list[RetrievalResponse]:
    """Return the response to each question, embedded together."""
    return project.retrieve_many(list(questions), **options)


def answer(project: Project, question: str, *, file_name: str | None = None, **options: Any) -> RetrievalResponse:
    """Return the response to a question, of one file if it is named."""
    if file_name is not None:
        options["filters"] = MetadataFilters(filters=[MetadataFilter(key="file_name", value=file_name)])
    return project.retrieve(question, **options)


def follow_up(project: Project, question: str, history: Sequence[tuple[str, str]]) -> RetrievalResponse:
    """Return the response to a question of a conversation, given as pairs of role and message."""
    retriever = ConversationalRetriever(project.as_retriever(), embed_model=project.embed_model)
    messages = [ChatMessage(message, role=MessageRole(role)) for role, message in history]
    return retriever.respond(ConversationQuery(question, history=messages))


def results_of(response: RetrievalResponse) -> list[RetrievedChunk]:
    """Return the results, best first."""
    return list(response.results)


def evidence_of(response: RetrievalResponse) -> dict[str, Any]:
    """Return what a response says, without texts: results, confidence, and explanations if they were asked for."""
    value = response.to_dict()
    results = [*value["results"], *value.get("near_misses", ())]
    explained = {row["node_id"]: row for row in (*value.get("explanations", ()), *value.get("near_misses", ()))}
    return {
        "confidence": value.get("confidence"),
        "results": [_hit(row, explained.get(row["node_id"], {})) for row in results],
    }


def _hit(row: dict[str, Any], explanation: dict[str, Any]) -> dict[str, Any]:
    hit: dict[str, Any] = {"id": row["node_id"], "score": row["score"]}
    hit["source"] = {name: row["source"].get(name) for name in SOURCE}
    for leg in INDEX_NAMES:
        if found := row.get(leg):
            terms = {"terms": sorted(found["matched_terms"])} if found.get("matched_terms") else {}
            hit[leg] = {"rank": found["rank"], "score": found["score"], **terms}
    for name in ("in_text", "in_context", "in_structure", "missing"):
        if name in explanation:
            hit[name] = sorted(explanation[name])
    if explanation:
        hit["shares"] = explanation["shares"]
    return hit
