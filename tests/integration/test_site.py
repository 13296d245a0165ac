"""The documentation site: its navigation, references, links and quoted messages are complete and correct."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

import llama_index_contextual
from llama_index_contextual.cli.app import app
from llama_index_contextual.config import RETRIEVAL_FIELDS, ProjectConfig
from llama_index_contextual.readers import read_documents
from tests.support.examples import DATA, EXAMPLES, script
from tests.support.pages import DOCS, blocks, links, navigation, pages
from tests.support.server import LoopbackProvider
from tests.support.source import PACKAGE, ROOT, sources

INDEX = (ROOT / "llms.txt").read_text(encoding="utf-8")


@cache
def generate() -> ModuleType:
    """The script that makes pages from the package."""
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def generated() -> dict[str, str | bytes]:
    """The generated pages and files, by their path on the site."""
    files: dict[str, str | bytes] = generate().generated()
    return files


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


@pytest.mark.parametrize("page", ["llms.txt", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"])
def test_the_links_of_other_pages_have_targets(page: str) -> None:
    targets = [target for target in links(ROOT / page) if not (ROOT / page).parent.joinpath(target).exists()]
    assert targets == []


def test_the_page_for_language_models_has_title_summary_and_lists_of_links() -> None:
    title, blank, summary, *rest = INDEX.splitlines()
    assert title == "# llama-index-contextual"
    assert (blank, summary[:2]) == ("", "> ")
    headings = [line for line in rest if line.startswith("#")]
    assert all(line.startswith("## ") for line in headings)
    listed = "\n".join(rest).split("## ", 1)[1]
    for line in filter(None, listed.splitlines()[1:]):
        assert re.match(r"## |- \[[^\]]+\]\([^)]+\)(: .+|, and a \[.+)", line), line


def test_nothing_is_loaded_from_elsewhere() -> None:
    configuration = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in configuration
    assert not re.search(r"https?://|pymdownx\.emoji|mermaid|extra_javascript", configuration)
    for page in pages():
        text = (DOCS / page).read_text(encoding="utf-8")
        assert not re.search(r"!\[[^\]]*\]\(https?:|<(?:script|iframe|link)\b|src=[\"']https?:", text), page


def test_diagrams_are_those_that_the_script_draws() -> None:
    spec = importlib.util.spec_from_file_location("docs_draw_diagrams", DOCS / "draw_diagrams.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    for draw in (module.way, module.segments, module.cache, module.versions, module.fusion):
        assert (DOCS / "assets" / f"{draw.__name__}.svg").read_text(encoding="utf-8") == draw().svg()


# ---- references ------------------------------------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference_once() -> None:
    text = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in pages() if page.startswith("reference/api/"))
    documented = re.findall(rf"^::: {PACKAGE}\.(\w+)$", text, re.MULTILINE)
    # The tree of errors, and what the extras add, are documented as modules.
    assert sorted(set(documented) - {"errors"}) == sorted(
        set(llama_index_contextual.__all__) - {"__version__", "ContextualError"}
    )
    assert len(documented) == len(set(documented))


def test_every_command_is_in_the_reference_with_its_options() -> None:
    page = str(generated()["reference/cli.md"])
    names = set(re.findall(r"^### (.+)$", page, re.MULTILINE))
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    leaves = {name: command for name, command in commands.items() if not hasattr(command, "commands")}
    leaves |= {f"{name} {leaf}": c for name, g in commands.items() for leaf, c in getattr(g, "commands", {}).items()}
    assert names == set(leaves)
    for name, command in leaves.items():
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


def test_a_notebook_becomes_a_page_with_its_outputs() -> None:
    page = str(generated()["examples/01_quickstart.md"])
    assert page.startswith("# ")
    assert "```python\n" in page
    assert "````text\n" in page
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page)
    assert all(f"examples/{name}" in generated() for name in pictures)


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


# ---- claims of single pages ------------------------------------------------------------------------------------------


def test_the_extras_of_the_start_page_exist_and_are_complete() -> None:
    import tomllib

    table = (DOCS / "start.md").read_text(encoding="utf-8").partition("| extra | for |")[2].partition("\n\n")[0]
    listed = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert listed == project["optional-dependencies"].keys() - {"dev", "dev-all", "docs"}


def test_the_benchmarks_that_are_named_exist() -> None:
    text = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in pages())
    named = set(re.findall(r"python -m tests\.benchmarks\.(\w+)", text)) - {"NAME"}
    table = (DOCS / "benchmarks.md").read_text(encoding="utf-8").partition("| program | measures |")[2]
    for row in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, re.MULTILINE):
        named |= set(re.findall(r"\w+", row))
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "tests" / "benchmarks" / f"{name}.py").exists()] == []


def test_the_figures_of_the_readme_are_among_the_benchmarks() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## Does it help?")[2].partition("\n## ")[0]
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    figures = set(re.findall(r"(?<![\d.])\d+\.\d(?![\d.])", section))
    assert sorted(figure for figure in figures if figure not in page) == []


def test_help_on_the_settings_says_where_their_descriptions_are() -> None:
    assert 'model_fields["top_k"].description' in (ProjectConfig.__doc__ or "")
    assert ProjectConfig.model_fields["top_k"].description


def test_the_repr_of_what_was_read_is_short() -> None:
    result = read_documents([DATA])
    assert repr(result) == f"<ReadResult: {len(result)} documents, 2 skipped files, 0 warnings>"


def test_no_page_contains_paths_or_user_names_of_a_machine() -> None:
    for page in DOCS.rglob("*.md"):
        assert not re.search(r"(?<![\w.:/])/(?:home|root|Users|work|tmp)/", page.read_text(encoding="utf-8")), page.name


def test_own_contexts_writes_and_compares_contexts_within_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wordllama", reason="needs the extra local")
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "pump.md").write_text("# Pump P7\n\nError TS-999 means that the pump runs dry.\n", encoding="utf-8")
    (folder / "valve.md").write_text("# Valve V2\n\nThe valve is opened once a month.\n", encoding="utf-8")
    questions = tmp_path / "questions.jsonl"
    questions.write_text(
        '{"question": "What does TS-999 mean?", "file": "pump.md", "evidence": ["the pump runs dry"]}\n',
        encoding="utf-8",
    )
    out = tmp_path / "contexts.jsonl"
    arguments = ["own_contexts.py", str(folder), "--questions", str(questions), "--out", str(out)]
    arguments += ["--root", str(tmp_path / "knowledge"), "--yes"]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    with LoopbackProvider() as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.api_base)
        monkeypatch.setenv("OPENAI_API_BASE", model.api_base)
        script("own_contexts").main()
        calls = len(model.calls("/v1/chat/completions"))
        script("own_contexts").main()
        assert len(model.calls("/v1/chat/completions")) == calls == 2
    printed = capsys.readouterr().out
    assert f"2 contexts in {out}" in printed
    assert "structural" in printed
    assert len(out.read_text(encoding="utf-8").splitlines()) == 2


def test_the_notebooks_are_listed_among_the_examples() -> None:
    page = (DOCS / "examples" / "index.md").read_text(encoding="utf-8")
    assert [path.stem for path in EXAMPLES.glob("*.ipynb") if f"]({path.stem}.md)" not in page] == []
    assert all(blocks(page) is not None for page in pages())
