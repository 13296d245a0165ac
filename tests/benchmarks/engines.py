"""The backend `qdrant` compared with files: rankings, filters, versions, and what a changed file costs.

    python -m tests.benchmarks.engines overlap --data ../shared/data
    python -m tests.benchmarks.engines recall --data ../shared/data
    python -m tests.benchmarks.engines filters
    python -m tests.benchmarks.engines versions
    python -m tests.benchmarks.engines kills
    python -m tests.benchmarks.engines change

The engine is Qdrant Edge, Qdrant's own engine in this process, or the server at `--url`. The embedding is WordLlama.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from llama_index.core.schema import Document, TextNode

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage import files, remote
from llama_index_contextual.storage.collection import View
from llama_index_contextual.storage.engine import open_engine, read_collection
from llama_index_contextual.storage.qdrant import QdrantEngine
from tests.benchmarks.sets import load
from tests.integration.storage.edge import EdgeClient, edge_engine
from tests.support.filter_oracle import draw_filters, draw_metadata

QUESTIONS = 250
TOP_K = 20
WORDS = "pump valve lease court tariff engine filter copper harbour freight boiler sensor alarm".split()  # noqa: SIM905


@contextlib.contextmanager
def places(url: str | None, threshold: int | None = None) -> Iterator[tuple[ProjectManager, str, EdgeClient | None]]:
    """Yield a root for projects, the address of an engine, and the client of Edge."""
    with tempfile.TemporaryDirectory() as folder:
        manager = ProjectManager(Path(folder) / "root")
        if url is not None:
            yield manager, url, None
            for name in manager.list():
                manager.delete(name)
            return
        with edge_engine(Path(folder) / "edge", threshold) as (address, client):
            yield manager, address, client


def both(manager: ProjectManager, url: str, **settings: Any) -> tuple[Project, Project]:
    config = ProjectConfig.local(**settings)
    on_files = manager.create("files", config)
    return on_files, manager.create("engine", config.changed(backend="qdrant", backend_url=url))


def ids(project: Project, question: str, **options: Any) -> list[str]:
    return [hit.node_id for hit in project.retrieve(question, top_k=TOP_K, **options)]


# ---- rankings --------------------------------------------------------------------------------------------------------


def corpus(data: Path) -> tuple[list[Document], list[Document], list[str]]:
    """Return short documents, longer ones with four times as many chunks, and questions about both."""
    conversations, corpora = load(data, "conversations"), load(data, "corpora")
    questions = [one.text for one in (*conversations.questions, *corpora.questions)]
    random.Random(0).shuffle(questions)
    short = sorted(conversations.documents, key=lambda document: len(document.text))
    first = short[: len(short) // 2]
    return first, [*short[len(short) // 2 :], *corpora.documents], questions[:QUESTIONS]


def compare(one: Project, other: Project, questions: Sequence[str]) -> dict[str, Any]:
    """Return the mean overlap of the first 20 results, and the processor time of a question on both."""
    result: dict[str, Any] = {}
    for fusion in ("rrf", "score"):
        for project in (one, other):
            project.update_config(fusion=fusion)
        shares, same, times = [], 0, [0.0, 0.0]
        for question in questions:
            lists = []
            for number, project in enumerate((one, other)):
                started = time.process_time()
                lists.append(ids(project, question))
                times[number] += time.process_time() - started
            shares.append(len(set(lists[0]) & set(lists[1])) / max(1, *map(len, lists)))
            same += lists[0] == lists[1]
        result[fusion] = {
            "overlap@20": round(100 * float(np.mean(shares)), 3),
            "worst": round(100 * min(shares), 1),
            "same order": round(100 * same / len(questions), 1),
            "ms files": round(1_000 * times[0] / len(questions), 2),
            "ms engine": round(1_000 * times[1] / len(questions), 2),
        }
    return result


def overlap(url: str | None, data: Path) -> dict[str, Any]:
    first, more, questions = corpus(data)
    result: dict[str, Any] = {"questions": len(questions)}
    with places(url) as (manager, address, _):
        projects = both(manager, address, chunk_size=64, chunk_overlap=8, context="structural")
        for name, documents in (("at first", first), ("fourfold", more), ("rebuilt", None)):
            started = time.process_time()
            reports = [
                project.rebuild() if documents is None else project.ingest(documents)
                for project in (projects if documents is not None else projects[1:])
            ]
            index = projects[1].live_version.lexical.lexical_index
            result[name] = {
                "chunks": reports[-1].chunks,
                "mean length": round(index.mean_length, 1),  # type: ignore[attr-defined]
                "drift": round(index.drift, 4),  # type: ignore[attr-defined]
                "build s": round(time.process_time() - started, 1),
                **compare(*projects, questions),
            }
            print(name, json.dumps(result[name]), file=sys.stderr, flush=True)
    return result


def recall(url: str | None, data: Path) -> dict[str, Any]:
    """Measure the approximate search with the probed ef against the exact one, and at Qdrant's default."""
    first, more, questions = corpus(data)
    with mock.patch.object(remote, "EXACT_CHUNKS", 1_000), places(url, threshold=100) as (manager, address, _):
        config = ProjectConfig.local(
            chunk_size=64, chunk_overlap=8, context="structural", bm25=False, backend="qdrant", backend_url=address
        )
        project = manager.create("engine", config)
        report = project.ingest([*first, *more])
        collection = read_collection(project.directory)
        assert collection is not None
        version = project.live_version
        store: Any = version.storage_context.vector_store
        vectors = [np.asarray(project.embed_model.get_query_embedding(one), dtype=np.float32) for one in questions]
        number = int(version.name[1:])
        exact = [set(store._rank_view(one, TOP_K, View(number)).rows.tolist()) for one in vectors]
        result: dict[str, Any] = {"chunks": report.chunks, "probed ef": collection.ef}
        for ef in sorted({32, *remote.EF, collection.ef or 0} - {0}):
            found = [set(store._rank_view(one, TOP_K, View(number, ef=ef)).rows.tolist()) for one in vectors]
            shares = [len(best & hits) / len(best) for best, hits in zip(exact, found, strict=True)]
            result[f"recall@20 at ef {ef}"] = round(float(np.mean(shares)), 4)
    return result


