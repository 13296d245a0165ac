"""Confidence for questions that are worded differently: `python -m tests.benchmarks.planted`.

The documents in `examples/data` are mixed with documents on other technical topics, generated from templates. The
questions in `planted.jsonl` are in German, or in English without a word in common with the evidence; some questions in
both languages have no answer in any document. For each mode and kind of question, it prints the number of responses
with each level of confidence, the mean confidence, and the number of questions with evidence among the first 5 and 20
results. For each language, it prints how well the confidence separates answerable questions from the others (AUROC, 0.5
by chance). Finally, it lists the answerable questions with low confidence, and the unanswerable ones with a higher one.

The embedding is WordLlama with the local settings, and with `--embedding` also a transformer on this machine with the
default settings (see `transformer`). Contexts are structural. No key, no network and no reranker are used.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from llama_index.core.schema import Document

from llama_index_contextual.config import Mode
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers.documents import read_documents
from llama_index_contextual.search.response import ConfidenceLevel
from tests.benchmarks.calibration import auroc
from tests.benchmarks.quality import settings_of
from tests.benchmarks.sets import first_ranks, words
from tests.support.examples import DATA, rows

Language = Literal["german", "english"]

LANGUAGES: Sequence[Language] = ("german", "english")
LEVELS: Sequence[ConfidenceLevel] = ("none", "low", "medium", "high")
QUESTIONS = Path(__file__).with_suffix(".jsonl")
FILES = (
    "station-manual.md",
    "water-tariff-2025.txt",
    "questions-and-answers.txt",
    "interim-report-q4-2024.md",
    "quarterly-reports-2024.pdf",
)
FIRST, LAST = 5, 20

VOLUMES, SECTIONS, SENTENCES = 3, 5, 7
TOPICS = {
    "Jacquard loom": ("warp beam", "harness", "shuttle", "reed", "card chain", "cloth roller"),
    "refracting telescope": ("objective", "equatorial mount", "focuser", "finder", "dew cap", "eyepiece"),
    "offset printing press": ("plate cylinder", "blanket", "ink duct", "gripper", "feeder", "drying oven"),
    "pottery kiln": ("arch", "thermocouple", "damper", "peephole", "kiln shelf", "cone holder"),
    "pipe organ": ("wind chest", "bellows", "pallet", "stop knob", "reed tongue", "swell box"),
    "ski lift": ("haul rope", "grip", "bullwheel", "chair", "tensioning carriage", "evacuation winch"),
    "combine harvester": ("header", "threshing drum", "straw walker", "sieve", "grain auger", "chaff spreader"),
    "mechanical watch": ("mainspring", "balance wheel", "escapement", "jewel bearing", "crown", "hairspring"),
    "film camera": ("shutter curtain", "rangefinder", "light meter cell", "film gate", "rewind lever", "lens mount"),
    "laboratory centrifuge": ("rotor", "lid latch", "brake", "tube carrier", "imbalance switch", "vibration damper"),
    "relational database": ("query planner", "index page", "write-ahead log", "buffer pool", "replica", "checkpoint"),
    "compiler": ("lexer", "syntax tree", "register allocator", "linker", "constant folder", "symbol table"),
    "web browser": ("layout engine", "cookie jar", "script sandbox", "render queue", "download manager", "tab strip"),
    "sailing yacht": ("mainsail", "keel", "halyard", "rudder stock", "winch drum", "spinnaker pole"),
    "touring bicycle": ("derailleur", "bottom bracket", "spoke nipple", "headset", "freehub", "brake caliper"),
    "greenhouse": ("shade screen", "misting line", "roof vent", "growing bench", "seed tray", "climate computer"),
    "passenger lift": ("counterweight", "guide rail", "overspeed governor", "landing door", "car sill", "pit buffer"),
    "plastic extruder": ("screw", "barrel zone", "breaker plate", "die lip", "hopper", "chill roll"),
    "weather balloon": ("envelope", "parachute", "radiosonde", "launch tether", "humidity element", "burst detector"),
    "railway signal box": ("lever frame", "track circuit", "point machine", "block bell", "relay rack", "signal wire"),
}
"""Technical topics that the questions do not touch, each with its components."""

PATTERNS = (
    "The {part} is aligned with the {other} before the {topic} is used.",
    "If the {part} drifts by more than {small} %, compare it with the {other} and note the deviation.",
    "A {part} of version {number} works with every {topic} built since {year}.",
    "Wear on the {part} shows first as {symptom}.",
    "To replace the {part}, remove the {other}, mark its position and keep the {count} screws apart.",
    "Most operators of a {topic} check the {part} every {count} weeks and the {other} every {small} months.",
    "The manufacturer delivers the {part} in sizes from {small} to {number} millimetres.",
    "With {symptom}, the {other} is the usual reason, and the {part} seldom is.",
    "Between the {part} and the {other}, a gap of {small} tenths of a millimetre is allowed.",
    "In {year}, a test of {number} specimens of the {part} found {count} with {symptom}.",
    "Beginners set the {part} too tightly, which the {other} does not forgive.",
    "The record of the {part} names its serial number, its age in years and its last {adjustment}.",
    "After {adjustment}, the {topic} runs through {count} trial cycles with the {other} observed.",
    "An expert hears {symptom} long before the display of the {topic} shows it.",
)
SYMPTOMS = ("uneven motion", "a dull tone", "blurred edges", "slow response", "faint scratches", "repeated retries")
ADJUSTMENTS = ("calibration", "cleaning", "lubrication", "upgrade", "balancing", "trimming")


@dataclass(frozen=True)
class Planted:
    """A question and the file and words that answer it, both empty if nothing does."""

    language: Language
    question: str
    file: str = ""
    evidence: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a project responds to a question.

    Attributes:
        asked: The question.
        level: The confidence in words.
        confidence: The confidence.
        rank: Rank of the first result that holds the evidence; None if none does.
    """

    asked: Planted
    level: ConfidenceLevel
    confidence: float
    rank: int | None


