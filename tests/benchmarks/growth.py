"""Cost of a change by the size of a project: one file added, one document removed, many files added one by one.

    python -m tests.benchmarks.growth change --chunks 10000 50000 200000
    python -m tests.benchmarks.growth singles --files 1000
    python -m tests.benchmarks.growth filters --chunks 50000
    python -m tests.benchmarks.growth memory --chunks 50000
    python -m tests.benchmarks.growth deltas --chunks 10000
    python -m tests.benchmarks.growth auto --data DATA
    python -m tests.benchmarks.growth readers --minutes 10

Documents have ten chunks. The vectors are random unit vectors with 1,536 dimensions, so that no model is needed. Times
are those of the processor; bytes are those that the process has written and read, as Linux counts them. `auto` compares
compact indexes with exact ones on the question sets of a folder (see `sets.py`), and prints which one would be stored.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import random
import re
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_args

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.ingestion.builder import VersionBuilder
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage import files
from llama_index_contextual.storage.current import next_name
from llama_index_contextual.storage.manifest import DocumentRecord
from tests.benchmarks.sets import SETS

DIMENSIONS = 1_536
CHUNKS = 10  # of a document
WORDS = [
    f"{a}{b}{c}" for a in "bcdfgklmnprst" for b in ("a", "e", "io", "u", "ea") for c in ("ner", "ling", "tor", "x")
]
WEIGHTS = [1 / (rank + 3) for rank in range(len(WORDS))]
REPEATS = 15
SHARES = (1, 50, 99)  # percent of the documents that pass a filter


class RandomEmbedding(BaseEmbedding):
    """A random unit vector for each text, always the same one."""

    model_name: str = "random"

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which versions identify the model."""
        return "RandomEmbedding"

    def _get_text_embedding(self, text: str) -> list[float]:
        vector = np.random.default_rng(abs(hash(text)) % 2**32).standard_normal(DIMENSIONS, dtype=np.float32)
        return (vector / np.linalg.norm(vector)).tolist()  # type: ignore[no-any-return]

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def sentence(chance: random.Random) -> str:
    return f"{' '.join(chance.choices(WORDS, WEIGHTS, k=20)).capitalize()} {chance.randint(1, 10_000)}."


def file_text(number: int) -> str:
    """Return a text that is divided into ten chunks."""
    chance = random.Random(f"file {number}")
    return "\n\n".join(" ".join(sentence(chance) for _ in range(5)) for _ in range(CHUNKS))


