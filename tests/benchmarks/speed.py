"""How fast it answers: `python -m tests.benchmarks.speed --chunks 10000 --data ../shared/data --bench ../shared/bench`.

Real text (`--data`, else the examples), its WordLlama vectors tiled to 1,536 dimensions with noise, and in one run:
this package, the stock LlamaIndex assembly, and the bare limit (faiss and bm25s memory-mapped, the last two by
`--bench`, the folder of `stock_speed.py`); the `semble` package where `--semble-python` names an interpreter that has
it. Every measurement runs in a process of its own; the figures are medians of `--reps` runs.
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
from pathlib import Path
from typing import Any

from tests.benchmarks import speed_phases
from tests.benchmarks.speed_corpus import ensure_corpus

Figures = dict[str, Any]
HERE = Path(__file__).resolve().parents[2]
QUERIES = 200
STOCK_PHASES = ("build", "load", "query", "lim_build", "lim_load", "lim_query")
_SEMBLE = """
import sys, time, json, pathlib
from semble import SembleIndex
folder, queries = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text())
started = time.perf_counter(); index = SembleIndex.from_path(folder, include_text_files=True)
built = time.perf_counter() - started; took = []
for query in queries[:10] + queries:
    started = time.perf_counter(); index.search(query, top_k=20); took.append(time.perf_counter() - started)
