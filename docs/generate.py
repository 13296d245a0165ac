"""Write the pages of the site that are made from the package: run by mkdocs-gen-files during `mkdocs build`.

The command line comes from Typer's own objects, the settings from the fields of `ProjectConfig`, the options from their
tables, the notebooks from `examples/`, and the changelog and the rules for contributors from the root.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import typer
from pydantic_core import PydanticUndefined
from typer.main import get_command

from llama_index_contextual._utils.keywords import options_of
from llama_index_contextual.answering.build import ChatEngineOptions, EngineOptions
from llama_index_contextual.cli.app import app
from llama_index_contextual.config import PREFIX, RETRIEVAL_FIELDS, ProjectConfig
from llama_index_contextual.ingestion.options import (
    FolderOptions,
    IngestOptions,
    ReadingOptions,
    SyncOptions,
    WritingOptions,
)

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = "llama-index-contextual"


# ---- command line ----------------------------------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    """Return every command by its full name, those of groups included ("ledger export")."""
    results = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        members = getattr(command, "commands", None)
        results |= {f"{name} {leaf}": member for leaf, member in members.items()} if members else {name: command}
    return results


def cli_page() -> str:
    """Return the reference of all commands, by the panels of `--help`."""
    panels: dict[str, list[str]] = {}
    groups = get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands().items():
        panel = groups[name.partition(" ")[0]].rich_help_panel or "Other commands"
        panels.setdefault(panel, []).append(_command(name, command))
    lines = [
        "# Command line",
        f"Every command of `{PROGRAM}`, with all arguments and options. `{PROGRAM} COMMAND --help` shows the same in"
        " the terminal. Exit codes: 0 (success), 1 (failure), 2 (usage error), 130 (interrupted).",
        f"Settings of a project can also come from environment variables, such as `{PREFIX}TOP_K`: see"
        " [Settings](settings.md).",
    ]
    for panel, entries in panels.items():
        lines += [f"## {panel}", *entries]
    return "\n\n".join(lines) + "\n"


def _command(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=f"{PROGRAM} {name}")
    required = " ".join(_argument(p) for p in command.params if p.param_type_name == "argument")
    usage = f"{PROGRAM} {name} {'[OPTIONS] ' if command.params else ''}{required}".rstrip()
    lines = [f"### {name}", f"```text\n{usage}\n```"]
    lines += [_prose(text) for text in (command.help, command.epilog) if text]
    table = ["| argument or option | description | default |", "|---|---|---|"]
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        table.append(f"| {_signature(parameter, context)} | {_description(parameter)} | {_default(parameter)} |")
    if len(table) > 2:
        lines.append("\n".join(table))
    return "\n\n".join(lines)


def _argument(parameter: Any) -> str:
    shown = (parameter.metavar or parameter.name).upper() + ("..." if parameter.nargs != 1 else "")
    return shown if parameter.required else f"[{shown}]"


def _signature(parameter: Any, context: typer.Context) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_argument(parameter)}`"
    names = [*parameter.opts, *parameter.secondary_opts]
    shown = ", ".join(f"`{name}`" for name in sorted(names, key=lambda name: not name.startswith("--")))
    if parameter.is_flag:
        return shown
    record = parameter.get_help_record(context)
    value = re.search(r"[<\[]?[\w=|.]+[>\]]?$", record[0]) if record else None
    kind = parameter.metavar or (value[0].strip("<>[]") if value else "")
    return shown + f" `{kind}`"


def _description(parameter: Any) -> str:
    text = _cell(parameter.help or "")
    if parameter.envvar:
        text += f" Environment variable: `{parameter.envvar}`."
    return text + (" Required." if parameter.required else "")


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value is False or value == [] or callable(value):
        return ""
    return f"`{_cell(str(value))}`"


def _prose(text: str) -> str:
    r"""Return a help text as Markdown: `\b` keeps the lines of a paragraph, as an example needs."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip() != "\b"]
        paragraphs.append("```bash\n" + "\n".join(lines) + "\n```" if _is_code(lines) else " ".join(lines))
    return "\n\n".join(paragraphs)


def _is_code(lines: Sequence[str]) -> bool:
    return bool(lines) and all(line.startswith((PROGRAM, "#", "$")) for line in lines)


