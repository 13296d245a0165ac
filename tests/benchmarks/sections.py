"""Sections of PDFs: `python -m tests.benchmarks.sections --data DATA`.

Prints the share of chunks that have a section, for each set and each file, and the titles. Then prints a sample of
chunks, drawn with `--seed`, with file, page, section and text, so that you can compare them with the pages.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from llama_index.core.schema import BaseNode, Document

from llama_index_contextual.metadata import SECTION
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.readers.documents import read_documents
from llama_index_contextual.readers.pdf.pages import PdfEngine

SETS = ("contracts", "filings")


def chunks(document: Document) -> list[BaseNode]:
    """Cut a document into chunks with the default sizes."""
    return list(ChunkNodeParser()(SegmentNodeParser()([document])))


def sample(nodes: list[BaseNode], count: int, seed: int) -> Iterator[str]:
    """Yield descriptions of `count` chunks."""
    for number, node in enumerate(random.Random(seed).sample(nodes, min(count, len(nodes))), 1):
        metadata = node.metadata
        where = f"{metadata['file_name']}, pages {metadata['page_start']}–{metadata['page_end']}"
        text = node.get_content()
        yield f"[{number}] {where}\n    section: {metadata.get(SECTION)}\n    {text[:300]!r} … {text[-200:]!r}"


def main() -> None:
    """Print shares and the sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--engine", choices=get_args(PdfEngine), default=get_args(PdfEngine)[0])
    parser.add_argument("--sample", type=int, default=50, help="chunks per set to print")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    for name in arguments.sets:
        every: list[BaseNode] = []
        for document in read_documents(arguments.data / name / "pdf", pdf_engine=arguments.engine):
            nodes = chunks(document)
            share = sum(SECTION in node.metadata for node in nodes) / len(nodes)
            title = document.metadata.get("title")
            print(f"{document.metadata['file_name'][:40]:40s} {len(nodes):4d} chunks {share:7.1%}  {title}", flush=True)
            every += nodes
        share = sum(SECTION in node.metadata for node in every) / len(every)
        paths = {(node.ref_doc_id, node.metadata.get(SECTION)) for node in every}
        print(f"{name}: {len(every)} chunks, {share:.1%} with a section, {len(paths)} different sections\n")
        print(*sample(every, arguments.sample, arguments.seed), sep="\n")


if __name__ == "__main__":
    main()