def fillers() -> Iterator[Document]:
    """Yield documents on other technical topics, the same ones each time."""
    for topic, parts in TOPICS.items():
        for volume in range(1, VOLUMES + 1):
            chosen = random.Random(f"{topic} {volume}")
            sections = [f"# {topic.capitalize()}: handbook, volume {volume}"]
            for part in chosen.sample(parts, SECTIONS):
                sections += [f"## The {part}", " ".join(_sentences(chosen, topic, part, parts))]
            name = f"{topic.replace(' ', '-').lower()}-{volume}.md"
            yield Document(id_=name, text="\n\n".join(sections), metadata={"file_name": name, "file_path": name})


def _sentences(chosen: random.Random, topic: str, part: str, parts: Sequence[str]) -> Iterator[str]:
    for pattern in chosen.sample(PATTERNS, SENTENCES):
        yield pattern.format(
            topic=topic,
            part=part,
            other=chosen.choice([one for one in parts if one != part]),
            small=chosen.randint(2, 9),
            count=chosen.randint(3, 12),
            number=chosen.randint(20, 400),
            year=chosen.randint(1950, 2020),
            symptom=chosen.choice(SYMPTOMS),
            adjustment=chosen.choice(ADJUSTMENTS),
        )


def example_documents() -> list[Document]:
    """Return the documents of the examples."""
    return read_documents([DATA / name for name in FILES]).documents


def load(documents: Sequence[Document]) -> list[Planted]:
    """Return the questions.

    Raises:
        ValueError: The evidence of a question is not in its document, or shares a word with an English question.
    """
    questions = [Planted(**row) for row in rows(QUESTIONS)]
    texts: dict[str, str] = {}
    for document in documents:
        name = document.metadata["file_name"]
        texts[name] = f"{texts.get(name, '')} {' '.join(document.text.split())}"
    analyzer = Analyzer("english")
    for one in questions:
        if one.evidence not in texts.get(one.file, ""):
            raise ValueError(f"{one.file} does not contain {one.evidence!r}: correct the evidence of {one.question!r}")
        shared = set(analyzer.query_terms(one.question)) & set(analyzer.query_terms(one.evidence))
        if one.language == "english" and shared:
            raise ValueError(f"{one.question!r} shares {sorted(shared)} with its evidence: use other words")
    return questions


