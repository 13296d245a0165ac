"""The original texts of a version: documents by name, their sections, pages and chunks."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual._utils.forks import cached_property
from llama_index_contextual.answering.prompts import defused
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.metadata import SECTION, SECTION_SEPARATOR, DocumentMap, Heading
from llama_index_contextual.search.live import SearchableVersion
from llama_index_contextual.search.response import Source
from llama_index_contextual.tools.models import (
    LONGEST_SHOWN,
    OutlinedDocument,
    OutlinedSection,
    ReadResult,
    describe_section,
)

MAX_CHARACTERS = 20_000
"""Maximum number of characters of the original text in one reply of `read`."""

_MAX_NAMED = 8


def find_record(records: Sequence[DocumentRecord], name: str, project: str) -> DocumentRecord:
    """Return the document with an id, or else the only one with that file name or title.

    Raises:
        InputError: There is none, or there are several.
    """
    for names in ("doc_id", "file_name", "title"):
        named = [record for record in records if getattr(record, names) == name]
        if len(named) == 1:
            return named[0]
        if named:
            ids = ", ".join(repr(record.doc_id) for record in named[:_MAX_NAMED])
            raise InputError(f"{len(named)} documents are called {name!r}: choose a doc_id of {ids}.", value=name)
    known = {alias.casefold(): record.doc_id for record in records for alias in _aliases(record)}
    near = [known[match] for match in difflib.get_close_matches(name[:500].casefold(), known, n=3, cutoff=0.5)]
    advice = f"nearest: {', '.join(map(repr, dict.fromkeys(near)))}" if near else "`outline` lists the documents"
    raise InputError(f"Project {project!r} has no document {name!r}; {advice}.", value=name)


def _aliases(record: DocumentRecord) -> Iterator[str]:
    yield from filter(None, (record.title, record.file_name, record.doc_id.rpartition("/")[2], record.doc_id))


class Original:
    """The original text of a document in one version, with its pages, sections and chunks.

    A document that was ingested as chunks without offsets has no original text: its chunks are joined by blank lines.

    Args:
        version: The version.
        record: The document's record.
    """

    def __init__(self, version: SearchableVersion, record: DocumentRecord) -> None:
        self._version = version
        self.record = record

    @cached_property
    def _frame_map(self) -> DocumentMap | None:
        frame = self._version.frame(self.record.doc_id)
        return None if frame is None else DocumentMap.from_metadata(dict(frame.metadata))

    @cached_property
    def _nodes(self) -> list[TextNode]:
        nodes = self._version.docstore.iterate(doc_id=self.record.doc_id)
        return [node for node in nodes if isinstance(node, TextNode)]

    @cached_property
    def _joined(self) -> str | None:
        """The joined chunks, if they have no offsets."""
        if self._frame_map is not None or all(node.start_char_idx is not None for node in self._nodes):
            return None
        return "\n\n".join(node.get_content(MetadataMode.NONE) for node in self._nodes)

    @cached_property
    def places_of_nodes(self) -> Mapping[str, tuple[int, int]]:
        """Offsets of each chunk, by node id, in the order of the text."""
        places, at = {}, 0
        for node in self._nodes:
            length = len(node.get_content(MetadataMode.NONE))
            begin = at if self._joined is not None or node.start_char_idx is None else node.start_char_idx
            places[node.node_id] = begin, begin + length
            at += length + 2
        return dict(sorted(places.items(), key=lambda item: item[1]))

    @cached_property
    def map(self) -> DocumentMap:
        """Pages and headings; without marked headings, the sections that the chunks name."""
        known = self._frame_map or DocumentMap()
        if known.headings:
            return known
        headings: list[Heading] = []
        for node in self._nodes if self._frame_map is None else ():
            section = node.metadata.get(SECTION)
            if isinstance(section, str) and section and (not headings or headings[-1].title != section):
                headings.append(Heading(self.places_of_nodes[node.node_id][0], 1, section))
        return DocumentMap(page_starts=known.page_starts, page_labels=known.page_labels, headings=tuple(headings))

    @property
    def length(self) -> int:
        """Number of characters."""
        return self.record.characters if self._joined is None else len(self._joined)

    def text(self, start: int = 0, end: int | None = None) -> str:
        """Return the text between two offsets."""
        if self._joined is not None:
            return self._joined[start:end]
        return self._version.read_text(self.record, start, end)

    @cached_property
    def sections(self) -> list[OutlinedSection]:
        """The sections, each with its subsections."""
        headings = self.map.headings
        paths = list(itertools.islice((self.map.section(heading.start) for heading in headings), len(headings)))
        ends = _section_ends(headings, self.length)
        out = []
        for at, heading in enumerate(headings):
            out.append(
                OutlinedSection(
                    number=at + 1,
                    level=heading.level,
                    title=heading.title[:LONGEST_SHOWN],
                    path=paths[at] or heading.title,
                    page=self.map.page(heading.start),
                    start=heading.start,
                    end=ends[at],
                )
            )
        return out

    def outlined(self) -> OutlinedDocument:
        """Return the entry of the outline."""
        record = self.record
        return OutlinedDocument(
            doc_id=record.doc_id,
            title=record.title or record.file_name or record.doc_id,
            file_name=record.file_name,
            characters=self.length,
            pages=len(self.map.page_starts) or None,
            sections=len(self.map.headings),
            chunks=record.chunks,
        )

    def section_span(self, name: str) -> tuple[int, int]:
        """Return the offsets of a section by number, path or heading; letter case and white space do not matter."""
        if not self.sections:
            raise InputError(
                f"Document {self.record.doc_id!r} has no headings: read it by pages or offsets.", value=name
            )
        if (number := re.fullmatch(r"\s*#(\d+)\s*", name)) is not None:
            if not 1 <= int(number[1]) <= len(self.sections):
                raise InputError(
                    f"Document {self.record.doc_id!r} has the sections #1 to #{len(self.sections)}.", value=name
                )
            return self._span(self.sections[int(number[1]) - 1])
        wanted = _plain(name)
        tests: tuple[Callable[[OutlinedSection], bool], ...] = (
            lambda section: _plain(section.path) == wanted,
            lambda section: _plain(section.title) == wanted,
            lambda section: _plain(section.path).endswith(f"{SECTION_SEPARATOR}{wanted}"),
            lambda section: wanted in _plain(section.title),
        )
        for test in tests:
            named = [section for section in self.sections if wanted and test(section)]
            if len(named) == 1:
                return self._span(named[0])
            if named:
                listed = "; ".join(describe_section(section, section.path) for section in named[:_MAX_NAMED])
                more = f"; and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
                raise InputError(
                    f"{len(named)} sections of {self.record.doc_id!r} are called {name!r}: choose one by its number:"
                    f" {listed}{more}.",
                    value=name,
                )
        known = {_plain(section.title): section for section in self.sections}
        near = [known[title] for title in difflib.get_close_matches(wanted[:500], known, n=3, cutoff=0.4)]
        listed = "; ".join(describe_section(section, section.path) for section in near)
        advice = f"nearest: {listed}" if near else "`outline` with its doc_id lists them"
        raise InputError(f"Document {self.record.doc_id!r} has no section {name!r}; {advice}.", value=name)

    @staticmethod
    def _span(section: OutlinedSection) -> tuple[int, int]:
        return section.start, section.end

    def pages_span(self, pages: str) -> tuple[int, int]:
        """Return the offsets of a page or a range of pages."""
        starts = self.map.page_starts
        if not starts:
            raise InputError(f"Document {self.record.doc_id!r} has no pages: read a section or offsets.", value=pages)
        numbers = re.fullmatch(r"\s*(\d{1,9})\s*(?:[-–—]\s*(\d{1,9})\s*)?", pages)
        if numbers is None:
            raise InputError(f"Pages {pages!r} are not a page or a range: write `3` or `3-5`.", value=pages)
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if not 1 <= first <= last or first > len(starts):
            raise InputError(
                f"Document {self.record.doc_id!r} has the pages 1 to {len(starts)}, not {pages.strip()}.", value=pages
            )
        return starts[first - 1], starts[last] if last < len(starts) else self.length

    def with_neighbours(self, span: tuple[int, int], number: int) -> tuple[int, int]:
        """Return the offsets of the chunks that a span touches, and of some chunks before and after them."""
        places = list(self.places_of_nodes.values())
        touched = [at for at, (start, end) in enumerate(places) if start < max(span[1], span[0] + 1) and end > span[0]]
        if not touched:
            return span
        around = places[max(0, touched[0] - number) : touched[-1] + number + 1]
        return min(start for start, _ in around), max(end for _, end in around)

    def read(self, start: int, end: int) -> ReadResult:
        """Return the text between two offsets, up to the maximum."""
        stop = min(end, start + MAX_CHARACTERS)
        last = max(start, stop - 1)
        page_start, page_end = self.map.page(start), self.map.page(last)
        section = self.map.section(start)
        source = Source(
            doc_id=self.record.doc_id,
            file_name=self.record.file_name,
            title=self.record.title,
            page_start=page_start,
            page_end=page_end,
            page_label=self.map.page_label(start),
            section=section,
        )
        return ReadResult(
            doc_id=self.record.doc_id,
            source=str(source),
            text=self.text(start, stop),
            start=start,
            end=stop,
            characters=self.length,
            page_start=page_start,
            page_end=page_end,
            section=section,
            next_start=stop if stop < end else None,
            requested_end=end,
            version=self._version.name,
        )


def _section_ends(headings: Sequence[Heading], length: int) -> list[int]:
    """Return the end of each section: where the next heading of the same or a higher level begins."""
    ends = [length] * len(headings)
    open_sections: list[int] = []
    for at, heading in enumerate(headings):
        while open_sections and headings[open_sections[-1]].level >= heading.level:
            ends[open_sections.pop()] = heading.start
        open_sections.append(at)
    return ends


def _plain(text: str) -> str:
    return " ".join(defused(text).casefold().split())
