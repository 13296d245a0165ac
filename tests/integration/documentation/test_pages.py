"""The README and the pages of the site: links, references, code and quoted messages are complete and correct."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from llama_index.core import StorageContext
from typer.main import get_command

import llama_index_contextual
from llama_index_contextual import (
    GroundedChatEngine,
    GroundedQueryEngine,
    LLMContextualizer,
    Project,
    ProjectManager,
    RetrievalResponse,
)
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.cli.app import app
from llama_index_contextual.config import RETRIEVAL_FIELDS, ProjectConfig
from llama_index_contextual.tools.models import MAX_TOKENS, TOOLS
from tests.integration.test_public_surface import ROOMS
from tests.support.examples import EXAMPLES, imported
from tests.support.pages import DOCS, Block, blocks, links, navigation, pages
from tests.support.source import PACKAGE, ROOT, sources

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAM = "llama-index-contextual"
SKILL = "../skills/llama-index-contextual/SKILL.md"
LANGUAGES = {"python", "bash", "text", "json", "html"}
NOT_RUN = 27
"""How many blocks may be marked as not run: a mark is for what needs a download, a key or a server that stays."""
NOT_COMPARED = 4
"""How many outputs may be marked as not compared with what is printed."""


@cache
def generate() -> ModuleType:
    """The script that makes pages from the package."""
    return imported(DOCS / "generate.py")


@cache
def generated() -> dict[str, str | bytes]:
    """The generated pages and files, by their path on the site."""
    files: dict[str, str | bytes] = generate().generated()
    return files


def commands() -> dict[str, Any]:
    """Return the commands of the command line by their names; those of a group as "group command"."""
    top: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    results = {name: command for name, command in top.items() if not hasattr(command, "commands")}
    return results | {f"{name} {leaf}": c for name, g in top.items() for leaf, c in getattr(g, "commands", {}).items()}


# ---- navigation and links --------------------------------------------------------------------------------------------


def test_the_navigation_lists_every_page_once() -> None:
    listed = navigation()
    every = {*pages(), *(name for name in generated() if name.endswith(".md"))}
    assert sorted(listed) == sorted(every)


def test_the_links_between_pages_have_targets() -> None:
    known = {*generated(), *(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*") if path.is_file())}
    for page in pages():
        for target in links(DOCS / page):
            path = (DOCS / page).parent.joinpath(target).resolve().relative_to(DOCS.resolve()).as_posix()
            # A picture of the workbench is made by a script that needs a browser.
            assert path in known or path.startswith("assets/"), f"{page}: {target}"


@pytest.mark.parametrize("page", ["README.md", "llms.txt", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"])
def test_the_links_of_other_pages_have_targets(page: str) -> None:
    targets = [target for target in links(ROOT / page) if not (ROOT / page).parent.joinpath(target).exists()]
    assert targets == []


def test_nothing_is_loaded_from_elsewhere() -> None:
    configuration = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in configuration
    assert not re.search(r"https?://|pymdownx\.emoji|mermaid|extra_javascript", configuration)
    for page in pages():
        text = (DOCS / page).read_text(encoding="utf-8")
        assert not re.search(r"!\[[^\]]*\]\(https?:|<(?:script|iframe|link)\b|src=[\"']https?:", text), page


# ---- references ------------------------------------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference_once() -> None:
    text = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in pages() if page.startswith("reference/api/"))
    documented = re.findall(rf"^::: {PACKAGE}\.([\w.]+)$", text, re.MULTILINE)
    # The tree of errors, and what the extras add, are documented as modules.
    public = {*llama_index_contextual.__all__, *(f"{module}.{name}" for name, module in ROOMS.items())}
    assert public - {"__version__", "ContextualError"} <= set(documented)
    assert len(documented) == len(set(documented))


def test_every_command_is_in_the_reference_with_its_options() -> None:
    page = str(generated()["reference/cli.md"])
    names = set(re.findall(r"^### (.+)$", page, re.MULTILINE))
    assert names == set(commands())
    for name, command in commands().items():
        section = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert all(f"`{option}`" in section for option in parameter.opts), (name, parameter.opts)
                assert parameter.help, (name, parameter.opts)


def test_every_setting_is_in_the_reference_with_its_description() -> None:
    page = str(generated()["reference/settings.md"])
    rows = dict(re.findall(r'^\| <a id="(\w+)"></a>(.*)$', page, re.MULTILINE))
    assert set(rows) == set(ProjectConfig.model_fields)
    for name, row in rows.items():
        assert ("**rebuild**" in row) == (name not in RETRIEVAL_FIELDS)
        assert row.count(" | ") == 3, name
    assert "`0.35`" in rows["semantic_weight"]


# ---- quoted messages -------------------------------------------------------------------------------------------------


@cache
def messages() -> str:
    """All texts in the source of the package, with a gap for each value that is put in."""
    texts = []
    for source in sources():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def test_the_messages_in_troubleshooting_exist() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert len(quoted) >= 15
    for message in quoted:
        fragments = [fragment.strip(" …") for fragment in message.split("…")]
        assert max(map(len, fragments)) >= 12, message
        assert [fragment for fragment in fragments if fragment and fragment not in messages()] == [], message


# ---- code ------------------------------------------------------------------------------------------------------------


def test_every_block_says_its_language_and_few_are_not_run() -> None:
    every = [block for page in pages() for block in blocks(page)]
    assert [str(block) for block in every if block.language not in LANGUAGES] == []
    marked = [block for block in every if block.comment("not run: ") is not None]
    assert len(marked) <= NOT_RUN, [str(block) for block in marked]
    assert all(len(block.comment("not run: ") or "") > 15 for block in marked), "a reason is a sentence"


def test_every_output_follows_the_code_that_prints_it_or_says_why_not() -> None:
    shown = [block for page in ("../README.md", *pages()) for block in blocks(page) if block.language == "text"]
    not_compared = [block for block in shown if not block.follows or block.comment("not compared: ") is not None]
    assert [str(block) for block in not_compared if len(block.comment("not compared: ") or "") <= 15] == []
    assert len(not_compared) <= NOT_COMPARED, [str(block) for block in not_compared]
    assert len(shown) >= 25


def test_json_is_valid_and_the_client_of_mcp_starts_a_command_that_exists() -> None:
    every = [block for page in pages() for block in blocks(page) if block.language == "json"]
    configured = [
        json.loads(text)
        for block in every
        for text in (block.text.splitlines() if block.title.endswith(".jsonl") else [block.text])
    ]
    (client,) = (entry for entry in configured if "mcpServers" in entry)
    (server,) = client["mcpServers"].values()
    assert server["command"] == PROGRAM
    name, *arguments = server["args"]
    assert {word for word in arguments if word.startswith("--")} <= {o for p in commands()[name].params for o in p.opts}


def test_the_documentation_and_the_notebooks_import_public_names_only() -> None:
    cells = [
        "".join(cell["source"])
        for path in sorted(EXAMPLES.glob("*.ipynb"))
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    code = [*cells, *(block.text for page in pages() for block in blocks(page) if block.language == "python")]
    modules = {module for text in code for module in re.findall(rf"^from ({PACKAGE}[\w.]*) import", text, re.M)}
    # The class for Agno needs the extra `agno`, which not every installation has.
    assert modules <= {PACKAGE, f"{PACKAGE}.agno", *(f"{PACKAGE}.{module}" for module in ROOMS.values())}


NAMED = {
    "project": Project,
    "manager": ProjectManager,
    "response": RetrievalResponse,
    "engine": GroundedQueryEngine,
    "chat": GroundedChatEngine,
    "answer": GroundedResponse,
    "contextualizer": LLMContextualizer,
    "storage_context": StorageContext,
}
"""What the documentation means by a name in a sentence."""


@pytest.mark.parametrize("page", ["../README.md", "../SECURITY.md", "../llms.txt", *pages()])
def test_the_attributes_that_a_sentence_of_the_documentation_mentions_exist(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    mentioned = re.findall(
        rf"\b({'|'.join(NAMED)})\.(?!(?:json|py)\b)(\w+)", " ".join(re.findall(r"`([^`\n]+)`", text))
    )
    assert [f"{name}.{attribute}" for name, attribute in mentioned if attribute not in members(NAMED[name])] == []


def members(kind: type) -> set[str]:
    """Return the attributes of a class, and of its instances as far as they are annotated."""
    return {*dir(kind), *(name for base in kind.__mro__ for name in vars(base).get("__annotations__", ()))}


def commands_of(block: Block) -> list[list[str]]:
    """Return the commands of a block: one a line, or several joined by `&&`; a line may end in a backslash."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines for part in line.split(" && ") if (words := shlex.split(part, comments=True))]


