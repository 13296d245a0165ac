"""Fits relevance and confidence, and shows how they hold: `python -m tests.benchmarks.relevance --data ../shared/data`.

Relevance: the first 20 hits of every question, relevant or not; beside it a table that knows the rank alone.
Confidence: every question once as it is and once with the documents that answer it left out. Each set counts alike, and
every figure of a set comes from a fit on the other sets. The last lines are the constants of
`retrievers/relevance.py`, fitted on all sets.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core.schema import QueryBundle
from numpy.typing import NDArray

from llama_index_contextual.manager import ProjectManager
from llama_index_contextual.project import Project
from llama_index_contextual.results import RetrievedChunk
from llama_index_contextual.retrievers.relevance import JUDGED, Logistic, hit_features, query_features
from tests.benchmarks.quality import build
from tests.benchmarks.sets import SETS, Question, QuestionSet, covers, load

Array = NDArray[np.float64]
REFUSED = 0.03


@dataclass
class Samples:
    """What was seen on one set: features and outcomes of hits, features of answers with and without the documents."""

    hits: Array
    relevant: Array
    ranks: NDArray[np.int64]
    with_documents: Array
    without: Array
    unanswerable: Array


class Asking:
    """Asks a project, with some of its documents left out.

    Args:
        project: The project.
    """

    def __init__(self, project: Project) -> None:
        current = project._live.current()
        self.retriever = current.retriever("hybrid", project.config)
        store = self.retriever.docstore
        of_node = {node.node_id: node.ref_doc_id or "" for node in store.iterate()}
        self.documents = np.array([of_node[node_id] for node_id in store.ids])
        self.names = np.array([name.rpartition("/")[2] for name in self.documents])
        self.rows = {node_id: row for row, node_id in enumerate(store.ids)}
        self.allowed: NDArray[np.bool_] | None = None
        store.mask = lambda filters: self.allowed  # type: ignore[method-assign]

    def ask(self, text: str) -> tuple[list[RetrievedChunk], Array, Array]:
        """Return the first 20 hits, their features, and those of the answer."""
        trace = self.retriever.trace(QueryBundle(text), JUDGED)
        evidence = trace.evidence(JUDGED + 1)
        found = self.retriever.fetch(trace, JUDGED)
        chunks = [RetrievedChunk.made(rank, hit.node, hit.score, hit.evidence) for rank, hit in enumerate(found, 1)]
        hits = hit_features(trace, evidence)[: len(chunks)] if evidence else np.zeros((0, 4))
        return chunks, hits, query_features(trace, evidence) if evidence else np.zeros(2)

    def leave_out(self, question: Question) -> None:
        """Leave out the documents that answer a question."""
        if "id" in question.evidence[0]:
            gold = [self.documents[self.rows[item["id"]]] for item in question.evidence]
            self.allowed = ~np.isin(self.documents, gold)
        else:
            self.allowed = ~np.isin(self.names, [item["file"] for item in question.evidence])


def collect(project: Project, questions: QuestionSet, unanswerable: Sequence[str]) -> Samples:
    """Ask every question with and without its documents."""
    asking = Asking(project)
    hits, relevant, ranks, whole, without = [], [], [], [], []
    for question in questions.questions:
        asking.allowed = None
        chunks, features, answer = asking.ask(question.text)
        hits.append(features)
        relevant += [float(any(covers(chunk, item) for item in question.evidence)) for chunk in chunks]
        ranks += [chunk.rank for chunk in chunks]
        whole.append(answer)
        asking.leave_out(question)
        without.append(asking.ask(question.text)[2])
    asking.allowed = None
    others = [asking.ask(text)[2] for text in unanswerable]
    return Samples(
        np.vstack(hits), np.array(relevant), np.array(ranks), np.array(whole), np.array(without),
        np.array(others).reshape(-1, 2),
    )  # fmt: skip


def fit(groups: Sequence[tuple[Array, Array]], *, ridge: float = 5.0) -> Logistic:
    """Return the logistic model of greatest likelihood, each (features, outcomes) group counting alike.

    Newton's method on standardised features with a small ridge.
    """
    features = np.vstack([group for group, _ in groups])
    outcomes = np.concatenate([outcome for _, outcome in groups])
    weights = np.concatenate([np.full(len(outcome), 1 / len(outcome)) for _, outcome in groups])
    weights /= weights.mean()
    mean, spread = features.mean(axis=0), features.std(axis=0)
    design = np.column_stack([np.ones(len(features)), (features - mean) / spread])
    penalty = np.array([0.0] + [ridge] * features.shape[1])
    found = np.zeros(design.shape[1])
    for _ in range(100):
        expected = 1 / (1 + np.exp(-np.clip(design @ found, -30, 30)))
        slope = design.T @ (weights * (outcomes - expected)) - penalty * found
        curvature = (design * (weights * expected * (1 - expected))[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(curvature, slope)
        found += step * min(1.0, 2.0 / np.abs(step).max())
        if np.abs(step).max() < 1e-9:
            break
    coefficients = found[1:] / spread
    return Logistic(float(found[0] - coefficients @ mean), tuple(float(value) for value in coefficients))


def auroc(outcomes: Array, values: Array) -> float:
    """Return the probability that a positive has the larger value, ties counting half."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positives = outcomes.sum()
    return float(
        (ranks[outcomes > 0].sum() - positives * (positives + 1) / 2) / (positives * (len(outcomes) - positives))
    )


