"""Settings for the command line: from the environment or a JSON file, and their descriptions.

Each field of `ProjectConfig` can be set as LLAMA_INDEX_CONTEXTUAL_<FIELD>, and `--root` as LLAMA_INDEX_CONTEXTUAL_ROOT.
Precedence: option, JSON file, environment, `.env`, project, default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_index_contextual.config import RETRIEVAL_FIELDS, ProjectConfig
from llama_index_contextual.environment import PREFIX, settings_from
from llama_index_contextual.errors import ConfigurationError

OF_A_COMMAND = RETRIEVAL_FIELDS - {"keep_versions"}
"""Settings that the environment overrides when an existing project is queried or built.

These are the settings that need no new version, except `keep_versions`, which would remove versions.
"""


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
    """Return the settings of `ProjectConfig` that are set in the environment."""
    return settings_from(environment, ProjectConfig.model_fields)


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
