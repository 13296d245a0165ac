"""Imports point one way, and the house rules hold in every module: read from the syntax trees."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

import pytest

from tests.support.source import PACKAGE, Source, module_of, sources

# From the bottom up: a module imports from the layers below its own and from its own package, never from above or
# beside. What is not there yet has its place already.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"redaction", "_version"}),
    frozenset({"errors"}),
    frozenset({"excerpts", "forks", "retirement", "templates", "wording"}),
    frozenset({"config", "metadata", "calls", "clients"}),
    frozenset({"node_parser", "readers", "_pdf_worker"}),
    frozenset({"embeddings"}),
    frozenset({"models", "settings", "storage"}),
    frozenset({"contextualizer"}),
    frozenset({"results"}),
    frozenset({"retrievers", "postprocessor"}),
    frozenset({"ingestion", "answering", "tools", "agno_filters"}),
    frozenset({"evaluation"}),  # builds the variants that it compares
    frozenset({"project_base", "project_info"}),
    frozenset({"project_reading", "project_writing"}),
    frozenset({"project"}),
    frozenset({"manager"}),
    frozenset({"demo"}),
    frozenset({"agno", "inspection", "mcp", "terminal"}),
    frozenset({"cli_options"}),
    frozenset({"cli_answer", "cli_evaluate", "cli_ingest", "cli_serve", "cli_upkeep"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)
SAME_PACKAGE = {"_pdf_worker": "readers"}  # the parsing process is the readers' other half
EDGE = frozenset({"agno.py", "mcp.py", "terminal.py", "cli.py", "cli_ingest.py", "cli_options.py", "cli_serve.py"})
EDGE |= {"cli_answer.py", "cli_evaluate.py", "cli_upkeep.py"}
CHARTS = frozenset({"evaluation/charts.py"})  # imports matplotlib when a chart is drawn
PURE = ("retrievers/fusion.py", "evaluation/metrics.py", "evaluation/significance.py")

FORBIDDEN_MODULES = frozenset({"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "code"})
FORBIDDEN_CALLS = frozenset({"eval", "exec", "compile", "__import__", "os.system", "os.popen"})
FORBIDDEN_PREFIXES = ("os.exec", "os.spawn", "pty.", "asyncio.create_subprocess_shell")
FORBIDDEN_KEYWORDS = frozenset({"shell", "allow_pickle"})

READ_MODES = frozenset({"r", "rb", "rt"})
WRITING_CALLS = frozenset(
    {
        *("os.open", "os.fdopen", "os.remove", "os.unlink", "os.rename", "os.replace", "os.mkdir", "os.makedirs"),
        *("os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod", "sqlite3.connect", "faiss.write_index"),
        *("numpy.save", "numpy.savez", "numpy.memmap"),
    }
)
WRITING_MODULES = frozenset({"shutil", "tempfile"})
WRITING_METHODS = frozenset(
    {"write_text", "write_bytes", "mkdir", "unlink", "rmdir", "touch", "symlink_to", "hardlink_to", "chmod", "tofile"}
    | {"save"}
)
WRITERS: dict[str, set[str]] = {
    # the one place
    "storage/files.py": {"open", "mkdir", "os.open", "os.replace", "unlink", "rmdir", "shutil.rmtree"}
    | {"shutil.copyfileobj"},
    # SQLite writes its own files; the salvage of a damaged ledger reads it
    "storage/kvstore.py": {"sqlite3.connect"},
    "storage/ledger_lines.py": {"sqlite3.connect"},
    # into a file that storage/files.py has opened
    "storage/faiss_file.py": {"faiss.write_index"},
    # bm25s writes its own files, which are synced before they are published
    "retrievers/lexical_index.py": {"save"},
    "retrievers/lexical.py": {"save"},
    "retrievers/documents.py": {"save"},
    "ingestion/builder.py": {"save"},
    # a conversation, by storage/files.py
    "cli_answer.py": {"save"},
    # O_RDONLY and "rb", but by the same calls
    "readers/files.py": {"os.open", "os.fdopen"},
    # a root folder of its own, removed in the end
    "demo.py": {"tempfile.TemporaryDirectory"},
}

BROAD_EXCEPTS = {
    ("calls.py", "acall"): "raises it unless the call may succeed later",
    ("calls.py", "call"): "raises it unless the call may succeed later",
    ("calls.py", "awithout_secrets"): "raises its stand-in, outside so that it does not carry the original along",
    ("calls.py", "without_secrets"): "the same",
    ("answering/streaming.py", "astream"): "what came of the answer is kept, marked as partial",
    ("contextualizer/engine.py", "_try"): "any LLM class may raise anything; the chunk is reported",
    ("contextualizer/scheduler.py", "_persist"): "raises it unless the call may succeed later",
    ("contextualizer/senders.py", "send"): "raises it unless the model has refused an effort, which is left out then",
    ("contextualizer/writer.py", "_commit"): "those who wait for the commit raise it",
}


# ---- layers --------------------------------------------------------------------------------------------------------


def part_of(module: str) -> str:
    return module.partition(".")[0]


def level_of(part: str) -> int:
    return next(level for level, parts in enumerate(LAYERS) if part in parts)


def test_every_module_has_its_place_in_one_layer() -> None:
    placed = [part for parts in LAYERS for part in parts]
    assert len(placed) == len(set(placed))
    assert {part_of(source.name) for source in sources()} - set(placed) == {""}


def test_imports_point_down() -> None:
    wrong = []
    for source in sources():
        part = part_of(source.name)
        for found in source.imports if part else ():  # the package itself names everything: see below
            target = module_of(found.target)
            if target is None or part_of(target) in (part, SAME_PACKAGE.get(part)):
                continue
            if level_of(part_of(target)) >= level_of(part):
                wrong.append(f"{source.path}:{found.line} imports {target}")
    assert wrong == []


def test_no_two_modules_import_each_other_even_later_on() -> None:
    graph = {
        source.name: {module_of(found.target) for found in source.imports if not found.typing_only} - {None}
        for source in sources()
    }
    done: set[str | None] = set()

    def walk(name: str | None, path: tuple[str | None, ...]) -> None:
        assert name not in path, f"{path} come back to {name}"
        if name is not None and name not in done:
            for other in graph[name] - {name}:
                walk(other, (*path, name))
        done.add(name)

    for name in graph:
        walk(name, ())


def test_the_package_itself_imports_nothing_but_its_version() -> None:
    package = next(source for source in sources() if not source.name)
    imported = {found.target for found in package.imports if not found.typing_only}
    assert imported == {
        "importlib.import_module",
        "typing.TYPE_CHECKING",
        "typing.Any",
        f"{PACKAGE}._version.__version__",
    }


def test_algorithms_import_the_standard_library_and_numpy_only() -> None:
    pure = [source for source in sources() if source.path in PURE]
    assert pure
    tops = {found.target.partition(".")[0] for source in pure for found in source.imports}
    assert tops - {"numpy", "__future__"} <= sys.stdlib_module_names


@pytest.mark.parametrize("foreign", ["agno", "click", "matplotlib", "mcp", "openai", "torch", "typer"])
def test_what_is_heavy_or_optional_is_imported_at_the_edge_only(foreign: str) -> None:
    users = {s.path for s in sources() for found in s.imports if found.target.partition(".")[0] == foreign}
    assert users <= EDGE | CHARTS


# ---- what no module does -------------------------------------------------------------------------------------------


def test_nothing_is_unpickled_and_no_text_is_executed() -> None:
    wrong = []
    for source in sources():
        for found in source.imports:
            if found.target.partition(".")[0] in FORBIDDEN_MODULES:
                wrong.append(f"{source.path}:{found.line} imports {found.target}")
        for name, call in source.calls:
            keywords = FORBIDDEN_KEYWORDS & {keyword.arg for keyword in call.keywords}
            if name in FORBIDDEN_CALLS or name.startswith(FORBIDDEN_PREFIXES) or keywords:
                wrong.append(f"{source.path}:{call.lineno} calls {name} {keywords or ''}")
    assert wrong == []


def test_modules_are_imported_by_name_from_two_fixed_tables_only() -> None:
    importers = {s.path for s in sources() for name, _ in s.calls if name == "importlib.import_module"}
    assert importers == {"__init__.py", "models.py"}


def test_only_the_command_line_prints() -> None:
    wrong = [
        f"{source.path}:{call.lineno} calls {name}"
        for source in sources()
        for name, call in source.calls
        if name in ("print", "pprint.pprint", "rich.print") or name.startswith(("sys.stdout.", "sys.stderr."))
        # The parsing process answers its parent on standard output.
        if source.path not in ("terminal.py", "_pdf_worker.py")
    ]
    assert wrong == []


def test_the_root_logger_is_left_alone() -> None:
    wrong = []
    for source in sources():
        for name, call in source.calls:
            is_root = name == "logging.getLogger" and not call.args
            # WordLlama sets the root logger up when it is imported; this module sets it back.
            if (is_root and source.path != "embeddings/wordllama.py") or name == "logging.basicConfig":
                wrong.append(f"{source.path}:{call.lineno}")
    assert wrong == []


def test_no_assert_stands_for_an_error_of_the_user() -> None:
    wrong = [f"{s.path}:{node.lineno}" for s in sources() for node in ast.walk(s.tree) if isinstance(node, ast.Assert)]
    assert wrong == []


def test_files_are_written_where_it_is_foreseen_only() -> None:
    found = {source.path: calls for source in sources() if (calls := set(writing_calls(source)))}
    assert found == WRITERS


def writing_calls(source: Source) -> Iterator[str]:
    """Yield the name of every call that may write a file; for a method, its name alone."""
    for name, call in source.calls:
        method = name.rpartition(".")[2]
        if part_of(name) == PACKAGE:
            continue
        if name in WRITING_CALLS or name.partition(".")[0] in WRITING_MODULES:
            yield name
        elif ("." in name and method in WRITING_METHODS) or (method == "open" and not reads(name, call)):
            yield method


def reads(name: str, call: ast.Call) -> bool:
    """Return whether a call of `open` or `path.open` asks for reading, by a mode that is written out."""
    modes = [*call.args[1 if name in ("open", "io.open") else 0 :][:1]]
    modes += [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    return all(isinstance(mode, ast.Constant) and mode.value in READ_MODES for mode in modes)


# ---- exceptions ----------------------------------------------------------------------------------------------------


def handlers(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.ExceptHandler]]:
    """Yield every `except` with the name of the function that it stands in."""
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
        if isinstance(node, ast.ExceptHandler):
            yield function, node
        yield from handlers(node, inside)


def is_broad(handler: ast.ExceptHandler) -> bool:
    caught = [] if handler.type is None else [node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)]
    return not caught or bool({"Exception", "BaseException"} & set(caught))


def test_what_is_caught_broadly_is_raised_in_the_end() -> None:
    swallowed = {
        (source.path, function)
        for source in sources()
        for function, handler in handlers(source.tree)
        if is_broad(handler) and not isinstance(handler.body[-1], ast.Raise)
    }
    assert swallowed == set(BROAD_EXCEPTS)


def test_no_except_is_bare() -> None:
    bare = [f"{s.path}:{h.lineno}" for s in sources() for _, h in handlers(s.tree) if h.type is None]
    assert bare == []


def test_nothing_is_suppressed_broadly() -> None:
    suppressed = [
        ast.unparse(arg) for s in sources() for name, c in s.calls if name.endswith("suppress") for arg in c.args
    ]
    assert not {"Exception", "BaseException"} & set(suppressed)


# ---- form ----------------------------------------------------------------------------------------------------------


def test_every_module_says_what_it_is_for() -> None:
    # An empty file marks a package.
    assert [s.path for s in sources() if s.text and not ast.get_docstring(s.tree)] == []
