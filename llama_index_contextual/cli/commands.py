"""Commands and their help: usage, arguments and options in columns, examples; and shell completion of names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.markup import escape
from rich.text import Text
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from llama_index_contextual.cli.terminal import out, running

F = TypeVar("F", bound=Callable[..., Any])

PROGRAM = "llama-index-contextual"
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("open FOLDER", "create contracts --local", "ingest contracts FOLDER", 'search contracts "notice period"'),
    "open": ("open FOLDER", "open FOLDER --llm ollama:llama3.1", "open FOLDER --terminal"),
    "create": ("create contracts --local", "create reports --set chunk_size=400 --language german"),
    "settings": ("settings", "settings contracts"),
    "list": ("list", "list --root /srv/knowledge"),
    "info": ("info contracts",),
    "cost": ("cost contracts",),
    "delete": ("delete contracts", "delete contracts --keep-ledger --yes"),
    "demo": ("demo",),
    "estimate": ("estimate contracts FOLDER", "estimate contracts"),
    "ingest": (
        "ingest contracts FOLDER",
        "ingest contracts lease.pdf --password -",
        'ingest contracts "inbox/**/*.pdf" --max-cost 2.50',
        "ingest contracts FOLDER --ray auto",
    ),
    "sync": ("sync contracts FOLDER", "sync contracts FOLDER --watch"),
    "remove": ("remove contracts 2023/lease.pdf",),
    "forget": ("forget contracts --dry-run", "forget contracts"),
    "documents": ("documents contracts", 'documents contracts "2024/*.pdf"'),
    "rebuild": ("rebuild contracts", "rebuild contracts --max-cost 2.50"),
    "retry": ("retry contracts",),
    "search": (
        'search contracts "notice period" -k 3',
        'search contracts "notice period" --file "2024/*" --full',
    ),
    "ask": (
        'ask contracts "How long is the notice period?"',
        'ask contracts "Who may leave?" --llm ollama:llama3.1',
    ),
    "chat": ("chat contracts", "chat contracts --history talk.json"),
    "evaluate": (
        "evaluate contracts q.jsonl",
        "evaluate contracts q.jsonl --compare none,structural",
    ),
    "inspect": ('inspect contracts --query "notice period"',),
    "serve": ("serve contracts", "serve contracts reports --port 8080"),
    "mcp": ("mcp contracts", "mcp contracts reports --http --port 8080"),
    "versions": ("versions contracts",),
    "rollback": ("rollback contracts", "rollback contracts --to v000001"),
    "verify": ("verify contracts", "verify contracts --repair"),
    "export": ("export contracts exported",),
    "configure": ("configure contracts top_k=10", "configure contracts chunk_size=400 mode=lexical"),
    "ledger": ("ledger export contracts paid.jsonl",),
    "ledger export": ("ledger export contracts paid.jsonl",),
    "ledger import": ("ledger import contracts paid.jsonl",),
}
"""Examples in the help of each command, without the name of the program."""

_NAMES_WIDTH = 26  # of the column with options; longer ones have their help below
_MEASURE = 100


class Command(TyperCommand):
    """A command with its own help page."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        token = running.set(ctx)
        try:
            return super().invoke(ctx)
        finally:
            running.reset(token)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the options and arguments of the usage line."""
        return ["[OPTIONS]", *(_argument_usage(one) for one in self.params if isinstance(one, TyperArgument))]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help page."""
        _print_usage(self, ctx)
        _print_parameters(self.get_params(ctx), ctx)
        _print_examples(ctx)


class Group(TyperGroup):
    """A group of commands with its own help page."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help page."""
        _print_usage(self, ctx)
        commands = [command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))]
        shown = [command for command in commands if not command.hidden]
        titles = list(dict.fromkeys(_panel(command) for command in shown))
        width = max(len(command.name or "") for command in shown)
        for title in titles:
            of_panel = [command for command in shown if _panel(command) == title]
            rows = [(command.name or "", _first_line(command.help)) for command in of_panel]
            _print_columns(title or "Commands", rows, width)
        _print_parameters(self.get_params(ctx), ctx)
        _print_examples(ctx)


