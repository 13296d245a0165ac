"""Search latency of a server while documents are added: 8 users who read, and 2 who add.

    python -m tests.benchmarks.serving --seconds 600

The server runs in a process of its own, with the example documents, a local embedding model, and an LLM on the
loopback interface. Each reader searches with a pause of up to a second, and asks the LLM every tenth time. First, they
read alone (the quiet server); then, each adder sends a file about every two seconds, Markdown or PDF. The program
prints the median and the 95th percentile of the search latency in both periods, the number of errors, and the cost of
the answers according to the project and to the provider.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.ui.users import add_token, new_user
from tests.support.documents import pdf_bytes
from tests.support.examples import DATA
from tests.support.server import LoopbackProvider

READERS, ADDERS = 8, 2
QUESTIONS = (
    "What does error TS-999 mean?",
    "How long must the pressure booster stand still after an emergency stop?",
    "What was the leakage in the Water segment of Haldermoor in the first quarter of 2024?",
    "standing charge water 2025",
    "Who approves overtime?",
    "revenue of the fourth quarter",
)
GPT_4O_MINI = (0.15e-6, 0.6e-6)


class Period:
    """A period of requests by several users.

    Args:
        url: Address of the server.
        token: Token of the users.
        seconds: Length of the period.
    """

    def __init__(self, url: str, token: str, seconds: float) -> None:
        self._url, self._headers, self._seconds = url, {"Authorization": f"Bearer {token}"}, seconds
        self.searches: list[float] = []
        self.answers = self.files = 0
        self.errors: list[str] = []

    def run(self, *, adders: int) -> None:
        """Run the readers and the adders until the period is over."""
        works: list[tuple[Callable[[httpx.Client, random.Random], None], float]] = [(self._read, 1.0)] * READERS
        works += [(self._add, 2.0)] * adders
        end = time.monotonic() + self._seconds
        threads = [
            threading.Thread(target=self._repeat, args=(work, pause, random.Random(at), end))
            for at, (work, pause) in enumerate(works)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _repeat(
        self, work: Callable[[httpx.Client, random.Random], None], pause: float, chance: random.Random, end: float
    ) -> None:
        with httpx.Client(base_url=self._url, headers=self._headers, timeout=120) as client:
            while time.monotonic() < end:
                time.sleep(chance.random() * pause * (2 if work == self._add else 1))
                try:
                    work(client, chance)
                except httpx.HTTPError as error:
                    self.errors.append(repr(error))

    def _read(self, client: httpx.Client, chance: random.Random) -> None:
        question = f"{chance.choice(QUESTIONS)} {chance.randrange(1_000)}"
        if chance.random() < 0.1:
            body = {"model": "plant", "messages": [{"role": "user", "content": question}], "stream": True}
            response = client.post("/v1/chat/completions", json=body)
            self.answers += 1
            if response.status_code != 200 or not response.text.rstrip().endswith("[DONE]"):
                self.errors.append(response.text[:200])
            return
        started = time.perf_counter()
        response = client.post("/api/search", json={"query": question})
        self.searches.append(time.perf_counter() - started)
        if response.status_code != 200:
            self.errors.append(response.text[:200])

    def _add(self, client: httpx.Client, chance: random.Random) -> None:
        number = f"{chance.random():.12f}"
        text = f"# Report {number}\n\n" + "\n\n".join(
            f"## Part {part}\n\n" + f"Valve {part} of report {number} opens at {part} bar. " * 40 for part in range(20)
        )
        is_pdf = chance.random() < 0.5
        content = pdf_bytes() + f"\n% {number}\n".encode() if is_pdf else text.encode()
        response = client.post("/api/add", files={"file": (f"report-{number}.{'pdf' if is_pdf else 'md'}", content)})
        self.files += 1
        if response.status_code != 202:
            self.errors.append(response.text[:200])

    def __str__(self) -> str:
        cuts = statistics.quantiles(self.searches, n=20)
        return (
            f"{len(self.searches):,} searches, median {statistics.median(self.searches) * 1e3:,.0f} ms, 95th percentile"
            f" {cuts[-1] * 1e3:,.0f} ms; {self.answers} answers, {self.files} files, {len(self.errors)} errors"
        )


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="length of each of the two periods")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder, LoopbackProvider(latency=0.3) as provider:
        root = Path(folder) / "root"
        manager = ProjectManager(root)
        project = manager.create("plant", ProjectConfig.local(answer_llm="openai:gpt-4o-mini"))
        project.ingest([path for path in DATA.iterdir() if path.suffix in (".md", ".pdf", ".txt")])
        tokens = Path(folder) / "tokens.json"
        user = new_user("ada", rights=["search", "ask", "add"], requests_per_minute=1_000_000)
        token = add_token(tokens, user)
        command = [sys.executable, "-m", "llama_index_contextual", "serve", "plant", "--port", "0", "--api"]
        command += ["--allow-changes", "--tokens", str(tokens), "--root", str(root)]
        environment = {"OPENAI_API_KEY": "any", "OPENAI_API_BASE": provider.api_base, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment) as server:
            try:
                line = server.stdout.readline() if server.stdout else ""
                url = line.split()[1].rstrip("/")
                warm = Period(url, token, min(10.0, seconds))
                warm.run(adders=0)
                quiet, busy = Period(url, token, seconds), Period(url, token, seconds)
                quiet.run(adders=0)
                print(f"quiet, {seconds:,.0f} s: {quiet}")
                busy.run(adders=ADDERS)
                print(f"busy,  {seconds:,.0f} s: {busy}")
                for error in [*quiet.errors, *busy.errors][:5]:
                    print(f"  {error}")
                with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
                    while client.get("/api/add").json()["is_running"]:
                        time.sleep(0.5)
                    states = [one["state"] for one in client.get("/api/add").json()["files"]]
                print(f"added files: {states.count('read')} of {len(states)} can be searched")
            finally:
                server.terminate()
        totals = provider.totals()
        charged = totals["prompt_tokens"] * GPT_4O_MINI[0] + totals["completion_tokens"] * GPT_4O_MINI[1]
        charged -= totals["cached_tokens"] * GPT_4O_MINI[0] / 2
        print(f"answers: ${manager.load('plant').cost().answers:.6f} in the project, ${charged:.6f} at the provider")


if __name__ == "__main__":
    main()
