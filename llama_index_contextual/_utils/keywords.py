"""Suggestions for mistyped names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message that names the most similar known name; empty if none is similar.

    Example:
        >>> nearest("stlye", ["style", "timeouts"]), nearest("x", ["style"])
        ("; did you mean 'style'?", '')
    """
    similar = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {similar[0]!r}?" if similar else ""


def suggests_keywords(function: F) -> F:
    """Add the most similar keyword to the TypeError for an unknown one, as Python itself does from 3.13 on.

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
