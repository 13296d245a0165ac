"""Description of the API in the form of OpenAPI 3.1, made from the table of its operations."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from llama_index_contextual._version import __version__
from llama_index_contextual.ui.users import Right

_REF = "#/components/schemas/{model}"


@dataclass(frozen=True)
class Operation:
    """An operation of the API.

    Attributes:
        method: HTTP method.
        path: Path, in the form of Starlette's routes.
        right: Right that a token needs; None if every token may call it, or if the right depends on the model.
        run: Handler, whose docstring describes the operation.
        input: Model of the body, or of the parameters of the URL for GET and for forms with files.
        output: Model of the response, or None.
        has_files: Whether the body is a form with files.
    """

    method: str
    path: str
    right: Right | None
    run: Callable[[Any], Awaitable[Any]]
    input: type[BaseModel] | None
    output: type[BaseModel] | None
    has_files: bool = False


def describe(operations: Sequence[Operation], *, base_url: str) -> dict[str, Any]:
    """Return the description of the operations.

    Args:
        operations: The operations.
        base_url: Address of the server.
    """
    inputs = {one.input for one in operations if one.input is not None}
    outputs = {one.output for one in operations if one.output is not None}
    named: list[tuple[type[BaseModel], Any]] = sorted(
        [*((one, "validation") for one in inputs), *((one, "serialization") for one in outputs)],
        key=lambda pair: pair[0].__name__,
    )
    keys, definitions = models_json_schema(named, ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        path = one.path.replace(":path}", "}")
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, keys, definitions["$defs"])
    return {
        "openapi": "3.1.0",
        "info": {"title": "llama-index-contextual", "version": __version__},
        "servers": [{"url": base_url}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(one: Operation, keys: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    text = (inspect.getdoc(one.run) or "").partition("\n")[0]
    right = f" Needs the right {one.right!r}." if one.right else ""
    content = {"application/json": {"schema": {} if one.output is None else keys[one.output, "serialization"]}}
    described: dict[str, Any] = {
        "summary": text,
        "description": f"{text}{right}",
        "operationId": f"{one.method.lower()}_{one.run.__name__}{'_one' if '{' in one.path else ''}",
        "responses": {
            "200": {"description": "The result.", "content": content},
            "default": {"description": "An error: `error.message`, `error.type`, `error.code` and `error.param`."},
        },
    }
    if "{model" in one.path:
        described["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    if one.input is None:
        return described
    if one.method == "GET" or one.has_files:
        schema = definitions[one.input.__name__]
        described["parameters"] = [
            {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": value}
            for name, value in schema["properties"].items()
        ]
    if one.has_files:
        file = {"type": "array", "items": {"type": "string", "format": "binary"}}
        form = {"type": "object", "properties": {"file": file}, "required": ["file"]}
        described["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": form}}}
    elif one.method == "POST":
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": keys[one.input, "validation"]}},
        }
    return described
