"""Check that no report shows a lower cost than the provider counted: `python -m tests.benchmarks.budgets`.

Each row is one kind of failure between the package and a provider. The provider charges for everything that its model
has processed, even if nobody waits for the reply. OpenAI's client talks to a server on the loopback interface.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BudgetExceededError, ModelError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.batches import BatchPlan
from tests.support.charges import NO_COUNTS, Tamper, charged_times, cost_at, reported_as
from tests.support.records import CHAT_PATH, CONTEXTUAL_PATH, EMBEDDINGS_PATH, Request
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT

PRICES = {name: {"input": 0.02} for name in ("openai-like:nomic", "openai:nomic")}
SMALL = {"segment_size": 2_000, "chunk_size": 200, "chunk_overlap": 20}


def write_documents(folder: Path, *, parts: int) -> Path:
    """Write two documents, of which the longer one has several segments."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, number in (("long.md", parts), ("short.md", max(1, parts // 6))):
        text = "".join(
            f"## Part {part}\n\n"
            + " ".join(f"Line {n} of {name} part {part} tells fact {n}." for n in range(30))
            + "\n\n"
            for part in range(number)
        )
        (folder / name).write_text(text)
    return folder


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of trouble.

    Attributes:
        name: What it is called.
        config: Settings of the project.
        provider: Settings of the provider.
        trouble: Scripts faults.
        share: The limit in proportion to the estimate, or None for none.
        batch: Whether contexts are asked for in batches.
        parts: Size of the documents.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    provider: dict[str, Any] = field(default_factory=dict)
    trouble: Callable[[LoopbackProvider], object] = lambda provider: None
    share: float | None = None
    batch: bool = False
    parts: int = 24


CASES = (
    Case(name="no trouble"),
    Case(name="batch", batch=True),
    Case(name="nofile", provider={"batch_plan": BatchPlan(output="missing")}, share=4.0, batch=True),
    Case(name="truncated", provider={"batch_plan": BatchPlan(output="truncated")}, share=4.0, batch=True),
    Case(name="small budget", share=0.3),
    Case(name="budget of the estimate", share=1.0),
    Case(name="slower than the timeout", config={"call_timeout": 0.2}, provider={"latency": 1.0}, share=1.0),
    Case(
        name="now and then slower",
        config={"call_timeout": 0.3},
        trouble=lambda p: [p.fault("hang", 1, CHAT_PATH, n * 5, seconds=1.0) for n in range(4)],
        share=2.0,
    ),
    Case(name="50 times the tokens", provider={"usage_factor": 50}, share=1.0),
    Case(name="lost connections", trouble=lambda p: p.fail_randomly(0.3, 1, ["drop_in_body"]), share=1.0),
    Case(name="unreadable answers", trouble=lambda p: p.fail_randomly(0.3, 2, ["malformed_json"]), share=1.0),
    Case(name="no count of tokens", trouble=lambda p: p.fault("missing_usage", None, CHAT_PATH), share=1.0),
    Case(name="429 storms", trouble=lambda p: p.fail_randomly(0.5, 3, ["rate_limit"], retry_after=0.01), share=1.0),
    Case(name="500s", trouble=lambda p: p.fail_randomly(0.3, 4, ["server_error", "unavailable"]), share=1.0),
    Case(name="reasoning", config={"llm": "openai:gpt-5-mini"}, provider={"reasoning_tokens": 900}, share=1.0),
    Case(name="reasoning too long", config={"llm": "openai:o3-mini"}, provider={"reasoning_tokens": 9_000}, share=1.0),
    Case(name="reasoning, no limit", config={"llm": "openai:gpt-5-mini"}, provider={"reasoning_tokens": 900}),
    Case(name="batch expires", provider={"batch_plan": BatchPlan(ending="expired")}, share=4.0, batch=True),
    Case(name="batch is cancelled", provider={"batch_plan": BatchPlan(ending="cancelled")}, share=4.0, batch=True),
    Case(name="batch fails", provider={"batch_plan": BatchPlan(ending="failed")}, share=4.0, batch=True),
    Case(name="batch, 50 times the tokens", provider={"usage_factor": 50}, batch=True),
    Case(
        name="answers of nothing", trouble=lambda p: p.fail_randomly(0.4, 5, ["empty", "refusal", "length"]), share=1.0
    ),
)

ENDPOINTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "contexts": (CHAT_PATH, {}),
    "embeddings": (EMBEDDINGS_PATH, {}),
    "like OpenAI": (EMBEDDINGS_PATH, {"embed_model": "openai-like:nomic"}),
    "Voyage": (CONTEXTUAL_PATH, {"embed_model": "voyage:voyage-context-3"}),
}
"""Endpoints whose token counts differ from those of this package, with the settings that use them."""


def _tampered(name: str, tamper: Tamper, config: dict[str, Any], **options: Any) -> Case:
    def trouble(provider: LoopbackProvider) -> None:
        provider.tamper = tamper

    return Case(name=name, config=config, trouble=trouble, parts=6, **options)


CASES += tuple(
    _tampered(f"{endpoint}: {factor} times", charged_times(factor, path), config, share=share)
    for endpoint, (path, config) in ENDPOINTS.items()
    for factor, share in ((2, None), (2, 1.0), (100, None), (100, 1.0))
)
CASES += tuple(
    _tampered(f"{endpoint}: {form}", reported_as(form, path), config, share=share)
    for endpoint, (path, config) in ENDPOINTS.items()
    for form in NO_COUNTS
    for share in ((None, 0.5) if endpoint == "contexts" else (None,))
)
CASES += tuple(
    _tampered(f"batch: {form}", reported_as(form, CHAT_PATH), {}, share=4.0, batch=True) for form in NO_COUNTS
)


@dataclass(frozen=True)
class Row:
    """What came of a case.

    Attributes:
        name: What it is called.
        limit: The limit in dollars, or None.
        counted: Dollars by the provider's count.
        said: Dollars by the report or the error; None where neither was to be had.
        in_all: Dollars by `project.cost()`.
        booked: The part of it for calls without a known price.
        ending: How the run ended.
        is_batch: Whether its calls were sent in a batch, which never exceeds the limit.
    """

    name: str
    limit: float | None
    counted: float
    said: float | None
    in_all: float
    booked: float
    ending: str
    is_batch: bool = False

    @property
    def holds(self) -> bool:
        """Whether neither figure says less than the provider counted."""
        message = self.in_all if self.said is None else self.said
        if self.is_batch and self.limit is not None and self.counted > self.limit:
            return False
        return self.counted <= message + 1e-9 and self.counted <= self.in_all + 1e-9


def run_case(case: Case, folder: Path, *, parts: int) -> Row:
    """Run one case against a provider of its own."""
    documents = write_documents(folder / "documents", parts=parts)
    config = ProjectConfig(**{"llm": "openai:gpt-4.1", "prices": PRICES, **SMALL, **case.config})
    with LoopbackProvider(embedding_encoding="cl100k_base", **case.provider) as provider, environment(provider):
        project = ProjectManager(folder / "knowledge").create("budget", config)
        dollars = project.estimate([documents], batch=case.batch).dollars
        limit = None if case.share is None or dollars is None else case.share * dollars
        case.trouble(provider)
        message, ending = ingest(project, documents, limit, batch=case.batch)
        wait_for_work(provider)
        if case.batch and message is not None:  # sends what the batch left open, but nothing that may be charged
            again = project.retry_failed().paid
            message += 0.0 if again is None else again.dollars or 0.0
        row = row_of(case.name, project, provider, limit, message, ending)
        return replace(row, is_batch=case.batch)


def wait_for_work(provider: LoopbackProvider) -> None:
    """Wait until the provider works on nothing any more."""
    provider.wait_until(lambda: provider.in_flight == 0)


