"""Read the replies of embedding providers: the order of the vectors, and the tokens that the provider counts.

LlamaIndex's embedding classes return only the vectors of a reply. `check_replies` returns a copy of a model whose
client also checks that each vector belongs to a known text, and reports the provider's token count to the
`EmbeddingUsage` of the request, which `record_usage` has set. Replies to concurrent requests are therefore never mixed
up.

A class that calls a provider itself can report the token count with `report_usage`.
"""

from __future__ import annotations

import base64
import copy
import inspect
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_contextual.errors import ModelError
from llama_index_contextual.money.tokens import EmbeddingUsage, field_of, reported_tokens

T = TypeVar("T")

# ---- Token counts ----------------------------------------------------------------------------------------------------


_usage: ContextVar[EmbeddingUsage | None] = ContextVar("embedding_usage", default=None)


@contextmanager
def record_usage(usage: EmbeddingUsage) -> Iterator[None]:
    """Report the replies to the calls in the block to `usage`, including calls in its tasks and threads."""
    token = _usage.set(usage)
    try:
        yield
    finally:
        _usage.reset(token)


def report_usage(tokens: int | None) -> None:
    """Report the number of tokens that a provider counted for an embedding request.

    Embedding classes that call a provider themselves can call this function for every reply, so that the tokens are
    included in the costs of the project. Otherwise, the tokens are estimated. The classes of LlamaIndex for OpenAI,
    Azure, servers with OpenAI's interface, and Ollama need no such call. Outside a run, the function does nothing.

    Args:
        tokens: The provider's count; None if the reply has none.

    Example:
        >>> usage = EmbeddingUsage()
        >>> with record_usage(usage):
        ...     report_usage(12)
        >>> usage.tokens
        12
    """
    if (usage := _usage.get()) is not None:
        usage.counts.append(reported_tokens(tokens) or None)  # a text without tokens is implausible


def note_call() -> None:
    """Note that a call is sent whose reply will be reported with `report_usage`."""
    if (usage := _usage.get()) is not None:
        usage.calls += 1


_COUNTS = (
    *(("usage", name) for name in ("total_tokens", "prompt_tokens", "input_tokens")),
    ("total_tokens",),
    ("prompt_eval_count",),
    ("meta", "billed_units", "input_tokens"),
)
"""Fields of the token count in the replies of OpenAI, Voyage, Ollama and Cohere."""


def tokens_of(reply: object) -> int | None:
    """Return the largest token count in a provider's reply, an object or parsed JSON, or None if there is none.

    Example:
        >>> tokens_of({"usage": {"prompt_tokens": 5, "total_tokens": 5}}), tokens_of({"prompt_eval_count": "7"})
        (5, 7)
        >>> tokens_of({"usage": None}) is None
        True
    """
    counts = (reported_tokens(field_of(reply, *path)) for path in _COUNTS)
    return max((count for count in counts if count), default=None)


# ---- Order of the vectors --------------------------------------------------------------------------------------------


def in_order(items: Sequence[T], index_of: Callable[[T], object], *, expected: int, name: str) -> list[T]:
    """Return the items of a reply in the order of their indexes, which must be 0 to `expected` - 1 in any order.

    Args:
        items: The items, each with the vector of a text.
        index_of: Function that returns the index of an item.
        expected: Number of texts in the request.
        name: Name of the model, for the error message.

    Raises:
        ModelError: An index is missing, repeated or invalid, so the vectors cannot be assigned to the texts.
    """
    require_number(len(items), expected, name=name)
    by_index = {index: item for item in items if type(index := index_of(item)) is int}
    if by_index.keys() != set(range(expected)):
        indexes = [index_of(item) for item in items]
        wrong = [index for index in indexes if type(index) is not int or not 0 <= index < expected]
        fault = f"{wrong[0]!r}"[:40] if wrong else f"{max(indexes, key=indexes.count)} more than once"
        raise ModelError(
            f"{name!r} returned vectors with the index {fault} instead of the indexes 0 to {expected - 1}, so it is"
            f" unknown which vector belongs to which text. None of them is used: run the same call again, or choose"
            f" another embedding model.",
            setting="embed_model",
        )
    return [by_index[index] for index in range(expected)]


def require_number(number: int, expected: int, *, name: str) -> None:
    """Check that there are as many vectors as texts.

    Raises:
        ModelError: There are too many or too few vectors.
    """
    if number != expected:
        raise count_error(number, expected, name=name)


def count_error(number: int, expected: int, *, name: str) -> ModelError:
    """Return the error for a reply with the wrong number of vectors."""
    return ModelError(
        f"{name!r} did not return one vector per text ({number} for {expected}): run the same call again, or choose"
        f" another embedding model.",
        setting="embed_model",
    )


