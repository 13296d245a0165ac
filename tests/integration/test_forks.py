"""A process forked while no other thread uses the project searches with connections of its own."""

from __future__ import annotations

import asyncio
import json
import os
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from llama_index.core.schema import Document

pytest.importorskip("wordllama")
if not hasattr(os, "fork"):
    pytest.skip("this system does not fork", allow_module_level=True)

from llama_index_contextual.answering.query_engine import AnswerCache, WrittenAnswer
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index.kvstore import Database
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project

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
    """Fork, let the child ask, and return its reply, or its traceback."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: libraries have threads
        child = os.fork()
    if child == 0:
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
    return json.loads(message)


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
