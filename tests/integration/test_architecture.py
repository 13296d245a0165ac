"""Layers of the imports, and rules for every module, checked on the syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.source import PACKAGE, Import, Source, module_of, sources

# From the bottom up: a folder imports from its own layer and from those below, never from above.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "_version", "config", "figures", "metadata", "_utils", "money"}),
    frozenset({"models", "readers", "node_parser", "embeddings", "index"}),
    frozenset({"contextualizer", "stores", "search", "retrievers", "postprocessor"}),
    frozenset({"ingestion", "answering", "evaluation"}),
    frozenset({"project", "tools"}),
    frozenset({"agno", "api", "mcp", "cli", "ui"}),
    frozenset({"__main__"}),
)
DOORS = frozenset({"agno", "api", "mcp", "cli", "ui"})
RERANK = "search/cross_encoders.py"  # imports torch when a cross-encoder is loaded
RAY = "ingestion/ray.py"  # is imported when a run uses Ray
SENDING = "contextualizer/sending.py"  # imports openai when a server has refused the temperature

FORBIDDEN_MODULES = frozenset({"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "code"})
FORBIDDEN_CALLS = frozenset({"eval", "exec", "compile", "__import__", "os.system", "os.popen"})
FORBIDDEN_PREFIXES = ("os.exec", "os.spawn", "pty.", "asyncio.create_subprocess_shell")
FORBIDDEN_KEYWORDS = frozenset({"shell", "allow_pickle"})

OPENERS = (
    *("_utils/files", "readers/figures", "readers/files", "readers/ocr", "readers/package", "readers/pictures"),
    "readers/remote",
)
READ_MODES = frozenset({"r", "rb", "rt"})
WRITING_CALLS = frozenset(
    {
        *("os.remove", "os.unlink", "os.rename", "os.replace", "os.mkdir", "os.makedirs"),
        *("os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod", "sqlite3.connect", "faiss.write_index"),
        *("numpy.save", "numpy.savez", "numpy.memmap"),
    }
)
WRITING_METHODS = frozenset(
    {"write_text", "write_bytes", "mkdir", "unlink", "rmdir", "touch", "symlink_to", "hardlink_to", "chmod", "tofile"}
)


def part_of(module: str) -> str:
    return module.partition(".")[0]


def executed(importer: str, one: Import) -> Iterator[str]:
    """Yield the modules of the package that an import executes: the one it names, and the packages that it enters."""
    name = None if one.typing_only else module_of(one.target)
    if name:
        yield name
        while (name := name.rpartition(".")[0]) and not f"{importer}.".startswith(f"{name}."):
            yield name


def level_of(part: str) -> int:
    return next(level for level, parts in enumerate(LAYERS) if part in parts)


def test_every_folder_has_its_place_in_one_layer() -> None:
    placed = [part for parts in LAYERS for part in parts]
    assert len(placed) == len(set(placed))
    assert {part_of(source.name) for source in sources()} - set(placed) == {""}


def test_imports_point_down() -> None:
    wrong = []
    for source in sources():
        part = part_of(source.name)
        for result in source.imports if part else ():  # the package itself names everything: see below
            target = module_of(result.target)
            if target and level_of(part_of(target)) > level_of(part):
                wrong.append(f"{source.path}:{result.line} imports {target}")
    assert wrong == []


def test_no_two_modules_import_each_other_even_lazily() -> None:
    """Without circles, the order of imports does not matter, so that each module can be imported first."""
    require_no_circle(
        {source.name: {name for one in source.imports for name in executed(source.name, one)} for source in sources()}
    )


def test_no_two_modules_need_the_types_of_each_other() -> None:
    """Each module can be read with those below it, and without those that use it."""
    require_no_circle(
        {
            source.name: {name for one in source.imports if (name := module_of(one.target))} - {"", source.name}
            for source in sources()
        }
    )


def require_no_circle(graph: dict[str, set[str]]) -> None:
    """Check that no module can be reached from itself."""
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"{path} come back to {name}"
        if name not in done:
            for other in graph[name] - {name}:
                walk(other, (*path, name))
        done.add(name)

    for name in graph:
        walk(name, ())


def test_the_package_itself_imports_nothing_but_its_version() -> None:
    package = next(source for source in sources() if not source.name)
    imported = {one.target for one in package.imports if not one.typing_only}
    assert imported == {
        "importlib.import_module",
        "typing.TYPE_CHECKING",
        "typing.Any",
        f"{PACKAGE}._version.__version__",
    }


@pytest.mark.parametrize("foreign", ["agno", "click", "matplotlib", "mcp", "openai", "ray", "torch", "typer"])
def test_heavy_and_optional_packages_are_imported_where_they_are_used_only(foreign: str) -> None:
    users = [s for s in sources() for result in s.imports if result.target.partition(".")[0] == foreign]
    assert {s.path for s in users if part_of(s.name) not in DOORS} <= {RERANK, RAY, SENDING}


def test_nothing_is_unpickled_and_no_text_is_executed() -> None:
    wrong = []
    for source in sources():
        for result in source.imports:
            if result.target.partition(".")[0] in FORBIDDEN_MODULES:
                wrong.append(f"{source.path}:{result.line} imports {result.target}")
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
        # Child processes answer their parent on standard output.
        if source.path not in ("cli/common.py", "readers/process.py")
    ]
    assert wrong == []


def test_the_root_logger_is_left_alone() -> None:
    wrong = []
    for source in sources():
        for name, call in source.calls:
            if (name == "logging.getLogger" and not call.args) or name == "logging.basicConfig":
                wrong.append(f"{source.path}:{call.lineno}")
    assert wrong == []


def test_no_assert_reports_a_user_error() -> None:
    wrong = [f"{s.path}:{node.lineno}" for s in sources() for node in s.nodes if isinstance(node, ast.Assert)]
    assert wrong == []


def test_every_lock_is_replaced_in_a_forked_process() -> None:
    primitives = {f"threading.{name}" for name in ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore")}
    users = {source.path for source in sources() for name, _ in source.calls if name in primitives}
    assert users == {"_utils/locks.py"}


def test_only_the_index_writes_files() -> None:
    wrong = [
        f"{source.path}: {name}"
        for source in sources()
        for name in writing_calls(source)
        # Regular files are opened by their descriptors, for reading; parts of archives and images are opened in memory.
        if part_of(source.name) != "index" and (source.path, name) not in [(f"{path}.py", "open") for path in OPENERS]
    ]
    assert wrong == []


def test_files_of_a_project_are_opened_in_one_place_which_never_waits_for_a_pipe() -> None:
    wrong = [
        f"{source.path}:{call.lineno} calls {name}"
        for source in sources()
        for name, call in source.calls
        if part_of(source.name) in ("index", "ingestion", "project")
        and (name.endswith((".read_bytes", ".read_text")) or (name in ("open", "io.open") and reads(name, call)))
    ]
    of_documents = ("version.read_text", "self.read_text")  # methods of a version
    assert [call for call in wrong if not call.endswith(of_documents)] == []


def writing_calls(source: Source) -> Iterator[str]:
    """Yield the name of every call that may write a file; for a method, its name alone."""
    for name, call in source.calls:
        method = name.rpartition(".")[2]
        if part_of(name) == PACKAGE:
            continue
        if name in WRITING_CALLS or name.partition(".")[0] == "shutil":
            yield name
        elif ("." in name and method in WRITING_METHODS) or (method == "open" and not reads(name, call)):
            yield method


def reads(name: str, call: ast.Call) -> bool:
    """Return whether a call of `open` or `path.open` opens the null device, or asks for reading by its mode."""
    if call.args and ast.unparse(call.args[0]) == "os.devnull":
        return True
    modes = [*call.args[1 if name in ("open", "io.open") else 0 :][:1]]
    modes += [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    return all(isinstance(mode, ast.Constant) and mode.value in READ_MODES for mode in modes)


def test_a_search_multiplies_no_matrices_with_openblas() -> None:
    """`einsum` and FAISS multiply; threads of OpenBLAS would spin while others search."""
    products = {f"numpy.{name}" for name in ("matmul", "dot", "vdot", "inner", "tensordot", "vecdot", "matvec")}
    wrong = []
    for source in (source for source in sources() if part_of(source.name) == "search"):
        operators = [node for node in source.nodes if isinstance(node, ast.MatMult)]
        wrong += [f"{source.path}: @" for _ in operators]
        wrong += [f"{source.path}:{call.lineno} calls {name}" for name, call in source.calls if name in products]
    assert wrong == []
