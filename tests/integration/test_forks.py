"""A process forked while other threads search can search, or raises an error at once."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.forks import answer, build, fork_once, run

pytest.importorskip("wordllama")
if not hasattr(os, "fork"):
    pytest.skip("this system does not fork", allow_module_level=True)

from llama_index_contextual._utils import forks
from llama_index_contextual.answering.query_engine import AnswerCache, WrittenAnswer
from llama_index_contextual.index.kvstore import Database
from llama_index_contextual.project.project import Project

SECONDS = 300.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fork wait for threads for as long as they take."""
    monkeypatch.setattr(forks, "WAIT", SECONDS)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that no test changes."""
    return build(tmp_path_factory.mktemp("root"), "p", documents=20)


@contextmanager
def held(*locks: Any) -> Iterator[None]:
    """Let another thread hold locks meanwhile."""
    used, done = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            used.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    used.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def asked(project: Project, ask: Callable[[], list[str]] | None = None) -> tuple[str, str]:
    """Return what became of a child that asks as its parent does."""
    return fork_once(ask or partial(answer, project), answer(project), SECONDS)


@pytest.mark.parametrize("kind", ["flat", "rabitq"])
def test_a_child_that_was_forked_while_threads_search_searches_itself(tmp_path: Path, kind: Any) -> None:
    searched = build(tmp_path, kind, faiss_index=kind, documents=20)
    assert run(searched, 10, threads=3, seconds=SECONDS) == [("answered", "")] * 10


def test_a_child_searches_in_threads_and_event_loops_of_its_own(project: Project) -> None:
    def in_threads() -> list[str]:
        with ThreadPoolExecutor(4) as threads:
            results = list(threads.map(lambda _: answer(project), range(8)))
        (same,) = {tuple(ids) for ids in results}
        return list(same)

    def in_a_loop() -> list[str]:
        response = asyncio.run(project.aretrieve("Which pump runs dry after an agrement?", top_k=5))
        return [chunk.node_id for chunk in response]

    for ask in (in_threads, in_a_loop):
        assert asked(project, ask) == ("answered", "")


@pytest.mark.parametrize(
    "locks_of",
    [
        lambda project: [project.state.live._lock],
        lambda project: [project.state.live.rerankers._lock],
        lambda project: [project.state.live.slots] * project.state.live.slots._initial_value,
        lambda project: [project.state.live.current().parts[0].docstore._lock],
        lambda project: [project.state.live.current().embedder._cache._lock],
        lambda project: [project.state.live.current().embedder._model._lock],
        lambda project: [project.state.live.current().index.lexical._respelled._lock],
    ],
    ids=["live", "rerankers", "turns", "docstore", "embeddings", "model", "spellings"],
)
def test_a_lock_that_another_thread_holds_is_free_in_the_child(
    project: Project, locks_of: Callable[[Project], list[Any]]
) -> None:
    expected = answer(project)
    with held(*locks_of(project)):
        assert fork_once(partial(answer, project), expected, SECONDS) == ("answered", "")


def test_a_child_does_not_use_the_connection_of_its_parent(project: Project) -> None:
    answer(project)
    store = project.state.live.current().parts[0].docstore._kv
    before = id(store._connection)

    def in_child() -> list[str]:
        return [str(id(store._connection) != before)]

    assert fork_once(in_child, ["True"], SECONDS) == ("answered", "")
    assert id(store._connection) == before
    assert answer(project)


def test_a_child_has_its_own_copy_of_data_in_memory(tmp_path: Path) -> None:
    store = Database()
    store.put("a", {"b": 1}, "data")

    def in_child() -> list[str]:
        store.put("c", {"d": 2}, "data")
        return [str(store.get(key, "data")) for key in "ac"]

    assert fork_once(in_child, ["{'b': 1}", "{'d': 2}"], SECONDS) == ("answered", "")
    assert store.get("c", "data") is None


def test_a_property_that_another_thread_computes_can_be_computed_in_the_child() -> None:
    started, done = threading.Event(), threading.Event()

    class Slow:
        @forks.cached_property
        def value(self) -> str:
            if threading.current_thread().name == "slow":
                started.set()
                done.wait()
            return "computed"

    one = Slow()
    thread = threading.Thread(target=lambda: one.value, name="slow")
    thread.start()
    started.wait()
    try:
        assert fork_once(lambda: [one.value, Slow().value], ["computed"] * 2, SECONDS) == ("answered", "")
    finally:
        done.set()
        thread.join()


def test_a_fork_waits_for_a_statement_and_else_the_child_says_why_it_cannot_search(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answer(project)
    with monkeypatch.context() as patch, held(project.state.live.current().parts[0].docstore._kv._lock):
        patch.setattr(forks, "WAIT", 0.05)
        outcome, why = fork_once(partial(answer, project), expected, SECONDS)
    assert outcome == "failed"
    assert "ProjectError: This process was forked while another thread had been reading or writing a project" in why
    assert fork_once(partial(answer, project), expected, SECONDS) == ("answered", "")


def test_a_fork_also_waits_for_a_library_that_a_thread_enters_while_it_waits_for_another() -> None:
    busy, states = forks.new_guard(), list[str]()
    started, entered = threading.Event(), threading.Event()

    def enter() -> None:
        with busy:
            started.set()
            time.sleep(0.2)
            late = forks.new_guard()  # the fork already waits for the other one
            late.acquire()
            entered.set()
        time.sleep(0.2)
        states.append("left")
        late.release()

    thread = threading.Thread(target=enter)
    thread.start()
    started.wait()
    forks._before()
    try:
        assert (entered.is_set(), states, forks._state.incomplete) == (True, ["left"], False)
    finally:
        forks._in_parent()
        thread.join()


def test_a_cache_of_answers_can_be_used_in_the_child(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "answers.sqlite")
    cache.put("a", WrittenAnswer("Yes.", "Yes."), version=None)
    answer = str(cache.get("a"))
    assert fork_once(lambda: [str(cache.get("a"))], [answer], SECONDS) == ("answered", "")
