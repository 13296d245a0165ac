"""Chunks of one document as one text: overlaps once, offsets exact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from llama_index.core.schema import TextNode

from llama_index_contextual import metadata as keys

Gap = Callable[[int, int], str | None]
"""Returns the text of the document between two offsets, or None where it is not known."""

_MOST_UNKNOWN = 2
"""Characters between linked chunks that are taken for white space without proof: those of a paragraph break."""

_MOST_SECTIONS = 3


@dataclass
class Passage:
    """Chunks of one document that follow each other without a hole.

    Attributes:
        start: Offset of the first character.
        text: The text from there on.
        nodes: The chunks, in the order of the text.
    """

    start: int
    text: str
    nodes: list[TextNode] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Offset behind the last character."""
        return self.start + len(self.text)

    def take(self, node: TextNode, gap: Gap) -> bool:
        """Append a chunk that begins no earlier than this passage, if no text is missing between; return whether."""
        start, text = span_start(node), node.text
        between = ""
        if start > self.end:
            found = gap(self.end, start)
            if found is None and follows(self.nodes[-1], node):
                found = _white_space(start - self.end)
            if found is None or found.strip():
                return False
            between = found
        shared = max(0, self.end - start)
        at = start - self.start
        # Offsets that do not tell the truth (a parser that searched for repeated text) must not garble a passage.
        if self.text[at : at + len(text)] != text[:shared]:
            return False
        self.text += between + text[shared:]
        self.nodes.append(node)
        return True


def join(nodes: Iterable[TextNode], gap: Gap) -> list[Passage]:
    """Return the passages that chunks of one document form, in the order of the text; overlaps stand there once.

    Args:
        nodes: Chunks with offsets, in any order.
        gap: Tells what stands between two offsets.
    """
    passages: list[Passage] = []
    for node in sorted(nodes, key=lambda node: (span_start(node), -len(node.text))):
        if not passages or not passages[-1].take(node, gap):
            passages.append(Passage(span_start(node), node.text, [node]))
    return passages


def has_span(node: object) -> bool:
    """Return whether a node says where in its document it stands, and in agreement with its text."""
    if not isinstance(node, TextNode) or node.ref_doc_id is None:
        return False
    start, end = node.start_char_idx, node.end_char_idx
    return start is not None and end is not None and end - start == len(node.text) > 0


def span_start(node: TextNode) -> int:
    """Return the offset of a node's first character."""
    return node.start_char_idx or 0


def follows(node: TextNode, other: TextNode) -> bool:
    """Return whether `other` is the next chunk of the document."""
    if node.next_node is not None and node.next_node.node_id == other.node_id:
        return True
    if other.prev_node is not None and other.prev_node.node_id == node.node_id:
        return True
    here, there = (n.metadata.get(keys.CHUNK_INDEX) for n in (node, other))
    return isinstance(here, int) and here + 1 == there


def joint_section(paths: Sequence[str | None]) -> str | None:
    """Return the sections of chunks as one: what their paths share once, then each of the rest; of many, the ends.

    Args:
        paths: The section of each chunk, in the order of the text; None where it has none.

    Example:
        >>> joint_section(["Manual > Faults > TS-998", "Manual > Faults > TS-999", "Manual > Repairs"])
        'Manual > Faults > TS-998; Faults > TS-999; Repairs'
    """
    distinct = [path.split(keys.SECTION_SEPARATOR) for path in dict.fromkeys(paths) if path]
    if len(distinct) < 2:
        return next((path for path in paths if path), None)
    shared = 0
    while all(len(path) > shared + 1 for path in distinct) and len({path[shared] for path in distinct}) == 1:
        shared += 1
    rest = [keys.SECTION_SEPARATOR.join(path[shared:]) for path in distinct]
    named = "; ".join(rest) if len(rest) <= _MOST_SECTIONS else f"{rest[0]} … {rest[-1]}"
    return keys.SECTION_SEPARATOR.join([*distinct[0][:shared], named])


def _white_space(length: int) -> str | None:
    if length > _MOST_UNKNOWN:
        return None
    return " " if length == 1 else "\n" * length