def test_the_commands_of_the_documentation_exist_with_their_options() -> None:
    written = ("../README.md", SKILL, *pages())
    for block in (block for page in written for block in blocks(page) if block.language == "bash"):
        for program, *arguments in commands_of(block):
            if program != PROGRAM or arguments[0].startswith("-"):
                continue
            command = commands().get(arguments[0]) or commands()[" ".join(arguments[:2])]
            options = {option for part in command.params for option in (*part.opts, *part.secondary_opts)} | {"--help"}
            assert {word for word in arguments if word.startswith("-")} <= options, block


def test_the_skill_has_a_head_and_mentions_only_commands_settings_and_arguments_that_exist() -> None:
    text = (DOCS / SKILL).read_text(encoding="utf-8")
    head = re.match(r"---\nname: ([a-z0-9-]{1,64})\ndescription: ([^\n]{40,1024})\n---\n", text)
    assert head is not None
    assert head[1] == (DOCS / SKILL).parent.name
    started = {words[1] for block in blocks(SKILL) if block.language == "bash" for words in commands_of(block)}
    assert {"create", "estimate", "ingest", "sync", "search", "ask", "mcp", "doctor", "verify", "evaluate"} <= started
    options = {"--help", *(o for command in commands().values() for part in command.params for o in part.opts)}
    sentences = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for words in map(str.split, re.findall(r"`([^`\n]+)`", sentences)):
        assert {word for word in words if word.startswith("--")} <= options, words
    assert {tool for tool in TOOLS if f"`{tool}`" in sentences} == set(TOOLS)
    assert f"`max_tokens` tokens ({MAX_TOKENS:,} by default)" in " ".join(sentences.split())


