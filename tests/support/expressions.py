"""Every regular expression of the package, and the methods that it is used with."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import regex

from tests.support.growth import CHARACTERS, ENDS, PAIRS, Run
from tests.support.source import PACKAGE, Source, sources

METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split")
FUNCTIONS = {f"{library}.{name}" for library in ("re", "regex") for name in ("compile", *METHODS)}
PATTERNS = (re.Pattern, regex.Pattern)


@dataclass
class Expression:
    """A regular expression.

    Attributes:
        where: The module, and the name or the line, where it is first seen.
        compiled: The compiled pattern.
        methods: Names of the methods that the package calls.
    """

    where: str
    compiled: re.Pattern[Any]
    methods: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.where}: {self.compiled.pattern!r}"


def expressions(local: Mapping[str, Mapping[str, Any]]) -> list[Expression]:
    """Return the expressions of all modules.

    Args:
        local: For each function that builds an expression of its variables, "module.function", a value of each
            variable.

    Raises:
        LookupError: An expression cannot be evaluated, so that it would be left out; `local` must name the variables.
    """
    collector = _Collector(local)
    for source in sources():
        if source.name != "__main__":  # runs the command when it is imported
            collector.collect(source)
    for each in collector.expressions.values():
        each.methods = each.methods or set(METHODS[:4])
    if collector.hidden:
        raise LookupError("Expressions that depend on local variables:\n" + "\n".join(collector.hidden))
    return list(collector.expressions.values())


def patterns_in(value: Any, module: str, seen: set[int] | None = None) -> Iterator[re.Pattern[Any]]:
    """Return the compiled patterns in a global variable: in containers, attributes, defaults and closures."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, (str, bytes, int, float, ModuleType, CodeType)):
        return
    seen.add(id(value))
    if isinstance(value, PATTERNS):
        yield value
        return
    inner: list[Any] = []
    if isinstance(value, Mapping):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        inner = list(value)
    elif isinstance(value, FunctionType):
        if value.__module__ == module:
            cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
            inner = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *cells]
            inner.append(getattr(value, "__wrapped__", None))
    elif isinstance(value, MethodType):
        inner = [value.__func__, value.__self__]
    elif isinstance(value, (property, classmethod, staticmethod)):
        inner = [getattr(value, name, None) for name in ("fget", "fset", "__func__")]
    elif getattr(value if isinstance(value, type) else type(value), "__module__", "").startswith(PACKAGE):
        inner = list(vars(value).values()) if hasattr(value, "__dict__") else []
        inner += [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    for each in inner:
        yield from patterns_in(each, module, seen)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


class _Collector:
    def __init__(self, local: Mapping[str, Mapping[str, Any]]) -> None:
        self.local = local
        self.expressions: dict[Any, Expression] = {}
        self.hidden: list[str] = []

    def collect(self, source: Source) -> None:
        try:
            module = importlib.import_module(f"{PACKAGE}.{source.name}".rstrip("."))
        except ImportError as error:  # an optional package
            self.hidden += [f"{source.path}: {name} ({error})" for name, _ in source.calls if name in FUNCTIONS]
            return
        known = {
            name: [self.add(each, f"{source.path} {name}") for each in patterns_in(value, module.__name__)]
            for name, value in vars(module).items()
        }
        loose = set()
        names = {name for name, values in known.items() if values}
        for scope, node in _scoped(source.tree):
            where = f"{source.path}:{getattr(node, 'lineno', 0)}"
            namespace = vars(builtins) | vars(module) | self.local.get(f"{source.name}.{scope}".rstrip("."), {})
            if isinstance(node, ast.Call) and (called := source._resolve(ast.unparse(node.func))) in FUNCTIONS:
                self.add_call(node, called, where, namespace, at_import=not scope)
            elif isinstance(node, ast.Attribute) and node.attr in METHODS:
                pattern = _evaluated(node.value, namespace)
                if isinstance(pattern, PATTERNS):
                    self.add(pattern, where).methods.add(node.attr)
                elif node.attr not in ("split",) and not isinstance(pattern, ModuleType):
                    loose.add(node.attr)
        for name in names:
            if _escapes(source.tree, name):
                for each in known[name]:
                    each.methods |= loose

    def add_call(self, node: ast.Call, called: str, where: str, namespace: Mapping[str, Any], at_import: bool) -> None:
        library, _, name = called.partition(".")
        arguments = {keyword.arg: keyword.value for keyword in node.keywords}
        flags = arguments.get("flags")
        position = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(name, 2)
        if flags is None and len(node.args) > position:
            flags = node.args[position]
        try:
            pattern = eval(compile(ast.Expression(node.args[0]), where, "eval"), dict(namespace))
            value = eval(compile(ast.Expression(flags), where, "eval"), dict(namespace)) if flags else 0
        except NameError as error:
            if not at_import:  # what a module builds when it is imported is among its global variables
                self.hidden.append(f"{where}: {ast.unparse(node)} ({error})")
            return
        each = self.add(pattern, where, value, {"re": re, "regex": regex}[library])
        if name != "compile":
            each.methods.add(name)

    def add(self, pattern: Any, where: str, flags: int = 0, library: Any = re) -> Expression:
        compiled = pattern if isinstance(pattern, PATTERNS) else library.compile(pattern, flags)
        key = (type(compiled), compiled.pattern, compiled.flags)
        return self.expressions.setdefault(key, Expression(where, compiled))


def _scoped(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for each in (*node.decorator_list, node.args):
                yield from _scoped_node(each, scope)
            for each in node.body:
                yield from _scoped_node(each, f"{scope}.{node.name}".lstrip("."))
        elif isinstance(node, ast.Lambda):
            yield from _scoped_node(node.body, f"{scope}.<lambda>".lstrip("."))
        else:
            yield scope, node
            yield from _scoped(node, scope)


def _scoped_node(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.AST]]:
    yield from _scoped(ast.Module([node], []), scope)


def _evaluated(node: ast.expr, namespace: Mapping[str, Any]) -> Any:
    if all(
        isinstance(each, (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.expr_context))
        for each in ast.walk(node)
    ):
        try:
            return eval(compile(ast.Expression(node), "", "eval"), dict(namespace))
        except (NameError, AttributeError, KeyError, TypeError):
            return None
    return None


def _escapes(tree: ast.AST, name: str) -> bool:
    """Return whether a name is used other than for calling a method of a pattern."""
    direct = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) and id(node) not in direct
        for node in ast.walk(tree)
    )


