"""Are the local settings a plateau or a peak? `python -m tests.benchmarks.settings --data ../shared/data`.

Every set (the filings need the extra `pdfium` and are skipped without it) with structural context, searched with the
local settings and with one of them changed at a time: the mean of recall at 5, 10 and 20 and nDCG@10, set by set. Then
each set is left out: what would be chosen on the others, and what that gives on the set that had no say, against the
local settings, with the interval of the difference.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.evaluation.metrics import bootstrap_interval, permutation_p_value
from llama_index_contextual.project.manager import ProjectManager
from tests.benchmarks.quality import available, build, bundle
from tests.benchmarks.sets import KS, SETS, load, ndcg, recall, score

VARIED: dict[str, Sequence[Any]] = {
    "semantic_weight": (0.25, 0.3, 0.4, 0.45, 0.5),
    "sibling_weight": (0.0, 0.5, 0.75, 1.5),
    "document_weight": (0.0, 0.05, 0.1, 0.2),
    "document_idf": (False,),
    "candidates": (100, 400),
    "fusion": ("rrf",),
}
"""Values beside the local settings'; the lexical weight is what the semantic one leaves of 1."""

Values = NDArray[np.float64]


def variants() -> dict[str, dict[str, Any]]:
    """Return the settings that are tried, by what they change."""
    results: dict[str, dict[str, Any]] = {"local settings": {}}
    for name, values in VARIED.items():
        for value in values:
            more = {"lexical_weight": 1 - value} if name == "semantic_weight" else {}
            results[f"{name}={value}"] = {name: value, **more}
    return results


def measured(data: Path, name: str, root: str) -> dict[str, Values]:
    """Return for each variant one value per question: the mean of its recalls and its nDCG, in per cent."""
    questions = load(data, name)
    retriever = build(ProjectManager(root), questions, "structural").as_retriever(similarity_top_k=max(KS))
    results = {}
    for label, settings in variants().items():
        changed = retriever.changed(**settings)
        _, _, ranks = score(questions.questions, lambda q, r=changed: r.respond(bundle(q)).results)
        rows = [[*(recall(found_at, k) for k in KS[1:]), ndcg(found_at)] for found_at in ranks]
        results[label] = 100 * np.asarray(rows).mean(axis=1)
    return results


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        results = {name: measured(arguments.data, name, root) for name in available(arguments.sets)}
    print(f"{'changed':24s}{''.join(f'{name:>15s}' for name in results)}{'mean':>8s}")
    for label in variants():
        means = [values[label].mean() for values in results.values()]
        print(f"{label:24s}{''.join(f'{mean:15.2f}' for mean in means)}{np.mean(means):8.2f}")
    for left_out, values in results.items():
        others = [result for name, result in results.items() if name != left_out]
        chosen = max(variants(), key=lambda label: sum(result[label].mean() for result in others))
        gains = (values[chosen] - values["local settings"]).tolist()
        result, p = bootstrap_interval(gains), permutation_p_value(gains)
        interval = f"{result.mean:+.2f} ({result.low:+.2f} to {result.high:+.2f}), p = {p:.2g}"
        print(f"without {left_out}: {chosen} is chosen; on {left_out} {interval}")


if __name__ == "__main__":
    main()
