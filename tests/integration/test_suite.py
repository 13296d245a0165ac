"""Guarantees of the test suite: no network, no keys, no pickle, mutants in the whole package."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import socket
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from coverage import CoverageData

from tests.benchmarks.mutants import CRITICAL, draw, modules_in, modules_outside
from tests.conftest import NetworkError, PickleError
from tests.support.source import PACKAGE, ROOT, sources


def test_no_test_connects_to_another_machine() -> None:
    for address in (("192.0.2.1", 80), ("2001:db8::1", 80), ("example.org", 80)):
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        with socket.socket(family) as one, pytest.raises(NetworkError, match=address[0]):
            one.connect(address)
    with socket.socket(type=socket.SOCK_DGRAM) as one, pytest.raises(NetworkError, match=r"192\.0\.2\.1"):
        one.sendto(b"", ("192.0.2.1", 53))
    with pytest.raises(NetworkError, match=r"example\.org"):
        socket.create_connection(("example.org", 80))
    with pytest.raises(NetworkError, match=r"example\.org"):
        urllib.request.urlopen("http://example.org")


async def test_no_async_test_connects_to_another_machine() -> None:
    with pytest.raises(NetworkError, match=r"example\.org"):
        await asyncio.open_connection("example.org", 80)
    with pytest.raises(NetworkError, match=r"192\.0\.2\.1"):
        await asyncio.open_connection("192.0.2.1", 80)


def test_the_loopback_interface_is_available() -> None:
    for host in ("127.0.0.1", "localhost"):
        with socket.create_server((host, 0), family=socket.AF_INET) as server:
            socket.create_connection(server.getsockname()[:2]).close()


def test_tests_have_no_keys_or_proxies_in_the_environment() -> None:
    assert not [name for name in os.environ if name.endswith("_API_KEY") or name.lower().endswith("_proxy")]


def test_nothing_is_unpickled() -> None:
    data = pickle.dumps({"a": 1})
    for read in (
        lambda: pickle.loads(data),
        lambda: pickle.load(io.BytesIO(data)),
        lambda: pickle.Unpickler(io.BytesIO(data)),
    ):
        with pytest.raises(PickleError):
            read()
    array = io.BytesIO()
    np.save(array, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(PickleError):
        np.load(io.BytesIO(array.getvalue()), allow_pickle=True)


def test_mutants_are_drawn_from_every_module_of_the_package() -> None:
    critical, others = modules_in(CRITICAL), modules_outside(CRITICAL)
    assert sorted([*critical, *others]) == sorted(source.path for source in sources())
    assert {module.partition("/")[0] for module in critical} >= {"search", "index", "ingestion", "node_parser"}


def test_a_path_without_modules_is_an_error_and_draws_nothing() -> None:
    for path in ("storage/", "index/ledgers.py", "fusion"):
        with pytest.raises(SystemExit, match=f"no module '{path}'"):
            modules_in(["index/", path])


def test_mutants_of_given_paths_are_drawn_from_these_and_from_lines_that_a_test_runs(tmp_path: Path) -> None:
    data = CoverageData(str(tmp_path / "coverage"))
    data.set_context("tests/unit/test_cache.py::test_one|run")
    files = {str(ROOT / PACKAGE / name): range(1, 200) for name in ("search/rank.py", "index/bm25.py", "config.py")}
    data.add_lines(files)
    drawn = draw(27, 40, data, ["search/", "index/bm25.py"])
    assert len(drawn) == 40
    assert drawn == draw(27, 40, data, ["search/", "index/bm25.py"])
    assert {mutant.module for mutant in drawn} == {"search/rank.py", "index/bm25.py"}
