"""The context engine against its goals: `python -m tests.benchmarks.context_engine [--only schedule,price,...]`.

A provider on the loopback interface, in a process of its own, counts what is sent; every count is also made from its
log alone (`tests.support.log_check`). Parts: schedule, price, estimate, failures, kills, memory, again. With
`--data ../shared/data`, the last uses the PDFs and the Markdown corpora of that folder.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from llama_index.core.extractors import DocumentContextExtractor
from llama_index.core.schema import BaseNode, Document
from llama_index.core.storage.docstore import SimpleDocumentStore

from llama_index_contextual.contextualizer import LLMContextualizer
from llama_index_contextual.contextualizer.cost import rounds
from llama_index_contextual.contextualizer.prompts import ChunksPerCall
from llama_index_contextual.models import preload
from llama_index_contextual.node_parser import count_tokens
from llama_index_contextual.storage.ledger import Ledger
from tests.benchmarks import context_corpus as corpus
from tests.benchmarks.context_corpus import AMPLE, CHUNKS, SEGMENTS, dollars, timed, verdict
from tests.benchmarks.context_disturbed import failures, kills
from tests.benchmarks.context_sizes import again, memory
from tests.support.log_check import cacheable, check
from tests.support.provider_process import ProviderProcess

LATENCY, CONCURRENCY = 0.3, 16
PER_CALL: tuple[ChunksPerCall, ...] = (1, 4, "all")


def ours(nodes: Sequence[BaseNode], provider: ProviderProcess, ledger: Path, per_call: ChunksPerCall = 1) -> None:
    """Write the contexts of chunks."""
    contextualizer = LLMContextualizer(
        llm=corpus.llm(provider.api_base),
        num_workers=CONCURRENCY,
        chunks_per_call=per_call,
        ledger=Ledger(ledger),
    )
    done = contextualizer.contextualize(nodes)
    if done.failures:
        raise RuntimeError(f"{len(done.failures)} contexts failed: {done.failures[0]}")


def extractor(documents: Sequence[Document], nodes: Sequence[BaseNode], provider: ProviderProcess) -> None:
    """Write the contexts of chunks with LlamaIndex's own extractor, as it is found."""
    docstore = SimpleDocumentStore()
    docstore.add_documents(documents)
    result = DocumentContextExtractor(
        docstore=docstore,
        llm=corpus.llm(provider.api_base),
        max_context_length=1_000_000,
        max_output_tokens=256,
        num_workers=CONCURRENCY,
        show_progress=False,
    )
    rows = asyncio.run(result.aextract(list(nodes)))
    if not all(row.get("context") for row in rows):
        raise RuntimeError("the extractor left chunks without a context")


def schedule(folder: Path, *, segments: int) -> None:
    """Wall clock beside the ideal schedule, and tokens from the cache beside what its rules allow."""
    documents = corpus.documents(segments)
    nodes = [node for document in documents for node in corpus.parse(document)]
    ideal = rounds([CHUNKS] * segments, CONCURRENCY) * LATENCY
    print(f"\n(a) {segments} segments × {CHUNKS} chunks, latency {LATENCY} s, concurrency {CONCURRENCY}")
    print(f"    ideal schedule that respects warm-up: {ideal:.2f} s")
    with ProviderProcess(latency=LATENCY, **AMPLE) as provider:
        # Imports are no part of a schedule; only who comes first would pay for them.
        preload(corpus.llm(provider.api_base))
        runs: list[tuple[str, Callable[[], None]]] = [
            ("ours", partial(ours, nodes, provider, folder / "schedule.sqlite")),
            ("DocumentContextExtractor", partial(extractor, documents, nodes, provider)),
        ]
        for name, work in runs:
            provider.reset()
            before = time.process_time()
            wall, _ = timed(work)
            processor = time.process_time() - before
            log = provider.write_log(folder / "schedule.jsonl")
            counted, allowed = check(log), cacheable(log)
            agree = _agree(counted, provider.totals())
            share = counted["cached_tokens"] / allowed
            print(
                f"    {name:<25} wall {wall:6.2f} s = {wall / ideal:.3f} × ideal (processor {processor:.1f} s);"
                f" cached {share:7.2%} of allowed"
                f" ({counted['cached_tokens']:,} of {allowed:,}); in flight at most {counted['in_flight_max']}; {agree}"
            )
            if name == "ours":
                print(f"      goals ≤ 1.15: {verdict(wall <= 1.15 * ideal)}; ≥ 97 %: {verdict(share >= 0.97)}")


