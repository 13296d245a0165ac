"""Fits relevance and confidence, and shows how they hold: `python -m tests.benchmarks.relevance --data ../shared/data`.

Relevance: the first 20 hits of every question, relevant where they hold any of its evidence; each hit counts alike.
Beside it what the rank alone tells: for the Brier skill a table with the share of relevant hits at each rank, from the
same sets as the fit, for the AUROC the rank itself. "All hits at once" takes the hits of all sets together, each judged
by the fit that has not seen its set.
Confidence: every question once as it is and once with the documents that answer it taken out of all indexes. Each set
counts alike, and every figure of a set comes from a fit on the other sets. Follow-up questions, searched with the
conversation before them, and turns that people found unanswerable take no part in any fit. The last lines are the
constants of `retrievers/relevance.py`, fitted on all sets.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.schema import QueryBundle
from numpy.typing import NDArray

from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.confidence import JUDGED, Logistic
from llama_index_contextual.retrievers.conversational import ConversationalRetriever, ConversationQuery
from tests.benchmarks.asking import Asking, Evidence
from tests.benchmarks.calibration import Array, auroc, brier_skill, calibration_error, fit, separation, threshold
from tests.benchmarks.quality import build
from tests.benchmarks.sets import SHORT_SETS, covers, load

REFUSED = 0.03
RIDGE = 60.0
"""Of the fit of relevance: what is this near to 0 carries over best to a set left out; from 5 to 150 little differs."""

Asked = tuple[QueryBundle, Evidence]


@dataclass
class Samples:
    """Features and outcomes of hits, features of answers with and without the documents that answer."""

    hits: Array
    relevant: Array
    ranks: NDArray[np.int64]
    with_documents: Array
    without: Array


@dataclass
class Measured:
    """A set: its questions, its follow-ups, and questions that nothing answers."""

    questions: Samples
    follow_ups: Samples | None
    unanswerable: Array


def collect(asking: Asking, asked: Iterable[Asked]) -> Samples:
    """Ask every question with and without its documents."""
    hits, relevant, ranks, whole, without = [], [], [], [], []
    for bundle, evidence in asked:
        chunks, features, answer = asking.ask(bundle)
        if chunks:
            hits.append(features)
        relevant += [float(any(covers(chunk, item) for item in evidence)) for chunk in chunks]
        ranks += [chunk.rank for chunk in chunks]
        whole.append(answer)
        asking.leave_out(evidence)
        without.append(asking.ask(bundle)[2])
        asking.allowed = None
    return Samples(np.vstack(hits), np.array(relevant), np.array(ranks), np.array(whole), np.array(without))


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


def measure(manager: ProjectManager, data: Path, name: str) -> Measured:
    """Ask everything of one set."""
    questions, known = load(data, name), f"{name}-structural"
    project = manager.load(known) if known in manager.list() else build(manager, questions, "structural")
    asking = Asking(project)
    samples = collect(asking, [(QueryBundle(question.text), question.evidence) for question in questions.questions])
    if not (data / name / "turns.jsonl").is_file():
        return Measured(samples, None, np.zeros((0, 2)))
    later = follow_ups(asking, project, (row for row in _rows(data / name / "questions.jsonl") if row["history"]))
    turns = [row for row in _rows(data / name / "turns.jsonl") if row["answerability"] == "UNANSWERABLE"]
    unanswerable = [asking.ask(QueryBundle(row["question"]))[2] for row in turns]
    return Measured(samples, collect(asking, later), np.array(unanswerable))


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]


def show_relevance(sets: dict[str, Measured]) -> None:
    """Print, for each set, how a fit on the others does beside a table of ranks."""
    print("relevance          Brier skill  AUROC   of rank alone  calibration error")
    pooled: list[tuple[Array, Array, Array, Array]] = []
    rows = []
    for name, stored in sets.items():
        others = [one.questions for other, one in sets.items() if other != name]
        model = fit([(one.hits, one.relevant) for one in others], ridge=RIDGE)
        table = np.array(
            [np.mean([one.relevant[one.ranks == r].mean() for one in others]) for r in range(1, JUDGED + 1)]
        )
        for label, one in ((name, stored.questions), ("  follow-ups", stored.follow_ups)):
            if one is None:
                continue
            parts = one.relevant, model(one.hits), table[one.ranks - 1], -one.ranks.astype(np.float64)
            result = _row(*parts)
            print(f"  {label:16s} " + "  ".join(f"{value:11.3f}" for value in result))
            if one is stored.questions:
                rows.append(result)
                pooled.append(parts)
    print("  mean of the sets " + "  ".join(f"{value:11.3f}" for value in np.mean(rows, axis=0)))
    everything = (np.concatenate(parts) for parts in zip(*pooled, strict=True))
    print("  all hits at once " + "  ".join(f"{value:11.3f}" for value in _row(*everything)))


def _row(truth: Array, found: Array, by_rank: Array, rank: Array) -> tuple[float, float, float, float]:
    skill = brier_skill(truth, found, by_rank)
    return skill, auroc(truth, found), auroc(truth, rank), calibration_error(truth, found)


def show_confidence(sets: dict[str, Measured]) -> None:
    """Print, for each set, how a fit on the others tells answered questions from those whose documents are out."""
    print("confidence          AUROC   mean with, without the documents; refused at the others' threshold")
    areas = []
    for name, stored in sets.items():
        others = [one.questions for other, one in sets.items() if other != name]
        model = fit([_answers(one) for one in others])
        low = threshold([model(one.with_documents) for one in others], REFUSED)
        for label, one in ((name, stored.questions), ("  follow-ups", stored.follow_ups)):
            if one is None:
                continue
            inside, outside = model(one.with_documents), model(one.without)
            area, refused = separation(inside, outside), [float(np.mean(part < low)) for part in (inside, outside)]
            means = f"{inside.mean():6.3f}  {outside.mean():6.3f}"
            print(f"  {label:16s} {area:6.3f}  {means}; {refused[0]:.1%}, {refused[1]:.1%}")
            if one is stored.questions:
                areas.append(area)
            if len(stored.unanswerable):
                turns = model(stored.unanswerable)
                against = f"AUROC {separation(inside, turns):.3f}, mean {turns.mean():.3f}"
                print(
                    f"    against turns that people found unanswerable: {against}; {np.mean(turns < low):.1%} refused"
                )
    print(f"  mean of the sets {np.mean(areas):6.3f}")


def _answers(one: Samples) -> tuple[Array, Array]:
    outcomes = np.concatenate([np.ones(len(one.with_documents)), np.zeros(len(one.without))])
    return np.vstack([one.with_documents, one.without]), outcomes


def show_constants(sets: dict[str, Measured]) -> None:
    """Print the constants, and what the thresholds of the confidence do."""
    samples = [one.questions for one in sets.values()]
    confidence = fit([_answers(one) for one in samples])
    answered = [confidence(one.with_documents) for one in samples]
    low, high = threshold(answered, REFUSED), float(np.median(np.concatenate(answered)))
    print("constants")
    _show("RELEVANCE", fit([(one.hits, one.relevant) for one in samples], ridge=RIDGE))
    _show("CONFIDENCE", confidence)
    print(f"  LOW, HIGH = {low}, {high:.3f}")
    for name, one in sets.items():
        for label, part in ((name, one.questions), ("  follow-ups", one.follow_ups)):
            if part is not None:
                shares = [float(np.mean(confidence(rows) < low)) for rows in (part.with_documents, part.without)]
                print(
                    f"  {label:16s} below LOW: {shares[0]:.1%} of the answerable, {shares[1]:.1%} without the documents"
                )
        if len(one.unanswerable):
            print(f"    turns that people found unanswerable: {np.mean(confidence(one.unanswerable) < low):.1%}")
    print(f"  below LOW: {np.mean(np.concatenate(answered) < low):.1%} of all answerable questions")


def _show(name: str, model: Logistic) -> None:
    print(f"  {name} = Logistic({model.intercept:.4f}, ({', '.join(f'{c:.4f}' for c in model.coefficients)}))")


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--projects", type=Path, help="folder with projects of an earlier run; made when absent")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        manager = ProjectManager(arguments.projects or Path(temporary))
        sets = {name: measure(manager, arguments.data, name) for name in SHORT_SETS}
    show_relevance(sets)
    show_confidence(sets)
    show_constants(sets)


if __name__ == "__main__":
    main()
