"""How fast it answers: `python -m tests.benchmarks.speed --chunks 10000 --data ../shared/data --bench ../shared/bench`.

Real text (`--data`, else the examples), its WordLlama vectors tiled to 1,536 dimensions with noise, and in one run:
this package, the stock LlamaIndex assembly, and the bare limit (faiss and bm25s memory-mapped, the last two by
`--bench`, the folder of `stock_speed.py`). Every measurement runs in a process of its own; the figures are medians of
`--reps` runs.
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
from tests.benchmarks.speed_report import show

Figures = dict[str, Any]
HERE = Path(__file__).resolve().parents[2]
_OURS = {"build": False, "first": True, "warm": True, "concurrent": False}  # and which are measured several times
STOCK_PHASES = ("build", "load", "query", "lim_build", "lim_load", "lim_query")


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=1_536)
    parser.add_argument("--queries", type=int, default=200, help="questions, at most")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--data", type=Path, help="folder with the question sets")
    parser.add_argument("--bench", type=Path, help="folder with stock_speed.py")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "contextual_speed",
        help="folder that keeps corpora, what was built of them, and the figures of the last run of each phase",
    )  # fmt: skip
    parser.add_argument("--indexes", nargs="*", default=["flat", "auto"], help="values of faiss_index")
    parser.add_argument("--only", nargs="*", default=["ours", "other", "stock"])
    parser.add_argument("--phases", nargs="*", default=list(_OURS), help="of ours; the rest stays as it was measured")
    parser.add_argument("--other-phases", nargs="*", default=["limit", "long", "real", "imports"])
    parser.add_argument("--stock-phases", nargs="*", default=list(STOCK_PHASES), help="likewise")
    arguments = parser.parse_args()
    files, questions = _sources(arguments.data, arguments.queries)
    work: Path = arguments.work
    corpus = ensure_corpus(work, files, questions, chunks=arguments.chunks, dim=arguments.dim)
    kept = work / f"results_{arguments.chunks}_{arguments.dim}.json"
    results: Figures = json.loads(kept.read_text()) if kept.exists() else {}
    for part, measured in _measured(arguments, corpus, work):
        before = {name: figures for name, figures in results.get(part, {}).items() if name != "skipped"}
        results[part] = {**before, **measured}
        kept.write_text(json.dumps(results))
    show(arguments.chunks, results)


def _measured(arguments: argparse.Namespace, corpus: Path, work: Path) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of each part as they are measured."""
    if "ours" in arguments.only:
        for index in arguments.indexes:
            root = work / f"ours_{corpus.name}_{index}"
            for phase in arguments.phases:
                reps = arguments.reps if _OURS[phase] else 1
                yield index, {phase: _median([_child(phase, corpus, root, index) for _ in range(reps)])}
    if "other" in arguments.only:
        for phase in arguments.other_phases:
            if phase == "imports":
                yield "other", {phase: _median([_imports() for _ in range(max(5, arguments.reps))])}
            else:
                yield "other", {phase: _child(phase, corpus, work, "flat")}
    if "stock" in arguments.only:
        questions = json.loads((corpus / "queries.json").read_text())
        yield "stock", _stock(arguments, len(questions), work)


def _sources(data: Path | None, queries: int) -> tuple[list[Path], list[str]]:
    if data is None:
        folder = HERE / "examples" / "data"
        rows = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
        files = [HERE / "README.md", *sorted(path for path in folder.iterdir() if path.suffix in (".md", ".txt"))]
    else:
        names = ("corpora", "conversations")
        files = [path for name in names for path in sorted((data / name / "documents").iterdir())]
        rows = [row for name in names for row in (data / name / "questions.jsonl").read_text("utf-8").splitlines()]
    questions = [json.loads(row)["question"] for row in rows]
    step = max(1, len(questions) // queries)
    return files, list(dict.fromkeys(questions[::step]))[:queries]


def _child(phase: str, corpus: Path, root: Path, index: str) -> Figures:
    spawned = time.clock_gettime(time.CLOCK_MONOTONIC)
    command = [sys.executable, "-m", speed_phases.__name__, phase, str(corpus), str(root), index, repr(spawned)]
    return _run(command)


def _imports() -> Figures:
    found = {}
    for name in ("llama_index.core", "llama_index_contextual"):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {name}"], check=True, cwd=HERE)
        found[name.replace(".", "_")] = time.perf_counter() - started
    return found


def _run(command: list[str], **options: Any) -> Figures:
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, check=False, **options)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def _stock(arguments: argparse.Namespace, queries: int, work: Path) -> Figures:
    script = None if arguments.bench is None else arguments.bench / "stock_speed.py"
    if script is None or not script.is_file():
        return {"skipped": "--bench names no folder with stock_speed.py"}
    out = work / f"stock_{arguments.chunks}_{arguments.dim}.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, str(script), "--only", ",".join(arguments.stock_phases), "--json", str(out)]
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
