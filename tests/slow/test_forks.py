"""A process that is forked while other threads use a project searches with locks and connections of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document

pytest.importorskip("wordllama")
if not hasattr(os, "fork"):
    pytest.skip("this system does not fork", allow_module_level=True)

from llama_index_contextual._utils import locks
from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.locks import Lock
from llama_index_contextual.answering.query_engine import AnswerCache, WrittenAnswer
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index.kvstore import Database
from llama_index_contextual.index.sources import SourceFile
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers.files import content_hash
from llama_index_contextual.search.live import SearchableVersion
from llama_index_contextual.ui.pages import PageRenderer
from tests.support.pdf_files import lines, pdf_of

GUARD = 120  # seconds after which a child that hangs is killed
FORKS = 12
QUESTION = "Which pump runs dry after an agrement?"
_PARTS = ("pump", "valve", "sensor", "filter", "heater", "motor", "agreement")


def build(root: Path, name: str) -> Project:
    """Return a project whose every search uses both indexes."""
    config = ProjectConfig.local(context="none", chunk_size=60, chunk_overlap=5)
    project = ProjectManager(root).create(name, config)
    texts = [f"Error {at}: the {_PARTS[at % 7]} runs dry near the {_PARTS[at % 5]}. " * 6 for at in range(20)]
    project.ingest([Document(id_=f"{at}", text=text) for at, text in enumerate(texts)])
    return project


def answer(project: Project) -> list[str]:
    """Return the ids of the passages that answer the question."""
    return [chunk.node_id for chunk in project.retrieve(QUESTION, top_k=5)]


def reply_of_child(ask: Callable[[], list[str]]) -> object:
    """Fork, let the child ask, and return its reply, its traceback, or None if it was killed because it hung."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: libraries have threads
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(GUARD)
        try:
            reply = json.dumps(ask())
        except BaseException:  # noqa: BLE001 - a test runner must not go on in the child
            reply = json.dumps(traceback.format_exc())
        os.write(writing, reply.encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        message = pipe.read()
    os.waitpid(child, 0)
    return json.loads(message) if message else None


@contextmanager
def in_another_thread(*managers: Any) -> Iterator[None]:
    """Enter context managers in another thread, and leave them at the end of the block."""
    entered, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for manager in managers:
                stack.enter_context(manager)
            entered.set()
            ended.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no fork wait for a lock."""
    monkeypatch.setattr(locks, "_PATIENCE", 0.0)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that no test changes."""
    return build(tmp_path_factory.mktemp("root"), "p")


def test_a_forked_child_searches_as_its_parent_does(tmp_path: Path) -> None:
    searched = build(tmp_path, "p")
    expected = answer(searched)
    assert reply_of_child(partial(answer, searched)) == expected
    assert answer(searched) == expected


def test_a_child_searches_in_threads_and_event_loops_of_its_own(project: Project) -> None:
    expected = answer(project)

    def in_threads() -> list[str]:
        with ThreadPoolExecutor(4) as threads:
            results = list(threads.map(lambda _: answer(project), range(8)))
        (same,) = {tuple(ids) for ids in results}
        return list(same)

    def in_a_loop() -> list[str]:
        response = asyncio.run(project.aretrieve(QUESTION, top_k=5))
        return [chunk.node_id for chunk in response]

    for ask in (in_threads, in_a_loop):
        assert reply_of_child(ask) == expected


def test_a_child_does_not_use_the_connection_of_its_parent(project: Project) -> None:
    answer(project)
    store = project.state.live.current().parts[0].docstore._kv
    before = id(store._connection)
    assert reply_of_child(lambda: [str(id(store._connection) != before)]) == ["True"]
    assert id(store._connection) == before
    assert answer(project)


def test_a_child_has_its_own_copy_of_data_in_memory() -> None:
    store = Database()
    store.put("a", {"b": 1}, "data")

    def in_child() -> list[str]:
        store.put("c", {"d": 2}, "data")
        return [str(store.get(key, "data")) for key in "ac"]

    assert reply_of_child(in_child) == ["{'b': 1}", "{'d': 2}"]
    assert store.get("c", "data") is None


def test_a_cache_of_answers_can_be_used_in_the_child(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "answers.sqlite")
    cache.put("a", WrittenAnswer("Yes.", "Yes."), version=None)
    kept = str(cache.get("a"))
    assert reply_of_child(lambda: [str(cache.get("a"))]) == [kept]


# ---- while other threads use the project -----------------------------------------------------------------------------


def test_a_child_searches_although_the_other_threads_of_its_parent_were_searching(project: Project) -> None:
    visible = project.only({"document_id": {"in": [f"{at}" for at in range(9)]}})
    expected, expected_visible = answer(project), answer(visible)
    assert expected != expected_visible
    stopped = threading.Event()

    def search(searched: Project) -> None:
        while not stopped.is_set():
            answer(searched)
            searched.state.live.versions._forget()  # so that the next search opens the version again

    def in_child() -> list[str]:
        return [*answer(project), *answer(visible), *answer(project)]

    threads = [threading.Thread(target=search, args=(one,)) for one in (project, project, project, visible)]
    for thread in threads:
        thread.start()
    try:
        replies = [reply_of_child(in_child) for _ in range(FORKS)]
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert replies == [[*expected, *expected_visible, *expected]] * FORKS


@pytest.mark.usefixtures("impatient")
def test_a_child_searches_although_another_thread_held_every_lock(project: Project) -> None:
    visible = project.only({"document_id": {"in": ["1", "2"]}})
    expected = [*answer(project), *answer(visible)]
    with in_another_thread(*locks._all_locks()):
        assert reply_of_child(lambda: [*answer(project), *answer(visible)]) == expected
    assert [*answer(project), *answer(visible)] == expected


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="cached properties have no lock")
def test_a_child_uses_the_properties_that_another_thread_was_computing(project: Project) -> None:
    properties = [value for value in vars(SearchableVersion).values() if isinstance(value, cached_property)]
    with in_another_thread(*(value.lock for value in properties)):
        reply = reply_of_child(lambda: sorted(project.state.live.current().metadata_values))
    assert reply == sorted(project.state.live.current().metadata_values)


