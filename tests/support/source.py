"""The package's source as syntax trees, for tests of its architecture."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

PACKAGE = "llama_index_contextual"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Import:
    """One import of a module.

    Attributes:
        target: Dotted name of what is imported, attributes included ("json.loads").
        line: Where.
        typing_only: Whether it stands under `if TYPE_CHECKING:`.
    """

    target: str
    line: int
    typing_only: bool


@dataclass(frozen=True)
class Source:
    """One module.

    Attributes:
        name: Dotted name within the package ("index.files"); "" for the package itself.
        path: Path relative to the package, with forward slashes.
        text: Its source.
    """

    name: str
    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the syntax tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> list[Import]:
        """Every import, wherever it stands."""
        typing_only = {
            id(inner)
            for node in self.nodes
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        results = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}:{node.lineno} is a relative import"
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            results += [Import(target, node.lineno, id(node) in typing_only) for target in targets]
        return results

    @cached_property
    def names(self) -> dict[str, str]:
        """What each imported name stands for ("np": "numpy")."""
        results = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    results[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                results.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        return results

    @cached_property
    def calls(self) -> list[tuple[str, ast.Call]]:
        """Every call with the dotted name of what is called, imports resolved ("os.replace")."""
        return [(self._resolve(ast.unparse(node.func)), node) for node in self.nodes if isinstance(node, ast.Call)]

    def _resolve(self, dotted: str) -> str:
        head, dot, rest = dotted.partition(".")
        return f"{self.names.get(head, head)}{dot}{rest}"


@cache
def sources() -> tuple[Source, ...]:
    """Return every module of the package."""
    folder = ROOT / PACKAGE
    results = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        results.append(Source(name, path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")))
    return tuple(results)


@cache
def module_names() -> frozenset[str]:
    """Return the names of all modules of the package."""
    return frozenset(source.name for source in sources())


def module_of(target: str) -> str | None:
    """Return the module of the package that an import's target is in, or None for a foreign one."""
    if target != PACKAGE and not target.startswith(f"{PACKAGE}."):
        return None
    known = module_names()
    name = target[len(PACKAGE) + 1 :]
    while name not in known:
        name = name.rpartition(".")[0]
    return name
