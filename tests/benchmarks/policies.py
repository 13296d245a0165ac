"""Measure marks in 101 similar documents: `python -m tests.benchmarks.policies`.

Each document is the handbook of a site: the same text, with the name of the site, the number of a form, an amount and a
number of days of its own. The questions name a site and the subject of all handbooks, and ask for one of these three
values, or for something that is the same everywhere. A mark is right if the first result is the handbook of the site,
and the mark contains the sentence that answers.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from llama_index_contextual import Project, ProjectConfig, ProjectManager

_STEMS = ("Zem", "Kor", "Bal", "Tri", "Mor", "Ved", "Pel", "Ras", "Qui", "Nor", "Hal")
_ENDINGS = ("bla", "vik", "dor", "ston", "mere", "nau", "lis", "tova", "quen", "ridge")
SITES = tuple("".join(parts) for parts in product(_STEMS, _ENDINGS))[:101]


@dataclass(frozen=True)
class Handbook:
    """A text, and its questions with the sentences that answer them, by name."""

    text: str
    questions: Mapping[str, tuple[str, str]]


HANDBOOKS = {
    "travel.md": Handbook(
        """# Travel policy of the {site} site

## Purpose

This policy describes how travel expenses are claimed at the {site} site. It applies to all employees, contractors and
visitors who travel on behalf of the {site} site, and it replaces all earlier rules on travel expenses.

## Booking

Travel is booked through the travel desk. Flights are booked in economy class unless the flight takes more than eight
hours. Rail travel is preferred where it takes less than five hours. Rooms are booked for one person only.

## Claims

Travel expenses are claimed after the journey. Employees enter their costs on form {form} and attach all receipts.
Receipts in a foreign language are translated in a few words. A claim that lacks receipts is returned to the employee.
Claims must reach the finance office within {days} days of the return.

## Limits

Meals are paid up to {amount} euros a day. Alcohol is never paid. Taxis are paid only where no public transport runs.

## Questions

Questions about travel expenses at the {site} site are answered by the finance office. The policy is reviewed every two
years by the works council and the management of the {site} site.
""",
        {
            "form": ("Which form does the {site} site use for travel expenses?", "costs on form {form}"),
            "amount": ("How much does the {site} site pay for meals a day?", "up to {amount} euros"),
            "days": ("Within how many days must travel claims at the {site} site be made?", "within {days} days"),
            "shared": ("Does the {site} site pay for alcohol?", "Alcohol is never paid"),
        },
    ),
    "security.txt": Handbook(
        """Information security policy
{site} site

Reporting of security incidents at the {site} site. All employees of the {site} site report security incidents. This
policy explains how the {site} site handles the reporting of security incidents.

An incident is any event that threatens the confidentiality, integrity or availability of information. Lost devices,
suspicious messages and open doors are incidents. When in doubt, an event is reported.

Reports use form {form}. The security officer confirms each report and decides on the next steps. Evidence is kept in a
locked cabinet.

The authorities are informed within {days} days. Customers are informed by the account manager. Statements to the press
are made by the management alone.

Damages above {amount} euros are reported to the insurer. The insurer appoints an expert.

The policy is binding for all employees. Violations have consequences under labour law. The security officer of the
{site} site answers questions about the reporting of security incidents.
""",
        {
            "form": ("Which form does the {site} site use for the reporting of security incidents?", "form {form}"),
            "amount": ("From what amount does the {site} site report damages to the insurer?", "above {amount} euros"),
            "days": (
                "Within how many days does the {site} site inform the authorities of security incidents?",
                "within {days} days",
            ),
            "shared": ("Where does the {site} site keep evidence of security incidents?", "in a\nlocked cabinet"),
        },
    ),
    "urlaub.md": Handbook(
        """# Urlaubsrichtlinie Standort {site}

Diese Richtlinie regelt den Urlaub der Beschäftigten am Standort {site}. Der Standort {site} legt Wert auf Erholung.

## Antrag

Für den Antrag auf Urlaub wird das Formular {form} verwendet. Die Führungskraft antwortet innerhalb einer Woche. Eine
Ablehnung wird schriftlich begründet.

## Umfang

Den Beschäftigten stehen {days} Tage im Jahr zu. Teilzeitkräfte erhalten einen Anteil. Nicht genommene Tage verfallen
Ende März.

## Zahlung

Mit dem Gehalt für Juni wird ein Urlaubsgeld von {amount} Euro gezahlt. Es wird versteuert wie das Gehalt.

## Zuständigkeit

Fragen zum Urlaub der Beschäftigten am Standort {site} beantwortet die Personalabteilung des Standorts {site}.
""",
        {
            "form": ("Welches Formular wird am Standort {site} für den Urlaub verwendet?", "das Formular {form}"),
            "amount": ("Wie hoch ist das Urlaubsgeld am Standort {site}?", "von {amount} Euro"),
            "days": ("Wie viele Tage Urlaub stehen den Beschäftigten am Standort {site} zu?", "stehen {days} Tage"),
            "shared": ("Wann verfallen am Standort {site} nicht genommene Tage?", "verfallen\nEnde März"),
        },
    ),
}


def values(seed: int) -> list[dict[str, object]]:
    """Return the values of each site."""
    chance = random.Random(seed)
    return [
        {
            "site": site,
            "form": f"{chance.choice('ABCDEFG')}{chance.choice('KLMNPQ')}-{chance.randrange(100, 1000)}",
            "amount": f"{5 * chance.randrange(20, 900):,}",
            "days": chance.randrange(3, 60),
        }
        for site in SITES
    ]


def marks(project: Project, handbook: Handbook, seed: int) -> Iterator[tuple[str, bool]]:
    """Search for each question, and yield its name and whether the mark of the first result is right."""
    for number, own in enumerate(values(seed)):
        for name, (question, answer) in handbook.questions.items():
            (hit,) = project.retrieve(question.format(**own), top_k=1)
            is_right = hit.spotlight is not None and answer.format(**own) in hit.spotlight.text
            yield name, is_right and Path(str(hit.source.file_name)).stem == f"{number:03}"


def main() -> None:
    """Print the number of right marks for each handbook."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    for name, handbook in HANDBOOKS.items():
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root) / "documents"
            folder.mkdir()
            for number, own in enumerate(values(options.seed)):
                path = (folder / f"{number:03}").with_suffix(Path(name).suffix)
                path.write_text(handbook.text.format(**own), encoding="utf-8")
            project = ProjectManager(Path(root) / "projects").create("policies", ProjectConfig.local())
            project.ingest(folder)
            right = Counter[str]()
            for kind, is_right in marks(project, handbook, options.seed):
                right[kind] += is_right
        shares = ", ".join(f"{kind} {right[kind]}" for kind in handbook.questions)
        print(f"{name}: of {len(SITES)} marks right: {shares}")


if __name__ == "__main__":
    main()
