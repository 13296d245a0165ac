"""The tables of the speed benchmark: what was measured, and each figure beside what it must be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Figures = dict[str, Any]

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
    ("recall@20 against exact", "warm.recall20", "", ""),
    ("16 callers, queries/s", "concurrent.threads16", "lim_query.hybrid_numpy_omp1_threads16.qps",
     "query.fusion_threads16.qps"),
    ("  awaited", "concurrent.gather16", "", "query.fusion_gather16.qps"),
    ("retrieve_many, queries/s", "concurrent.many", "", ""),
)  # fmt: skip


def show(chunks: int, results: Figures) -> None:
    """Print both tables."""
    stock = results.get("stock", {})
    print(f"{chunks} chunks{'':24s}{'flat':>10s}{'auto':>10s}{'limit':>10s}{'stock':>10s}")
    for name, ours, limit, theirs in _ROWS:
        cells = [at(results.get(index, {}), ours) for index in ("flat", "auto")] + [at(stock, limit), at(stock, theirs)]
        print(f"{name:34s}" + "".join(f"{'' if cell is None else format(cell, '10.4g'):>10s}" for cell in cells))
    print(f"\n{'what must hold':60s}{'measured':>10s}{'goal':>10s}")
    for name, measured, sign, goal in _goals(chunks, results):
        verdict = "" if (measured <= goal if sign == "<=" else measured >= goal) else "  missed"
        print(f"{name:60s}{measured:10.4g}{sign + format(goal, 'g'):>10s}{verdict}")
    if "skipped" in stock:
        print(f"stock skipped: {stock['skipped']}")


def at(figures: Figures, path: str) -> float | None:
    """Return the figure at a dotted path, `a+b+c` at its end adds those of one parent; None where it is not there."""
    *parents, names = path.split(".")
    for parent in parents:
        figures = figures.get(parent) or {}
    values = [figures.get(name) for name in names.split("+")]
    if not path or any(value is None for value in values):
        return None
    return sum(value / 1e6 if names == "bytes_total" else value for value in values if value is not None)


def _goals(chunks: int, results: Figures) -> Iterator[tuple[str, float, str, float]]:
    """Yield (what, measured, sign, goal) of everything that was measured."""

    def ratio(what: str, one: str, other: str, sign: str, goal: float) -> Iterator[tuple[str, float, str, float]]:
        first, second = at(results, one), at(results, other)
        if first is not None and second:
            yield what, first / second, sign, goal

    def single(what: str, one: str, sign: str, goal: float) -> Iterator[tuple[str, float, str, float]]:
        if (found := at(results, one)) is not None:
            yield what, found, sign, goal

    warm = {10_000: 1.0, 50_000: 0.35, 100_000: 0.15}.get(chunks, 1.0)
    for threads in (1, 2):
        name = f"warm hybrid p50 / limit with {threads} thread{'s' * (threads > 1)}"
        yield from ratio(name, "auto.warm.p50_ms", f"stock.lim_query.hybrid_numpy_omp{threads}.p50_ms", "<=", warm)
    yield from single("recall@20 here", "auto.warm.recall20", ">=", 0.99)
    yield from single("recall@20 of RaBitQ on real vectors", "other.real.recall20", ">=", 0.99)
    opened, bare = at(results, "auto.first.seconds"), at(results, f"stock.{_ROWS[2][2]}")
    if opened is not None and bare is not None:
        yield "open + first query above the limit, s", opened - bare, "<=", 0.15
    yield from ratio("memory after the first query / stock", "auto.first.peak_MB", "stock.load.rss.VmHWM", "<=", 0.4)
    yield from ratio(
        "build / limit with the same tokeniser, flat", "flat.build.seconds", "other.limit.seconds", "<=", 1.2
    )
    for index, goal in (("flat", 1.15), ("auto", 0.7)):
        yield from ratio(f"bytes / limit, {index}", f"{index}.build.MB", "stock.lim_build.bytes_total", "<=", goal)
    for ours, theirs in (("threads16", "fusion_threads16"), ("gather16", "fusion_gather16")):
        name = f"16 concurrent callers / stock, {ours}"
        yield from ratio(name, f"auto.concurrent.{ours}", f"stock.query.{theirs}.qps", ">=", 5.0)
    yield from ratio("one document: 8,000 chunks / 2,000", "other.long.8000_s", "other.long.2000_s", "<=", 4.4)
    imports = "other.imports"
    yield from ratio(
        "import / llama_index.core", f"{imports}.llama_index_contextual", f"{imports}.llama_index_core", "<=", 1.15
    )