# ---- Clients ---------------------------------------------------------------------------------------------------------

_CLIENTS = ("_aclient", "_client", "_async_client")


def check_replies(model: BaseEmbedding, name: str, *, synchronous: bool = False) -> BaseEmbedding:
    """Return a copy of a model whose client checks and reports its replies; the model itself is not changed.

    This applies to clients of OpenAI's package, to clients with the same interface, and to clients with an `embed`
    method, such as those of Ollama, Voyage and Cohere. A model without such a client is returned unchanged.

    Args:
        model: The model.
        name: Name of the model, for error messages.
        synchronous: Whether synchronous methods of the model will be called.
    """
    for create_client in ("_get_client",) if synchronous else ("_get_aclient", "_get_async_client"):
        if hasattr(model, create_client):
            getattr(model, create_client)()
    clients = {attribute: _checking_client(getattr(model, attribute, None), name) for attribute in _CLIENTS}
    if not any(clients.values()):
        return model
    result = model.model_copy()
    for attribute, client in clients.items():
        if client is not None:
            setattr(result, attribute, client)
    return result


def _checking_client(client: Any, name: str) -> Any:
    """Return a copy of a client that checks and reports its replies, or None if the client has no known interface.

    The copy uses the same connections. It does not retry calls, because a failed attempt may be charged.
    """
    if callable(getattr(getattr(client, "embeddings", None), "create", None)):
        result = copy.copy(client)
        is_openai = any(base.__module__.partition(".")[0] == "openai" for base in type(client).__mro__)
        if is_openai:
            result.max_retries = 0
            result.__dict__.pop("embeddings", None)  # it refers to the original client
        result.embeddings = copy.copy(result.embeddings)
        for method in ("create", "create_async"):
            if hasattr(result.embeddings, method):
                create = _checking_create(getattr(result.embeddings, method), name, as_base64=is_openai)
                setattr(result.embeddings, method, create)
        return result
    if callable(getattr(client, "embed", None)):
        result = copy.copy(client)
        result.embed = _reporting(client.embed)
        return result
    return None


def _checking_create(create: Callable[..., T], name: str, *, as_base64: bool) -> Callable[..., T]:
    """Return a version of a method that creates embeddings, with the vectors of its reply in the order of the texts.

    Args:
        create: The method.
        name: Name of the model, for error messages.
        as_base64: Whether to request base64 if the caller requests no encoding. OpenAI's client does the same, but then
            rejects the whole reply if a single vector cannot be decoded.
    """

    def check(reply: Any, inputs: object) -> Any:
        data = getattr(reply, "data", None)
        items = data if isinstance(data, list) else []
        expected = len(inputs) if isinstance(inputs, list) else 1
        items = in_order(items, lambda item: getattr(item, "index", None), expected=expected, name=name)
        for item in items:
            item.embedding = as_numbers(getattr(item, "embedding", None))
        reply.data = items
        return reply

    defaults = {"encoding_format": "base64"} if as_base64 else {}
    return _reporting(create, check, **defaults)


def _reporting(
    send: Callable[..., T], check: Callable[[Any, object], Any] = lambda reply, _: reply, **defaults: str
) -> Callable[..., T]:
    """Return a version of a method that reports the token count of its reply.

    Args:
        send: The method.
        check: Function that takes the reply and the texts, and returns the reply or raises an error.
        **defaults: Default values for arguments of the method.
    """

    def finish(reply: Any, options: dict[str, Any]) -> Any:
        report_usage(tokens_of(reply))
        return check(reply, options.get("input", options.get("inputs")))

    async def asend_and_report(*args: Any, **options: Any) -> Any:
        note_call()
        return finish(await cast(Any, send(*args, **{**defaults, **options})), options)

    def send_and_report(*args: Any, **options: Any) -> Any:
        note_call()
        return finish(send(*args, **{**defaults, **options}), options)

    return cast("Callable[..., T]", asend_and_report if inspect.iscoroutinefunction(send) else send_and_report)


def as_numbers(vector: object) -> list[float]:
    """Return a vector in a reply, which may be encoded as base64, as a list of numbers.

    If the vector is invalid, the list is empty; otherwise, LlamaIndex would reject the whole reply.
    """
    try:
        if isinstance(vector, str):
            return np.frombuffer(base64.b64decode(vector), dtype="<f4").tolist()  # type: ignore[no-any-return]
        return array("d", cast("list[float]", vector)).tolist()
    except (TypeError, ValueError, OverflowError):
        return []
