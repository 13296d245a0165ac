"""Documents and chunks that the tests of the contextualizers share."""

from __future__ import annotations

from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import BaseNode, Document, NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.metadata import DocumentMap, Heading
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser

REPORT = """\
# Results

Revenue grew by 3 % over the quarter before. Orders from shipyards made up half of it.

The margin of the pump division fell to 11 %, because cast iron became dearer.

# Outlook

The board expects the pump division to close the year with a profit.

Nothing is decided about the foundry in the north; a decision is due in autumn.
"""
MANUAL = """\
Close valve V2 before the bench is switched off.

Error TS-999 means that the pump runs dry. Fill the tank, and start again.
"""


def documents() -> list[Document]:
    """Return two documents as the readers make them, one with headings and a user's key."""
    headings = [Heading(REPORT.index("# Results"), 1, "Results"), Heading(REPORT.index("# Outlook"), 1, "Outlook")]
    report = Document(
        id_="report.md",
        text=REPORT,
        metadata={
            "title": "Orlen Valve Works, second quarter",
            "file_name": "report.md",
            "file_path": "docs/report.md",
            "fund": "Alpha",
            **DocumentMap(headings=headings).to_metadata(),
        },
        excluded_embed_metadata_keys=["fund"],
        excluded_llm_metadata_keys=["fund"],
    )
    return [report, Document(id_="manual.txt", text=MANUAL, metadata={"file_name": "manual.txt"})]


def chunks(*, chunk_size: int = 24, segment_size: int = 60) -> list[BaseNode]:
    """Return the chunks of both documents: several segments, several chunks in each."""
    segments = SegmentNodeParser(segment_size=segment_size, segment_overlap=10)(documents())
    return list(ChunkNodeParser(chunk_size=chunk_size, chunk_overlap=4)(segments))


def foreign() -> list[BaseNode]:
    """Return nodes of LlamaIndex's own splitter, with a key that the user left visible."""
    document = Document(id_="foreign", text=REPORT, metadata={"author": "Ada", "title": "Quarter"})
    return list(SentenceSplitter(chunk_size=64, chunk_overlap=0)([document]))


def loose(*texts: str, doc_id: str = "loose", **metadata: object) -> list[BaseNode]:
    """Return nodes of one document without offsets."""
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)}
    return [
        TextNode(id_=f"{doc_id}-{n}", text=text, metadata=dict(metadata), relationships=dict(source))
        for n, text in enumerate(texts)
    ]