print(json.dumps({"index_s": built, "p50_ms": 1e3 * sorted(took[10:])[len(queries) // 2]}))
"""


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=1_536)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--data", type=Path, help="folder with the question sets")
    parser.add_argument("--bench", type=Path, help="folder with stock_speed.py")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "contextual_speed")
    parser.add_argument("--indexes", nargs="*", default=["flat", "auto"], help="values of faiss_index")
    parser.add_argument("--only", nargs="*", default=["ours", "other", "stock", "semble"])
    parser.add_argument("--stock-phases", nargs="*", default=list(STOCK_PHASES))
    parser.add_argument("--semble-python", help="an interpreter with semble")
    arguments = parser.parse_args()
    files, questions = _sources(arguments.data)
    work: Path = arguments.work
    size = {"chunks": arguments.chunks, "dim": arguments.dim}
    corpus = ensure_corpus(work, files, questions, **size)
    kept = work / f"results_{arguments.chunks}_{arguments.dim}.json"
    results: Figures = json.loads(kept.read_text()) if kept.exists() else {}
    if "ours" in arguments.only:
        for index in arguments.indexes:
            root = work / f"ours_{corpus.name}_{index}"
            results[index] = {
                phase: _median([_child(phase, corpus, root, index) for _ in range(1 if once else arguments.reps)])
                for phase, once in (("build", True), ("first", False), ("warm", False), ("concurrent", True))
            }
    if "other" in arguments.only:
        results["other"] = {
            "long": _child("long", corpus, work / "ours_long", "flat"),
            "imports": _median([_imports() for _ in range(max(3, arguments.reps))]),
        }
    if "stock" in arguments.only:
        results["stock"] = {**results.get("stock", {}), **_stock(arguments, work)}
    if "semble" in arguments.only:
        results["semble"] = _semble(arguments.semble_python, corpus, work)
    kept.write_text(json.dumps(results))
    _show(arguments.chunks, results)


def _sources(data: Path | None) -> tuple[list[Path], list[str]]:
    if data is None:
        folder = HERE / "examples" / "data"
        rows = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
        files = [HERE / "README.md", *sorted(path for path in folder.iterdir() if path.suffix in (".md", ".txt"))]
    else:
        names = ("corpora", "conversations")
        files = [path for name in names for path in sorted((data / name / "documents").iterdir())]
        rows = [row for name in names for row in (data / name / "questions.jsonl").read_text("utf-8").splitlines()]
    questions = [json.loads(row)["question"] for row in rows]
    step = max(1, len(questions) // QUERIES)
    return files, list(dict.fromkeys(questions[::step]))[:QUERIES]


def _child(phase: str, corpus: Path, root: Path, index: str) -> Figures:
    spawned = time.clock_gettime(time.CLOCK_MONOTONIC)
    command = [sys.executable, "-m", speed_phases.__name__, phase, str(corpus), str(root), index, repr(spawned)]
    return _run(command)


def _imports() -> Figures:
    found = {}
    for name in ("llama_index.core", "llama_index_contextual"):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {name}"], check=True, cwd=HERE)
        found[name] = time.perf_counter() - started
    return found


def _run(command: list[str], **options: Any) -> Figures:
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, check=False, **options)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def _stock(arguments: argparse.Namespace, work: Path) -> Figures:
    script = None if arguments.bench is None else arguments.bench / "stock_speed.py"
    if script is None or not script.is_file():
        return {"skipped": "--bench names no folder with stock_speed.py"}
    out = work / f"stock_{arguments.chunks}_{arguments.dim}.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, str(script), "--only", ",".join(arguments.stock_phases), "--json", str(out)]
    command += ["--queries", str(len(_sources(arguments.data)[1])), "--work", str(work), "--wait", "5", "--tries", "1"]
    command += ["--chunks", str(arguments.chunks), "--dim", str(arguments.dim)]
    command += ["--reps", str(arguments.reps), "--build-reps", "1"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    return {phase: _median(runs["runs"]) for phase, runs in json.loads(out.read_text()).items()}


def _semble(python: str | None, corpus: Path, work: Path) -> Figures:
    if python is None:
        return {"skipped": "--semble-python names no interpreter with semble"}
    folder = work / f"files_{corpus.name}"
    folder.mkdir(exist_ok=True)
    with open(corpus / "chunks.jsonl", encoding="utf-8") as rows:
        documents: dict[str, list[str]] = {}
        for row in rows:
            chunk = json.loads(row)
            documents.setdefault(chunk["doc_id"], []).append(chunk["text"])
    for name, texts in documents.items():
        (folder / f"{name}.md").write_text("\n\n".join(texts), encoding="utf-8")
    theirs = _run([python, "-c", _SEMBLE, str(folder), str(corpus / "queries.json")])
    return {"theirs": theirs, "ours": _child("folder", corpus, folder, "auto")}


def _median(runs: list[Any]) -> Any:
    first = runs[0]
    if isinstance(first, dict):
        return {key: _median([run[key] for run in runs if key in run]) for key in first}
    return statistics.median(runs) if isinstance(first, int | float) else first


def _show(chunks: int, results: Figures) -> None:
    stock = results.get("stock", {})
    print(f"{chunks} chunks{'':24s}{'flat':>10s}{'auto':>10s}{'limit':>10s}{'stock':>10s}")
    rows = (
        ("build, s", "build.seconds", "lim_build.build_total+persist_total", "build.build_total+persist_total"),
        ("on disk, MB", "build.MB", "lim_build.bytes_total", "build.bytes_total"),
        ("open + first query, s", "first.seconds", "lim_load.total-import", "load.total-import"),
        ("peak memory after it, MB", "first.peak_MB", "lim_load.rss.VmHWM", "load.rss.VmHWM"),
        ("warm hybrid p50, ms", "warm.p50_ms", "lim_query.hybrid_numpy_omp1.p50_ms", "query.fusion.p50_ms"),
        ("  the limit with 2 threads", "", "lim_query.hybrid_numpy_omp2.p50_ms", ""),
        ("  the limit by NumPy", "", "lim_query.hybrid_numpy_matvec.p50_ms", ""),
        ("warm hybrid p95, ms", "warm.p95_ms", "lim_query.hybrid_numpy_omp1.p95_ms", "query.fusion.p95_ms"),
        ("semantic alone, ms", "warm.semantic_ms", "lim_query.faiss_omp1.p50_ms", "query.vector.p50_ms"),
        ("lexical alone, ms", "warm.lexical_ms", "lim_query.bm25s_numpy_with_tokenize.p50_ms", "query.bm25.p50_ms"),
        ("recall@20 against exact", "warm.recall20", "", ""),
        ("16 callers, queries/s", "concurrent.threads16", "lim_query.hybrid_numpy_omp1_threads16.qps",
         "query.fusion_threads16.qps"),
        ("  awaited", "concurrent.gather16", "", "query.fusion_gather16.qps"),
        ("retrieve_many, queries/s", "concurrent.many", "", ""),
    )  # fmt: skip
    for name, ours, limit, theirs in rows:
        cells = [_at(results.get(index, {}), ours) for index in ("flat", "auto")]
        cells += [_at(stock, limit), _at(stock, theirs)]
        print(f"{name:34s}" + "".join(f"{cell:>10s}" for cell in cells))
    for name in ("other", "semble"):
        print(f"{name}: {json.dumps(results.get(name))}")
    if "skipped" in stock:
        print(f"stock and limit skipped: {stock['skipped']}")


def _at(figures: Figures, path: str) -> str:
    """Return the figure at a dotted path; `a+b` adds two of one parent, `a-b` subtracts."""
    if not path:
        return ""
    *parents, names = path.split(".")
    for parent in parents:
        figures = figures.get(parent, {})
    first, sign, second = (*names.partition("+"),) if "+" in names else (*names.partition("-"),)
    if figures.get(first) is None:
        return ""
    value = figures[first] + (figures[second] if sign == "+" else -figures[second] if sign else 0)
    return f"{value / 1e6 if first == 'bytes_total' else value:.4g}"


if __name__ == "__main__":
    main()
