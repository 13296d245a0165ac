"""The loopback provider in a process of its own, for benchmarks: its work takes no time from the process measured.

>>> with ProviderProcess(context_tokens=10) as provider:
...     provider.url.startswith("http://127.0.0.1:"), provider.totals()["calls"]
(True, 0)
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.server import LoopbackProvider
from tests.support.source import ROOT


class ProviderProcess:
    """A `LoopbackProvider` behind a pipe, with its methods as far as JSON can express their arguments and results.

    Args:
        **settings: Plain settings, such as latency and context_tokens.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def __enter__(self) -> ProviderProcess:
        """Start the process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.provider_process", json.dumps(self._settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.url = self._call("url")
        self.api_base = f"{self.url}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.communicate()

    def __getattr__(self, name: str) -> Any:
        """Return a method of the provider."""
        return partial(self._call, name)

    def write_log(self, path: Path) -> Path:
        """Write the log of requests."""
        self._call("write_log", str(path))
        return path

    def set(self, **settings: Any) -> None:
        """Change settings."""
        for name, value in settings.items():
            self._call("__setattr__", name, value)

    def _call(self, name: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, arguments]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def main(settings: str) -> None:
    """Run a provider until standard input ends."""
    with LoopbackProvider(**json.loads(settings)) as provider:
        for line in sys.stdin:
            name, arguments = json.loads(line)
            attribute = getattr(provider, name)
            result = attribute(*arguments) if callable(attribute) else attribute
            sys.stdout.write(json.dumps(result, default=str) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
