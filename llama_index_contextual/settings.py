"""Settings for the command line: from the environment, a `.env` file or a JSON file, and their descriptions.

Each field of `ProjectConfig` can be set as LLAMA_INDEX_CONTEXTUAL_<FIELD>. Options of single commands also have
variables: ROOT, STYLE, MIN_CONFIDENCE, GUARD, JUDGE, INTENTS, REFERENCE_DATE, FIRST_TOKEN_TIMEOUT,
BETWEEN_TOKENS_TIMEOUT, CALL_TIMEOUT. Precedence: option, JSON file, environment, `.env`, project, default.
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
"""Settings that the environment overrides when an existing project is queried or built.

These are the settings that need no new version, except `keep_versions`, which would remove versions.
"""

_LINE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*$")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of a project, with its description.

    Attributes:
        name: Name of the field in `ProjectConfig`.
        value: Current value.
        default: Default value.
        description: Description of the field.
        rebuild: Whether a change takes effect only with the next `rebuild` or `ingest`.
    """

    name: str
    value: Any
    default: Any
    description: str
    rebuild: bool


def describe_settings(config: ProjectConfig) -> list[Setting]:
    """Return all settings of a project, in the order of `ProjectConfig`."""
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
    """Return the settings that are set in the environment; values that are valid JSON are parsed.

    Example:
        >>> environment_settings({"LLAMA_INDEX_CONTEXTUAL_TOP_K": "5", "HOME": "/home/ann"})
        {'top_k': 5}
    """
    named = ((field, environment.get(f"{PREFIX}{field.upper()}")) for field in ProjectConfig.model_fields)
    return {field: _value(text) for field, text in named if text}


def with_environment(config: ProjectConfig, environment: Mapping[str, str]) -> ProjectConfig:
    """Return the settings of a project, overridden by those of `OF_A_COMMAND` that are set in the environment.

    Raises:
        ConfigurationError: A value in the environment is invalid.
    """
    named = {field: value for field, value in environment_settings(environment).items() if field in OF_A_COMMAND}
    try:
        return config.changed(**named)
    except ConfigurationError as error:
        raise ConfigurationError(f"In the environment ({PREFIX}…): {error}", setting=error.setting) from error


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def file_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a JSON file.

    Raises:
        ConfigurationError: The file does not contain a JSON object.
    """
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(settings, dict):
        raise ConfigurationError(f'{path} contains no settings: write an object, such as {{"top_k": 5}}.')
    return settings


def read_dotenv(path: Path, environment: MutableMapping[str, str]) -> None:
    """Add the variables of this package from a `.env` file to the environment, unless they are set already.

    Lines have the form NAME=value, with or without `export` and quotation marks; all other lines are ignored.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return  # no such file
    for line in lines:
        match = _LINE.match(line)
        if match is not None and match[1].startswith(PREFIX):
            quoted = re.fullmatch(r"(['\"])(.*)\1", match[2])
            environment.setdefault(match[1], quoted[2] if quoted else re.sub(r"\s+#.*$", "", match[2]))