def row_of(
    name: str, project: Project, provider: LoopbackProvider, limit: float | None, said: float | None, ending: str
) -> Row:
    """Compare the provider's count with what the project says."""
    cost, embeddings = project.cost(), project.config.embed_model.partition(":")[0]
    counted = cost_at(provider.charged(), prices=project.config.prices, embeddings=embeddings)
    return Row(name, limit, counted, said, cost.dollars, cost.booked, ending)


def ingest(project: Project, documents: Path, limit: float | None, *, batch: bool) -> tuple[float | None, str]:
    """Return what the run says that it has cost, and how it ended."""
    try:
        report = project.ingest([documents], max_cost=limit, batch=batch)
    except BudgetExceededError as error:
        return error.spent, "stopped at the limit"
    except ModelError as error:
        return None, f"stopped: {str(error)[:40]}…"
    paid = None if report.paid is None else report.paid.dollars
    failed = f", {len(report.failures)} failed" if report.failures else ""
    return paid, f"{report.contexts_paid} contexts{failed}"


@contextmanager
def environment(provider: LoopbackProvider) -> Iterator[None]:
    """Let the clients of this process find the provider."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-test")
        patch.setenv("VOYAGE_API_KEY", "sk-test")
        patch.setenv("OPENAI_BASE_URL", provider.api_base)
        patch.setenv("VOYAGE_API_BASE", provider.api_base)
        patch.setattr("llama_index_contextual.contextualizer.sending.POLL_SECONDS", 0.0)
        yield


def run_interrupted(folder: Path, stop: signal.Signals, *, calls: int, parts: int) -> Row:
    """End an ingesting process by a signal when so many calls are answered, and others are in flight."""
    documents, answered = write_documents(folder / "documents", parts=parts), itertools.count()

    def latency(request: Request) -> float:
        return 0.0 if request.path != CHAT_PATH or next(answered) < calls else 3600.0

    with LoopbackProvider(embedding_encoding="cl100k_base", latency=latency) as provider, environment(provider):
        project = ProjectManager(folder / "knowledge").create("budget", ProjectConfig(**SMALL, llm="openai:gpt-4.1"))
        command = [sys.executable, "-m", "llama_index_contextual", "ingest", "budget", str(documents), "--quiet"]
        child = subprocess.Popen(
            [*command, "--root", str(folder / "knowledge")], cwd=ROOT, env=dict(os.environ), stderr=subprocess.PIPE
        )
        provider.wait_until(lambda: sum(record.status == 200 for record in provider.chat_calls) >= calls)
        provider.wait_in_flight(2)
        child.send_signal(stop)
        child.communicate()
        wait_for_work(provider)
        name = "Ctrl-C" if stop == signal.SIGINT else stop.name
        return row_of(f"{name} after {calls} answers", project, provider, None, None, f"exit {child.returncode}")


def main() -> None:
    """Print a row for each case, and whether all hold."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for programs in the background
    started = time.monotonic()
    print(f"{'case':<30}{'limit':>10}{'counted':>10}{'said':>10}{'in all':>10}{'booked':>10}  ends with")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        makers: list[Callable[[Path], Row]] = [lambda f, c=case: run_case(c, f, parts=c.parts) for case in CASES]
        makers += [
            lambda f, s=stop, n=n: run_interrupted(f, s, calls=n, parts=24)
            for stop in (signal.SIGINT, signal.SIGKILL)
            for n in (1, 5, 20)
        ]
        for number, make in enumerate(makers):
            row = make(Path(name) / str(number))
            rows.append(row)
            figures = [row.limit, row.counted, row.said, row.in_all, row.booked]
            cells = "".join(f"{'–' if dollars is None else f'{dollars:.5f}':>10}" for dollars in figures)
            print(
                f"{row.name:<30}{cells}  {row.ending}{'' if row.holds else '  SAYS LESS THAN WAS COUNTED'}", flush=True
            )
    wrong = [row.name for row in rows if not row.holds]
    print(f"{len(rows)} cases in {time.monotonic() - started:.0f} s; says less than was counted: {wrong or 'none'}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
