"""Answers with planted faults over any passages, and how well a check of citations finds them."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from llama_index_contextual.answering.citations import Passage, check_citations

FAULTS = ("wrong_source", "invented", "altered_number", "altered_figure", "stitched", "invalid_source")
SOUND = ("plain", "hyphenated", "elided", "figure")

_MARKS = (("“", "”"), ('"', '"'), ("«", "»"))
_QUOTABLE = re.compile(r"[^\n\"“”„«»\[\]]{30,}")


@dataclass
class Planted:
    """An answer, what it was written from, and what is wrong with each of its statements."""

    passages: list[Passage]
    statements: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    @property
    def answer(self) -> str:
        """The statements as one text."""
        return "\n\n".join(self.statements)


class Planter:
    """Writes answers over passages.

    Args:
        texts: Passages to draw from, all different.
        seed: Of the random numbers.
    """

    def __init__(self, texts: Sequence[str], seed: int) -> None:
        self._texts = [text for text in texts if len(_QUOTABLE.findall(text)) > 1]
        self._random = random.Random(seed)

    def answer(self) -> Planted:
        """Return an answer of one to four statements, each sound or with one fault."""
        texts = self._random.sample(self._texts, self._random.randint(3, 6))
        created = Planted([Passage(text) for text in texts])
        for _ in range(self._random.randint(1, 4)):
            kind = self._random.choice(SOUND if self._random.random() < 0.5 else FAULTS)
            statement = self._statement(kind, created)
            if statement is not None:
                created.statements.append(statement)
                created.kinds.append(kind)
        return created

    def _statement(self, kind: str, made: Planted) -> str | None:
        at = self._random.randrange(len(made.passages))
        text, number = made.passages[at].text, at + 1
        words = self._words(text)
        if words is None:
            return None
        if kind in ("figure", "altered_figure"):
            figures = re.findall(r"(?<![\d.,/-])\d{2,4}(?![\d.,/:-])", text)
            if not figures:
                return None
            figure = self._random.choice(figures) if kind == "figure" else self._new_number(made)
            return f"The figure to keep in mind is {figure} [Source {number}]."
        if kind == "wrong_source":
            number = at % len(made.passages) + 1
            number = number % len(made.passages) + 1
            if self._inside(words, made.passages[number - 1].text):
                return None
        elif kind == "invalid_source":
            return f"{self._quoted(words)} [Source {len(made.passages) + self._random.randint(1, 9)}]."
        elif kind == "invented":
            words = self._random.sample(sorted(set(words)), min(len(set(words)), 8))
            if len(words) < 6 or self._inside(words, text):
                return None
        elif kind == "altered_number":
            words = next((w for _ in range(30) if (w := self._words(text)) and self._digits(w)), None) or []
            if not words:
                return None
            places = self._digits(words)
            words[self._random.choice(places)] = self._new_number(made)
        elif kind == "stitched":
            other = self._words(made.passages[self._random.randrange(len(made.passages))].text)
            if other is None or min(len(words), len(other)) < 8:
                return None
            words = [*words[:5], *other[-5:]]
            if any(self._inside(words, passage.text) for passage in made.passages):
                return None
        elif kind == "hyphenated":
            made.passages[at] = Passage(self._hyphenate(text, words))
        elif kind == "elided":
            if len(words) < 9:
                return None
            words = [*words[:4], "…", *words[-4:]]
        return f"{self._quoted(words)} [Source {number}]."

    def _words(self, text: str) -> list[str] | None:
        """Return six to sixteen words in a row."""
        lines = [line.split() for line in _QUOTABLE.findall(text)]
        lines = [line for line in lines if len(line) >= 8 and all(re.search(r"\w", word) for word in line)]
        if not lines:
            return None
        line = self._random.choice(lines)
        size = self._random.randint(6, 16)
        start = self._random.randrange(max(1, len(line) - size))
        return line[start : start + size]

    @staticmethod
    def _digits(words: Sequence[str]) -> list[int]:
        return [at for at, word in enumerate(words) if re.fullmatch(r"\d+", word)]

    def _new_number(self, made: Planted) -> str:
        stored = " ".join(passage.text for passage in made.passages)
        return next(str(n) for _ in range(1000) if str(n := self._random.randint(10, 9999)) not in stored)

    @staticmethod
    def _inside(words: Sequence[str], text: str) -> bool:
        return "".join(re.findall(r"\w", "".join(words).lower())) in "".join(re.findall(r"\w", text.lower()))

    def _hyphenate(self, text: str, words: Sequence[str]) -> str:
        """Break one of the longer words over two lines, as a typesetter does."""
        long = [word for word in words if re.fullmatch(r"[A-Za-z]{7,}", word)]
        if not long:
            return text
        word = self._random.choice(long)
        cut = self._random.randint(3, len(word) - 3)
        return re.sub(rf"\b{word}\b", f"{word[:cut]}-\n{word[cut:]}", text)

    def _quoted(self, words: Sequence[str]) -> str:
        left, right = self._random.choice(_MARKS)
        text = " ".join(words).strip(".,;: ")
        text = self._random.choice((text, text[:1].upper() + text[1:], text.replace(" ", "  ", 1)))
        lead = self._random.choice(("The text says", "As it stands:", "According to the document,"))
        return f"{lead} {left}{text}{right}"


EXPECTED = {
    "wrong_source": {"wrong_source"},
    "invented": {"not_found"},
    "altered_number": {"not_found"},
    "altered_figure": {"unsupported"},
    "stitched": {"stitched"},
    "invalid_source": {"invalid"},
}


def measure(
    texts: Sequence[str], *, answers: int, seed: int
) -> tuple[Counter[str], Counter[str], list[tuple[str, ...]]]:
    """Return how many faults were planted and found as what they are, by kind, and what went wrong.

    The key "all" counts everything; "false" counts what was reported of sound statements, or by a wrong name.
    """
    planter, planted, result = Planter(texts, seed), Counter[str](), Counter[str]()
    misses: list[tuple[str, ...]] = []
    for _ in range(answers):
        created = planter.answer()
        report = check_citations(created.answer, created.passages)
        invalid, start = list(report.invalid), 0
        for kind, statement in zip(created.kinds, created.statements, strict=True):
            shown = re.sub(r"\s*\[Source \d+\]", "", statement) if kind == "invalid_source" else statement
            start = report.text.index(shown, start)
            end = start + len(shown)
            problems = [
                one.status for one in report.quotations if start <= one.start < end and one.status != "verified"
            ]
            problems += ["unsupported" for figure in report.unsupported if start <= figure.start < end]
            message = (
                "invalid" if kind == "invalid_source" and invalid and invalid.pop(0) else next(iter(problems), None)
            )
            start = end
            planted[kind] += 1
            planted["faults"] += kind in EXPECTED
            if message in EXPECTED.get(kind, {None}):
                result[kind] += 1
                result["faults"] += kind in EXPECTED
            else:
                result["false"] += message is not None
                misses.append((kind, str(message), statement))
    return planted, result, misses
