"""Keyword arguments: shared descriptions of options, and suggestions for names that do not exist."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

_WIDTH = 120


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return a suffix for an error message that suggests the most similar known name, or "" if none is similar.

    Example:
        >>> nearest("stlye", ["style", "timeouts"]), nearest("x", ["style"])
        ("; did you mean 'style'?", '')
    """
    similar = get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return f"; did you mean {similar[0]!r}?" if similar else ""


def split_docstring(docstring: str | None, section: str) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring before its last section, and the descriptions of the names in that section.

    Example:
        >>> split_docstring("Read files.\\n\\nArgs:\\n    pages: Number of\\n        pages.", "Args")
        ('Read files.', {'pages': 'Number of pages.'})
    """
    before, _, entries = inspect.cleandoc(docstring or "").partition(f"\n\n{section}:\n")
    matches = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", entries, re.MULTILINE)
    return before, {name: " ".join(description.split()) for name, description in matches}


@dataclass(frozen=True)
class Option:
    """Description of an option, used to annotate a key of a TypedDict.

    Attributes:
        description: Effect of the option, in one or two sentences; in an annotation, the part that is not in the
            docstring of the TypedDict.
        default: Value of the option if it is not given.
    """

    description: str = ""
    default: object = None


def options_of(*options: type) -> Mapping[str, tuple[Any, Option]]:
    """Return the type and the description of each key of a TypedDict, in the order of definition.

    Args:
        *options: The TypedDict, after its base classes, which it does not know.

    Example:
        >>> from typing import Annotated, TypedDict
        >>> Reading = TypedDict("Reading", {"pages": Annotated[int, Option("Number of pages.", 1)]}, total=False)
        >>> options_of(Reading)
        {'pages': (<class 'int'>, Option(description='Number of pages.', default=1))}
    """
    texts: dict[str, str] = {}
    for option_class in options:
        texts |= split_docstring(option_class.__doc__, "Attributes")[1]
    options_by_name = {}
    for name, hint in get_type_hints(options[-1], include_extras=True).items():
        kind, option = (hint.__origin__, hint.__metadata__[0]) if hasattr(hint, "__metadata__") else (hint, Option())
        description = " ".join(filter(None, (option.description, texts.get(name))))
        options_by_name[name] = kind, replace(option, description=description)
    return options_by_name


def accepts(*options: type) -> Callable[[F], F]:
    """Return a decorator that adds the options in a TypedDict to the signature and docstring of a function.

    The TypedDict is passed after its base classes. The function takes `**options: Unpack[Options]`. `help()` and
    editors show the options like any other keyword arguments, with their defaults and descriptions. In the docstring,
    the descriptions replace the `**options` line. The error message for a mistyped keyword suggests the most similar
    option.
    """

    def decorate(function: F) -> F:
        options_by_name = options_of(*options)
        signature = inspect.signature(function)
        parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=kind)
            for name, (kind, option) in options_by_name.items()
        ]
        function.__signature__ = signature.replace(parameters=[*parameters, *keywords])  # type: ignore[attr-defined]
        if function.__doc__:
            before, _, after = function.__doc__.partition("**options\n")
            indent = before.rpartition("\n")[2]
            lines = [_wrap(f"{name}: {option.description}", indent) for name, (_, option) in options_by_name.items()]
            function.__doc__ = before.removesuffix(indent) + "\n".join(lines) + "\n" + after
        return suggests_keywords(function)

    return decorate


def _wrap(text: str, indent: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "    ")


_OTHER_NAMES = {
    "top_k": ("k", "n", "limit", "num_results", "max_results", "n_results", "number"),
    "filters": ("filter", "where", "metadata_filter", "metadata_filters"),
    "llm": ("model", "answer_llm"),
    "query": ("question", "q"),
    "question": ("query", "q"),
    "max_cost": ("budget", "max_dollars", "limit"),
    "wait": ("timeout", "lock_timeout"),
}
"""Names that are used elsewhere for an argument."""


def suggests_keywords(function: F) -> F:
    """Decorate a function so that the TypeError for an unknown keyword suggests a similar one, as in Python 3.13.

    The signature and type of the function do not change.
    """
    names = [parameter.name for parameter in inspect.signature(function).parameters.values()]

    def check(keywords: Iterable[str]) -> None:
        if unknown := [name for name in keywords if name not in names]:
            meant = next((name for name in names if unknown[0] in _OTHER_NAMES.get(name, ())), None)
            hint = nearest(unknown[0], names) if meant is None else f"; did you mean {meant!r}?"
            raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {unknown[0]!r}{hint}")

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check(kwargs)
        return function(*args, **kwargs)

    @wraps(function)
    async def achecked(*args: Any, **kwargs: Any) -> Any:
        check(kwargs)
        return await function(*args, **kwargs)

    return cast(F, achecked if inspect.iscoroutinefunction(function) else checked)


def suggests_attributes(names: Mapping[str, str]) -> Callable[[C], C]:
    """Return a class decorator so that the AttributeError for a name used elsewhere says what to use instead.

    Args:
        names: What to use, by name.

    Example:
        >>> Reader = suggests_attributes({"open": "load(name)"})(type("Reader", (), {}))
        >>> Reader().open
        Traceback (most recent call last):
        AttributeError: 'Reader' object has no attribute 'open': use load(name)
    """

    def decorate(decorated: C) -> C:
        former = getattr(decorated, "__getattr__", object.__getattribute__)  # raises the ordinary error

        def __getattr__(self: Any, name: str) -> Any:
            if name in names:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}: use {names[name]}")
            return former(self, name)

        decorated.__getattr__ = __getattr__  # type: ignore[attr-defined]
        return decorated

    return decorate
