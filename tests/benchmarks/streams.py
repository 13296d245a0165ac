"""Stream 500 random answers and look for invalid citations in them: `python -m tests.benchmarks.streams`.

The answers contain citations of existing and missing sources in many notations, and are sent in random pieces, in two
styles, with and without guards. No citation of a missing source may be shown, and the stream must be equal to the final
answer.
"""

from __future__ import annotations

import argparse

from tests.support.streamed import measure


def main() -> None:
    """Print what was streamed and shown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    result = measure(arguments.answers, arguments.seed)
    for kind, count in result.planted.items():
        print(f"{count:5d} {kind}")
    print(f"{len(result.shown):5d} invalid citations shown")
    print(f"{len(result.differing):5d} streams that differ from the final answer")
    for mark, answer in result.shown[:5]:
        print(f"  {mark!r} of {answer!r}")
    for rows in result.differing[:5]:
        print("  " + "\n    ".join(map(repr, rows)))


if __name__ == "__main__":
    main()
