"""haiku.rag as a system of `field`, in an environment of its own: `PYTHON field_haiku.py [--defaults] TASK FOLDER`.

Imports nothing but haiku.rag, and prints the figures as JSON in the last line. With `--defaults`, it embeds with the
model of its default settings; otherwise with the server of the task. The chunks of a document are imported together,
as its documentation describes for documents that were chunked elsewhere, and the tables are compacted afterwards.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

TOP_K = 20


async def measure(task: dict[str, Any], database: Path, defaults: bool) -> dict[str, Any]:
    """Import the chunks, search for the questions, and return the figures."""
    from haiku.rag.client import HaikuRAG
    from haiku.rag.config import AppConfig
    from haiku.rag.config.models import EmbeddingModelConfig, EmbeddingsConfig

    config = AppConfig()
    if not defaults:
        model = EmbeddingModelConfig(
            provider="openai", name="served", vector_dim=task["dimensions"], base_url=task["url"]
        )
        config = AppConfig(embeddings=EmbeddingsConfig(model=model, batch_size=32))
    started = time.perf_counter()
    async with HaikuRAG(database, config=config, create=True) as client:
        await client.import_documents(documents(task["chunks"]))
        await client.vacuum()
        ingested = time.perf_counter() - started
        hits, spent = [], []
        for question in task["questions"]:
            started = time.perf_counter()
            results = await client.search(question, limit=TOP_K)
            hits.append([result.chunk_meta["chunk_id"] for result in results])
            spent.append(1000 * (time.perf_counter() - started))
    return {"ingest_s": ingested, "hits": hits, "query_ms": spent}


def documents(chunks: list[dict[str, Any]]) -> list[Any]:
    """Return one import for each document."""
    from docling_core.types.doc import DocItemLabel, DoclingDocument
    from haiku.rag.client import DocumentImport
    from haiku.rag.store.models.chunk import Chunk

    grouped = defaultdict(list)
    for chunk in chunks:
        grouped[chunk["doc_id"]].append(chunk)
    imports = []
    for name, parts in grouped.items():
        document = DoclingDocument(name=name)
        for part in parts:
            document.add_text(label=DocItemLabel.TEXT, text=part["text"])
        imported = [
            Chunk(content=part["text"], metadata={"chunk_id": part["chunk_id"]}, order=at)
            for at, part in enumerate(parts)
        ]
        imports.append(DocumentImport(docling_document=document, chunks=imported, uri=f"field://{name}", title=name))
    return imports


def peak_memory() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def main(*arguments: str) -> None:
    """Measure it."""
    task_file, folder = arguments[-2:]
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    figures = asyncio.run(measure(task, Path(folder, "field.lancedb"), "--defaults" in arguments))
    figures["peak_mb"] = peak_memory()
    version = importlib.metadata.version("haiku.rag-slim")
    print(json.dumps(figures | {"version": f"haiku.rag {version}"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