class WordEmbedding(RandomEmbedding):
    """The sum of random vectors of the words of a text, so that texts that share words are similar."""

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which versions identify the model."""
        return "WordEmbedding"

    def _get_text_embedding(self, text: str) -> list[float]:
        vector = np.sum([word_vector(word) for word in text.lower().replace(".", "").split()], axis=0)
        return (vector / np.linalg.norm(vector)).tolist()  # type: ignore[no-any-return]

    _get_query_embedding = _get_text_embedding


@functools.lru_cache(maxsize=20_000)
def word_vector(word: str) -> NDArray[np.float32]:
    return np.random.default_rng(abs(hash(word)) % 2**32).standard_normal(DIMENSIONS, dtype=np.float32)


def create(root: Path, name: str, model: BaseEmbedding | None = None, **settings: Any) -> Project:
    config = ProjectConfig.local(
        embed_model="local", context="structural", chunk_size=300, chunk_overlap=0, keep_versions=2, **settings
    )
    return ProjectManager(root).create(name, config, embed_model=model or RandomEmbedding())


def fill(project: Project, chunks: int, facts: Callable[[int], dict[str, Any]] = lambda _: {}) -> None:
    """Publish a version with as many chunks, without the pipeline and its ledger.

    Args:
        project: The project.
        chunks: Number of chunks.
        facts: Returns additional metadata of a document, given its number.
    """
    builder = VersionBuilder(project.directory, project.config)
    normal = np.random.default_rng(1)
    for number in range(chunks // CHUNKS):
        chance = random.Random(number)
        doc_id = f"base/{number}.txt"
        source = RelatedNodeInfo(node_id=doc_id)
        nodes = [
            TextNode(
                id_=f"{number}-{at}",
                text=" ".join(sentence(chance) for _ in range(3)),
                start_char_idx=at * 1_000,
                end_char_idx=at * 1_000 + 500,
                metadata={"share": number % 100, "file_name": f"{number}.txt", "chunk_index": at, **facts(number)},
                relationships={NodeRelationship.SOURCE: source},
            )
            for at in range(CHUNKS)
        ]
        vectors = normal.standard_normal((CHUNKS, DIMENSIONS), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1)[:, None]
        record = DocumentRecord(
            doc_id=doc_id, content_hash=f"{number:032x}", origin=f"{number:064x}", chunks=CHUNKS, characters=10_000
        )
        builder.append(record, nodes, vectors, None)
    builder.publish(embed_model="RandomEmbedding:random")


def measured(run: Callable[[], object]) -> dict[str, float]:
    """Return processor seconds, wall seconds, and the bytes written and read by a call."""
    before, started, wall = traffic(), time.process_time(), time.perf_counter()
    run()
    after = traffic()
    return {
        "processor_s": round(time.process_time() - started, 4),
        "wall_s": round(time.perf_counter() - wall, 3),
        "written_MB": round((after[0] - before[0]) / 1e6, 3),
        "read_MB": round((after[1] - before[1]) / 1e6, 3),
    }


def traffic() -> tuple[int, int]:
    path = Path("/proc/self/io")
    counts = dict(line.split(": ") for line in path.read_text().splitlines()) if path.exists() else {}
    return int(counts.get("wchar", 0)), int(counts.get("rchar", 0))


def queries(number: int) -> Iterator[str]:
    chance = random.Random(5)
    return (" ".join(chance.choices(WORDS, k=6)) for _ in range(number))


def milliseconds(project: Project, **options: Any) -> float:
    """Return the median processor time of a warm query."""
    times = []
    for query in queries(REPEATS):
        project.retrieve(query, **options)  # embeds the query
        started = time.process_time()
        project.retrieve(query, **options)
        times.append((time.process_time() - started) * 1e3)
    return round(statistics.median(times), 2)


def first_query(project: Project) -> float:
    query = next(queries(1))
    started = time.process_time()
    project.retrieve(query)
    return round((time.process_time() - started) * 1e3, 2)


def change(root: Path, chunks: int, kind: str) -> dict[str, Any]:
    """Add files to a project of some size, and remove a document."""
    project = create(root, f"change-{chunks}-{kind}", faiss_index=kind)
    result: dict[str, Any] = {"chunks": chunks, "index": kind, "fill": measured(lambda: fill(project, chunks))}
    result["first_ever_query_ms"], result["warm_ms"] = first_query(project), milliseconds(project)
    added = []
    for number in range(3):
        path = root / f"file{number}.txt"
        path.write_text(file_text(number), encoding="utf-8")
        added.append(measured(lambda path=path: project.ingest([path])))  # type: ignore[misc]
        result.setdefault("first_query_after_ms", []).append(first_query(project))
    result["add"] = added
    result["warm_with_deltas_ms"] = milliseconds(project)
    result["remove"] = measured(lambda: project.remove("base/7.txt"))
    result["first_query_after_remove_ms"] = first_query(project)
    result["warm_after_remove_ms"] = milliseconds(project)
    return result


def singles(root: Path, number: int, kind: str) -> dict[str, Any]:
    """Add files one by one, and at once, and compare the searches of both."""
    folder = root / "files"
    folder.mkdir()
    for at in range(number):
        (folder / f"{at:04d}.txt").write_text(file_text(at), encoding="utf-8")
    paths = sorted(folder.iterdir())
    result: dict[str, Any] = {"files": number, "index": kind}
    one_by_one, at_once = (create(root, name, WordEmbedding(), faiss_index=kind) for name in ("one-by-one", "at-once"))
    result["at_once"] = measured(lambda: at_once.ingest(paths))

    def ingest_all() -> None:
        for path in paths:
            one_by_one.ingest([path])

    result["one_by_one"] = measured(ingest_all)
    result["ratio"] = round(result["one_by_one"]["processor_s"] / result["at_once"]["processor_s"], 2)
    for name, project in (("at_once", at_once), ("one_by_one", one_by_one)):
        result[name]["disk_MB"] = sum(p.stat().st_size for p in files.walk(project.directory / "parts")) / 1e6
        result[name]["parts"] = len(project._live.current().parts)
        result[name]["warm_ms"] = milliseconds(project)
    result["disk_ratio"] = round(result["one_by_one"]["disk_MB"] / result["at_once"]["disk_MB"], 2)
    result["same_node_ids"] = set(one_by_one._live.current().docstore.ids) == set(at_once._live.current().docstore.ids)
    result["searches"] = compared(one_by_one, at_once, [path.name for path in paths])
    return result


def compared(one: Project, other: Project, names: Sequence[str]) -> dict[str, Any]:
    """Compare the 20 best hits of two projects for 300 queries, in all modes, with and without a filter."""
    third = MetadataFilter(key="file_name", value=list(names[::3]), operator=FilterOperator.IN)
    result: dict[str, Any] = {}
    for mode in get_args(Mode):
        for label, passing in (("all", None), ("filtered", MetadataFilters(filters=[third]))):
            identical, overlaps, difference = 0, [], 0.0
            for query in queries(300):
                first, second = (
                    {hit.node_id: hit.score for hit in project.retrieve(query, mode=mode, top_k=20, filters=passing)}
                    for project in (one, other)
                )
                shared = first.keys() & second.keys()
                difference = max([difference, *(abs(first[node_id] - second[node_id]) for node_id in shared)])
                overlaps.append(len(shared) / max(1, len(second)))
                identical += list(first) == list(second)
            result[f"{mode}, {label}"] = {
                "same_order": identical,
                "overlap@20": round(statistics.fmean(overlaps), 5),
                "score_difference": float(f"{difference:.1e}"),
            }
    return result


def auto(data: Path, name: str, tokens: int) -> dict[str, Any]:
    """Compare a compact index with an exact one on the questions of a set, and estimate it as `auto` does."""
    import faiss
    from llama_index.core.node_parser import SentenceSplitter

    from llama_index_contextual.embeddings.batching import unit_vectors
    from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding
    from llama_index_contextual.storage import compact
    from llama_index_contextual.storage.scan import inner_products, top
    from tests.benchmarks import sets

    model, question_set = WordLlamaEmbedding(), sets.load(data, name)
    splitter = SentenceSplitter(chunk_size=tokens, chunk_overlap=0)
    texts = list(dict.fromkeys(part for given in question_set.inputs() for part in splitter.split_text(given.text)))
    vectors = unit_vectors(np.asarray(model.get_text_embedding_batch(texts), dtype=np.float32))
    asked = [model.get_query_embedding(question.text) for question in question_set.questions]
    queries = unit_vectors(np.asarray(asked, dtype=np.float32))
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    index = compact.compress(flat, "rabitq")
    exact = inner_products(flat.get_xb(), vectors.shape, queries)
    hits = [compact.search(index, query[None], compact.PROBED_K, None)[1] for query in queries]
    overlaps = [
        len(set(top(scores, compact.PROBED_K)[1]) & set(rows)) / compact.PROBED_K
        for scores, rows in zip(exact, hits, strict=True)
    ]
    estimate = compact.probed_recall(vectors, index, texts)
    return {
        "set": name,
        "vectors": len(vectors),
        "questions": len(queries),
        "similarity_of_best": round(float(np.median(exact.max(axis=1))), 2),
        "overlap@20": round(statistics.fmean(overlaps), 4),
        "estimate": round(estimate, 4),
        "chosen": "rabitq" if estimate >= compact.MIN_RECALL else "flat",
    }


def deltas(root: Path, chunks: int) -> dict[str, Any]:
    """Compare a warm query over one part with one over nine."""
    project = create(root, f"deltas-{chunks}", faiss_index="flat")
    fill(project, chunks)
    result: dict[str, Any] = {"chunks": chunks, "one_part_ms": milliseconds(project)}
    for number in range(8):
        path = root / f"delta{number}.txt"
        path.write_text(file_text(number), encoding="utf-8")
        project.ingest([path])
    result["parts"] = len(project._live.current().parts)
    result["nine_parts_ms"] = milliseconds(project)
    return result


def facts(number: int) -> dict[str, Any]:
    """Return metadata of a document for filters that pass 1, 50 or 99 % of the documents."""
    rank = number % 100
    filed = datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=number % 3))) + timedelta(days=rank, seconds=number)
    return {"tags": [f"below {share}" for share in SHARES if rank < share], "filed": filed.isoformat()}


def narrowed(kind: str, share: int, serial: int) -> MetadataFilters:
    """Return a filter that passes a share of the documents; it is another one for each serial number."""
    until = datetime(2023, 12, 31, 12, tzinfo=UTC) + timedelta(days=share, microseconds=serial)
    key, operator, value = {
        "number": ("share", FilterOperator.LT, share - 0.5 + serial / 1e6),
        "list": ("tags", FilterOperator.ANY, [f"below {share}", f"none {serial}"]),
        "date": ("filed", FilterOperator.LT, until.isoformat()),
    }[kind]
    return MetadataFilters(filters=[MetadataFilter(key=key, operator=operator, value=value)])


def filters(root: Path, chunks: int, kind: str) -> dict[str, Any]:
    """Compare queries with filters with unfiltered ones: filters that were asked before, and new ones for each query.

    Every query is measured with all filters in turn, so that a busy machine slows all of them.
    """
    project = create(root, f"filters-{chunks}-{kind}", faiss_index=kind)
    fill(project, chunks, facts)
    result: dict[str, Any] = {"chunks": chunks, "index": kind}
    serial = itertools.count(1)
    docstore = project._live.current().docstore
    for of in ("number", "list", "date", "number", "list", "date"):
        started = time.process_time()
        docstore.mask(narrowed(of, 50, next(serial)))
        result.setdefault(f"{of}_mask_ms", []).append(round((time.process_time() - started) * 1e3, 2))
    for mode in ("semantic", "lexical", "hybrid"):
        times: dict[str, list[float]] = {}
        for query in queries(REPEATS):
            project.retrieve(query, mode=mode)  # embeds the query
            for name in ("unfiltered", *(f"{of} {share}%" for of in ("number", "list", "date") for share in SHARES)):
                for is_new in (False,) if name == "unfiltered" else (False, True):
                    of, share = name.split()[0], int(name.split()[-1].rstrip("%")) if name != "unfiltered" else 0
                    chosen = narrowed(of, share, next(serial) if is_new else 0) if share else None
                    started = time.process_time()
                    project.retrieve(query, mode=mode, filters=chosen)
                    spent = (time.process_time() - started) * 1e3
                    times.setdefault(f"{name} new" if is_new else name, []).append(spent)
        base = statistics.median(times.pop("unfiltered"))
        ratios = {name: round(statistics.median(of_name) / base, 2) for name, of_name in times.items()}
        result[mode] = {"unfiltered_ms": round(base, 2), "largest_ratio": max(ratios.values()), **ratios}
    return result


def memory(root: Path, chunks: int) -> dict[str, Any]:
    """Measure the largest memory of a build; run it once for each size."""
    fill(create(root, f"memory-{chunks}", faiss_index="flat"), chunks)
    return {"chunks": chunks, "peak_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}


# ---- readers during changes ------------------------------------------------------------------------------------------

READERS = (4, 2)  # threads of each process
PAUSE = 0.05  # seconds between the queries of a thread
EDITION = re.compile(r"edition(\d+)of(\d+)x")
Live = dict[str, int]
"""Edition of each document of a version; 0 for those of `fill`."""


def edition_text(number: int, edition: int) -> str:
    """Return a text whose every sentence names its document and edition in one word."""
    chance = random.Random(f"{number} {edition}")
    mark = f"edition{edition}of{number}x edition"
    return "\n\n".join(" ".join(f"{mark} {sentence(chance)}" for _ in range(3)) for _ in range(CHUNKS))


def read(root: Path, name: str, threads: int, busy: Any, stop: Any, results: Any) -> None:
    """Ask in several threads until `stop` is set, and put the answers and the times into a queue."""
    project = ProjectManager(root).load(name, embed_model=RandomEmbedding())
    answers: set[tuple[str, frozenset[tuple[str, int]]]] = set()
    times: dict[str, list[float]] = {"idle": [], "busy": []}
    errors: Counter[str] = Counter()

    def ask(seed: int) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            words = chance.choices(WORDS, k=5) + ["edition"] * chance.randint(0, 1)
            mode = chance.choice(get_args(Mode))
            phase = "busy" if busy.is_set() else "idle"
            started = time.perf_counter()
            try:
                response = project.retrieve(" ".join(words), mode=mode)
            except Exception as error:  # noqa: BLE001 - all errors are counted
                errors[f"{type(error).__name__}: {error}"] += 1
                continue
            times[phase].append(time.perf_counter() - started)
            answers.add((response.version, frozenset(edition_of(hit) for hit in response)))
            stop.wait(PAUSE)

    project.retrieve("edition")
    workers = [threading.Thread(target=ask, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    results.put((answers, times, errors))


def edition_of(hit: Any) -> tuple[str, int]:
    """Return the document of a hit and its edition according to the text; -1 if it is the text of another document."""
    editions = {(int(number), int(edition)) for edition, number in EDITION.findall(hit.text)}
    if hit.source.doc_id.startswith("base/"):
        return hit.source.doc_id, -1 if editions else 0
    ((number, edition),) = editions if len(editions) == 1 else [(-1, -1)]
    return hit.source.doc_id, edition if hit.source.doc_id == f"{number}.txt" else -1


def change_until(end: float, project: Project, root: Path, live: Live, states: dict[str, Live]) -> Counter[str]:
    """Add, update and remove single documents, and record the documents of each version before it is published."""
    chance = random.Random(11)
    done: Counter[str] = Counter()
    while time.monotonic() < end:
        version = next_name(project.directory)
        own = [doc_id for doc_id in live if not doc_id.startswith("base/")]
        what = chance.choices(("add", "update", "remove"), (4, 3, 3))[0] if len(own) > 3 else "add"
        parts = len(project._live.current().parts)
        if what == "remove":
            doc_id = chance.choice(list(live) if chance.random() < 0.3 else own)
            live = {other: edition for other, edition in live.items() if other != doc_id}
            states[version] = live
            project.remove(doc_id)
        else:
            doc_id = f"{done['add'] + 1}.txt" if what == "add" else chance.choice(own)
            live = {**live, doc_id: live.get(doc_id, 0) + 1}
            states[version] = live
            path = root / doc_id
            path.write_text(edition_text(int(path.stem), live[doc_id]), encoding="utf-8")
            project.ingest([path])
        done[what] += 1
        done["merge"] += what != "remove" and len(project._live.current().parts) < parts
    return done


def readers(root: Path, chunks: int, minutes: float) -> dict[str, Any]:
    """Read in two processes, first without changes, then during changes by this one."""
    project = create(root, "readers", faiss_index="flat")
    fill(project, chunks)
    live = {record.doc_id: 0 for record in project.documents()}
    states = {project.info().version or "": live}
    context = multiprocessing.get_context("spawn")
    busy, stop, results = context.Event(), context.Event(), context.Queue()
    processes = [
        context.Process(target=read, args=(root, project.name, threads, busy, stop, results)) for threads in READERS
    ]
    load = [os.getloadavg()[0]]
    for process in processes:
        process.start()
    time.sleep(max(20.0, minutes * 12))  # a fifth of the time
    load.append(os.getloadavg()[0])
    busy.set()
    try:
        done = change_until(time.monotonic() + minutes * 60, project, root, live, states)
    finally:
        stop.set()
    load.append(os.getloadavg()[0])
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
    answers = set().union(*(answers for answers, _, _ in found))
    mixed = [one for one in answers if not one[1] <= states[one[0]].items()]
    times = {phase: sorted(one for _, times, _ in found for one in times[phase]) for phase in ("idle", "busy")}
    p50, p99 = ({phase: 1e3 * times[phase][int(len(times[phase]) * share)] for phase in times} for share in (0.5, 0.99))
    return {
        "chunks": chunks,
        "minutes": minutes,
        "changes": dict(done),
        "answers": {phase: len(times[phase]) for phase in times},
        "versions_read": len({version for version, _ in answers}),
        "different_answers": len(answers),
        "of_which_with_a_changed_document": sum(any(edition > 0 for _, edition in hits) for _, hits in answers),
        "errors": dict(sum((errors for _, _, errors in found), Counter())),
        "mixed": len(mixed),
        "p50_ms": {phase: round(p50[phase], 1) for phase in p50},
        "p99_ms": {phase: round(p99[phase], 1) for phase in p99},
        "p99_ratio": round(p99["busy"] / p99["idle"], 2),
        "load_average": [round(one, 1) for one in load],
    }


def main() -> None:
    """Run a measurement and print its results as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["change", "singles", "deltas", "filters", "memory", "readers", "auto"])
    parser.add_argument("--chunks", type=int, nargs="+", default=[10_000])
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--data", type=Path, help="folder of the question sets")
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 256], help="size of the texts to embed")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--index", choices=["flat", "rabitq", "auto"], default="flat")
    options = parser.parse_args()
    if options.what == "auto":
        for name, tokens in itertools.product(SETS, options.tokens):
            sys.stdout.write(json.dumps(auto(options.data, name, tokens)) + "\n")
            sys.stdout.flush()
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if options.what == "singles":
            sys.stdout.write(json.dumps(singles(root, options.files, options.index)) + "\n")
            return
        for chunks in options.chunks:
            result = {
                "change": lambda chunks=chunks: change(root, chunks, options.index),
                "deltas": lambda chunks=chunks: deltas(root, chunks),
                "filters": lambda chunks=chunks: filters(root, chunks, options.index),
                "memory": lambda chunks=chunks: memory(root, chunks),
                "readers": lambda chunks=chunks: readers(root, chunks, options.minutes),
            }[options.what]()
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
