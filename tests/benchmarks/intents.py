"""Intents without a model: `python -m tests.benchmarks.intents --data ../shared/data/conversations`.

The human types of `turns.jsonl` are mapped to intents; composite and non-questions have none of ours and are left out.
The patterns and words are written by hand, nothing is fitted: the folds show how far the figure varies.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from llama_index_contextual.answering.intent import guess_intent

TYPES = {
    "Factoid": "factual",
    "Keyword": "factual",
    "Explanation": "explanation",
    "Summarization": "aggregation",
    "Opinion": "opinion",
    "How-To": "procedural",
    "Troubleshooting": "procedural",
    "Comparative": "comparison",
}
# Which of our intents answer to a human type, where ours are finer.
SAME = {"temporal": "factual"}


def f1(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return F1 in per cent of every wanted intent, for (wanted, guessed) pairs."""
    expected, guessed = Counter(w for w, _ in pairs), Counter(g for _, g in pairs)
    right = Counter(w for w, g in pairs if w == g)
    return {intent: 200 * right[intent] / (expected[intent] + guessed[intent]) for intent in sorted(expected)}


def main() -> None:
    """Print F1 by intent, and macro-F1 over five folds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    lines = (parser.parse_args().data / "turns.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for line in lines if (row := json.loads(line))["type"] in TYPES]
    started = time.perf_counter()
    guesses = [guess_intent(row["question"]).intent for row in rows]
    each = (time.perf_counter() - started) / len(rows)
    pairs = [(TYPES[row["type"]], SAME.get(guess, guess)) for row, guess in zip(rows, guesses, strict=True)]
    result = f1(pairs)
    for intent, value in result.items():
        print(f"{intent:13s} F1 {value:5.1f}  ({sum(w == intent for w, _ in pairs)} turns)")
    right = sum(expected == guess for expected, guess in pairs)
    print(f"macro-F1 {sum(result.values()) / len(result):.1f}, accuracy {100 * right / len(pairs):.1f}")
    folds = [f1(pairs[at::5]) for at in range(5)]
    print("macro-F1 of five folds: " + ", ".join(f"{sum(fold.values()) / len(fold):.1f}" for fold in folds))
    always = f1([(expected, "factual") for expected, _ in pairs])
    print(
        f"always factual: macro-F1 {sum(always.values()) / len(always):.1f}; {each * 1e6:.0f} microseconds a question"
    )


if __name__ == "__main__":
    main()
