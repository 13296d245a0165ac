"""Check 500 answers with deliberate errors: `python -m tests.benchmarks.citations --data DATA/conversations`.

The answers contain quotations of real text, which are either correct or have one error (the wrong source, an invented
text, a changed number, or text joined from two places), figures, and citations of sources that do not exist. Some of
the correct quotations contain line breaks of the source, or ellipses.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.support.planted import measure


def main() -> None:
    """Print what was planted and found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with documents/*.md")
    parser.add_argument("--answers", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    files = sorted((arguments.data / "documents").glob("*.md"))
    texts = [file.read_text(encoding="utf-8")[:3000] for file in files]
    planted, result, misses = measure(texts, answers=arguments.answers, seed=arguments.seed)
    for kind in sorted(planted):
        print(f"{kind:16s} {result[kind]:4d} of {planted[kind]:4d}")
    print(f"precision {result['faults'] / (result['faults'] + result['false']):.4f}")
    print(f"recall    {result['faults'] / planted['faults']:.4f}")
    for kind, message, statement in misses[:10]:
        print(f"  {kind} taken for {message}: {statement}")


if __name__ == "__main__":
    main()
