"""Facets that narrow a search: the type, folder, date and language of documents, and the user's own metadata.

The facets of a version are read once, from the first chunk of each document. A request names facet values and
conditions; `Selection` turns them into the filters that every search of this package accepts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import takewhile
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.fields import source_of
from llama_index_contextual.index.filters import moment
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.part import Part
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.live import SearchableVersion
from llama_index_contextual.search.response import visible
from llama_index_contextual.ui import places, views

NAMES = {"type": "Type", "folder": "Folder", "source": "Source", "date": "Date", "language": "Language"}
"""Facets of every document by the name of their request parameter."""

MAX_CONDITIONS = 50
"""Maximum number of facet values, conditions and files that narrow a search."""

OWN_VALUES = 12
"""Maximum number of values of a metadata key that is offered as a facet."""

MAX_VALUES = 60
"""Maximum number of values of any other facet; the most frequent ones are offered."""

_DAY = len("2024-03-31")

_TYPES = {
    "pdf": "PDF",
    "word": "Word",
    "sheet": "Spreadsheet",
    "slides": "Slides",
    "markdown": "Markdown",
    "mail": "Mail",
    "web": "Web page",
    "image": "Image",
    "text": "Text",
}
"""Names of the types by the name of their icon."""


class DocumentFacts(NamedTuple):
    """The properties of a document that its facets are based on.

    Attributes:
        record: The record of the document.
        path: The document's `file_path` in filters, or "" if it was not read from a file.
        language: Language of the document, or "".
        day: Date in the document, or of the last change of its file, or None.
        pages: Number of pages, sheets or slides, or 0.
    """

    record: DocumentRecord
    path: str
    language: str
    day: date | None
    pages: int

    @property
    def kind(self) -> str:
        """The type of the file with its number of pages, sheets or slides, such as "PDF, 12 pages"."""
        name = self.record.file_name or self.record.doc_id
        pages = f", {pluralize(self.pages, keys.page_word(name))}" if self.pages else ""
        return f"{label_of('type', places.icon_of(name))}{pages}"


class FacetValue(NamedTuple):
    """A value of a facet.

    Attributes:
        label: The value as text.
        value: The value of the request parameter.
        documents: Number of documents of the version with this value.
        is_selected: Whether the search is limited to this value.
    """

    label: str
    value: str
    documents: int
    is_selected: bool = False


class Facet(NamedTuple):
    """A facet with its values.

    Attributes:
        name: Name of the facet.
        parameter: Name of the request parameter.
        values: The values.
    """

    name: str
    parameter: str
    values: Sequence[FacetValue]


@dataclass(frozen=True, eq=False)
class VersionFacets:
    """The facets of a version.

    Attributes:
        documents: The documents, newest first.
        paths: For each facet in `NAMES`, the `file_path` of the documents with each value; the id of a document without
            a file.
        own: For each of the user's metadata keys with few values, the number of documents with each value.
    """

    documents: Sequence[DocumentFacts]
    paths: Mapping[str, Mapping[str, Sequence[str]]]
    own: Mapping[str, Mapping[str | int | float, int]]

    @classmethod
    def from_version(cls, version: SearchableVersion) -> VersionFacets:
        """Read the facets of a version; parts that other versions share are read only once."""
        documents = [
            facts
            for part in version.parts
            for facts in part.shared("document facts", lambda: _read(part))  # noqa: B023 (called at once)
        ]
        documents.sort(key=lambda facts: facts.day or date.min, reverse=True)
        folders = [PurePosixPath(facts.path).parts[:-1] for facts in documents]
        levels = zip(*(folder for facts, folder in zip(documents, folders, strict=True) if facts.path), strict=False)
        depth = sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))
        paths: dict[str, dict[str, list[str]]] = {name: {} for name in NAMES}
        for facts, folder in zip(documents, folders, strict=True):
            values = {
                "type": places.icon_of(facts.record.file_name or facts.path),
                "folder": "/".join(folder[: depth + 1]) if len(folder) > depth else "",
                "source": source_of(facts.record),
                "date": str(facts.day.year) if facts.day else "",
                "language": facts.language,
            }
            for name, value in values.items():
                if value and (facts.path or name == "source"):
                    paths[name].setdefault(value, []).append(facts.path or facts.record.doc_id)
        return cls(documents, paths, _count_own(version))

    def facets(self, selection: Selection) -> list[Facet]:
        """Return the facets with a choice: at least one of their values does not apply to all documents."""
        facets = []
        for name, title in NAMES.items():
            value_counts = [(value, len(paths)) for value, paths in self.paths[name].items()]
            active = selection.values.get(name, ())
            if any(count < len(self.documents) for _, count in value_counts) or active:
                most = sorted(value_counts, key=lambda pair: (pair[0] not in active, -pair[1], pair[0]))[:MAX_VALUES]
                most.sort(key=(lambda pair: pair[0]) if name == "date" else (lambda pair: pair[1]), reverse=True)
                values = [FacetValue(label_of(name, value), value, count, value in active) for value, count in most]
                facets.append(Facet(title, name, values))
        for key, counts in self.own.items():
            conditions = [(visible(str(value)), f"{key}={value}", count) for value, count in counts.items()]
            facets.append(
                Facet(
                    key.replace("_", " "),
                    "where",
                    [FacetValue(*pair, pair[1] in selection.where) for pair in conditions],
                )
            )
        return facets


def label_of(name: str, value: str) -> str:
    """Return the value of a facet as text.

    Example:
        >>> label_of("type", "pdf"), label_of("folder", "Haldermoor/Reports"), label_of("language", "german")
        ('PDF', 'Reports', 'German')
    """
    if name == "type":
        return _TYPES.get(value, value)
    if name == "source":
        return "Files" if value == "files" else visible(value)
    return value.capitalize() if name == "language" else visible(value.rpartition("/")[2])


def facets_of(cache: MutableMapping[SearchableVersion, VersionFacets], project: Project) -> VersionFacets:
    """Return the facets of the live version, which has none if the project is empty."""
    if not project.documents():
        return VersionFacets((), {name: {} for name in NAMES}, {})
    version = project.live_version
    if version not in cache:
        cache[version] = VersionFacets.from_version(version)
    return cache[version]


def _read(part: Part) -> list[DocumentFacts]:
    numbers, rows = np.unique(part.document_of, return_index=True)
    column, pages = part.docstore.column(keys.PAGE_END), np.zeros(len(part.records), dtype=np.int64)
    ends = np.array([*(end if isinstance(end, int) else 0 for end in column.values), 0])
    np.maximum.at(pages, part.document_of, ends[column.codes])
    facts = []
    for number, chunk in zip(numbers.tolist(), part.docstore.at(rows.tolist()), strict=True):
        record, path = part.records[number], chunk.metadata.get(keys.FILE_PATH)
        day = record.date or record.file_date
        facts.append(
            DocumentFacts(
                record,
                path if isinstance(path, str) else "",
                record.language,
                date.fromisoformat(day) if day else None,
                int(pages[number]),
            )
        )
    return facts


def _count_own(version: SearchableVersion) -> dict[str, dict[str | int | float, int]]:
    """Return the number of documents with each value of the user's metadata keys that have few values."""
    counts_by_key = {}
    for key, values in version.metadata_values.items():
        is_usable = key not in keys.RUNNING_LINES and key.strip() == key and not set(key) & set("=!<>~")
        # Points in time, such as those of mails, are in the facet of dates.
        is_time = all(isinstance(value, str) and len(value) > _DAY and moment(value) is not None for value in values)
        if is_usable and not is_time and 1 < len(values) <= OWN_VALUES:
            counts = Counter(item for part in version.parts for _, item in _items_by_document(part, key))
            counts_by_key[key] = {value: counts[value] for value in values if len(str(value)) <= 80}
    return counts_by_key