def calibration_error(outcomes: Array, probabilities: Array, *, bins: int = 10) -> float:
    """Return the expected calibration error over bins of equal width."""
    place = np.minimum((probabilities * bins).astype(int), bins - 1)
    parts = [place == number for number in range(bins)]
    return float(sum(abs(outcomes[p].mean() - probabilities[p].mean()) * p.mean() for p in parts if p.any()))


def show_relevance(samples: dict[str, Samples]) -> None:
    """Print, for each set, how a fit on the others does beside a table of ranks."""
    print("relevance          Brier skill  AUROC   of rank alone  calibration error")
    pooled: list[tuple[Array, Array, Array]] = []
    rows = []
    for name, held in samples.items():
        others = [one for other, one in samples.items() if other != name]
        model = fit([(one.hits, one.relevant) for one in others])
        table = np.array(
            [np.mean([one.relevant[one.ranks == r].mean() for one in others]) for r in range(1, JUDGED + 1)]
        )
        found, by_rank, truth = model(held.hits), table[held.ranks - 1], held.relevant
        pooled.append((truth, found, by_rank))
        rows.append(_row(truth, found, by_rank))
        print(f"  {name:16s} " + "  ".join(f"{value:11.3f}" for value in rows[-1]))
    print("  mean of the sets " + "  ".join(f"{value:11.3f}" for value in np.mean(rows, axis=0)))
    truth, found, by_rank = (np.concatenate(parts) for parts in zip(*pooled, strict=True))
    print("  all hits at once " + "  ".join(f"{value:11.3f}" for value in _row(truth, found, by_rank)))


def _row(truth: Array, found: Array, by_rank: Array) -> tuple[float, float, float, float]:
    skill = 1 - float(np.mean((found - truth) ** 2) / np.mean((by_rank - truth) ** 2))
    return skill, auroc(truth, found), auroc(truth, by_rank), calibration_error(truth, found)


def show_confidence(samples: dict[str, Samples]) -> None:
    """Print, for each set, how a fit on the others tells answered questions from those whose documents are out."""
    print("confidence         AUROC   mean with, without the documents")
    areas, everything = [], []
    for name, held in samples.items():
        model = fit([_answers(one) for other, one in samples.items() if other != name])
        inside, outside = model(held.with_documents), model(held.without)
        truth = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])
        areas.append(auroc(truth, np.concatenate([inside, outside])))
        everything.append((truth, np.concatenate([inside, outside])))
        print(f"  {name:16s} {areas[-1]:6.3f}  {inside.mean():6.3f}  {outside.mean():6.3f}")
        if len(held.unanswerable):
            turns = model(held.unanswerable)
            truth = np.concatenate([np.ones(len(inside)), np.zeros(len(turns))])
            area = auroc(truth, np.concatenate([inside, turns]))
            print(f"    turns that people found unanswerable: AUROC {area:.3f}, mean {turns.mean():.3f}")
    truth, found = (np.concatenate(parts) for parts in zip(*everything, strict=True))
    print(f"  mean of the sets {np.mean(areas):6.3f}; all questions at once {auroc(truth, found):.3f}")


def _answers(one: Samples) -> tuple[Array, Array]:
    outcomes = np.concatenate([np.ones(len(one.with_documents)), np.zeros(len(one.without))])
    return np.vstack([one.with_documents, one.without]), outcomes


def show_constants(samples: dict[str, Samples]) -> None:
    """Print the constants, and what the thresholds of the confidence do."""
    relevance = fit([(one.hits, one.relevant) for one in samples.values()])
    confidence = fit([_answers(one) for one in samples.values()])
    answered = np.concatenate([confidence(one.with_documents) for one in samples.values()])
    low, high = (
        _threshold([confidence(one.with_documents) for one in samples.values()]),
        np.round(np.median(answered), 3),
    )
    print("constants")
    for name, model in (("RELEVANCE", relevance), ("CONFIDENCE", confidence)):
        print(f"  {name} = Logistic({model.intercept:.4f}, ({', '.join(f'{c:.4f}' for c in model.coefficients)}))")
    print(f"  LOW, HIGH = {low}, {high}")
    for name, one in samples.items():
        shares = [float(np.mean(confidence(part) < low)) for part in (one.with_documents, one.without)]
        print(f"  {name:16s} below LOW: {shares[0]:.1%} of the answerable, {shares[1]:.1%} without the documents")
        if len(one.unanswerable):
            print(f"    turns that people found unanswerable: {np.mean(confidence(one.unanswerable) < low):.1%}")
    print(f"  below LOW: {np.mean(answered < low):.1%} of all answerable questions")


def _threshold(sets: Sequence[Array]) -> float:
    """Return the largest threshold, to three places, below which 3 % of the sets' questions are, each set alike."""
    steps = np.arange(1, 1_000) / 1_000
    return float(max(step for step in steps if np.mean([np.mean(one < step) for one in sets]) <= REFUSED))


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--projects", type=Path, help="folder with projects of an earlier run; made when absent")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.projects or Path(temporary)
        manager = ProjectManager(root)
        samples = {}
        for name in SETS:
            questions = load(arguments.data, name)
            known = f"{name}-structural"
            project = manager.load(known) if known in manager.list() else build(manager, questions, "structural")
            unanswerable = _unanswerable(arguments.data / name / "turns.jsonl")
            samples[name] = collect(project, questions, unanswerable)
    show_relevance(samples)
    show_confidence(samples)
    show_constants(samples)


def _unanswerable(path: Path) -> list[str]:
    if not path.is_file():
        return []
    rows: list[dict[str, Any]] = [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]
    return [row["question"] for row in rows if row["answerability"] == "UNANSWERABLE"]


if __name__ == "__main__":
    main()
