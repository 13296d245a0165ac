"""Settings and providers' keys from environment variables and `.env` files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

PREFIX = "LLAMA_INDEX_CONTEXTUAL_"

KEYS: Mapping[str, tuple[str, ...]] = {
    "OPENAI_API_KEY": ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
    "ANTHROPIC_API_KEY": (),
    "VOYAGE_API_KEY": ("VOYAGE_API_BASE",),
}
"""The providers' keys, with the variables for the address that a key is sent to."""

ADDRESSES = ("OLLAMA_HOST",)
"""Addresses of providers that need no key."""

_LINE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*$")


def settings_from(environment: Mapping[str, str], fields: Iterable[str]) -> dict[str, Any]:
    """Return the settings that are set as LLAMA_INDEX_CONTEXTUAL_<FIELD>; values that are valid JSON are parsed.

    Args:
        environment: Environment variables; empty ones count as not set.
        fields: Names of settings.

    Example:
        >>> settings_from({"LLAMA_INDEX_CONTEXTUAL_TOP_K": "5", "HOME": "/home/ann"}, ["top_k", "mode"])
        {'top_k': 5}
    """
    named = ((field, environment.get(f"{PREFIX}{field.upper()}")) for field in fields)
    return {field: _value(text) for field, text in named if text}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_dotenv(path: str | Path, environment: MutableMapping[str, str]) -> None:
    """Add the variables in a `.env` file to the environment, unless they are set already.

    Only variables of this package and the keys and addresses of providers are read. The address for a key is ignored
    if the key itself is not from the file, so that a `.env` file among someone's documents cannot redirect your key.

    Lines have the form NAME=value, with or without `export` and quotation marks; all other lines are ignored.

    Args:
        path: The file; nothing happens if it does not exist.
        environment: Environment variables, such as `os.environ`.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError:
        return  # no such file
    values = {match[1]: _unquoted(match[2]) for line in lines if (match := _LINE.match(line))}
    known = {name for name in values if name.startswith(PREFIX)} | {*ADDRESSES}
    for key, addresses in KEYS.items():
        if key not in environment:
            known |= {key, *addresses}
    for name in known & values.keys():
        environment.setdefault(name, values[name])


def _unquoted(value: str) -> str:
    quoted = re.fullmatch(r"(['\"])(.*?)\1\s*(?:#.*)?", value)
    return quoted[2] if quoted else re.sub(r"(?:^|\s+)#.*$", "", value)
