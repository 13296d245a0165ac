"""The context engine under failures and kills; run by `python -m tests.benchmarks.context_engine`."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index_contextual.contextualizer import LLMContextualizer
from llama_index_contextual.node_parser import count_tokens
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage.ledger import Ledger
from tests.benchmarks import context_corpus as corpus
from tests.benchmarks.context_corpus import AMPLE, timed, verdict
from tests.support.log_check import check
from tests.support.provider_process import ProviderProcess

KINDS = ["rate_limit", "server_error", "unavailable", "drop", "drop_in_body", "malformed_json", "empty", "refusal"]
SMALL = {"segment_size": 2_000, "segment_overlap": 200, "chunk_size": 200, "chunk_overlap": 20}
IN_FLIGHT = 8
LATE = 0.2
"""Seconds in which a busy provider reads a call that was sent; nothing arrives so early from the process that goes on,
which begins with parsing."""


def failures(folder: Path, *, seed: int, segments: int) -> None:
    """Let 30 % of the responses fail."""
    nodes = [node for document in corpus.documents(segments) for node in corpus.parse(document)]
    print(f"\n(d) 30 % of responses failing at random, seed {seed}: {', '.join(KINDS)}")
    walls = {}
    with ProviderProcess(latency=0.3, **AMPLE) as provider:
        for rate in (0.0, 0.3):
            provider.reset()
            provider.fail_randomly(rate, seed, KINDS)
            contextualizer = LLMContextualizer(
                llm=corpus.llm(provider.api_base), num_workers=16, ledger=Ledger(folder / f"{rate}.sqlite")
            )
            walls[rate], done = timed(lambda contextualizer=contextualizer: contextualizer.contextualize(nodes))
            counted = check(provider.write_log(folder / "failures.jsonl"))
            written = sum(node.metadata["context_source"] == "llm" for node in done.nodes)
            print(
                f"    rate {rate:.0%}: wall {walls[rate]:.2f} s, {counted['chat_calls']} calls, {written} of"
                f" {len(nodes)} contexts by the LLM, {counted['repeated_chunks']} chunks sent again after a success"
            )
    good = written == len(nodes) and not counted["repeated_chunks"] and walls[0.3] <= 2 * walls[0.0]
    print(f"    wall {walls[0.3] / walls[0.0]:.2f} × the faultless run, goal ≤ 2: {verdict(good)}")


def kills(folder: Path, *, number: int, seed: int) -> None:
    """Kill the ingesting process at random instants, and let another one go on."""
    chance = random.Random(seed)
    count_tokens("The tokenizer is loaded before the processes divide.")
    files = corpus.write(folder / "files", [corpus.long_document(n, 12_000) for n in range(4)])
    print(f"\n(e) kill -9 of the ingesting process at {number} random instants, seed {seed}")
    with ProviderProcess(latency=0.05, **AMPLE) as provider:
        settings = {"llm_concurrency": IN_FLIGHT, **SMALL}
        whole = corpus.project(folder, "undisturbed", provider.api_base, **settings)
        seconds, chunks = _finish(whole, files)
        expected = corpus.contexts(whole)
        killed = projects = calls = paid = different = 0
        missing_rows: list[int] = []
        while killed < number:
            provider.reset()
            projects += 1
            disturbed = corpus.project(
                folder, f"disturbed {projects}", provider.api_base, llm_concurrency=IN_FLIGHT, **SMALL
            )
            ends = _lives(disturbed, files, chance, seconds, number - killed)
            _finish(disturbed, files)
            killed += len(ends)
            different += corpus.contexts(disturbed) != expected
            log = _records(provider.write_log(folder / "kills.jsonl"))
            calls += len(log)
            paid += sum(record["status"] == 200 for record in log)
            missing_rows += _lost(log, ends)
    bound = chunks * projects + IN_FLIGHT * killed
    print(f"    undisturbed: {chunks} chunks in {seconds:.1f} s; {killed} kills of {projects} ingestions")
    print(
        f"    calls sent {calls:,}, answered {paid:,}; chunks {chunks * projects:,}; answered and not in the"
        f" ledger at a kill: {sum(missing_rows)} in total, at most {max(missing_rows)}, {IN_FLIGHT} calls in flight"
    )
    good = max(missing_rows) <= IN_FLIGHT and paid <= min(bound, chunks * projects + sum(missing_rows))
    print(f"    calls paid ≤ chunks + calls in flight at each kill: {verdict(good)}")
    print(f"    published versions that differ from the undisturbed one: {different}: {verdict(not different)}")


def _finish(project: Project, files: Path) -> tuple[float, int]:
    seconds, report = timed(lambda: project.ingest([files]))
    return seconds, report.chunks


def _lives(project: Project, files: Path, chance: random.Random, seconds: float, most: int) -> list[tuple[float, int]]:
    """Start processes and kill them, until one comes to its end or there were enough.

    Returns:
        When each was killed, and how many contexts the ledger held then.
    """
    ends: list[tuple[float, int]] = []
    while len(ends) < most:
        child = os.fork()
        if child == 0:
            project.ingest([files])
            os._exit(0)
        time.sleep(chance.uniform(0, seconds / 2))
        instant = time.perf_counter()
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            break
        ends.append((instant, project.info().ledger.contexts))
    return ends


def _records(path: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [record for record in records if record["path"] == "/v1/chat/completions"]


def _lost(log: Sequence[dict[str, Any]], ends: Sequence[tuple[float, int]]) -> list[int]:
    """Return for each kill how many answered calls were not in the ledger; the clocks of all processes agree."""
    missing_rows = []
    before = 0
    for instant, stored in ends:
        answered = sum(record["status"] == 200 and record["arrived"] <= instant + LATE for record in log)
        missing_rows.append(answered - stored - before)
        before = answered - stored
    return missing_rows
