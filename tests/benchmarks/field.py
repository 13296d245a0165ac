"""This package, LlamaIndex's own components and haiku.rag on the same passages: `python -m tests.benchmarks.field`.

Give it at least one question set, as a folder of its unchanged upstream files (see `upstream`): `--cookbook`, `--xquad`
(for each of `--languages`) and `--tatqa`. Every system indexes the same ready passages, in a process of its own, and
gets its vectors from one server on the loopback interface: WordLlama, with `--embedding FOLDER` a sentence-transformers
model, or with `--embedding URL` the model of an OpenAI-compatible server that is already running. haiku.rag is measured
with `--haiku`, the Python of a virtual environment in which `haiku.rag-slim` is installed. No system uses a reranker.

The columns: recall and nDCG in per cent; seconds of ingestion, embedding included; MB on disk; the median of the
queries in milliseconds, one after another, embedding included; and the peak memory in MB of the process that did both.
Then prints the differences in nDCG@10 between the last system and the others, with 95 % bootstrap intervals.
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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_contextual.models import load_embed_model
from tests.benchmarks import field_systems
from tests.benchmarks.quality import Ranks, differences, mean
from tests.benchmarks.sets import Question, QuestionSet
from tests.benchmarks.upstream import cookbook, tatqa, xquad
from tests.support.source import ROOT

MEASURES = ("R@1", "R@5", "R@20", "nDCG@10")
COLUMNS = (*MEASURES, "ingest s", "disk MB", "p50 ms", "peak MB", "version")
OURS = "this package, structural context"

Encode = Callable[[list[str]], list[list[float]]]
Figures = dict[str, Any]


def main() -> None:
    """Print a table for each question set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cookbook", type=Path, help="folder with codebase_chunks.json and evaluation_set.jsonl")
    parser.add_argument("--xquad", type=Path, help="folder with xquad.LANGUAGE.json")
    parser.add_argument("--languages", nargs="+", choices=field_systems.LANGUAGES, default=["de", "ar"])
    parser.add_argument(
        "--tatqa", type=Path, help="folder with tatqa_dataset_dev.json and tatqa_dataset_test_gold.json"
    )
    parser.add_argument("--embedding", help="folder of a sentence-transformers model, or URL; default: WordLlama")
    parser.add_argument("--haiku", type=Path, help="Python with haiku.rag-slim")
    arguments = parser.parse_args()
    sets = list(question_sets(arguments))
    if not sets:
        parser.error("give at least one of --cookbook, --xquad and --tatqa")
    with embedding_server(arguments.embedding) as url:
        for questions, language in sets:
            print(f"\n{questions.name}: {len(questions.chunks)} passages, {len(questions.questions)} questions\n")
            print(f"| | {' | '.join(COLUMNS)} |", f"|{'---|' * (len(COLUMNS) + 1)}", sep="\n", flush=True)
            ranks: dict[str, Ranks] = {}
            for name, command in systems(arguments.haiku).items():
                figures = measure(command, questions, language, url)
                ranks[name] = ranks_of(questions.questions, figures)
                print(row(name, ranks[name], figures), flush=True)
            ours = ranks.pop(OURS)
            for name, theirs in ranks.items():
                print(f"{OURS} − {name}: {differences(ours, theirs, ['nDCG@10'])}", flush=True)


def question_sets(arguments: argparse.Namespace) -> Iterator[tuple[QuestionSet, str]]:
    """Yield the sets of the command line and their languages."""
    if arguments.cookbook:
        yield cookbook(arguments.cookbook), "en"
    if arguments.tatqa:
        yield tatqa(arguments.tatqa), "en"
    if arguments.xquad:
        for language in arguments.languages:
            yield xquad(arguments.xquad, language), language


def systems(haiku: Path | None) -> dict[str, list[str]]:
    """Return the rows of the table: for each name the program, to which a task file and a data folder are appended."""
    here = [sys.executable, "-m", field_systems.__name__]
    theirs = [str(haiku), str(ROOT / "tests" / "benchmarks" / "field_haiku.py")]
    return {
        "BM25 alone": [*here, "bm25"],
        "LlamaIndex's own components": [*here, "llama-index"],
        **({"haiku.rag": theirs} if haiku else {}),
        "this package, no context": [*here, "none"],
        OURS: [*here, "structural"],
    }


def measure(command: Sequence[str], questions: QuestionSet, language: str, url: str) -> Figures:
    """Run one system in its own process.

    Returns:
        Its version, ids of hits, seconds, milliseconds of each query, MB of memory and of disk.
    """
    with tempfile.TemporaryDirectory() as folder:
        task, data = Path(folder, "task.json"), Path(folder, "data")
        data.mkdir()
        task.write_text(
            json.dumps(
                {
                    "url": url,
                    "dimensions": len(embed(url, ["length"])[0]),
                    "language": language,
                    "chunks": questions.chunks,
                    "questions": [question.text for question in questions.questions],
                }
            )
        )
        quiet = {
            "HF_HUB_OFFLINE": "1",
            "LOGFIRE_SEND_TO_LOGFIRE": "false",
            "LOGFIRE_IGNORE_NO_CONFIG": "1",
            "OPENAI_API_KEY": "none",
        }
        done = subprocess.run(
            [*command, str(task), str(data)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | quiet,
            check=True,
        )
        disk = sum(file.stat().st_size for file in data.rglob("*") if file.is_file())
        figures: Figures = json.loads(done.stdout.splitlines()[-1])
        return figures | {"disk_mb": disk / 1e6}


def ranks_of(questions: Sequence[Question], figures: Figures) -> Ranks:
    """Return the ranks of the evidence of each question."""
    return [
        [hits.index(item["id"]) + 1 if item["id"] in hits else None for item in question.evidence]
        for question, hits in zip(questions, figures["hits"], strict=True)
    ]


def row(name: str, ranks: Ranks, figures: Figures) -> str:
    """Return a line of the table."""
    cells = [
        *(mean(measure, ranks) for measure in MEASURES),
        figures["ingest_s"],
        figures["disk_mb"],
        statistics.median(figures["query_ms"]),
    ]
    shown = [*(f"{cell:.1f}" for cell in cells), f"{figures['peak_mb']:.0f}", figures["version"]]
    return f"| {name} | {' | '.join(shown)} |"


# ---- embedding server ------------------------------------------------------------------------------------------------


@contextmanager
def embedding_server(embedding: str | None) -> Iterator[str]:
    """Yield the base URL of the server of an embedding: a URL, the folder of a model, or None for WordLlama."""
    if embedding and embedding.startswith(("http://", "https://")):
        yield embedding
        return
    with served(load_embed_model(f"huggingface:{embedding}" if embedding else "local")) as url:
        yield url


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