# ---- filters ---------------------------------------------------------------------------------------------------------


def filters(url: str | None, number: int) -> dict[str, Any]:
    """Compare the results of drawn filters with those of files."""
    chance = random.Random(0)
    documents = [
        TextNode(id_=f"n{at}", text=" ".join(chance.choices(WORDS, k=12)), metadata=draw_metadata(chance))
        for at in range(200)
    ]
    same = refused = passing = 0
    with places(url) as (manager, address, _):
        projects = both(manager, address)
        for project in projects:
            project.ingest(documents)
        for _ in range(number):
            drawn = draw_filters(chance)
            answers: list[Any] = []
            mode = chance.choice(["semantic", "lexical", "hybrid"])
            for project in projects:
                try:
                    hits = project.retrieve("pump valve court", mode=mode, filters=drawn, top_k=300)
                    answers.append({hit.node_id for hit in hits})
                except InputError as error:
                    answers.append(str(error))
            refused += isinstance(answers[0], str)
            passing += bool(answers[0]) and not isinstance(answers[0], str)
            same += answers[0] == answers[1]
    return {"filters": number, "same": same, "with results": passing, "refused by both": refused}


# ---- versions --------------------------------------------------------------------------------------------------------


def marked(mark: int, number: int = 30) -> list[Document]:
    chance = random.Random(mark)
    return [
        Document(text=f"mark{mark} report {at} " + " ".join(chance.choices(WORDS, k=60)), id_=f"d{at}")
        for at in range(number)
    ]


def marks(project: Project, question: str) -> set[str]:
    return {word for hit in project.retrieve(question) for word in hit.text.split() if word.startswith("mark")}


def versions(url: str | None, queries: int) -> dict[str, Any]:
    """Answer questions during 20 publishes and rollbacks; each answer must be of one version."""
    mixed, answered, seen = 0, 0, set[str | None]()
    with places(url) as (manager, address, _):
        config = ProjectConfig.local(backend="qdrant", backend_url=address, keep_versions=3)
        project = manager.create("engine", config)
        project.ingest(marked(0))
        reader, stopped = manager.load("engine"), threading.Event()

        def read() -> None:
            nonlocal mixed, answered
            while answered < queries or not stopped.is_set():
                response = reader.retrieve(" ".join(random.choices(WORDS, k=2)))
                found = {word for hit in response for word in hit.text.split() if word.startswith("mark")}
                mixed += len(found) != 1
                answered += 1
                seen.add(response.version)

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for mark in range(1, 15):
            project.ingest(marked(mark))
            if mark % 2:
                project.rollback()
        stopped.set()
        for thread in threads:
            thread.join()
    return {
        "answers": answered,
        "publishes and rollbacks": 21,
        "of several versions": mixed,
        "versions seen": len(seen),
    }