def test_the_python_code_of_the_documentation_compiles_and_uses_public_names() -> None:
    for block in (block for page in ("../README.md", *pages()) for block in blocks(page) if block.language == "python"):
        tree = compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
                assert {alias.name for alias in node.names} <= set(llama_index_contextual.__all__), block


def test_the_first_example_of_the_readme_prints_the_output_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown = (next(b for b in blocks("../README.md") if b.language == kind) for kind in ("python", "text"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    exec(compile(code.text, str(code), "exec"), {})
    printed = capsys.readouterr().out
    promised = shown.text.rstrip()
    head, ellipsis, _ = promised.partition(" …")
    assert ellipsis, "the block is expected to show the beginning only"
    assert printed.startswith(head)


# ---- claims of single pages ------------------------------------------------------------------------------------------


def test_the_names_and_modules_that_the_page_for_contributors_mentions_exist() -> None:
    written = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("CONTRIBUTING.md", "docs/development.md"))
    text = re.sub(r"^```.*?^```", "", written, flags=re.M | re.S)
    code = re.findall(r"`([^`\n]+)`", text)
    words = {word for place in ("llama_index_contextual", "tests", "docs") for word in words_of(ROOT / place)}
    names = {name.rpartition(".")[2] for name in code if re.fullmatch(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", name)}
    assert len(names) > 80
    assert sorted(names - words) == []
    modules = {name for name in code if re.fullmatch(r"[\w/]+\.py", name)}
    assert len(modules) > 40
    places = (ROOT, ROOT / PACKAGE)
    assert [name for name in sorted(modules) if not any((place / name).is_file() for place in places)] == []


def words_of(folder: Path) -> set[str]:
    """Return the words in the Python files of a folder."""
    return {word for file in folder.rglob("*.py") for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}


def test_the_benchmarks_that_are_named_exist() -> None:
    text = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in pages())
    named = set(re.findall(r"python -m tests\.benchmarks\.(\w+)", text)) - {"NAME"}
    table = (DOCS / "benchmarks.md").read_text(encoding="utf-8").partition("| program | measures |")[2]
    for row in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, re.MULTILINE):
        named |= set(re.findall(r"\w+", row))
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "tests" / "benchmarks" / f"{name}.py").exists()] == []


def test_the_figures_of_the_readme_are_among_the_benchmarks() -> None:
    section = README.partition("## Does it help?")[2].partition("\n## ")[0]
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    figures = set(re.findall(r"(?<![\d.])\d+\.\d(?![\d.])", section))
    assert sorted(figure for figure in figures if figure not in page) == []


def test_no_page_contains_paths_or_user_names_of_a_machine() -> None:
    for page in (*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/*.md")):
        before = r"\w.:/" if DOCS in page.parents else r"\w."
        assert not re.search(rf"(?<![{before}])/(?:home|root|Users|work|tmp)/", page.read_text("utf-8")), page.name


def test_the_pages_at_the_door_are_short() -> None:
    assert len(README.split()) <= 900
    for name in ("CONTRIBUTING.md", "SECURITY.md"):
        assert (ROOT / name).stat().st_size <= 8_000, name


def test_the_table_of_extras_is_complete() -> None:
    table = (DOCS / "start.md").read_text(encoding="utf-8").partition("| extra | for |")[2].partition("\n\n")[0]
    listed = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    # Those that are left out are for those who work on the package.
    assert listed - {"docs"} == known_extras() - {"dev", "dev-all", "docs"}


def known_extras() -> set[str]:
    """Return the extras that can be installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])
