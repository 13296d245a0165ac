"""Default replies of the model."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from tests.support.records import Request
from tests.support.tokens import count


@dataclass
class Reply:
    """A chat reply in full, for replies that are more than a text."""

    text: str | None = None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = "stop"


ReplyFunction = Callable[[Request], "str | Reply"]

_MARK = re.compile(r"\[#(\d+)\]")
_FILLER = ("section", "document", "overview", "details", "subject", "context", "report", "summary")


def context_for(text: str, size: int) -> str:
    """Return a context of about `size` tokens made of the words of a text.

    The same text gives the same context and different texts give different ones.
    """
    words = sorted(set(re.findall(r"\w{3,}", text.lower()))) or list(_FILLER)
    rng = random.Random(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())
    parts, tokens = ["This passage is about"], 4
    while tokens < size or len(parts) < 12:  # with the first four words, not too short to be accepted
        word = rng.choice(words)
        parts.append(word)
        tokens += count(" " + word)
    return " ".join(parts) + "."


def _resolve(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference and pick the first alternative that is not null."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rsplit("/", 1)[-1]
        return _resolve((root.get("$defs") or root.get("definitions") or {})[name], root)
    for option in schema.get("anyOf", []):
        if option.get("type") != "null":
            return _resolve(option, root)
    return schema


def sample(schema: dict[str, Any], text: str, size: int, root: dict[str, Any] | None = None) -> Any:
    """Return a value that fits a JSON schema, its strings made of the words of a text."""
    root = root if root is not None else schema
    schema = _resolve(schema, root)
    if "const" in schema or "enum" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: sample(part, f"{text} {name}", size, root) for name, part in properties.items()}
    if kind == "array":
        return [sample(schema.get("items", {}), text, size, root)]
    plain = {"integer": 0, "number": 0.0, "boolean": True, "null": None}
    return plain[kind] if kind in plain else context_for(text, size)


def _forced_tool(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return the function the request insists on, if it insists on one."""
    tools = [tool["function"] for tool in fields.get("tools") or [] if "function" in tool]
    choice = fields.get("tool_choice")
    if isinstance(choice, dict):
        expected = (choice.get("function") or {}).get("name")
        return next((tool for tool in tools if tool.get("name") == expected), None)
    return tools[0] if tools and choice == "required" else None


def _marked(prompt: str, number: str, size: int) -> dict[str, Any]:
    """Return the entry for a chunk that is marked in the prompt, made of the chunk's words."""
    stretch = prompt.partition(f"[#{number}]")[2].partition(f"[/#{number}]")[0]
    return {"id": int(number), "context": context_for(stretch, size)}


def default_reply(request: Request, size: int) -> Reply:
    """Answer with a context for the chunk of the prompt, in the form asked for."""
    text, fields = request.chunk, request.fields
    tool = _forced_tool(fields)
    if tool:
        arguments = json.dumps(sample(tool.get("parameters", {}), text, size))
        function = {"name": tool.get("name"), "arguments": arguments}
        call = {"id": f"call_{request.id}", "type": "function", "function": function}
        return Reply(tool_calls=[call], finish_reason="tool_calls")
    expected = fields.get("response_format") or {}
    if calls := _MARK.findall(text):
        return Reply(json.dumps({"contexts": [_marked(request.text, number, size) for number in calls]}))
    if expected.get("type") == "json_schema":
        schema = (expected.get("json_schema") or {}).get("schema", {})
        return Reply(json.dumps(sample(schema, text, size)))
    if expected.get("type") == "json_object":
        return Reply(json.dumps({"context": context_for(text, size)}))
    return Reply(context_for(text, size))
