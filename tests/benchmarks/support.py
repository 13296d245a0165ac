"""Find the evidence for 500 answers: `python -m tests.benchmarks.support --data DATA`.

Each answer has one to three statements about the passages of a search. A statement quotes a sentence or row of a
passage, or paraphrases it: words are left out or replaced, and clauses change places. It cites the right passage, a
wrong one, or none, or paraphrases a sentence of another set. A statement is placed right if the check finds the same
sentence, and says that it is supported or that another source than the cited one contains it, or if it says that an
invented statement is found nowhere. A false alarm is a statement with a correct citation that is not supported.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llama_index_contextual.answering.citations import Passage, Statement, check_citations
from llama_index_contextual.index.analysis import is_function_word
from llama_index_contextual.index.cutting import FIRST_OF_TEXT, units_of
from llama_index_contextual.project.manager import ProjectManager
from tests.benchmarks.quality import build
from tests.benchmarks.sets import load

SETS = ("contracts", "conversations", "tables", "xquad_de", "manuals")
QUESTIONS, PASSAGES, MIN_WORDS, QUOTED = 200, 8, 7, 12
Kind = Literal["right", "wrong", "missing", "invented"]
EXPECTED = {"right": "supported", "wrong": "elsewhere", "missing": "supported", "invented": "not_found"}
_WORDS = (
    "must:has-to shall:will may:can obtain:get provide:give terminate:end agreement:contract party:side prior:before"
    " receive:get company:firm show:display include:contain increase:rise decrease:fall begin:start select:choose"
    " press:push revenue:turnover employees:staff wird:wurde auch:ebenfalls viele:zahlreiche"
)
_SYNONYMS: dict[str, str] = dict(re.findall(r"(\S+):(\S+)", _WORDS))


@dataclass(frozen=True)
class Sentence:
    """A sentence or row of a passage, with its number and offsets."""

    number: int
    start: int
    end: int
    text: str

    @property
    def letters(self) -> str:
        """Letters and digits, for finding the same sentence in other passages."""
        return "".join(filter(str.isalnum, self.text.casefold()))


@dataclass(frozen=True)
class Planted:
    """A statement, the passage that it cites, and the places of the sentence that it is made from."""

    kind: Kind
    text: str
    cited: int | None
    places: Sequence[Sentence] = field(default=())


Search = tuple[str, list[Passage], list[Sentence]]


def searches(data: Path, name: str) -> list[Search]:
    """Return the questions of a set with the passages of a search and their longer sentences."""
    with tempfile.TemporaryDirectory() as folder:
        questions = load(data, name)
        project = build(ProjectManager(folder), questions, "structural")
        found = []
        for question in questions.questions[:QUESTIONS]:
            hits = project.retrieve(question.text, top_k=PASSAGES)
            passages = [Passage(hit.text, hit.source, hit.table_head or "") for hit in hits]
            sentences = [
                Sentence(number, unit.start, unit.end, unit.text)
                for number, passage in enumerate(passages, start=1)
                for unit in units_of(passage.text, {})[FIRST_OF_TEXT:]
                if len(unit.text.split()) >= MIN_WORDS and 2 * sum(map(str.isalpha, unit.text)) >= len(unit.text)
            ]
            if len(passages) > 2 and sentences:
                found.append((question.text, passages, sentences))
        return found


def paraphrase(text: str, chance: random.Random) -> str:
    """Return a sentence with fewer and other words, whose clauses may have changed places."""
    words = []
    for word in re.sub(r"[|#.;?!]", " ", text).split():
        plain = word.casefold().strip(",:")
        is_kept = any(map(str.isdigit, word)) or chance.random() > (0.3 if is_function_word(plain) else 0.2)
        if plain in _SYNONYMS or is_kept:
            words.append(_SYNONYMS.get(plain, word))
    clauses = " ".join(words).strip(", ").split(", ")
    if chance.random() < 0.5:
        clauses = clauses[1:] + clauses[:1]
    return chance.choice(("", "In short, ", "According to the documents, ")) + ", ".join(clauses)


def quotation(text: str, chance: random.Random) -> str:
    """Return a statement that quotes twelve words of a sentence."""
    words = text.replace("“", "").replace("”", "").split()
    first = chance.randrange(max(1, len(words) - QUOTED))
    return f"It states that “{' '.join(words[first : first + QUOTED])}”"


def plant(search: Search, foreign: Sequence[Sentence], chance: random.Random) -> Iterator[Planted]:
    """Yield one to three statements for the passages of a search."""
    _, passages, sentences = search
    for _ in range(chance.randint(1, 3)):
        kind: Kind = chance.choices(("right", "wrong", "missing", "invented"), (6, 2, 2, 1))[0]
        sentence = chance.choice(sentences if kind != "invented" else foreign)
        places = [one for one in sentences if one.letters == sentence.letters]
        others = sorted({*range(1, len(passages) + 1)} - {one.number for one in places})
        cited = {"right": sentence.number, "missing": None}.get(kind, chance.choice(others) if others else None)
        if kind in ("wrong", "invented") and cited is None:
            continue
        is_quoted = kind != "invented" and chance.random() < 1 / 3
        text = (quotation if is_quoted else paraphrase)(sentence.text, chance)
        yield Planted(kind, f"{text[0].upper()}{text[1:]}", cited, places)


def is_placed(planted: Planted, found: Statement | None, passages: Sequence[Passage]) -> bool:
    """Return whether the check gives a statement the right status and sentence."""
    if found is None or found.status != EXPECTED[planted.kind]:
        return False
    if found.found_in is None or found.source is None:
        return True
    first = passages[found.found_in - 1].source.start_char or 0
    start, end = (found.source.start_char or 0) - first, (found.source.end_char or 0) - first
    return any(one.number == found.found_in and one.start < end and start < one.end for one in planted.places)


def main() -> None:
    """Print the share of statements that were placed right, by kind, and a sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--answers", type=int, default=500)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--sample", type=int, default=0, help="number of statements to print")
    options = parser.parse_args()
    chance, by_set = random.Random(options.seed), {name: searches(options.data, name) for name in SETS}
    total, placed, lines, alarms, seconds = Counter[str](), Counter[str](), [], 0, 0.0
    for _ in range(options.answers):
        name, other = chance.sample(SETS, 2)
        search = chance.choice(by_set[name])
        question, passages, _ = search
        statements = list(plant(search, chance.choice(by_set[other])[2], chance))
        marks = [one.text + ("." if one.cited is None else f" [Source {one.cited}].") for one in statements]
        started = time.process_time()
        report = check_citations(" ".join(marks), passages, question=question)
        seconds += time.process_time() - started
        end = 0
        for planted in statements:
            start = report.text.find(planted.text[:20], end)
            end = start + len(planted.text)
            found = next((one for one in report.statements if one.start < end and start < one.end), None)
            is_right = is_placed(planted, found, passages)
            total[planted.kind] += 1
            placed[planted.kind] += is_right
            alarms += planted.kind == "right" and (found is None or found.status != "supported")
            lines.append(f"{planted.kind}, {'right' if is_right else 'WRONG'}: {planted.text}\n    {found}")
    for kind in EXPECTED:
        print(f"{kind}: {placed[kind]} of {total[kind]}")
    print(f"placed right: {100 * placed.total() / total.total():.1f} % of {total.total()}")
    print(f"false alarms: {100 * alarms / total['right']:.1f} % of {total['right']}")
    print(f"{1000 * seconds / options.answers:.0f} ms of processor time for an answer")
    print("\n".join(chance.sample(lines, min(options.sample, len(lines)))))


if __name__ == "__main__":
    main()
