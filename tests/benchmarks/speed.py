"""Speed of queries and builds: `python -m tests.benchmarks.speed --chunks 10000 --bench FOLDER`.

Compares this package, LlamaIndex's own components and the bare libraries (faiss and bm25s, memory-mapped) in one run,
on real text (from `--data`, or the examples) with WordLlama vectors, which are repeated with noise up to 1,536
dimensions. `--bench` is a folder with `stock_speed.py`, which measures the latter two. Every measurement runs in its
own process. Figures are medians of `--reps` runs; for phases that are left out, they are those of the last run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks import speed_phases
from tests.benchmarks.speed_corpus import ensure_corpus
from tests.support.examples import DATA
from tests.support.source import ROOT

Figures = dict[str, Any]
OURS = {"build": False, "first": True, "warm": True, "concurrent": True}  # and which are measured several times
STOCK = ("build", "load", "query", "lim_build", "lim_load", "lim_query")

_STOCK_OPENS = "faiss_store+storage_context+load_index+bm25+as_retriever+fusion+first_query"
_ROWS = (
    ("build, s", "build.seconds", "lim_build.build_total+persist_total", "build.build_total+persist_total"),
    ("on disk, MB", "build.MB", "lim_build.bytes_total", "build.bytes_total"),
    ("open + first query, s", "first.seconds", "lim_load.faiss+bm25s+text+first_query", f"load.{_STOCK_OPENS}"),
    ("peak memory after it, MB", "first.peak_MB", "lim_load.rss.VmHWM", "load.rss.VmHWM"),
    ("warm hybrid p50, ms", "warm.p50_ms", "lim_query.hybrid_numpy_omp1.p50_ms", "query.fusion.p50_ms"),
    ("  the limit with 2 threads", "", "lim_query.hybrid_numpy_omp2.p50_ms", ""),
    ("  the limit by NumPy", "", "lim_query.hybrid_numpy_matvec.p50_ms", ""),
    ("warm hybrid p95, ms", "warm.p95_ms", "lim_query.hybrid_numpy_omp1.p95_ms", "query.fusion.p95_ms"),
    ("semantic alone, ms", "warm.semantic_ms", "lim_query.faiss_omp1.p50_ms", "query.vector.p50_ms"),
    ("lexical alone, ms", "warm.lexical_ms", "lim_query.bm25s_numpy_with_tokenize.p50_ms", "query.bm25.p50_ms"),
    ("16 callers, queries/s", "concurrent.threads16", "lim_query.hybrid_numpy_omp1_threads16.qps",
     "query.fusion_threads16.qps"),
    ("  awaited", "concurrent.gather16", "", "query.fusion_gather16.qps"),
    ("retrieve_many, queries/s", "concurrent.many", "", ""),
)  # fmt: skip
_GOALS = (
    ("warm hybrid p50 / stock", "ours.warm.p50_ms", "stock.query.fusion.p50_ms", "<=", 1.0),
    ("warm hybrid p95 / p50", "ours.warm.p95_ms", "ours.warm.p50_ms", "<=", 1.5),
    ("16 threads / stock", "ours.concurrent.threads16", "stock.query.fusion_threads16.qps", ">=", 1.2),
    ("16 awaited / stock", "ours.concurrent.gather16", "stock.query.fusion_gather16.qps", ">=", 1.2),
    ("memory after the first query / stock", "ours.first.peak_MB", "stock.load.rss.VmHWM", "<=", 0.65),
    ("bytes / limit", "ours.build.MB", "stock.lim_build.bytes_total", "<=", 1.15),
    ("build / stock", "ours.build.seconds", "stock.build.build_total+persist_total", "<=", 1.0),
)
"""What is measured, divided by what, and its goal."""


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=1_536)
    parser.add_argument("--queries", type=int, default=200, help="questions, at most")
    parser.add_argument("--reps", type=int, default=3)
    data = Path(os.environ.get("LLAMA_INDEX_CONTEXTUAL_DATA", ROOT.parent / "shared" / "data"))
    data_help = "folder with the question sets; default: that of the gate, or the examples if there is none"
    parser.add_argument("--data", type=Path, default=data if data.is_dir() else None, help=data_help)
    parser.add_argument("--bench", type=Path, help="folder with stock_speed.py")
    kept = Path(tempfile.gettempdir()) / "contextual_speed"
    parser.add_argument("--work", type=Path, default=kept, help="folder that keeps corpora, projects and figures")
    parser.add_argument("--phases", nargs="*", choices=[*OURS, "stock"], default=[*OURS, "stock"])
    arguments = parser.parse_args()
    files, questions = _sources(arguments.data, arguments.queries)
    work: Path = arguments.work
    corpus = ensure_corpus(work, files, questions, chunks=arguments.chunks, dim=arguments.dim)
    file = work / f"results_{arguments.chunks}_{arguments.dim}.json"
    results: Figures = json.loads(file.read_text()) if file.exists() else {}
    for part, measured in _measured(arguments, corpus, work, len(questions)):
        results[part] = {**results.get(part, {}), **measured}
        file.write_text(json.dumps(results))
    show(arguments.chunks, results)


def _measured(arguments: argparse.Namespace, corpus: Path, work: Path, queries: int) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of each part as they are measured."""
    root = work / f"ours_{corpus.name}"
    for phase in (phase for phase in OURS if phase in arguments.phases):
        reps = arguments.reps if OURS[phase] else 1
        yield "ours", {phase: _median([_child(phase, corpus, root) for _ in range(reps)])}
    if "stock" in arguments.phases and arguments.bench is None:
        print("stock and limit: skipped, as --bench names no folder with stock_speed.py")
    elif "stock" in arguments.phases:
        yield "stock", _stock(arguments, queries, work)


