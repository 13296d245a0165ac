"""Options that narrow a search (`--filter`, `--file`), and the facts about files that filters can name (`--facts`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_index_contextual.errors import InputError

if TYPE_CHECKING:
    from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

    from llama_index_contextual.project.project import Project
    from llama_index_contextual.storage.manifest import DocumentRecord

Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="FIELD=VALUE",
        help="Condition on metadata, also with !=, <, <=, >, >= or ~ (contains). Repeatable: all must hold, and of"
        " several values of one field any.",
    ),
]
Files = Annotated[
    list[str] | None,
    typer.Option("--file", metavar="FILE", help="Search only in this file: its id, name, or a glob. Repeatable."),
]
FactsFile = Annotated[
    Path | None,
    typer.Option(
        "--facts",
        metavar="JSON",
        help='Facts about files, which filters can name: {"FILE or glob": {"kind": "report", "year": 2024}, …}.',
    ),
]

_CONDITION = re.compile(r"(?s)([^=!<>~]+)(!=|<=|>=|==?|<|>|~)(.*)")
_OPERATORS = {"<": "<", "<=": "<=", ">": ">", ">=": ">=", "~": "text_match_insensitive"}


def parse_filters(project: Project, conditions: Sequence[str] | None, files: Sequence[str] | None) -> Any:
    """Return the MetadataFilters for the options `--filter` and `--file`; None without any.

    Raises:
        InputError: A condition cannot be read, or no document has that field or that file.
    """
    from llama_index.core.vector_stores.types import MetadataFilters

    filters = _conditions(project, conditions or ())
    if files:
        filters.append(_of_files(project.documents(), files))
    return MetadataFilters(filters=list(filters)) if filters else None


def _conditions(project: Project, conditions: Sequence[str]) -> list[MetadataFilter | MetadataFilters]:
    from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

    equal: dict[str, list[Any]] = {}
    filters: list[MetadataFilter | MetadataFilters] = []
    known = project.metadata_keys() if conditions else []
    for condition in conditions:
        match = _CONDITION.fullmatch(condition)
        if match is None:
            raise InputError(f"--filter {condition!r} is not FIELD=VALUE, such as kind=report.", value=condition)
        field, sign, text = match[1].strip(), match[2], match[3].strip()
        if field not in known:
            raise InputError(f"No document has the field {field!r}{_nearest(field, known)}.", value=field)
        if sign in ("=", "=="):
            equal.setdefault(field, []).extend(_readings(text))
        elif sign == "!=":
            filters += [MetadataFilter(key=field, value=one, operator=FilterOperator.NE) for one in _readings(text)]
        else:
            value = text if sign == "~" else _readings(text)[0]
            filters.append(MetadataFilter(key=field, value=value, operator=FilterOperator(_OPERATORS[sign])))
    for field, values in equal.items():
        of_one = [MetadataFilter(key=field, value=value) for value in values]
        filters.append(MetadataFilters(filters=list(of_one), condition=FilterCondition.OR))
    return filters


def _readings(text: str) -> list[Any]:
    """Return what a value can mean: a number or a boolean first, then its text; "2024" may be stored as either."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    if isinstance(value, str):
        return [value]
    return [int(value) if isinstance(value, bool) else value, text] if isinstance(value, int | float) else [text]


def _of_files(records: Sequence[DocumentRecord], files: Sequence[str]) -> MetadataFilter:
    from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter

    from llama_index_contextual.metadata import FILE_PATH

    of_files = [record for record in records if record.file_name is not None]
    wanted: list[str] = []
    for file in files:
        found = [record.doc_id for record in of_files if _is_named(file, record.doc_id)]
        if not found:
            names = [name for record in of_files for name in (record.doc_id, record.file_name or "")]
            raise InputError(
                f"No document is named {file!r}{_nearest(file, names)}; `documents` lists all of them.", value=file
            )
        wanted += found
    return MetadataFilter(key=FILE_PATH, value=wanted, operator=FilterOperator.IN)


def _is_named(pattern: str, doc_id: str) -> bool:
    """Return whether a file is meant by its id, the end of its id, or a glob for one of them."""
    pattern = PurePath(pattern).as_posix().removeprefix("./")
    ends = (doc_id[at:] for at in [0, *(i + 1 for i, sign in enumerate(doc_id) if sign == "/")])
    return any(end == pattern or fnmatchcase(end, pattern) for end in ends)


def _nearest(word: str, known: Sequence[str]) -> str:
    close = get_close_matches(word, list(known), n=1)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (there are: {', '.join(sorted(known)[:20])})" if known else " (there are none)"


class Facts:
    """Facts about files from a JSON file, as a `file_metadata` function that notes which entries were used.

    Args:
        path: JSON file with an object of facts for each file name, path or glob. If several match a file, later ones
            override earlier ones.

    Raises:
        InputError: The file does not exist or has another form.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._facts = _read_facts(path)
        self._unused = dict.fromkeys(self._facts)

    def __call__(self, path: str) -> dict[str, Any]:
        """Return the facts about the file with this path."""
        facts: dict[str, Any] = {}
        for pattern, entry in self._facts.items():
            if _is_named(pattern, PurePath(path).as_posix()):
                self._unused.pop(pattern, None)
                facts |= entry
        return facts

    def unused(self) -> list[str]:
        """Return the entries that no file matched so far."""
        return list(self._unused)


def _read_facts(path: Path) -> dict[str, Mapping[str, Any]]:
    form = 'write {"report.pdf": {"kind": "report"}, "contracts/*": {"kind": "contract"}}'
    try:
        facts = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"--facts {path}: {error.strerror or error}.", value=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"--facts {path} is not valid JSON ({error}): {form}.", value=str(path)) from error
    if not isinstance(facts, dict) or not all(isinstance(entry, dict) for entry in facts.values()):
        raise InputError(f"--facts {path} is not an object of facts by file: {form}.", value=str(path))
    return facts
