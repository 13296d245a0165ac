"""Stands in for the child process of `PageRenderer`: ready at once, then it does what the file's name says."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path


def main() -> None:
    """Answer with the process id as an image, hang, or die of a signal."""
    sys.stdout.write("{}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        name = Path(json.loads(line)["path"]).name
        if name == "hangs.pdf":
            signal.pause()
        if name == "crashes.pdf":
            os.kill(os.getpid(), signal.SIGSEGV)
        sys.stdout.write(json.dumps({"image": f"{os.getpid():08}"}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