def outcomes(project: Project, questions: Sequence[Planted], mode: Mode) -> list[Outcome]:
    """Ask a project every question in one mode."""
    responses = [project.retrieve(one.question, mode=mode, top_k=LAST) for one in questions]
    results = []
    for one, response in zip(questions, responses, strict=True):
        item = {"file": one.file, "words": Counter(words(one.evidence))}
        rank = first_ranks(response.results, [item])[0] if one.evidence else None
        results.append(Outcome(one, response.confidence_level or "none", response.confidence or 0.0, rank))
    return results


def print_outcomes(results: Sequence[Outcome]) -> None:
    """Print one line per kind, the separation per language, and the questions on the wrong side of "low"."""
    head = "".join(f"{level:>8s}" for level in LEVELS)
    print(f"{'':22s}{'asked':>6s}{head}{'mean':>8s}{f'top {FIRST}':>8s}{f'top {LAST}':>8s}")
    for kind in ("answerable", "unanswerable"):
        for language in LANGUAGES:
            of_kind = [one for one in results if bool(one.asked.evidence) == (kind == "answerable")]
            print_kind(f"{language}, {kind}", [one for one in of_kind if one.asked.language == language])
    for language in LANGUAGES:
        of_language = [one for one in results if one.asked.language == language]
        outcome = np.array([float(bool(one.asked.evidence)) for one in of_language])
        print(f"AUROC, {language}: {auroc(outcome, np.array([one.confidence for one in of_language])):.3f}")
    for one in results:
        if (one.level in ("none", "low")) == bool(one.asked.evidence):
            answer = f"answerable, rank {one.rank or f'> {LAST}'}" if one.asked.evidence else "unanswerable"
            print(f"  {answer}, {one.level} {one.confidence:.3f}: {one.asked.question}")
    print(flush=True)


def print_kind(label: str, results: Sequence[Outcome]) -> None:
    """Print the levels of confidence of some questions, and the ranks of the evidence if they have any."""
    levels, ranks = Counter(one.level for one in results), [one.rank or LAST + 1 for one in results]
    counts = "".join(f"{levels[level]:8d}" for level in LEVELS)
    within = "".join(f"{sum(rank <= k for rank in ranks):8d}" for k in (FIRST, LAST) if results[0].asked.evidence)
    mean = sum(one.confidence for one in results) / len(results)
    print(f"{label:22s}{len(results):6d}{counts}{mean:8.3f}{within}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--embedding", type=Path, help="folder of a sentence-transformers model to measure after WordLlama"
    )
    parser.add_argument("--cache", type=Path, help="folder for the vectors of --embedding")
    parser.add_argument("--chunk-size", type=int, default=180, help="tokens; 180 for a model that reads 256")
    parser.add_argument("--modes", nargs="*", choices=get_args(Mode), default=["hybrid", "semantic"])
    arguments = parser.parse_args()
    examples, others = example_documents(), list(fillers())
    questions = load(examples)
    folders = [None] if arguments.embedding is None else [None, arguments.embedding]
    with tempfile.TemporaryDirectory() as root:
        manager = ProjectManager(root)
        for folder in folders:
            config, embed_model = settings_of(argparse.Namespace(**{**vars(arguments), "embedding": folder}))
            label = "WordLlama" if folder is None else "transformer"
            project = manager.create(label, config.changed(context="structural"), embed_model=embed_model)
            report = project.ingest([*examples, *others])
            print(f"{label}: {report.chunks} chunks, {len(report.failures)} failures")
            for mode in arguments.modes:
                print(f"{label}, {mode}")
                print_outcomes(outcomes(project, questions, mode))


if __name__ == "__main__":
    main()