class Commands(typer.Typer):
    """Typer whose commands and groups have the help pages of this module."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=Group, context_settings=HELP_OPTIONS, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        """Return a decorator that adds a command with the help page of this module; `EXAMPLES` has its examples."""
        return super().command(name, **{"cls": Command, "context_settings": HELP_OPTIONS, **options})


# ---- help pages ----------------------------------------------------------------------------------------------------


def _print_usage(command: Any, ctx: Any) -> None:
    out.print(f"[bold]Usage:[/] {escape(' '.join([ctx.command_path, *command.collect_usage_pieces(ctx)]))}")
    for paragraph in (command.help or "").split("\n\n"):
        out.print()
        for line in Text(" ".join(paragraph.split())).wrap(out, min(out.width, _MEASURE)):
            line.rstrip()
            out.print(line)


def _print_parameters(params: Iterable[Any], ctx: Any) -> None:
    shown = [param for param in params if not getattr(param, "hidden", False)]
    arguments = [param for param in shown if isinstance(param, TyperArgument)]
    _print_columns("Arguments", [(_argument_name(one), _explain(one, ctx)) for one in arguments])
    options = [param for param in shown if isinstance(param, TyperOption)]
    # Options that many commands have are last.
    for title in sorted(dict.fromkeys(map(_panel, options)), key=lambda title: not title):
        of_panel = [param for param in options if _panel(param) == title]
        _print_columns(title or "Options", [(_option_names(one), _explain(one, ctx)) for one in of_panel])


def _print_columns(title: str, rows: Sequence[tuple[str, str]], width: int = _NAMES_WIDTH) -> None:
    """Print names and explanations in two columns; the explanation of a long name is on the next line."""
    if not rows:
        return
    out.print(f"\n[bold]{escape(title)}[/]")
    for names, explanation in rows:
        lines = list(Text.from_markup(explanation).wrap(out, max(20, min(out.width, _MEASURE) - width - 4)))
        first = Text.assemble("  ", (names, "cyan"))
        if len(names) > width or not lines:
            out.print(first, soft_wrap=True)
        else:
            lines[0] = Text.assemble(first, " " * (width + 4 - len(first)), lines[0])
        for at, line in enumerate(lines):
            line.rstrip()
            is_first = at == 0 and len(names) <= width
            out.print(line if is_first else Text.assemble(" " * (width + 4), line), soft_wrap=True)


def _print_examples(ctx: Any) -> None:
    names: list[str] = []
    while ctx.parent is not None:
        names.insert(0, ctx.info_name)
        ctx = ctx.parent
    if lines := EXAMPLES.get(" ".join(names), ()):
        out.print(f"\n[bold]{'Example' if len(lines) == 1 else 'Examples'}[/]")
    for line in lines:
        out.print(f"  [green]{escape(f'{PROGRAM} {line}')}[/]", soft_wrap=True)


def _panel(item: Any) -> str:
    return getattr(item, "rich_help_panel", None) or ""


def _first_line(text: str | None) -> str:
    return escape((text or "").strip().partition("\n\n")[0].replace("\n", " "))


def _argument_name(param: TyperArgument) -> str:
    name: str = param.metavar or (param.name or "").upper()
    return name


def _argument_usage(param: TyperArgument) -> str:
    name = _argument_name(param)
    name = name if param.nargs == 1 or name.endswith("...") else f"{name}..."
    return name if param.required or name.startswith("[") else f"[{name}]"


def _option_names(param: TyperOption) -> str:
    names = sorted([*param.opts, *param.secondary_opts], key=lambda name: name.startswith("--"))
    if param.is_flag:
        return ", ".join(names)
    return f"{', '.join(names)} {param.metavar or (param.name or '').upper()}"


def _explain(param: Any, ctx: Any) -> str:
    """Return the help of a parameter with its default and its environment variable, as markup."""
    notes = []
    default = param.get_default(ctx, call=False)
    if param.show_default and default not in (None, "", False, ()) and not isinstance(default, list):
        shown = ("on" if default is True else str(default)) if not callable(default) else ""
        notes += [f"default: {shown}"] if shown else []
    if getattr(param, "envvar", None) and getattr(param, "show_envvar", False):
        notes.append(f"variable: {param.envvar}")
    extra = f" ({'; '.join(notes)})" if notes else ""
    return f"{escape(param.help or '')}[dim]{escape(extra)}[/]"


# ---- completion ----------------------------------------------------------------------------------------------------


def complete_project(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the projects that begin with a text."""
    root = _root(ctx)
    names = (path.name for path in root.iterdir() if (path / "project.json").is_file()) if root.is_dir() else ()
    return sorted(name for name in names if name.startswith(incomplete))


def complete_document(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of the project's documents that begin with a text.

    Only CURRENT, the manifest and the ids of the documents are read, because a completion must not wait for LlamaIndex.
    """
    directory = _root(ctx) / str(ctx.params.get("name") or "")
    try:
        live = (directory / "CURRENT").read_text(encoding="utf-8").splitlines()[0]
        manifest = json.loads((directory / "versions" / live / "manifest.json").read_text(encoding="utf-8"))
        ids = [doc_id for part in manifest.get("parts", ()) for doc_id in _document_ids(directory, part)]
        if not ids and isinstance(manifest["documents"], list):  # formats before parts
            ids = [str(record["doc_id"]) for record in manifest["documents"]]
    except (OSError, ValueError, LookupError, TypeError):
        return []  # there is nothing to complete; the command itself reports what is wrong
    return [doc_id for doc_id in ids if doc_id.startswith(incomplete)]


def _document_ids(directory: Path, part: dict[str, Any]) -> Iterator[str]:
    """Yield the ids of the live documents of a part."""
    content = json.loads((directory / "parts" / part["name"] / "documents.json").read_text(encoding="utf-8"))
    for number, record in enumerate(content["records"]):
        if not any(first <= number <= last for first, last in part["gone"]):
            yield record["doc_id"]


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """Return the names of the settings that begin with a text, with their descriptions."""
    from llama_index_contextual.config import ProjectConfig

    fields = ProjectConfig.model_fields.items()
    return [(f"{name}=", field.description or "") for name, field in fields if name.startswith(incomplete)]


def _root(ctx: typer.Context) -> Path:
    return Path(ctx.params.get("root") or "knowledge")
