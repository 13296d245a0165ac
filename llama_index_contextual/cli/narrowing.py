"""Options that narrow a search (`--filter`, `--file`), and the facts about files that filters can name (`--facts`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_index_contextual.cli.commands import complete_document
from llama_index_contextual.cli.terminal import err, safe, say
from llama_index_contextual.errors import InputError

if TYPE_CHECKING:
    from llama_index_contextual.project.project import Project

Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="FIELD=VALUE",
        rich_help_panel="Search",
        help="Condition on metadata, also with !=, <, <=, >, >= or ~ (contains). Repeatable: all must hold, and of"
        " several values of one field any.",
    ),
]
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--file",
        metavar="FILE",
        rich_help_panel="Search",
        help="Search only in this file: its id, name, or a glob. Repeatable.",
        autocompletion=complete_document,
    ),
]
FactsFile = Annotated[
    Path | None,
    typer.Option(
        "--facts",
        metavar="JSON",
        help='Facts about files, which filters can name: {"FILE or glob": {"kind": "report", "year": 2024}, …}.',
    ),
]


def parse_filters(project: Project, conditions: Sequence[str] | None, files: Sequence[str] | None) -> Any:
    """Return the MetadataFilters for the options `--filter` and `--file`; None without any.

    Raises:
        InputError: A condition cannot be read, or no document has that field or that file.
    """
    from llama_index_contextual.tools.conditions import parse_conditions

    return parse_conditions(project, conditions, files)


def hint_at_patterns(conditions: Sequence[str] | None) -> None:
    """Print what to use instead of a filter that compares values with a pattern such as `X*`."""
    from llama_index_contextual.tools.conditions import field_and_pattern

    for field, pattern in filter(None, map(field_and_pattern, conditions or ())):
        part = max(pattern.replace("?", "*").split("*"), key=len)
        by_file = f', or --file "{pattern}" for names of files' if field == "file_name" else ""
        hint = (
            f"--filter {field}={pattern} compares the whole value, in which `*` and `?` are ordinary characters:"
            f' use --filter "{field}~{part}" for a part of it{by_file}.'
        )
        say(f"[yellow]note[/] {safe(hint)}", to=err)


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
        from llama_index_contextual.tools.conditions import is_named

        facts: dict[str, Any] = {}
        for pattern, entry in self._facts.items():
            if is_named(pattern, PurePath(path).as_posix()):
                self._unused.pop(pattern, None)
                facts |= entry
        return facts

    def unused(self) -> list[str]:
        """Return the entries that no file matched so far."""
        return list(self._unused)


def warn_of_unused(facts: Facts | None) -> None:
    """Print the entries of `--facts` that no file matched."""
    for pattern in facts.unused() if facts else ():
        say(f"[yellow]note[/] The facts about {safe(pattern)} were not used: no file has that name.", to=err)


def _read_facts(path: Path) -> dict[str, Mapping[str, Any]]:
    form = 'write {"report.pdf": {"kind": "report"}, "contracts/*": {"kind": "contract"}}'
    try:
        facts = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"--facts needs the name of a JSON file, and {str(path)!r} cannot be read ({reason}): {form} into a file.",
            value=str(path),
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"--facts {path} is not valid JSON ({error}): {form}.", value=str(path)) from error
    if not isinstance(facts, dict) or not all(isinstance(entry, dict) for entry in facts.values()):
        raise InputError(f"--facts {path} is not an object of facts by file: {form}.", value=str(path))
    return facts
