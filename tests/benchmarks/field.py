"""This package, LlamaIndex's own components and haiku.rag on one embedding: `python -m tests.benchmarks.field`.

Give it at least one question set: `--data DATA` (the set `codebase` of the shared folder), `--cookbook FOLDER` (the
folder `data` of Anthropic's cookbook for contextual embeddings) or `--mtrag FOLDER` (a checkout of MTRAG). Every system
indexes the same ready chunks, in a process of its own, and gets its vectors from one server on the loopback interface:
WordLlama, or with `--embedding FOLDER` a sentence-transformers model. haiku.rag is run by the Python of `--haiku`, a
virtual environment in which `haiku.rag-slim` is installed; with its own embedding, it is measured only if Ollama has
that model. Without a reranker in any system.

The columns: recall and nDCG in per cent; seconds of ingestion, embedding included; MB on disk; the median of the
queries, one after another, embedding included; and the peak memory of the process that did both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_contextual.models import load_embed_model
from tests.benchmarks import field_systems
from tests.benchmarks.quality import mean
from tests.benchmarks.sets import Question, QuestionSet, load
from tests.benchmarks.transformer import transformer
from tests.benchmarks.upstream import DOMAINS, cookbook, mtrag
from tests.support.source import ROOT

MEASURES = ("R@1", "R@5", "R@20", "nDCG@10")
HEAD = f"{'system':34s}" + "".join(f"{name:>9s}" for name in (*MEASURES, "ingest s", "disk MB", "p50 ms", "peak MB"))
OLLAMA = os.environ.get("OLLAMA_BASE_URL", "http://localhost:11434")
HAIKU_MODEL = "qwen3-embedding:4b"
HAIKU = "haiku.rag, this embedding"
HAIKU_DEFAULTS = f"haiku.rag, {HAIKU_MODEL}"

Encode = Callable[[list[str]], list[list[float]]]
Figures = dict[str, Any]


@dataclass(frozen=True)
class System:
    """A row of the table.

    Attributes:
        name: Its label.
        command: Program that measures it; the task file and a folder for its data are appended.
        problem: Why it cannot be measured, or "".
    """

    name: str
    command: Sequence[str]
    problem: str = ""


def main() -> None:
    """Print a table for each question set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cookbook", type=Path)
    parser.add_argument("--mtrag", type=Path)
    parser.add_argument("--domain", choices=DOMAINS, default="govt")
    parser.add_argument("--embedding", type=Path, help="folder of a sentence-transformers model; default: WordLlama")
    parser.add_argument("--haiku", type=Path, help="Python with haiku.rag-slim")
    arguments = parser.parse_args()
    sets = list(question_sets(arguments))
    if not sets:
        parser.error("give at least one of --data, --cookbook and --mtrag")
    model = load_embed_model("local") if arguments.embedding is None else transformer(arguments.embedding, None)
    with served(model) as url:
        for questions in sets:
            print(
                f"\n{questions.name}: {len(questions.chunks)} chunks, {len(questions.questions)} questions", flush=True
            )
            print(HEAD)
            for system in systems(arguments.haiku):
                figures = None if system.problem else measure(system, questions, url)
                print(row(system, questions.questions, figures), flush=True)


def question_sets(arguments: argparse.Namespace) -> Iterator[QuestionSet]:
    """Yield the sets of the command line, the smallest first."""
    if arguments.data:
        yield load(arguments.data, "codebase")
    if arguments.cookbook:
        yield cookbook(arguments.cookbook)
    if arguments.mtrag:
        yield mtrag(arguments.mtrag, arguments.domain)


def systems(haiku: Path | None) -> list[System]:
    """Return the rows of the table."""
    ours = [sys.executable, "-m", field_systems.__name__]
    theirs = [str(haiku), str(ROOT / "tests" / "benchmarks" / "field_haiku.py")]
    missing = "" if haiku else "not measured: give --haiku PYTHON"
    return [
        System("LlamaIndex's own components", [*ours, "llama-index"]),
        System("this package, no context", [*ours, "none"]),
        System("this package, structural context", [*ours, "structural"]),
        System(HAIKU, theirs, missing),
        System(HAIKU_DEFAULTS, [*theirs, "--defaults"], missing or ollama_problem(OLLAMA)),
    ]


def ollama_problem(url: str) -> str:
    """Return why Ollama cannot embed with the default model of haiku.rag, or ""."""
    try:
        models = httpx.get(f"{url}/api/tags", timeout=5).json()["models"]
    except (httpx.HTTPError, ValueError, KeyError):
        models = []
    return "" if any(model["name"] == HAIKU_MODEL for model in models) else "models not present"


def measure(system: System, questions: QuestionSet, url: str) -> Figures:
    """Run one system in its own process.

    Returns:
        Its version, ids of hits, seconds, milliseconds of each query, MB of memory and of disk.
    """
    with tempfile.TemporaryDirectory() as folder:
        task, data = Path(folder, "task.json"), Path(folder, "data")
        data.mkdir()
        texts = [question.text for question in questions.questions]
        dimensions = len(embed(url, ["length"])[0])
        task.write_text(
            json.dumps({"url": url, "dimensions": dimensions, "chunks": questions.chunks, "questions": texts})
        )
        quiet = {
            "HF_HUB_OFFLINE": "1",
            "LOGFIRE_SEND_TO_LOGFIRE": "false",
            "LOGFIRE_IGNORE_NO_CONFIG": "1",
            "OPENAI_API_KEY": "none",
        }
        done = subprocess.run(
            [*system.command, str(task), str(data)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | quiet,
            check=True,
        )
        disk = sum(file.stat().st_size for file in data.rglob("*") if file.is_file())
        figures: Figures = json.loads(done.stdout.splitlines()[-1])
        return figures | {"disk_mb": disk / 1e6}


def row(system: System, questions: Sequence[Question], figures: Figures | None) -> str:
    """Return a line of the table."""
    if figures is None:
        return f"{system.name:34s}  {system.problem}"
    ranks = [
        [hits.index(item["id"]) + 1 if item["id"] in hits else None for item in question.evidence]
        for question, hits in zip(questions, figures["hits"], strict=True)
    ]
    cells = [
        *(mean(measure, ranks) for measure in MEASURES),
        figures["ingest_s"],
        figures["disk_mb"],
        statistics.median(figures["query_ms"]),
        figures["peak_mb"],
    ]
    return f"{system.name:34s}" + "".join(f"{cell:9.1f}" for cell in cells) + f"  {figures['version']}"


# ---- embedding server ------------------------------------------------------------------------------------------------


@contextmanager
def served(model: BaseEmbedding) -> Iterator[str]:
    """Serve a model on the loopback interface as OpenAI's API does, and yield the base URL."""
    model.get_text_embedding("The first call loads the weights.")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(model.get_text_embedding_batch))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def handler(encode: Encode) -> type[BaseHTTPRequestHandler]:
    """Return the handler of the path `/embeddings`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            texts = [request["input"]] if isinstance(request["input"], str) else request["input"]
            data = [
                {"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(encode(texts))
            ]
            usage = {"prompt_tokens": 0, "total_tokens": 0}
            body = json.dumps({"object": "list", "data": data, "model": request["model"], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    return Handler


def embed(url: str, texts: list[str]) -> list[list[float]]:
    """Return the vectors of the server."""
    response = httpx.post(f"{url}/embeddings", json={"model": "any", "input": texts}, timeout=60).raise_for_status()
    return [item["embedding"] for item in response.json()["data"]]


if __name__ == "__main__":
    main()
