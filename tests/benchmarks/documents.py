"""Speed of segments and chunks: `python -m tests.benchmarks.documents --data DATA`.

Prints the megabytes of UTF-8 per second for the node parsers of the package, tiktoken alone and LlamaIndex's
SentenceSplitter on the Markdown corpora. They take turns file by file in one run, and the best of several rounds is
shown. Then the time for a file of 14 MB compared with one of 1.4 MB, the peak memory for 200 MB of text, and the number
of segments that stay the same if 60 words are inserted at the beginning of each file. Times are CPU times. For PDFs,
see `python -m tests.benchmarks.pdf`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import BaseNode, Document

from llama_index_contextual._utils.tokens import get_tokenizer
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser

OURS = "segment + chunk"

_PEAK = """
import sys
from llama_index_contextual import ChunkNodeParser, SegmentNodeParser, read_documents
from llama_index_contextual.node_parser import count_tokens
from tests.benchmarks.memory import peak_memory

count_tokens("the tokenizer is loaded before")
print(peak_memory())
documents = read_documents([sys.argv[1]])
assert len(documents) == 1
print(peak_memory())
chunks = ChunkNodeParser()(SegmentNodeParser()(list(documents)))
print(peak_memory(), len(chunks))
"""


def parse(text: str) -> list[BaseNode]:
    """Return the chunks of a text by way of segments."""
    return ChunkNodeParser()(SegmentNodeParser()([Document(text=text)]))


def contenders() -> dict[str, Callable[[str], object]]:
    """Return what is compared, by name: all with o200k_base, chunks of 800 tokens and 80 of overlap."""
    stock = SentenceSplitter(chunk_size=800, chunk_overlap=80)
    return {
        OURS: parse,
        "bare tiktoken": lambda text: get_tokenizer().encode_ordinary(text),
        "SentenceSplitter": lambda text: stock([Document(text=text)]),
    }


def seconds(work: Callable[[str], object], text: str) -> float:
    """Return the processor time of one call."""
    started = time.process_time()
    work(text)
    return time.process_time() - started


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    texts = [p.read_text(encoding="utf-8") for p in sorted((arguments.data / "corpora" / "documents").iterdir())]
    _speed(texts, arguments.rounds)
    _linearity("".join(texts))
    _peak()
    _resynchronisation(texts)


def _speed(texts: Sequence[str], rounds: int) -> None:
    compared = contenders()
    for work in compared.values():
        work(texts[0][:10_000])  # What is loaded at first use is no part of the figures.
    best = dict.fromkeys(compared, float("inf"))
    for _ in range(rounds):
        spent = dict.fromkeys(compared, 0.0)
        for text in texts:
            for name, work in compared.items():
                spent[name] += seconds(work, text)
        best = {name: min(best[name], spent[name]) for name in best}
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{size:.2f} MB of Markdown, best of {rounds} rounds, processor time")
    for name, used in best.items():
        print(f"  {name:24s} {size / used:6.2f} MB/s  {used / best[OURS]:6.2f} × the time of ours")


def _linearity(text: str) -> None:
    short = min(seconds(parse, text) for _ in range(3))
    long = seconds(parse, text * 10)
    size = len(text.encode()) / 1e6
    print(f"one file of {10 * size:.1f} MB: {long:.1f} s, {long / short:.1f} × one of {size:.1f} MB ({short:.2f} s)")


def _peak() -> None:
    if not Path("/proc/self/status").exists():
        print("peak memory: only measured on Linux")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.txt"
        paragraph = "The supplier shall deliver the goods within thirty days of the order.\n\n"
        path.write_text(paragraph * (200_000_000 // len(paragraph)), encoding="utf-8")
        done = subprocess.run([sys.executable, "-c", _PEAK, str(path)], capture_output=True, text=True, check=True)
        *peaks, count = done.stdout.split()
        before, read, parsed = map(float, peaks)
        size = path.stat().st_size
    reading, parsing = ((peak - before) * 2**20 / size for peak in (read, parsed))
    print(
        f"{size / 1e6:.0f} MB of text: peak memory {reading:.2f} × its size above the start when read, "
        f"{parsing:.2f} × with all of its {count} chunks"
    )


def _resynchronisation(texts: Sequence[str]) -> None:
    same = total = 0
    head = " ".join(f"inserted{number}" for number in range(60)) + "\n\n"
    for text in texts:
        before = {node.get_content() for node in SegmentNodeParser()([Document(text=text)])}
        after = [node.get_content() for node in SegmentNodeParser()([Document(text=head + text)])]
        same += sum(segment in before for segment in after)
        total += len(after)
    print(
        f"60 words inserted at the head of each file: {same} of {total} segments unchanged ({100 * same / total:.0f} %)"
    )


if __name__ == "__main__":
    main()