# ---- hostile texts of an expression ----------------------------------------------------------------------------------


def hostile_runs(compiled: re.Pattern[Any], draws: int, seed: int = 0) -> Iterator[Run]:
    """Return texts that an expression may need long for.

    They are runs of white space, brackets, digits and so on, alone and after parts of texts that the expression
    matches, and repetitions of such parts.

    Args:
        compiled: The expression.
        draws: Number of texts that are drawn at random after those that are always the same.
        seed: Seed of the random texts.
    """
    chance = random.Random(f"{seed} {compiled.pattern!r}")
    examples = Examples(compiled, chance)
    units = [*CHARACTERS, *PAIRS]
    near = examples.characters
    yield from (Run("", unit, end) for unit in units for end in ENDS[:2])
    for _ in range(draws):
        example = examples.draw()
        start, end = sorted(chance.choices(range(len(example) + 1), k=2))
        shape = chance.randrange(4)
        before, repeated = example[:start], example[start:end]
        if shape == 0:  # a part is repeated within an example
            pass
        elif shape == 1:  # the beginning is repeated
            before, repeated = "", example[:end]
        elif shape == 2:
            before, repeated = example[:end], "".join(chance.choices(near, k=chance.choice((1, 1, 1, 2, 3))))
        else:
            before, repeated = "", example[:end] + "".join(chance.choices(near, k=chance.choice((1, 2))))
        after = chance.choice((*ENDS, example[end:], chance.choice(near)))
        yield Run(before, repeated or chance.choice(near), after)