def _items_by_document(part: Part, key: str) -> set[tuple[int, str | int | float]]:
    """Return the pairs of a document and a value that one of its chunks has; each item of a list is a value."""
    column = part.docstore.column(key)
    pairs = np.unique(np.stack([part.document_of, column.codes.astype(np.int32)]), axis=1).T.tolist()
    return {
        (document, item)
        for document, code in pairs
        if code < len(column.values)
        for item in (column.values[code] if isinstance(column.values[code], list) else [column.values[code]])
        if isinstance(item, str | int | float)
    }


# ---- the selection of a request --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The filters of a request.

    Attributes:
        where: Conditions on metadata, such as "kind=report".
        files: Files to search.
        values: The selected values of each facet in `NAMES`.
    """

    where: Sequence[str] = ()
    files: Sequence[str] = ()
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def from_parameters(cls, parameter: Callable[[str], Sequence[str]]) -> Selection:
        """Return the filters in the parameters of a request.

        Args:
            parameter: Function that returns the values of a parameter.

        Raises:
            InputError: A value is too long, or there are too many values.
        """
        raw = {name: [text for text in parameter(name) if text.strip()] for name in ("where", "file", *NAMES)}
        if (count := sum(map(len, raw.values()))) > MAX_CONDITIONS:
            raise InputError(f"There are {count} filters: use at most {MAX_CONDITIONS}.")
        values_by_name = {
            name: tuple(dict.fromkeys(views.clean_value(text, name) for text in values)) for name, values in raw.items()
        }
        values = {name: values_by_name[name] for name in NAMES if values_by_name[name]}
        return cls(where=values_by_name["where"], files=values_by_name["file"], values=values)

    @property
    def parameters(self) -> dict[str, Sequence[str]]:
        """The request parameters for this selection."""
        return {"where": self.where, "file": self.files, **self.values}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The parameters as pairs of a name and a value."""
        return [(name, value) for name, values in self.parameters.items() for value in values]

    def chips(self) -> list[tuple[str, dict[str, Sequence[str]]]]:
        """Return each selected value as text, with the request parameters for the selection without it."""
        chips = []
        for name, value in self.pairs:
            parameters = {**self.parameters, name: [text for text in self.parameters[name] if text != value]}
            chips.append((label_of(name, value) if name in NAMES else value, parameters))
        return chips

    def filters(self, project: Project) -> MetadataFilters | None:
        """Return the filters, or None if nothing narrows the search.

        Raises:
            InputError: A condition cannot be parsed, or no document has the field or matches a file.
        """
        conditions = project.state.live.parse_filters(self.where, self.files, listing="the view Project")
        filters = [] if conditions is None else list(conditions.filters)
        for name, values in self.values.items():
            filters.append(MetadataFilter(key=name, value=list(values), operator=FilterOperator.IN))
        return MetadataFilters(filters=filters, condition=FilterCondition.AND) if filters else None
