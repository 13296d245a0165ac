"""Guarantees of the test suite: no network, no keys, no pickle; and the models for tests."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from llama_index.core.base.llms.types import ChatMessage

from tests.conftest import NetworkError, PickleError
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.source import ROOT


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


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_a_run_ends_with_the_number_of_tests_that_passed(quiet: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_one():\n    pass\n", encoding="utf-8")
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-n1", *quiet]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_one.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.search(r"\b1 passed in ", done.stdout.splitlines()[-1]), done.stdout


def test_the_counting_embedding_counts_and_is_deterministic() -> None:
    model = CountingEmbedding(dimensions=16)
    one, two = model.get_text_embedding_batch(["iron pump", "pump iron"])
    assert one == two == model.get_query_embedding("Iron, pump!")
    assert (model.texts, model.queries, model.batches) == (["iron pump", "pump iron"], ["Iron, pump!"], [2])
    assert not any(model.get_text_embedding("…"))


async def test_the_scripted_model_answers_in_order_and_remembers() -> None:
    llm = ScriptedLLM(default="default")
    llm.enqueue("one", "two", ConnectionError("gone"), "three", "four")
    message = ChatMessage(role="user", content="question")
    assert llm.complete("first").text == "one"
    assert (await llm.achat([message])).message.content == "two"
    with pytest.raises(ConnectionError, match="gone"):
        llm.chat([message])
    assert [piece.delta for piece in llm.stream_chat([message])] == ["three"]
    assert [piece.delta async for piece in await llm.astream_chat([message])] == ["four"]
    assert [piece.delta for piece in llm.stream_complete("last")] == ["default"]
    assert llm.history == ["first", *["question"] * 4, "last"]
    await asyncio.gather(*(llm.achat([message]) for _ in range(5)))
    assert llm.most_running == 5