class Killed(BaseException):
    """The process ends here."""


def kills(url: str | None) -> dict[str, Any]:
    """End an ingest before and after every write to the engine or the project, and go on with the next one."""
    steps = wrong = left = at = 0
    with places(url) as (manager, address, _):
        config = ProjectConfig.local(backend="qdrant", backend_url=address, keep_versions=2)
        manager.create("engine", config).ingest(marked(0))
        mark, reached = 0, True
        while reached:
            mark += 1
            reached = _killed(manager, mark, at)
            steps += reached
            project = manager.load("engine")
            wrong += marks(project, "report") not in ({f"mark{mark - 1}"}, {f"mark{mark}"})
            project.ingest(marked(mark))
            wrong += marks(project, "report") != {f"mark{mark}"}
            left += len(project.verify().problems) + open_engine(project.directory).leftovers(10**6)
            at += 1
    return {"steps": steps, "wrong answers": wrong, "left after the next run": left}


def _killed(manager: ProjectManager, mark: int, at: int) -> bool:
    """Ingest, end at a step, and return whether it was reached."""
    calls = [0]

    def step(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if calls[0] >= 2 * at + 1:
                raise Killed
            calls[0] += 1
            result = real(*arguments, **options)
            calls[0] += 1
            if calls[0] >= 2 * at + 2:
                raise Killed
            return result

        return call

    with contextlib.ExitStack() as stack:
        for name in ("write", "end", "drop_after", "drop_before"):
            stack.enter_context(mock.patch.object(QdrantEngine, name, step(getattr(QdrantEngine, name))))
        for name in ("write", "rename", "sync"):
            stack.enter_context(mock.patch.object(files.System, name, step(getattr(files.System, name))))
        try:
            manager.load("engine").ingest(marked(mark))
        except Killed:
            return True
    return False


def change(url: str | None) -> dict[str, Any]:
    """Change one of a thousand documents."""
    with places(url) as (manager, address, client):
        config = ProjectConfig.local(backend="qdrant", backend_url=address, chunk_size=64, chunk_overlap=8)
        project = manager.create("engine", config)
        documents = marked(0, 1_000)
        report = project.ingest(documents)
        before = {path: path.stat().st_mtime_ns for path in files.walk(project.directory)}
        written = 0 if client is None else client.written
        started = time.process_time()
        project.ingest([Document(text=documents[7].text.replace("pump", "engine"), id_="d7")])
        seconds = time.process_time() - started
        new = [path for path in files.walk(project.directory) if before.get(path) != path.stat().st_mtime_ns]
        total = sum(path.stat().st_size for path in before if path.exists())
        return {
            "chunks": report.chunks,
            "chunks of the document": len(project.chunks("d7")),
            "points written": None if client is None else client.written - written,
            "bytes of new files": sum(path.stat().st_size for path in new if "ledger" not in path.name),
            "bytes of the project": total,
            "s": round(seconds, 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["overlap", "recall", "filters", "versions", "kills", "change"])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--url", help="address of a Qdrant server; Edge without it")
    parser.add_argument("--filters", type=int, default=500)
    parser.add_argument("--queries", type=int, default=1_000)
    options = parser.parse_args()
    if options.command in ("overlap", "recall") and not options.data.is_dir():
        parser.error(f"{options.data} does not exist: name the folder with --data")
    run = {
        "overlap": lambda: overlap(options.url, options.data),
        "recall": lambda: recall(options.url, options.data),
        "filters": lambda: filters(options.url, options.filters),
        "versions": lambda: versions(options.url, options.queries),
        "kills": lambda: kills(options.url),
        "change": lambda: change(options.url),
    }[options.command]
    print(json.dumps(run(), indent=1))


if __name__ == "__main__":
    main()
