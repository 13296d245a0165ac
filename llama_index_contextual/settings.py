"""Settings from outside the command: environment, a `.env` file, a JSON file; and the list that explains them all.

One table for all: every field of `ProjectConfig` as LLAMA_INDEX_CONTEXTUAL_<FIELD>, beside options of single commands
(ROOT, STYLE, MIN_CONFIDENCE, GUARD, JUDGE, INTENTS, REFERENCE_DATE, FIRST_TOKEN_TIMEOUT, BETWEEN_TOKENS_TIMEOUT,
CALL_TIMEOUT). What is nearer wins: option, JSON file, environment, `.env`, the project, default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_index_contextual.config import RETRIEVAL_FIELDS, ProjectConfig
from llama_index_contextual.errors import ConfigurationError

PREFIX = "LLAMA_INDEX_CONTEXTUAL_"

OF_A_COMMAND = RETRIEVAL_FIELDS - {"keep_versions"}
"""Settings that the environment has a say in whenever a project is asked or built: those that need no new version, but
for the one by which versions would be removed that the project is to keep."""

_LINE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*$")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of a project, for a person who looks for it.

    Attributes:
        name: Its name.
        value: Its value.
        default: What it is where nobody sets it.
        description: What it is for.
        rebuild: Whether a change has no effect before the next `rebuild` or `ingest`.
    """

    name: str
    value: Any
    default: Any
    description: str
    rebuild: bool


def explained(config: ProjectConfig) -> list[Setting]:
    """Return every setting of a project, in the order in which `ProjectConfig` has them."""
    values, defaults = config.model_dump(mode="json"), ProjectConfig().model_dump(mode="json")
    return [
        Setting(
            name=name,
            value=values[name],
            default=defaults[name],
            description=field.description or "",
            rebuild=name not in RETRIEVAL_FIELDS,
        )
        for name, field in ProjectConfig.model_fields.items()
    ]


def environment_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a project that the environment names; a value that is JSON is read as JSON.

    Example:
        >>> environment_settings({"LLAMA_INDEX_CONTEXTUAL_TOP_K": "5", "HOME": "/home/ann"})
        {'top_k': 5}
    """
    named = ((field, environment.get(f"{PREFIX}{field.upper()}")) for field in ProjectConfig.model_fields)
    return {field: _value(text) for field, text in named if text}


def with_environment(config: ProjectConfig, environment: Mapping[str, str]) -> ProjectConfig:
    """Return the settings of a project, with those of `OF_A_COMMAND` that the environment names in place of its own.

    Raises:
        ConfigurationError: The environment names a value that cannot be.
    """
    named = {field: value for field, value in environment_settings(environment).items() if field in OF_A_COMMAND}
    try:
        return config.changed(**named)
    except ConfigurationError as error:
        raise ConfigurationError(f"By the environment ({PREFIX}…): {error}", setting=error.setting) from error


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def file_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a JSON file.

    Raises:
        ConfigurationError: It holds no JSON object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f'{path} holds no settings: write an object, such as {{"top_k": 5}}.')
    return found


def read_dotenv(path: Path, environment: MutableMapping[str, str]) -> None:
    """Take our own variables of a `.env` file into the environment, where that does not have them.

    Lines are NAME=value, with or without `export` and quotation marks; other lines and other names are left alone.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return  # there is none
    for line in lines:
        match = _LINE.match(line)
        if match is not None and match[1].startswith(PREFIX):
            quoted = re.fullmatch(r"(['\"])(.*)\1", match[2])
            environment.setdefault(match[1], quoted[2] if quoted else re.sub(r"\s+#.*$", "", match[2]))
