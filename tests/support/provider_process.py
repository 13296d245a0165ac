"""The loopback provider in a process of its own, for benchmarks: its work takes no time from the process measured.

>>> with ProviderProcess(context_tokens=10) as provider:
...     provider.url.startswith("http://127.0.0.1:"), provider.totals()["calls"]
(True, 0)
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from tests.support.server import LoopbackProvider
from tests.support.source import ROOT


class ProviderProcess:
    """A `LoopbackProvider` behind a pipe.

    Args:
        **settings: Plain settings of `Service`, such as latency and context_tokens.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self.url = ""

    @property
    def api_base(self) -> str:
        """The address for clients."""
        return f"{self.url}/v1"

    def __enter__(self) -> ProviderProcess:
        """Start the process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.provider_process", json.dumps(self._settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.url = self._answer()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End the process."""
        self._process.communicate()

    def set(self, **settings: Any) -> None:
        """Change settings."""
        self._ask("set", settings)

    def reset(self) -> None:
        """Forget log, faults, prefix cache and limits."""
        self._ask("reset", None)

    def fail_randomly(self, rate: float, seed: int, kinds: list[str]) -> None:
        """Let a share of the calls fail."""
        self._ask("fail", [rate, seed, kinds])

    def totals(self) -> dict[str, int]:
        """Return the provider's own counts."""
        return cast(dict[str, int], self._ask("totals", None))

    def write_log(self, path: Path) -> Path:
        """Write the log of requests."""
        self._ask("log", str(path))
        return path

    def _ask(self, command: str, argument: Any) -> Any:
        stdin = self._process.stdin
        if stdin is None:
            raise RuntimeError("the provider is not running")
        stdin.write(json.dumps([command, argument]) + "\n")
        stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        stdout = self._process.stdout
        line = stdout.readline() if stdout is not None else ""
        if not line:
            raise RuntimeError("the provider has ended")
        return json.loads(line)


def _obey(provider: LoopbackProvider, command: str, argument: Any) -> Any:
    if command == "set":
        for name, value in argument.items():
            setattr(provider, name, value)
    elif command == "reset":
        provider.reset()
    elif command == "fail":
        rate, seed, kinds = argument
        provider.fail_randomly(rate, seed, kinds)
    elif command == "log":
        provider.write_log(argument)
    elif command == "totals":
        return provider.totals()
    return None


def main(settings: str) -> None:
    """Run a provider until standard input ends."""
    with LoopbackProvider(**json.loads(settings)) as provider:
        _say(provider.url)
        for line in sys.stdin:
            _say(_obey(provider, *json.loads(line)))


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
