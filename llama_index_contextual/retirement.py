"""Models that their providers end: the dates, the successors, and what to tell the user.

The dates are those of OpenAI's list (https://platform.openai.com/docs/deprecations), read in November 2026. The
successor is the model that suits contexts: many short answers about long prompts.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from datetime import date, timedelta

NOTICE = timedelta(days=60)
"""How long before a model ends it is mentioned."""

DEFAULT_LLM = "openai:gpt-4.1"
"""The LLM of new projects for as long as its provider offers it."""

_SUCCESSOR = "openai:gpt-6-luna"


@dataclass(frozen=True)
class Retirement:
    """The end of a model.

    Attributes:
        names: Names of the models, as provider:name; dated snapshots and fine-tuned models end with their base.
        ends: The day from which the provider refuses them.
        successor: What to use instead.
    """

    names: re.Pattern[str]
    ends: date
    successor: str


def _openai(names: str) -> re.Pattern[str]:
    return re.compile(rf"openai:(?:ft:)?(?:{names})(?:-\d{{4}}-\d\d-\d\d)?(?::.*)?")


RETIREMENTS: tuple[Retirement, ...] = (
    Retirement(
        _openai(r"gpt-3\.5-turbo(?:-\d{4})?|gpt-4(?:-turbo|-\d{4})?(?:-preview)?|gpt-4\.1-nano|o1|o3-mini|o4-mini"),
        date(2026, 10, 23),
        _SUCCESSOR,
    ),
    Retirement(_openai(r"gpt-5(?:-mini|-nano)?|o3"), date(2026, 12, 11), _SUCCESSOR),
    Retirement(_openai(r"gpt-4o(?:-mini)?|gpt-4\.1(?:-mini)?"), date(2027, 1, 14), _SUCCESSOR),
    Retirement(_openai(r"gpt-5\.1|gpt-5\.4-nano"), date(2027, 4, 1), _SUCCESSOR),
)


def today() -> date:
    """Return the day by which models are judged; tests replace it."""
    return date.today()


def retirement_of(model: str) -> Retirement | None:
    """Return when and how a model ends, or None where nothing is known of it.

    Args:
        model: Name as in the settings.

    Example:
        >>> retirement_of("openai:gpt-4.1").ends.isoformat(), retirement_of("openai:gpt-6-luna")
        ('2027-01-14', None)
    """
    return next((found for found in RETIREMENTS if found.names.fullmatch(model)), None)


def default_llm() -> str:
    """Return the LLM of a project that is created today without naming one."""
    found = retirement_of(DEFAULT_LLM)
    return DEFAULT_LLM if found is None or today() < found.ends else found.successor


def retirement_notice(model: str, *, project: str = "NAME") -> str | None:
    """Return what to know about a model that ends within 60 days or has ended, or None.

    Args:
        model: Name as in the settings.
        project: Name of the project, for the command.
    """
    found = retirement_of(model)
    if found is None or today() < found.ends - NOTICE:
        return None
    when = f"ends {model!r} on" if today() < found.ends else f"has announced the end of {model!r} for"
    return f"The provider {when} {found.ends.isoformat()}. {how_to_switch(found.successor, project=project)}"


def how_to_switch(successor: str, *, project: str = "NAME") -> str:
    """Return how a project changes to another LLM, and what that costs.

    Args:
        successor: Name of the other LLM, as in the settings.
        project: Name of the project.
    """
    return (
        f"Its successor is {successor!r}: `llama-index-contextual configure {shlex.quote(project)} llm={successor}`, or"
        f" `project.update_config(llm={successor!r})`. Contexts are kept by model: those written so far stay in the"
        f" ledger and in the live version; the next `ingest` or `rebuild` asks the new model for the contexts of all"
        f" documents, and `estimate` says what that costs."
    )
