"""Stands in for the child process of `ParserProcess`: ready at once, then it does what the file's name says."""

from __future__ import annotations

import json
import os
import signal
import sys

from llama_index_contextual.readers.process import PAGES_READ


def main() -> None:
    """Answer with the process id, hang, count pages for ever, die of a signal, or leave in the middle of an answer."""
    sys.stdout.write("{}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        name = os.path.basename(json.loads(line)["path"])
        if name == "hangs.pdf":
            signal.pause()
        while name == "counts.pdf":
            sys.stdout.write(PAGES_READ.format(1, 9))
            sys.stdout.flush()
        if name == "crashes.pdf":
            os.kill(os.getpid(), signal.SIGSEGV)
        if name == "leaves.pdf":
            sys.stderr.write("Traceback\nOSError: \x1b[2Jno paper" + "!" * 1_000_000 + "\n\n")
            sys.stderr.flush()
            sys.stdout.write(PAGES_READ.format(1, 9) + '{"text": "ha')
            sys.stdout.flush()
            os._exit(3)
        sys.stderr.write("harmless\n")
        sys.stderr.flush()
        answer = {"text": str(os.getpid()), "map": {}, "title": None, "warnings": [], "metadata": dict(os.environ)}
        answer |= {"digest": "", "scanned": [], "covered": [], "pictures": {}}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
