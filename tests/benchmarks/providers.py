"""Ingest with providers that fail in every known way: `python -m tests.benchmarks.providers`.

For each kind of failure, documents are ingested while the provider fails, and again when it works. A row shows the
result of the first run, the number of calls in both runs, and each violation of these promises: the second run
completes with a context for every chunk, no valid reply is paid for twice, and the API key is not in any report,
exception, log record or file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.modes import MODES, run_mode


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the modes, and return 1 if anything did not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--only", nargs="*", default=list(MODES), choices=list(MODES), metavar="MODE")
    options = parser.parse_args(arguments)
    bad = 0
    print(f"{'mode':<32}{'run under it':<30}{'calls':>6}{'seconds':>9}  what did not hold")
    for name in options.only:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_mode(MODES[name], Path(folder))
        bad += bool(outcome.wrong)
        row = f"{name:<32}{outcome.first:<30}{outcome.calls:>6}{time.monotonic() - begin:>9.1f}"
        print(f"{row}  {'; '.join(outcome.wrong) or '-'}", flush=True)
    print(f"{len(options.only)} modes, {bad} with something that did not hold")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
