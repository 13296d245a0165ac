"""Retirement of models by their providers: dates, successors, and notices to the user.

The dates are those of OpenAI's list (https://platform.openai.com/docs/deprecations), taken from copies of it made in
October and November 2026. OpenAI recommends different replacements for different models; the successor here is always
the one best suited to contexts, which are many short answers to long prompts.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from datetime import date, timedelta

NOTICE = timedelta(days=60)
"""How long before its retirement a model is announced to the user."""

DEFAULT_LLM = "openai:gpt-4.1"
"""The default LLM of new projects until its provider retires it."""

_SUCCESSOR = "openai:gpt-6-luna"


@dataclass(frozen=True)
class Retirement:
    """The retirement of some models.

    Attributes:
        names: Pattern of their names, as provider:name; snapshots and fine-tuned models retire with their base model.
        ends: The day from which the provider rejects calls.
        successor: The model to use instead.
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
    """Return the current date; tests replace this function."""
    return date.today()


def retirement_of(model: str) -> Retirement | None:
    """Return the retirement of a model, or None if none is known.

    Args:
        model: Name as in the settings.

    Example:
        >>> retirement_of("openai:gpt-4.1").ends.isoformat(), retirement_of("openai:gpt-6-luna")
        ('2027-01-14', None)
    """
    return next((retirement for retirement in RETIREMENTS if retirement.names.fullmatch(model)), None)


def default_llm() -> str:
    """Return the default LLM for a project created today."""
    retirement = retirement_of(DEFAULT_LLM)
    return DEFAULT_LLM if retirement is None or today() < retirement.ends else retirement.successor


def retirement_notice(model: str, *, project: str = "NAME") -> str | None:
    """Return a notice about a model that retires within 60 days or is retired, or None.

    Args:
        model: Name as in the settings.
        project: Name of the project, for the command.
    """
    retirement = retirement_of(model)
    if retirement is None or today() < retirement.ends - NOTICE:
        return None
    verb = "retires" if today() < retirement.ends else "announced the retirement of"
    day = retirement.ends.isoformat()
    return f"The provider {verb} {model!r} on {day}. {how_to_switch(retirement.successor, project=project)}"


def how_to_switch(successor: str, *, project: str = "NAME") -> str:
    """Return instructions for switching a project to another LLM, with the costs.

    Args:
        successor: Name of the other LLM, as in the settings.
        project: Name of the project.
    """
    return (
        f"Its successor is {successor!r}: `llama-index-contextual configure {shlex.quote(project)} llm={successor}`."
        f" Contexts are stored by model: existing ones stay in the ledger"
        f" and in the live version; the next `ingest` or `rebuild` requests the contexts of all documents from the new"
        f" model, and `estimate` shows the price."
    )
