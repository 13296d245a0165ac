"""How fast documents become chunks: `python -m tests.benchmarks.documents --data ../shared/data`.

Prints megabytes (UTF-8) a second of segment + chunk on the Markdown corpora, beside bare tiktoken, LlamaIndex's
SentenceSplitter and, where it is installed, the Rust semantic-text-splitter, in one run, alternating, best of each;
then a single file of 14 MB, the peak memory of reading 200 MB of text, and how many segments stay the same when 60
words are inserted at the head of each file. PDF: `python -m tests.benchmarks.pdf`.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document

from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.node_parser.tokenizer import get_tokenizer

_PEAK = """
import sys
from llama_index_contextual import read_documents

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

before = peak()
assert len(read_documents([sys.argv[1]])) == 1
print(before, peak())
"""


def contenders() -> dict[str, Callable[[str], object]]:
    """Return what is compared, by name."""
    segment, chunk, stock = SegmentNodeParser(), ChunkNodeParser(), SentenceSplitter(chunk_size=800, chunk_overlap=80)
    found: dict[str, Callable[[str], object]] = {
        "segment + chunk": lambda text: chunk(segment([Document(text=text)])),
        "bare tiktoken": lambda text: get_tokenizer().encode_ordinary(text),
        "SentenceSplitter": lambda text: stock([Document(text=text)]),
    }
    if importlib.util.find_spec("semantic_text_splitter") is not None:
        from semantic_text_splitter import TextSplitter  # type: ignore[import-not-found]

        rust = TextSplitter.from_tiktoken_model("gpt-4o", 800, overlap=80)
        found["semantic-text-splitter"] = rust.chunks
    return found


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time of one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    texts = [p.read_text(encoding="utf-8") for p in sorted((arguments.data / "corpora" / "documents").iterdir())]
    size = sum(len(text.encode()) for text in texts) / 1e6
    best: dict[str, float] = {}
    for _ in range(arguments.rounds):
        for name, work in contenders().items():
            spent = sum(seconds(lambda work=work, text=text: work(text)) for text in texts)  # type: ignore[misc]
            best[name] = min(spent, best.get(name, spent))
    print(f"{size:.2f} MB of Markdown, best of {arguments.rounds} rounds, processor time")
    for name, spent in best.items():
        print(f"  {name:24s} {size / spent:6.2f} MB/s  {spent / best['segment + chunk']:6.2f} × the time of ours")
    large = "".join(texts) * 10
    spent = seconds(lambda: contenders()["segment + chunk"](large))
    print(f"one file of {len(large.encode()) / 1e6:.1f} MB: {spent:.1f} s")
    _peak()
    _resynchronisation(texts)


def _peak() -> None:
    if not Path("/proc/self/status").exists():
        print("peak memory: only measured on Linux")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.txt"
        paragraph = "The supplier shall deliver the goods within thirty days of the order.\n\n"
        path.write_text(paragraph * (200_000_000 // len(paragraph)), encoding="utf-8")
        done = subprocess.run([sys.executable, "-c", _PEAK, str(path)], capture_output=True, text=True, check=True)
        before, after = map(int, done.stdout.split())
        grown = (after - before) * 1024 / path.stat().st_size
        print(f"reading {path.stat().st_size / 1e6:.0f} MB of text: peak memory {grown:.2f} × its size above the start")


def _resynchronisation(texts: list[str]) -> None:
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
