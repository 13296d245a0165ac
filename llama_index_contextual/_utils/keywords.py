"""Keyword arguments: options that are described once, and suggestions for mistyped names."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])

_WIDTH = 120


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message that suggests the most similar known name; empty if none is similar.

    Example:
        >>> nearest("stlye", ["style", "timeouts"]), nearest("x", ["style"])
        ("; did you mean 'style'?", '')
    """
    similar = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {similar[0]!r}?" if similar else ""


@dataclass(frozen=True)
class Option:
    """The description of an option: the annotation of a key of a TypedDict.

    Attributes:
        description: What the option does, in one or two sentences.
        default: Its value if it is not given.
    """

    description: str
    default: object = None


def options_of(options: type) -> Mapping[str, tuple[Any, Option]]:
    """Return the type and the description of each key of a TypedDict, in its order.

    Example:
        >>> from typing import Annotated, TypedDict
        >>> Reading = TypedDict("Reading", {"pages": Annotated[int, Option("Number of pages.", 1)]}, total=False)
        >>> options_of(Reading)
        {'pages': (<class 'int'>, Option(description='Number of pages.', default=1))}
    """
    hints = get_type_hints(options, include_extras=True)
    return {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items()}


def takes(options: type) -> Callable[[F], F]:
    """Return a decorator for a function with `**options: Unpack[Options]`: the signature and docstring list them all.

    `help()` and editors show the options like any other keyword, with defaults and descriptions. The docstring has the
    line `**options` where the descriptions belong. The error for a mistyped keyword suggests the most similar one.
    """

    def decorate(function: F) -> F:
        described = options_of(options)
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=kind)
            for name, (kind, option) in described.items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        if function.__doc__:
            before, _, after = function.__doc__.partition("**options\n")
            indent = before.rpartition("\n")[2]
            lines = [_entry(f"{name}: {option.description}", indent) for name, (_, option) in described.items()]
            function.__doc__ = before.removesuffix(indent) + "\n".join(lines) + "\n" + after
        return suggests_keywords(function)

    return decorate


def _entry(text: str, indent: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "    ")


def suggests_keywords(function: F) -> F:
    """Add the most similar keyword to the TypeError for an unknown one, as Python does since version 3.13.

    Signature and type of the function are unchanged.
    """
    known = [parameter.name for parameter in inspect.signature(function).parameters.values()]

    def check(keywords: Iterable[str]) -> None:
        if unknown := [name for name in keywords if name not in known]:
            raise TypeError(
                f"{function.__qualname__}() got an unexpected keyword argument {unknown[0]!r}"
                f"{nearest(unknown[0], known)}"
            )

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check(kwargs)
        return function(*args, **kwargs)

    @wraps(function)
    async def achecked(*args: Any, **kwargs: Any) -> Any:
        check(kwargs)
        return await function(*args, **kwargs)

    return cast(F, achecked if inspect.iscoroutinefunction(function) else checked)
