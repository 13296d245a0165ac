"""Measure confidence in projects of a single document: `python -m tests.benchmarks.alone --data DATA`.

Each long Markdown document of `corpora`, and each of some contracts, becomes a project of its own. It is asked its own
questions and the same number of questions about other documents of `corpora`. For each set it prints the share of
responses with low confidence, the median confidence, and how well the confidence separates the questions (AUROC,
pooled over the documents of the set).
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.benchmarks.calibration import separation
from tests.benchmarks.sets import load


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the question sets")
    parser.add_argument("--contracts", type=int, default=12, help="number of contracts")
    parser.add_argument("--questions", type=int, default=40, help="maximum number of questions of a document")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    foreign = _by_file(options.data, "corpora")
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory() as root:
        manager = ProjectManager(root)
        for name in ("corpora", "contracts"):
            questions = foreign if name == "corpora" else _by_file(options.data, name)
            files = sorted(questions)
            if name == "contracts":
                files = rng.sample(files, min(options.contracts, len(files)))
            folder = load(options.data, name).folder
            assert folder is not None
            confidences: dict[bool, list[float]] = {True: [], False: []}
            low: dict[bool, list[bool]] = {True: [], False: []}
            for number, file in enumerate(files):
                project = manager.create(f"{name}-{number}", ProjectConfig.local())
                project.ingest([folder / file])
                own = rng.sample(questions[file], min(options.questions, len(questions[file])))
                others = [text for other, texts in foreign.items() if other != file for text in texts]
                for is_own, texts in ((True, own), (False, rng.sample(others, len(own)))):
                    for text in texts:
                        response = project.retrieve(text)
                        confidences[is_own].append(response.confidence or 0.0)
                        low[is_own].append(response.confidence_level == "low")
            auroc = separation(np.array(confidences[True]), np.array(confidences[False]))
            print(f"{name}: {len(files)} documents, AUROC {auroc:.3f}")
            for is_own, label in ((True, "own questions"), (False, "questions about other documents")):
                median = float(np.median(confidences[is_own]))
                print(f"  {label}: {len(low[is_own])}, low {np.mean(low[is_own]):.1%}, median confidence {median:.2f}")


def _by_file(data: Path, name: str) -> dict[str, list[str]]:
    questions: dict[str, list[str]] = defaultdict(list)
    for question in load(data, name).questions:
        questions[question.evidence[0]["file"]].append(question.text)
    return questions


if __name__ == "__main__":
    main()