@pytest.mark.usefixtures("impatient")
def test_a_lock_that_another_thread_held_is_free_in_the_child_without_the_data_that_may_be_incomplete() -> None:
    held, free = LRUCache[str, int](3), LRUCache[str, int](3)
    for cache in (held, free):
        cache.put("a", 1)
    with in_another_thread(held._lock):
        reply = reply_of_child(lambda: [str(cache.get("a")) for cache in (held, free)])
    assert reply == ["None", "1"]
    assert held.get("a") == 1


def test_a_lock_of_the_thread_that_forks_is_still_held_in_the_child() -> None:
    lock = Lock()

    def in_child() -> list[str]:
        with lock:
            states = [str(is_free(lock))]
        return [*states, str(is_free(lock))]

    with lock:
        assert reply_of_child(in_child) == ["False", "False"]
    assert is_free(lock)


def is_free(lock: Lock) -> bool:
    """Return whether another thread could acquire a lock."""

    def attempt() -> bool:
        acquired = lock._lock.acquire(blocking=False)
        if acquired:
            lock._lock.release()
        return acquired

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(attempt).result()


def test_a_fork_waits_for_a_statement_of_another_thread() -> None:
    forking, is_done = threading.Event(), list[str]()
    os.register_at_fork(before=forking.set)  # runs before the function that waits, which was registered earlier
    lock = Lock(delays_fork=True)

    def work() -> None:
        with lock:
            entered.set()
            forking.wait()
            is_done.append("done")

    entered = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    assert reply_of_child(lambda: [*is_done, str(is_free(lock))]) == ["done", "True"]
    assert is_free(lock)
    thread.join()


def test_locks_that_are_no_longer_used_are_forgotten() -> None:
    before = len(locks._locks), len(locks._calls)
    for _ in range(20):
        LRUCache[str, int](1)
    assert (len(locks._locks), len(locks._calls)) == before


def test_a_child_draws_pages_in_processes_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "pump.pdf"
    path.write_bytes(pdf_of([lines(["The pump runs dry."])] * 3).data())
    file = SourceFile(path, content_hash(path))
    with closing(PageRenderer(processes=1)) as renderer:
        first = renderer.image(file, 1)
        worker = renderer._idle.get()  # as if a thread of the parent were drawing a page

        def in_child() -> list[str]:
            with closing(renderer):
                return [str(renderer.image(file, number) == first) for number in (1, 2)]

        assert reply_of_child(in_child) == ["True", "True"]
        renderer._idle.put(worker)
        assert worker._process is not None
        assert worker._process.poll() is None
        assert renderer.image(file, 3) == first
