"""Chunks back into the segments that they were cut from: pure, from offsets alone.

Chunks of `ChunkNodeParser` know their segment's span. Nodes of other parsers are grouped by document, in their order,
into windows of segment size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby

from llama_index.core.schema import BaseNode

from llama_index_contextual import metadata as keys
from llama_index_contextual.node_parser.tokenizer import count_tokens
from llama_index_contextual.redaction import get_logger

logger = get_logger(__name__)

HOLE = "\n[…]\n"
_BETWEEN = "\n\n"
OPENING_CHARACTERS = 400


@dataclass(frozen=True)
class Segment:
    """What a contextualizer sees at a time.

    Attributes:
        doc_id: Id of the document.
        title: Title of the document, or its file name, or None.
        file_name: Name of its file, or None.
        opening: The beginning of the document, as far as the call holds it.
        begins_document: Whether the segment's own text begins with the opening.
        section: Path of headings at the beginning of the segment, or None.
        text: The segment's text, overlap with its neighbours included.
        chunks: Its chunks, in the order of the text.
        starts: Where each of them begins in `text`.
    """

    doc_id: str
    title: str | None
    file_name: str | None
    opening: str
    begins_document: bool
    section: str | None
    text: str
    chunks: tuple[BaseNode, ...]
    starts: tuple[int, ...] = ()

    @cached_property
    def ambiguous(self) -> frozenset[str]:
        """The texts that chunks of different sections share."""
        sections: dict[str, set[str]] = {}
        for chunk in self.chunks:
            sections.setdefault(chunk.get_content(), set()).add(str(chunk.metadata.get(keys.SECTION)))
        return frozenset(text for text, found in sections.items() if len(found) > 1)


def segments(nodes: Sequence[BaseNode], *, segment_size: int) -> list[Segment]:
    """Return the segments of all documents in `nodes`, in the order of their first chunk.

    Args:
        nodes: Chunks of any number of documents.
        segment_size: Tokens of a window over nodes whose parser knows no segments.
    """
    documents: dict[str, list[BaseNode]] = {}
    for node in nodes:
        documents.setdefault(node.ref_doc_id or node.node_id, []).append(node)
    return [segment for doc_id, chunks in documents.items() for segment in _of_document(doc_id, chunks, segment_size)]


def _of_document(doc_id: str, nodes: Sequence[BaseNode], segment_size: int) -> Iterable[Segment]:
    chunks = sorted(nodes, key=_start)
    first = chunks[0]
    opening = _opening(first)
    for group in _groups(chunks, segment_size):
        text, starts = _segment_text(chunks, group)
        yield Segment(
            doc_id=doc_id,
            title=first.metadata.get(keys.TITLE) or first.metadata.get(keys.FILE_NAME),
            file_name=first.metadata.get(keys.FILE_NAME),
            opening=opening,
            begins_document=group[0] is first,
            section=group[0].metadata.get(keys.SECTION),
            text=text,
            chunks=tuple(group),
            starts=starts,
        )


def _groups(chunks: Sequence[BaseNode], segment_size: int) -> list[list[BaseNode]]:
    if all(keys.SEGMENT_INDEX in chunk.metadata for chunk in chunks):
        return [list(group) for _, group in groupby(chunks, key=lambda chunk: chunk.metadata[keys.SEGMENT_INDEX])]
    groups: list[list[BaseNode]] = []
    size = segment_size
    for chunk in chunks:
        tokens = count_tokens(chunk.get_content())
        if size + tokens > segment_size:
            groups.append([])
            size = 0
        groups[-1].append(chunk)
        size += tokens
    return groups


def _segment_text(chunks: Sequence[BaseNode], group: Sequence[BaseNode]) -> tuple[str, tuple[int, ...]]:
    """Return the text of a segment, and where the chunks of the group begin in it."""
    start, end = group[0].metadata.get(keys.SEGMENT_START), group[-1].metadata.get(keys.SEGMENT_END)
    if not isinstance(start, int) or not isinstance(end, int):
        start, end = _start(group[0]), max(_start(c) + len(c.get_content()) for c in group)
    if any(getattr(chunk, "start_char_idx", None) is None for chunk in group):
        texts = [chunk.get_content() for chunk in group]
        return _BETWEEN.join(texts), tuple(accumulate((len(t) + len(_BETWEEN) for t in texts[:-1]), initial=0))
    known = (c for c in chunks if getattr(c, "start_char_idx", None) is not None)
    text, starts = join([c for c in known if _start(c) < end and _start(c) + len(c.get_content()) > start], start, end)
    # A foreign chunk without text is in no stretch of the text.
    return text, tuple(starts.get(chunk.node_id, 0) for chunk in group)


def join(chunks: Sequence[BaseNode], start: int, end: int) -> tuple[str, dict[str, int]]:
    """Return the text between two offsets of a document, from chunks in the order of the text, and where each begins.

    White space between chunks becomes a line break; a hole (a chunk that is not there) becomes a mark and a warning.

    Returns:
        The text, and by the id of each chunk the place in it where the chunk begins.
    """
    pieces: list[str] = []
    starts: dict[str, int] = {}
    at, last, length = start, None, 0
    for chunk in chunks:
        text, begin = chunk.get_content(), _start(chunk)
        if pieces and begin > at:
            pieces.append("\n" if _follows(last, chunk) else HOLE)
            length += len(pieces[-1])
            if pieces[-1] == HOLE:
                logger.warning("Chunks of %s are missing before character %d.", chunk.ref_doc_id, begin)
        starts[chunk.node_id] = max(0, length - max(0, at - begin))
        pieces.append(text[max(0, at - begin) : max(0, end - begin)])
        length += len(pieces[-1])
        at, last = max(at, begin + len(text)), chunk
    return "".join(pieces), starts


def _follows(last: BaseNode | None, chunk: BaseNode) -> bool:
    """Return whether nothing stands between two chunks; chunks that are not numbered are taken at their word."""
    before = None if last is None else last.metadata.get(keys.CHUNK_INDEX)
    number = chunk.metadata.get(keys.CHUNK_INDEX)
    return before is None or number is None or number <= before + 1


def _start(node: BaseNode) -> int:
    return getattr(node, "start_char_idx", None) or 0


def _opening(first: BaseNode) -> str:
    text = " ".join(first.get_content()[: 2 * OPENING_CHARACTERS].split())
    if len(text) <= OPENING_CHARACTERS:
        return text
    cut = text.rfind(" ", OPENING_CHARACTERS - 40, OPENING_CHARACTERS)  # some scripts have no spaces
    return text[: OPENING_CHARACTERS if cut < 0 else cut] + " …"