def price(folder: Path, *, segments: int) -> None:
    """Dollars per million document tokens, by the server's own count."""
    documents = corpus.documents(segments)
    nodes = [node for document in documents for node in corpus.parse(document)]
    million = sum(count_tokens(document.text) for document in documents) / 1e6
    print("\n(b) dollars per million document tokens, gpt-4.1 list prices, contexts of 100 tokens, the server's count")
    print(
        f"    {'':<25}{'calls':>6}{'input':>12}{'cached':>12}{'output':>9}{'live':>9}{'batch, fresh':>14}{'cached':>9}"
    )
    paid: dict[str, float] = {}
    with ProviderProcess(context_tokens=100, latency=LATENCY, **AMPLE) as provider:
        runs: list[tuple[str, Callable[[], None]]] = [
            ("extractor as found", partial(extractor, documents, nodes, provider)),
            *(
                (f"chunks_per_call {n}", partial(ours, nodes, provider, folder / f"price-{n}", n))
                for n in (1, 4, "all")
            ),  # type: ignore[arg-type]
        ]
        for name, work in runs:
            provider.reset()
            work()
            log = provider.write_log(folder / "price.jsonl")
            counted, allowed = check(log), cacheable(log)
            live, batch = dollars(counted) / million, dollars(counted, cached=0) / 2 / million
            paid |= {name: live, f"{name} batch": batch, f"{name} least": dollars(counted, cached=allowed) / million}
            print(
                f"    {name:<25}{counted['paid_calls']:>6}{counted['prompt_tokens']:>12,}"
                f"{counted['cached_tokens']:>12,}{counted['completion_tokens']:>9,}"
                f"{live:>9.2f}{batch:>14.2f}{live / 2:>9.2f}"
                f"  {_agree(counted, provider.totals())}"
            )
    one, whole = paid["chunks_per_call 1"], paid["chunks_per_call all"]
    least, batch = one / paid["chunks_per_call 1 least"], paid["chunks_per_call all batch"]
    print(f"    1 / the minimum of its prompts: {least:.3f}, goal ≤ 1.05: {verdict(least <= 1.05)}")
    print(f"    all / 1: {whole / one:.3f}, goal ≤ 0.33: {verdict(whole / one <= 0.33)}")
    print(f"    all + batch: ${batch:.2f}, goal ≤ $1.90: {verdict(batch <= 1.9)}")


def estimate(folder: Path) -> None:
    """Estimate beside receipt beside log, on documents of several segments."""
    files = corpus.write(folder / "estimate", [corpus.long_document(number, 20_000) for number in range(3)])
    print("\n(c) estimate against receipt, 3 documents of 20,000 tokens")
    with ProviderProcess(context_tokens=100, **AMPLE) as provider:
        for per_call in PER_CALL:
            provider.reset()
            project = corpus.project(folder, f"estimate {per_call}", provider.api_base, chunks_per_call=per_call)
            expected = project.estimate([files]).chosen
            report = project.ingest([files])
            counted = check(provider.write_log(folder / "estimate.jsonl"))
            if expected is None or report.paid is None:
                raise RuntimeError("there was nothing to estimate")
            paid = report.paid.contexts
            same = (paid.input_tokens, paid.cached_tokens) == (counted["prompt_tokens"], counted["cached_tokens"])
            inputs = expected.input_tokens / paid.input_tokens - 1
            cached = expected.cached_tokens / paid.cached_tokens - 1 if paid.cached_tokens else float("nan")
            cached = 0.0 if expected.cached_tokens == paid.cached_tokens else cached
            good = expected.calls == paid.calls and abs(inputs) <= 0.03 and abs(cached) <= 0.03
            print(
                f"    chunks_per_call {per_call!s:<4} calls {expected.calls} / {paid.calls}; input {inputs:+.3%};"
                f" cached {cached:+.3%} of {paid.cached_tokens:,}; dollars {expected.dollars:.4f} /"
                f" {report.paid.dollars:.4f}; receipt = log: {same}; goal: {verdict(good)}"
            )


def _agree(counted: dict[str, int], totals: dict[str, int]) -> str:
    names = ("calls", "paid_calls", "prompt_tokens", "completion_tokens", "cached_tokens", "in_flight_max")
    same = all(counted[name] == totals[name] for name in names) and not counted["mismatches"]
    return "both counts agree" if same else "THE COUNTS DIFFER"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="parts, separated by commas")
    parser.add_argument("--data", type=Path, help="folder with contracts/pdf and corpora/documents")
    parser.add_argument("--segments", type=int, default=SEGMENTS, help="of 11 chunks each")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs=2, default=(2_000, 20_000), help="chunks of the memory part")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    parts: dict[str, Callable[[Path], None]] = {
        "schedule": partial(schedule, segments=arguments.segments),
        "price": partial(price, segments=arguments.segments),
        "estimate": estimate,
        "failures": partial(failures, seed=arguments.seed, segments=arguments.segments),
        "kills": partial(kills, number=arguments.kills, seed=arguments.seed),
        "memory": partial(memory, sizes=arguments.sizes),
        "again": partial(again, data=arguments.data),
    }
    for name in arguments.only.split(",") if arguments.only else parts:
        with tempfile.TemporaryDirectory() as folder:
            parts[name](Path(folder))


if __name__ == "__main__":
    main()