def show(chunks: int, results: Figures) -> None:
    """Print both tables."""
    stock = results.get("stock", {})
    print(f"{chunks} chunks{'':24s}{'ours':>10s}{'limit':>10s}{'stock':>10s}")
    for name, ours, limit, theirs in _ROWS:
        cells = [at(results.get("ours", {}), ours), at(stock, limit), at(stock, theirs)]
        print(f"{name:34s}" + "".join(f"{'' if cell is None else format(cell, '10.4g'):>10s}" for cell in cells))
    print(f"\n{'what must hold':60s}{'measured':>10s}{'goal':>10s}")
    for name, one, other, sign, goal in _GOALS:
        first, second = at(results, one), at(results, other)
        if first is None or not second:
            continue
        measured = first / second
        verdict = "" if (measured <= goal if sign == "<=" else measured >= goal) else "  missed"
        print(f"{name:60s}{measured:10.4g}{sign + format(goal, 'g'):>10s}{verdict}")


def at(figures: Figures, path: str) -> float | None:
    """Return the figure at a dotted path, `a+b+c` at its end adds those of one parent; None where it is not there."""
    *parents, names = path.split(".")
    for parent in parents:
        figures = figures.get(parent) or {}
    values = [figures.get(name) for name in names.split("+")]
    if not path or any(value is None for value in values):
        return None
    return sum(value / 1e6 if names == "bytes_total" else value for value in values if value is not None)


def _sources(data: Path | None, queries: int) -> tuple[list[Path], list[str]]:
    if data is None:
        folder = DATA
        rows = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
        files = [ROOT / "README.md", *sorted(path for path in folder.iterdir() if path.suffix in (".md", ".txt"))]
    else:
        names = ("corpora", "conversations")
        files = [path for name in names for path in sorted((data / name / "documents").iterdir())]
        rows = [row for name in names for row in (data / name / "questions.jsonl").read_text("utf-8").splitlines()]
    questions = [json.loads(row)["question"] for row in rows]
    step = max(1, len(questions) // queries)
    return files, list(dict.fromkeys(questions[::step]))[:queries]


def _child(phase: str, corpus: Path, root: Path) -> Figures:
    spawned = time.clock_gettime(time.CLOCK_MONOTONIC)
    command = [sys.executable, "-m", speed_phases.__name__, phase, str(corpus), str(root), repr(spawned)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _stock(arguments: argparse.Namespace, queries: int, work: Path) -> Figures:
    out = work / f"stock_{arguments.chunks}_{arguments.dim}.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, str(arguments.bench / "stock_speed.py"), "--only", ",".join(STOCK), "--json", str(out)]
    command += ["--queries", str(queries), "--work", str(work), "--wait", "5", "--tries", "1"]
    command += ["--chunks", str(arguments.chunks), "--dim", str(arguments.dim)]
    command += ["--reps", str(arguments.reps), "--build-reps", "1"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    return {phase: _median(runs["runs"]) for phase, runs in json.loads(out.read_text()).items()}


def _median(runs: list[Any]) -> Any:
    first = runs[0]
    if isinstance(first, dict):
        return {key: _median([run[key] for run in runs if key in run]) for key in first}
    return statistics.median(runs) if isinstance(first, int | float) else first


if __name__ == "__main__":
    main()
