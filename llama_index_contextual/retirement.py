"""Retirement of models by their providers: dates, successors, and notices to the user.

The dates are those of OpenAI's list (https://platform.openai.com/docs/deprecations), taken from copies of it made in
October and November 2026. OpenAI recommends different replacements for different models; the successor here is always
the default LLM, which is suited to contexts.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from datetime import date, timedelta

from llama_index_contextual.config import DEFAULT_LLM

NOTICE = timedelta(days=60)
"""How long before its retirement a model is announced to the user."""


@dataclass(frozen=True)
class Retirement:
    """The retirement of some models.

    Attributes:
        names: Pattern of their names, as provider:name; snapshots and fine-tuned models retire with their base model.
        ends: The day from which the provider rejects calls.
    """

    names: re.Pattern[str]
    ends: date


def _openai(names: str) -> re.Pattern[str]:
    return re.compile(rf"openai:(?:ft:)?(?:{names})(?:-\d{{4}}-\d\d-\d\d)?(?::.*)?")


RETIREMENTS: tuple[Retirement, ...] = (
    Retirement(
        _openai(r"gpt-3\.5-turbo(?:-\d{4})?|gpt-4(?:-turbo|-\d{4})?(?:-preview)?|gpt-4\.1-nano|o1|o3-mini|o4-mini"),
        date(2026, 10, 23),
    ),
    Retirement(_openai(r"gpt-5(?:-mini|-nano)?|o3"), date(2026, 12, 11)),
    Retirement(_openai(r"gpt-4o(?:-mini)?|gpt-4\.1(?:-mini)?"), date(2027, 1, 14)),
    Retirement(_openai(r"gpt-5\.1|gpt-5\.4-nano"), date(2027, 4, 1)),
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


def retirement_notice(model: str, *, project: str, published: date | None = None) -> str | None:
    """Return a notice about a model that retires within 60 days or is retired, or None.

    Args:
        model: Name as in the settings.
        project: Name of the project, for the command.
        published: Date of the last version that was built with the model; if it is within the 60 days, the notice was
            given then, and is not repeated.
    """
    retirement = retirement_of(model)
    if retirement is None or today() < retirement.ends - NOTICE:
        return None
    if published is not None and published >= retirement.ends - NOTICE:
        return None
    verb = "retires" if today() < retirement.ends else "announced the retirement of"
    day = retirement.ends.isoformat()
    return f"The provider {verb} {model!r} on {day}. {how_to_switch(project=project)}"


def how_to_switch(*, project: str = "NAME") -> str:
    """Return instructions for switching a project from a retired LLM to its successor, with the costs.

    Args:
        project: Name of the project.
    """
    return (
        f"Its successor is {DEFAULT_LLM!r}: `llama-index-contextual configure {shlex.quote(project)}"
        f" llm={DEFAULT_LLM}`. Contexts are stored by model: existing ones stay in the ledger and in the live version;"
        f" the next `ingest` or `rebuild` requests the contexts of all documents from the new model, and `estimate`"
        f" shows the price."
    )
