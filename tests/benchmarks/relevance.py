"""Fits confidence and relevance, and shows how they hold: `python -m tests.benchmarks.relevance --data ../shared/data`.

Confidence: every question once as it is and once with the documents that answer it taken out of all indexes. Each set
counts alike, and every figure of a set comes from a fit on the other sets. The table also shows 20 questions of each
other set, which nothing answers, follow-up questions, which are searched with the conversation before them, and turns
that people found unanswerable; none of these is part of a fit. The questions of the conversations are the stand-alone
ones that people wrote.
Relevance: the first 20 hits of every question, with and without the documents. A hit is relevant if it contains any of
the evidence, and each hit counts alike. The AUROC of the rank alone is shown for comparison.
The last lines are the constants of `retrievers/confidence.py`, fitted on all sets. With --embedding, its samples are
fitted together with those of WordLlama (--chunk-size 180 for a model that reads 256 tokens): for the confidence, except
those of the reports, as encoding them takes long. Chunks of 180 tokens are shorter than most of the evidence, so they
take no part in the fit of relevance.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.schema import QueryBundle
from numpy.typing import NDArray

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.confidence import Logistic
from llama_index_contextual.retrievers.conversational import ConversationalRetriever, ConversationQuery
from tests.benchmarks.asking import Asking, Evidence
from tests.benchmarks.calibration import Array, Features, auroc, calibration_error, fit, separation, threshold
from tests.benchmarks.quality import available, build, options, settings_of
from tests.benchmarks.sets import Question, QuestionSet, covers, load

LOW = 0.02
FOREIGN = 20
RIDGE = 60.0
"""Of the fit of relevance: what is this near to 0 carries over best to a set left out; from 5 to 150 little differs."""

CONFIDENCE: Mapping[Mode, Sequence[str]] = {
    "hybrid": ("gain", "reach", "concentration", "named"),
    "semantic": ("reach", "concentration"),
    "lexical": ("gain", "concentration"),
}
RELEVANCE: Mapping[Mode, Sequence[str]] = {
    "hybrid": ("answer", "share", "covering", "rare", "agreed", "bm25", "cosine"),
    "semantic": ("answer", "share", "cosine"),
    "lexical": ("answer", "share", "covering", "rare", "bm25"),
}

Asked = tuple[QueryBundle, Evidence]


@dataclass
class Samples:
    """Features of answers, and features and outcomes of their hits, which are numbered by answer."""

    answers: Features
    hits: Features
    relevant: Array
    ranks: NDArray[np.int64]
    numbers: NDArray[np.int64]


@dataclass
class Measured:
    """A set: its questions with and without their documents, its follow-ups, and what nothing answers."""

    questions: tuple[Samples, Samples]
    follow_ups: tuple[Samples, Samples] | None
    foreign: Samples
    unanswerable: Samples | None


Sets = Mapping[str, Measured]


def collect(asking: Asking, asked: Iterable[Asked], *, without: bool) -> Samples:
    """Ask every question, with or without its documents."""
    answers, hits, relevant, ranks, numbers = [], [], list[float](), list[int](), list[int]()
    for number, (bundle, evidence) in enumerate(asked):
        if without:
            asking.leave_out(evidence)
        chunks, features, answer = asking.ask(bundle)
        asking.allowed = None
        answers.append(answer)
        if chunks:
            hits.append(features)
        relevant += [float(any(covers(chunk, item) for item in evidence)) for chunk in chunks]
        ranks += [chunk.rank for chunk in chunks]
        numbers += [number] * len(chunks)
    return Samples(
        {name: np.array([answer[name] for answer in answers]) for name in answers[0]},
        {name: np.concatenate([features[name] for features in hits]) for name in hits[0]},
        np.array(relevant),
        np.array(ranks),
        np.array(numbers),
    )


def both(asking: Asking, asked: Sequence[Asked]) -> tuple[Samples, Samples]:
    """Ask every question with and without its documents."""
    return collect(asking, asked, without=False), collect(asking, asked, without=True)


def follow_ups(asking: Asking, project: Project, rows: Iterable[dict[str, Any]]) -> list[Asked]:
    """Return the turns after the first as they are searched, with the conversation before them."""
    retriever = ConversationalRetriever(asking, embed_model=project.embed_model)
    calls = []
    for row in rows:
        retriever.respond(
            ConversationQuery(row["question"], history=[ChatMessage(**message) for message in row["history"]])
        )
        calls.append((asking.searched, [{"file": e["file"], "span": (e["start"], e["end"])} for e in row["evidence"]]))
    return calls


def stand_alone(data: Path, questions: QuestionSet) -> list[Question]:
    """Return the questions of a set, those of conversations as people wrote them to stand alone."""
    rows = _rows(data / questions.name / "questions.jsonl")
    return [replace(one, text=row.get("rewrite", one.text)) for one, row in zip(questions.questions, rows, strict=True)]


def measure(project: Project, mode: Mode, data: Path, sets: Mapping[str, QuestionSet], name: str) -> Measured:
    """Ask everything of one set."""
    asking, chosen = Asking(project, mode), random.Random(1)
    foreign = [
        question
        for other, questions in sets.items()
        if other != name
        for question in chosen.sample(stand_alone(data, questions), FOREIGN)
    ]
    whole = both(asking, [(QueryBundle(one.text), one.evidence) for one in stand_alone(data, sets[name])])
    strangers = collect(asking, [(QueryBundle(one.text), []) for one in foreign], without=False)
    if not (data / name / "turns.jsonl").is_file():
        return Measured(whole, None, strangers, None)
    later = follow_ups(asking, project, (row for row in _rows(data / name / "questions.jsonl") if row["history"]))
    turns = [row for row in _rows(data / name / "turns.jsonl") if row["answerability"] == "UNANSWERABLE"]
    unanswerable = collect(asking, [(QueryBundle(row["question"]), []) for row in turns], without=False)
    return Measured(whole, both(asking, later), strangers, unanswerable)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]


# ---- fits ------------------------------------------------------------------------------------------------------------


def confidence_of(sets: Iterable[Measured], mode: Mode) -> Logistic:
    """Return the model of confidence fitted to some sets."""
    groups = []
    for one in sets:
        inside, outside = (part.answers for part in one.questions)
        features = {name: np.concatenate([inside[name], outside[name]]) for name in inside}
        sizes = [len(part["concentration"]) for part in (inside, outside)]
        groups.append((features, np.repeat([1.0, 0.0], sizes)))
    return fit(groups, CONFIDENCE[mode])


def with_answers(part: Samples, confidence: Logistic) -> Features:
    """Return the features of hits with that of the confidence."""
    probabilities = confidence(part.answers)[part.numbers]
    return {**part.hits, "answer": np.log(probabilities / (1 - probabilities))}


def relevance_of(sets: Iterable[Measured], mode: Mode, confidence: Logistic) -> Logistic:
    """Return the model of relevance fitted to some sets, given that of confidence."""
    groups = []
    for one in sets:
        parts = [with_answers(part, confidence) for part in one.questions]
        features = {name: np.concatenate([part[name] for part in parts]) for name in RELEVANCE[mode]}
        groups.append((features, np.concatenate([part.relevant for part in one.questions])))
    return fit(groups, RELEVANCE[mode], ridge=RIDGE)


# ---- tables ----------------------------------------------------------------------------------------------------------


def show(sets: Sequence[Sets], mode: Mode) -> None:
    """Print how the fits on the other sets hold for each one, and the constants of the fit on all."""
    areas, errors = [], []
    print(f"{mode}: AUROC [95 % interval], calibration error; means with, without the documents, other sets' questions")
    for number, samples in enumerate(sets):
        for name, one in samples.items():
            others = [part for group in sets for other, part in group.items() if other != name]
            model = confidence_of(others, mode)
            low = threshold([model(part.questions[0].answers) for part in others], LOW)
            for label, pair in ((name, one.questions), ("  follow-ups", one.follow_ups)):
                if pair is None:
                    continue
                inside, outside = (model(part.answers) for part in pair)
                area, error = separation(inside, outside), _calibration(inside, outside)
                if pair is one.questions:
                    areas.append(area)
                    errors.append(error)
                first, last = _interval(inside, outside)
                foreign = model(one.foreign.answers)
                below = ", ".join(f"{np.mean(part < low):.1%}" for part in (inside, outside, foreign))
                print(
                    f"  {number} {label:16s} {area:.3f} [{first:.3f}, {last:.3f}] {error:.3f};"
                    f" {inside.mean():.2f} {outside.mean():.2f} {foreign.mean():.2f}; low: {below}"
                )
            if one.unanswerable is not None:
                turns, inside = model(one.unanswerable.answers), model(one.questions[0].answers)
                print(f"      turns that people found unanswerable: AUROC {separation(inside, turns):.3f}")
            _show_relevance(one, [part for other, part in sets[0].items() if other != name], mode, model)
    print(f"  mean AUROC {np.mean(areas):.3f}, least {min(areas):.3f}; largest calibration error {max(errors):.3f}")
    _show_constants(sets, mode)


def _show_relevance(one: Measured, others: Sequence[Measured], mode: Mode, confidence: Logistic) -> None:
    model = relevance_of(others, mode, confidence)
    values = np.concatenate([model(with_answers(part, confidence)) for part in one.questions])
    truth = np.concatenate([part.relevant for part in one.questions])
    ranks = -np.concatenate([part.ranks for part in one.questions]).astype(np.float64)
    first = [float(model(with_answers(part, confidence))[part.ranks == 1].mean()) for part in one.questions]
    right = one.questions[0].relevant[one.questions[0].ranks == 1].mean()
    strange = float(model(with_answers(one.foreign, confidence))[one.foreign.ranks == 1].mean())
    print(
        f"      relevance: AUROC {auroc(truth, values):.3f} (rank alone {auroc(truth, ranks):.3f}),"
        f" calibration error {calibration_error(truth, values):.3f}; of the first hit with, without, other sets:"
        f" {first[0]:.2f} {first[1]:.2f} {strange:.2f} (right: {right:.2f})"
    )


def _calibration(inside: Array, outside: Array) -> float:
    outcomes = np.repeat([1.0, 0.0], [len(inside), len(outside)])
    return calibration_error(outcomes, np.concatenate([inside, outside]))


def _interval(inside: Array, outside: Array) -> tuple[float, float]:
    """Return a bootstrap interval of the AUROC; the questions are resampled."""
    generator = np.random.default_rng(0)
    areas = []
    for _ in range(500):
        chosen = generator.integers(len(inside), size=len(inside))
        areas.append(separation(inside[chosen], outside[chosen]))
    return float(np.quantile(areas, 0.025)), float(np.quantile(areas, 0.975))


def _show_constants(sets: Sequence[Sets], mode: Mode) -> None:
    every = [one for group in sets for one in group.values()]
    confidence = confidence_of(every, mode)
    answered = [confidence(one.questions[0].answers) for one in every]
    low, high = threshold(answered, LOW), float(np.median(np.concatenate(answered)))
    print(f'    "{mode}": Models(')
    for label, model in (("confidence", confidence), ("relevance", relevance_of(sets[0].values(), mode, confidence))):
        values = ", ".join(f'"{name}": {value:.4f}' for name, value in model.coefficients.items())
        print(f"        {label}=Logistic({model.intercept:.4f}, {{{values}}}),")
    print(f"        low={low:.3f},\n        high={high:.3f},\n    ),", flush=True)


def main() -> None:
    """Fit and print."""
    parser = options(__doc__)
    parser.add_argument("--projects", type=Path, help="folder with projects of an earlier run; made when absent")
    parser.add_argument("--modes", nargs="*", choices=get_args(Mode), default=list(get_args(Mode)))
    arguments = parser.parse_args()
    config, embed_model = settings_of(arguments)
    sets = {name: load(arguments.data, name) for name in available(arguments.sets)}
    kinds: list[tuple[str, ProjectConfig, BaseEmbedding | None]] = [("", ProjectConfig.local(), None)]
    if embed_model is not None:
        kinds.append(("-transformer", config, embed_model))
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.projects or Path(temporary)
        for mode in arguments.modes:
            measured = []
            for suffix, settings, model in kinds if mode != "lexical" else kinds[:1]:
                manager, samples = ProjectManager(root / f"structural{suffix}"), {}
                for name, questions in sets.items():
                    if model is not None and name == "filings":
                        continue
                    known = f"{name}-structural"
                    project = (
                        manager.load(known, embed_model=model)
                        if known in manager.list()
                        else build(manager, questions, "structural", config=settings, embed_model=model)
                    )
                    samples[name] = measure(project, mode, arguments.data, sets, name)
                measured.append(samples)
            show(measured, mode)


if __name__ == "__main__":
    main()
