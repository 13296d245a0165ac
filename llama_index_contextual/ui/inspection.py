"""HTML page of a project: documents, segments, chunks with their contexts, and explained search results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files as package_files
from itertools import groupby
from pathlib import Path
from typing import Any

from llama_index.core.schema import BaseNode

from llama_index_contextual import metadata as keys
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.response import RetrievalResponse
from llama_index_contextual.storage import files

_TEMPLATE = "inspection.html"
_MARK = "/*DATA*/null"


def inspection_page(project: Project, questions: Sequence[str] = (), *, top_k: int = 10) -> str:
    """Return a self-contained page about the live version of a project.

    The page loads no other resources; text from documents is embedded as data, never as markup.

    Args:
        project: The project.
        questions: Queries whose results the page explains.
        top_k: Number of results of each query.

    Raises:
        NoVersionError: Nothing has been ingested yet.
    """
    data = {
        "project": project.name,
        "version": project.info().version,
        "documents": list(_documents(project)),
        "searches": [_search(project.retrieve(question, top_k=top_k, explain=True)) for question in questions],
    }
    template = package_files(__package__).joinpath(_TEMPLATE).read_text(encoding="utf-8")
    return template.replace(_MARK, _script_safe(data))


def write_page(project: Project, path: Path, questions: Sequence[str] = (), *, top_k: int = 10) -> Path:
    """Write `inspection_page` to a file, replacing an existing one, and return its path.

    Raises:
        InputError: The folder does not exist.
    """
    files.require_folder(path)
    page = inspection_page(project, questions, top_k=top_k)
    files.replace(path, page.encode("utf-8", "backslashreplace"))
    return path


def _documents(project: Project) -> Iterator[dict[str, Any]]:
    for record in project.documents():
        nodes = project.chunks(record.doc_id)
        by_segment = groupby(nodes, key=lambda node: node.metadata.get(keys.SEGMENT_INDEX, 0))
        yield {
            "doc_id": record.doc_id,
            "title": record.title or record.file_name or record.doc_id,
            "characters": record.characters,
            "tokens": record.tokens,
            "failed": len(record.fallback_chunks),
            "segments": [[_chunk(node) for node in chunks] for _, chunks in by_segment],
        }


def _chunk(node: BaseNode) -> dict[str, Any]:
    structure, written = keys.context_parts(node.metadata)
    own = {name: value for name, value in node.metadata.items() if name not in keys.OWN_KEYS}
    return {
        "id": node.node_id,
        "source": node.metadata.get(keys.SOURCE_LINE) or "",
        "structure": structure,
        "context": written,
        "written_by": node.metadata.get(keys.CONTEXT_SOURCE) or "none",
        "text": node.get_content(),
        "tokens": node.metadata.get(keys.TOKEN_COUNT),
        "start": getattr(node, "start_char_idx", None),
        "end": getattr(node, "end_char_idx", None),
        "facts": own,
    }


def _search(response: RetrievalResponse) -> dict[str, Any]:
    data = response.to_dict()
    for result in data["results"]:
        del result["text"], result["context"]  # they are in the data of the chunk
    return data


def _script_safe(data: Any) -> str:
    """Return JSON that cannot end the script element of an HTML page."""
    text = json.dumps(data, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
