"""Check the fifty statements in statements.txt, which were written by hand: `python -m tests.benchmarks.statements`.

The statements paraphrase or quote parts of the example documents, cite the right source, a wrong one or none, or are
invented. Prints those for which the check finds another sentence or gives another verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llama_index_contextual.answering.citations import Passage, Statement, check_citations
from llama_index_contextual.search.response import Source
from tests.support.examples import DATA, EXAMPLES

STATEMENTS = Path(__file__).with_name("statements.txt")
SOURCES = (
    ("water-tariff-2025.txt", "SECTION 1.", "SECTION 2."),
    ("water-tariff-2025.txt", "SECTION 2.", "SECTION 3."),
    ("marrowgate-ferries.md", "## Lot 1", "## Lot 2"),
    ("marrowgate-ferries.md", "## Lot 2", ""),
    ("station-manual.md", "### Before starting", "## Part 2"),
    ("interim-report-q4-2024.md", "## Key figures", "## Segment report: Networks"),
    ("questions-and-answers.txt", "PART A.", "Which dividend"),
)
"""File, first words and the words after the last ones of each source."""


@dataclass(frozen=True)
class Case:
    """A statement, the source that it cites, the source that supports it, and words of the sentence that does."""

    text: str
    cited: int | None
    found_in: int | None
    words: str

    @property
    def status(self) -> str:
        """The right verdict."""
        if self.found_in is None:
            return "not_found"
        return "supported" if self.cited in (None, self.found_in) else "elsewhere"

    def is_placed(self, found: Statement | None) -> bool:
        """Return whether the check gives the statement the right verdict and sentence."""
        if found is None or (found.status, found.found_in) != (self.status, self.found_in):
            return False
        return self.words.lower() in " ".join(found.quote.split()).lower()


def passages() -> list[Passage]:
    """Return the sources."""
    out = []
    for name, first, after in SOURCES:
        path = next(path for path in (DATA / name, EXAMPLES / "contracts" / name) if path.exists())
        text = path.read_text(encoding="utf-8")
        start = text.index(first)
        end = text.index(after, start + 1) if after else len(text)
        out.append(Passage(text[start:end], Source(file_name=name, doc_id=name, start_char=start, end_char=end)))
    return out


def cases() -> list[Case]:
    """Return the statements."""
    lines = STATEMENTS.read_text(encoding="utf-8").partition("\n\n")[2].splitlines()
    rows = [[part.strip() for part in line.split("|")] for line in lines]
    number = {"-": None, **{str(at): at for at in range(1, len(SOURCES) + 1)}}
    return [Case(text, number[cited], number[found_in], words) for cited, found_in, text, words in rows]


def check() -> list[tuple[Case, Statement | None]]:
    """Return each statement and the result of its check."""
    sources, out = passages(), []
    for case in cases():
        mark = "" if case.cited is None else f" [Source {case.cited}]"
        report = check_citations(f"{case.text.removesuffix('.')}{mark}.", sources)
        out.append((case, next(iter(report.statements), None)))
    return out


def main() -> None:
    """Print the statements that were not placed right, and the shares."""
    results = check()
    for case, found in results:
        if not case.is_placed(found):
            print(f"{case.status} in {case.found_in}: {case.text}\n    {found}")
    right = sum(case.is_placed(found) for case, found in results)
    supported = [(case, found) for case, found in results if case.status == "supported"]
    alarms = sum(found is None or found.status != "supported" for _, found in supported)
    print(f"placed right: {right} of {len(results)}; false alarms: {alarms} of {len(supported)}")


if __name__ == "__main__":
    main()