class Examples:
    """Draws texts that an expression matches, or nearly so: conditions on what is around a match are not respected.

    Expressions of the package `regex` have a syntax of their own; for them, the texts are drawn from their characters.
    """

    def __init__(self, compiled: re.Pattern[Any], chance: random.Random) -> None:
        text = compiled.pattern if isinstance(compiled.pattern, str) else compiled.pattern.decode("latin-1")
        flags = compiled.flags & (re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE)
        self.chance = chance
        self.tree = list(_parser.parse(text, flags)) if isinstance(compiled, re.Pattern) else None
        self.groups: dict[int, str] = {}
        sets = list(_sets(self.tree or []))
        hostile = [each for each in CHARACTERS if self.tree is None or any(_allows(one, each) for one in sets)]
        own = [chr(value) for one in sets for kind, value in one if kind is c.LITERAL] if self.tree else list(text)
        self.characters = sorted({*hostile, *own}) or ["a"]

    def draw(self) -> str:
        """Return a text."""
        if self.tree is None:
            return "".join(self.chance.choices(self.characters, k=self.chance.randrange(1, 6)))
        return self._sequence(self.tree)

    def _sequence(self, nodes: Iterable[tuple[Any, Any]]) -> str:
        return "".join(self._node(kind, value) for kind, value in nodes)

    def _node(self, kind: Any, value: Any) -> str:
        match kind:
            case c.LITERAL | c.NOT_LITERAL | c.IN | c.ANY:
                return self._character(_set_of(kind, value))
            case c.BRANCH:
                return self._sequence(self.chance.choice(value[1]))
            case c.SUBPATTERN:
                self.groups[value[0]] = self._sequence(value[3])
                return self.groups[value[0]]
            case c.ATOMIC_GROUP:
                return self._sequence(value)
            case c.MAX_REPEAT | c.MIN_REPEAT | c.POSSESSIVE_REPEAT:
                least, most, body = value
                times = self.chance.randint(least, max(least, min(most, least + 2)))
                return "".join(self._sequence(body) for _ in range(times))
            case c.GROUPREF:
                return self.groups.get(value, "")
            case c.AT | c.ASSERT | c.ASSERT_NOT:
                return ""
        raise NotImplementedError(f"{kind} in an expression")

    def _character(self, items: Sequence[tuple[Any, Any]]) -> str:
        named = [chr(value) for kind, value in items if kind is c.LITERAL]
        if (c.NEGATE, None) in items or not named or self.chance.random() < 0.5:
            fitting = [each for each in CHARACTERS if len(each) == 1 and _allows(items, each)]
            named = fitting or named or [chr(value[0]) for kind, value in items if kind is c.RANGE]
        return self.chance.choice(named)


def _set_of(kind: Any, value: Any) -> list[tuple[Any, Any]]:
    match kind:
        case c.IN:
            return value
        case c.ANY:
            return [(c.NEGATE, None), (c.LITERAL, ord("\n"))]
        case c.NOT_LITERAL:
            return [(c.NEGATE, None), (c.LITERAL, value)]
    return [(c.LITERAL, value)]


def _sets(nodes: Any) -> Iterator[list[tuple[Any, Any]]]:
    if isinstance(nodes, tuple) and len(nodes) == 2 and nodes[0] in (c.LITERAL, c.NOT_LITERAL, c.IN, c.ANY):
        yield _set_of(*nodes)
    elif isinstance(nodes, (list, tuple, _parser.SubPattern)):
        for node in nodes:
            yield from _sets(node)


def _allows(items: Sequence[tuple[Any, Any]], character: str) -> bool:
    if len(character) > 1:
        return all(_allows(items, each) for each in character)
    contained = False
    for kind, value in items:
        match kind:
            case c.LITERAL:
                contained |= ord(character) == value
            case c.RANGE:
                contained |= value[0] <= ord(character) <= value[1]
            case c.CATEGORY:
                contained |= bool(re.fullmatch(_CATEGORIES[value], character))
    return contained is not ((c.NEGATE, None) in items)


_CATEGORIES = {
    c.CATEGORY_DIGIT: r"\d",
    c.CATEGORY_NOT_DIGIT: r"\D",
    c.CATEGORY_SPACE: r"\s",
    c.CATEGORY_NOT_SPACE: r"\S",
    c.CATEGORY_WORD: r"\w",
    c.CATEGORY_NOT_WORD: r"\W",
}


def calls(expression: Expression) -> Iterator[tuple[str, Callable[[str], object]]]:
    """Return the calls of an expression: the name of the method, and a function that calls it with a text."""
    compiled = expression.compiled
    is_bytes = isinstance(compiled.pattern, bytes)
    for method in sorted(expression.methods):
        run = _CALLS[method]
        if is_bytes:
            yield method, lambda text, run=run: run(compiled, text.encode("latin-1", "replace"))
        else:
            yield method, functools.partial(run, compiled)


_CALLS: dict[str, Callable[[re.Pattern[Any], Any], object]] = {
    "search": lambda compiled, text: compiled.search(text),
    "match": lambda compiled, text: compiled.match(text),
    "fullmatch": lambda compiled, text: compiled.fullmatch(text),
    "finditer": lambda compiled, text: sum(1 for _ in compiled.finditer(text)),
    "findall": lambda compiled, text: compiled.findall(text),
    "sub": lambda compiled, text: compiled.sub(lambda match: match[0], text),
    "subn": lambda compiled, text: compiled.subn(lambda match: match[0], text),
    "split": lambda compiled, text: compiled.split(text),
}