def _cell(text: str) -> str:
    """Return a text for a cell of a table; code is left as it is, as Markdown does not escape in it."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else part.replace("|", "\\|").replace("<", "&lt;") for part in parts)


# ---- settings --------------------------------------------------------------------------------------------------------

_STAGES = {
    "Reading": ("pdf_engine", "ocr"),
    "Segments and chunks": ("segment_size", "chunk_size", "chunk_overlap"),
    "Contexts": (
        "context", "llm", "context_prompt", "context_neighbours", "context_languages",
    ),
    "Calls and prices": (
        "llm_concurrency", "call_timeout", "requests_per_minute", "tokens_per_minute", "service_tier", "prices",
    ),
    "Indexes": ("embed_model", "embed_window", "embed_prefixes", "indexes", "language", "languages", "keep_versions"),
    "Search": (
        "mode", "top_k", "fusion", "semantic_weight", "document_weight", "rrf_k", "acronym_table",
        "rerank", "rerank_candidates", "rerank_threshold",
    ),
}  # fmt: skip
"""Settings by stage; any other is listed under "Answers", the last stage."""


def settings_page() -> str:
    """Return the table of all settings, by stage."""
    fields = ProjectConfig.model_fields
    grouped = {name for names in _STAGES.values() for name in names}
    stages = {**_STAGES, "Answers": tuple(name for name in fields if name not in grouped)}
    lines = [
        "# Settings",
        "The fields of [`ProjectConfig`](api/project.md#llama_index_contextual.ProjectConfig), by stage. Each can be"
        " set in Python, with `--set` of `create`, with `configure`, and by the environment variable"
        f" `{PREFIX}` + its name in capitals. How these come together: [Settings in the guide](../guide/settings.md).",
        "A setting marked **rebuild** takes effect only in a new version, so after `rebuild` or with the next changed"
        " document; any other takes effect with the next query or run. `ProjectConfig.local()` differs in the following"
        " fields: " + ", ".join(f"`{name}` is `{_value(value)}`" for name, value in _local_differences().items()) + ".",
    ]
    for stage, names in stages.items():
        rows = [_setting(name, fields[name]) for name in names]
        lines += [f"## {stage}", "\n".join(["| setting | type | default | description |", "|---|---|---|---|", *rows])]
    return "\n\n".join(lines) + "\n"


def _local_differences() -> dict[str, Any]:
    local, default = ProjectConfig.local().model_dump(), ProjectConfig().model_dump()
    return {name: value for name, value in local.items() if value != default[name]}


def _setting(name: str, field: Any) -> str:
    default = field.get_default(call_default_factory=True)
    shown = "" if default is PydanticUndefined else f"`{_value(default)}`"
    rebuild = "" if name in RETRIEVAL_FIELDS else " **rebuild**"
    anchor = f'<a id="{name}"></a>'
    return f"| {anchor}`{name}`{rebuild} | {_type(field)} | {shown} | {_cell(field.description or '')} |"


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def _type(field: Any) -> str:
    """Return the type as a reader of a table wants it: `int`, `"a"` or `"b"`, `str` or None."""
    schema = ProjectConfig.model_json_schema()
    name = next(key for key, value in ProjectConfig.model_fields.items() if value is field)
    return " or ".join(dict.fromkeys(_kinds(schema["properties"][name])))


def _kinds(schema: dict[str, Any]) -> Iterator[str]:
    names = {"string": "`str`", "integer": "`int`", "number": "`float`", "boolean": "`bool`", "null": "`None`"}
    if "anyOf" in schema:
        for option in schema["anyOf"]:
            yield from _kinds(option)
    elif "enum" in schema:
        yield from (f"`{_value(value)}`" for value in schema["enum"])
    elif "const" in schema:
        yield f"`{_value(schema['const'])}`"
    else:
        yield names.get(schema.get("type", ""), "object")


# ---- options ---------------------------------------------------------------------------------------------------------


_OPTIONS = {
    "Project.as_query_engine": (EngineOptions,),
    "Project.as_chat_engine": (EngineOptions, ChatEngineOptions),
    "Project.ingest": (ReadingOptions, WritingOptions, IngestOptions),
    "Project.sync_folders": (ReadingOptions, WritingOptions, SyncOptions, FolderOptions),
    "Project.estimate": (ReadingOptions,),
    "sweep_answers": (EngineOptions,),
}
"""The functions that take options, with their tables and those that these extend."""


def options_page() -> str:
    """Return the tables of the options that functions take as keywords."""
    lines = [
        "# Options",
        "Further keyword arguments of these functions; `help()` lists them as well.",
    ]
    for function, options in _OPTIONS.items():
        rows = [
            f"| `{name}` | {_cell(option.description)} | {'' if option.default is None else f'`{option.default!r}`'} |"
            for name, (_, option) in options_of(*options).items()
        ]
        lines += [f"## {function}", "\n".join(["| option | description | default |", "|---|---|---|", *rows])]
    return "\n\n".join(lines) + "\n"


# ---- pages of the repository -----------------------------------------------------------------------------------------


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by name."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    lines, pictures = [], {}
    for cell in cells:
        source = "".join(cell["source"]).rstrip()
        if cell["cell_type"] == "markdown":
            lines.append(_links(source, "examples"))
        elif cell["cell_type"] == "code" and source:
            lines.append(f"```python\n{source}\n```")
            for output in cell["outputs"]:
                lines += _output(output, path.stem, pictures)
    where = f"This page is the notebook [`{path.name}`]({path.name}); download it to run it."
    return "\n\n".join([lines[0], f'!!! note ""\n    {where}', *lines[1:]]) + "\n", pictures


def _output(output: dict[str, Any], stem: str, pictures: dict[str, bytes]) -> Iterator[str]:
    data = output.get("data", {})
    if "image/png" in data:
        name = f"{stem}-{len(pictures) + 1}.png"
        pictures[name] = base64.b64decode("".join(data["image/png"]))
        yield f"![Chart made by the code above]({name})"
    elif "image/svg+xml" in data:
        name = f"{stem}-{len(pictures) + 1}.svg"
        pictures[name] = "".join(data["image/svg+xml"]).encode()
        yield f"![Chart made by the code above]({name})"
    elif text := "".join(data.get("text/plain", output.get("text", []))).rstrip():
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        yield f"````text\n{plain}\n````"


def root_page(name: str) -> str:
    """Return a page of the root of the repository, with its links leading to the site."""
    return _links((ROOT / name).read_text(encoding="utf-8"), "")


def _links(text: str, folder: str) -> str:
    """Let links to pages and notebooks lead to their places on the site; other files are named without a link."""

    def replace(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        path = PurePosixPath(folder, target)
        known = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
        if path.suffix == ".ipynb":
            return f"[{label}]({'' if folder else 'examples/'}{path.stem}.md)"
        if str(path) in known:
            return f"[{label}]({'../' if folder else ''}{known[str(path)]}{anchor})"
        for place in ("docs/", "../docs/"):
            if str(path).startswith(place):
                return f"[{label}]({'../' if folder else ''}{str(path).removeprefix(place)}{anchor})"
        return label if label.startswith("`") else f"`{target}`" if label == target else label

    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)", replace, text)


def generated() -> dict[str, str | bytes]:
    """Return all generated pages and files by their path in the site's source."""
    files: dict[str, str | bytes] = {
        "reference/cli.md": cli_page(),
        "reference/settings.md": settings_page(),
        "reference/options.md": options_page(),
    }
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        text, pictures = notebook_page(notebook)
        files[f"examples/{notebook.stem}.md"] = text
        files[f"examples/{notebook.name}"] = notebook.read_bytes()
        files |= {f"examples/{name}": picture for name, picture in pictures.items()}
    for path in sorted((ROOT / "examples" / "data").iterdir()):
        # Served as files to download; Markdown would become a page.
        if path.is_file() and path.suffix != ".md":
            files[f"examples/data/{path.name}"] = path.read_bytes()
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        files[name.lower()] = root_page(name)
    return files


def main() -> None:
    """Hand the generated files to mkdocs."""
    import mkdocs_gen_files

    for path, content in generated().items():
        with mkdocs_gen_files.open(path, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)


if __name__ == "<run_path>":  # as mkdocs-gen-files runs it
    main()
