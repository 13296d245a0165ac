"""Memory and repetition of the context engine; run by `python -m tests.benchmarks.context_engine`."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, LLMMetadata
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_completion_callback

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.ingestion.builder import VersionBuilder
from llama_index_contextual.ingestion.report import IngestProgress
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.benchmarks import context_corpus as corpus
from tests.benchmarks.context_corpus import AMPLE, verdict
from tests.support.provider_process import ProviderProcess
from tests.support.source import ROOT

SMALL = {"segment_size": 1_000, "segment_overlap": 100, "chunk_size": 100, "chunk_overlap": 10}
TOKENS_PER_CHUNK = 82
CHUNKS_PER_FILE = 100


class SteadyLLM(CustomLLM):
    """Answers every call with the same context, and remembers none of them."""

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex asks a model about itself."""
        return LLMMetadata(model_name="steady", is_chat_model=True)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Return the context."""
        return CompletionResponse(text="This passage is part of the report on pumps. " * 10)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        """Refuse."""
        raise NotImplementedError

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Return the context."""
        return ChatResponse(message=ChatMessage(role="assistant", content=self.complete("").text))


def memory(folder: Path, *, sizes: Sequence[int]) -> None:
    """Compare the peak memory of `ingest` at two sizes, each in a process of its own."""
    print(f"\n(f) peak memory of ingest, {sizes[0]:,} and {sizes[1]:,} chunks")
    for mode in ("without", "with"):
        peaks = []
        for size in sizes:
            command = [
                sys.executable,
                "-m",
                "tests.benchmarks.context_sizes",
                str(folder / f"{mode}{size}"),
                str(size),
                mode,
            ]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            kilobytes, chunks = map(int, done.stdout.split())
            peaks.append(kilobytes / 1024)
            print(f"    {mode} index building: {chunks:,} chunks, {peaks[-1]:.0f} MB")
        ratio = peaks[1] / peaks[0]
        print(
            f"    {mode} index building: {ratio:.2f} ×"
            + (f", goal ≤ 1.2: {verdict(ratio <= 1.2)}" if mode == "without" else "")
        )


def measure(folder: Path, size: int, mode: Literal["with", "without"]) -> None:
    """Ingest so many chunks, and print the peak memory in kilobytes when the version is about to be published."""
    files = corpus.write(
        folder / "files",
        [corpus.long_document(n, CHUNKS_PER_FILE * TOKENS_PER_CHUNK) for n in range(size // CHUNKS_PER_FILE)],
    )
    if mode == "without":
        VersionBuilder.__post_init__ = _without_indexes(VersionBuilder.__post_init__)  # type: ignore[method-assign]
    config = ProjectConfig.local(context="llm", faiss=False, **SMALL)
    project = ProjectManager(folder / "projects").create("memory", config, llm=SteadyLLM())
    peak: list[int] = []

    def note(state: IngestProgress) -> None:
        if state.stage == "publish":
            peak.append(_high_water())

    report = project.ingest([files], progress=note)
    print((peak if mode == "without" else [_high_water()])[0], report.chunks)


def _without_indexes(make: Any) -> Any:
    def made(builder: Any) -> None:
        make(builder)
        builder._lexical = builder._documents = None

    return made


def _high_water() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def again(folder: Path, *, data: Path | None) -> None:
    """Ingest unchanged files a second time, and files with 60 words more at their head."""
    print("\n(g) a second ingest, and one after 60 words were inserted at the head of each file")
    with ProviderProcess(context_tokens=100, **AMPLE) as provider:
        pdfs = corpus.write(folder / "pdf", [corpus.long_document(n, 9_000) for n in range(4)])
        if data is not None:
            pdfs = data / "contracts" / "pdf"
        project = corpus.project(folder, "unchanged", provider.api_base, llm_concurrency=16)
        report = project.ingest([pdfs])
        before = provider.totals()["calls"]
        project.ingest([pdfs])
        sent = provider.totals()["calls"] - before
        print(
            f"    {len(report.added)} files, {report.chunks:,} chunks, {before:,} calls; second ingest: {sent} calls:"
            f" {verdict(sent == 0)}"
        )
        _edited(folder, data, provider)


def _edited(folder: Path, data: Path | None, provider: ProviderProcess) -> None:
    files = folder / "files"
    if data is None:
        corpus.write(files, [corpus.long_document(100 + n, 60_000) for n in range(2)])
    else:
        shutil.copytree(data / "corpora" / "documents", files)
    project: Project = corpus.project(folder, "edited", provider.api_base, llm_concurrency=16)
    project.ingest([files])
    words = " ".join(f"{random.Random(n).choice(('new', 'word', 'more'))}{n}" for n in range(60))
    for path in sorted(files.iterdir()):
        path.write_text(f"{words}\n\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    before = provider.totals()["calls"]
    report = project.ingest([files])
    paid = provider.totals()["calls"] - before
    share = 1 - paid / report.chunks
    print(
        f"    60 words more at the head of {len(report.updated)} files: {paid} calls for {report.chunks:,} chunks;"
        f" {share:.1%} from the ledger, goal ≥ 75 %: {verdict(share >= 0.75)}"
    )


if __name__ == "__main__":
    measure(Path(sys.argv[1]), int(sys.argv[2]), "without" if sys.argv[3] == "without" else "with")
