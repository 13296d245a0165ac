"""Rules of the whole suite (no network except loopback, no keys, no pickle), and a small project for most tests."""

from __future__ import annotations

import gc
import ipaddress
import multiprocessing.reduction  # noqa: F401 - takes its own reference to pickle.loads before the suite forbids it
import os
import pickle
import re
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import httpx
import openai
import pytest
from hypothesis import HealthCheck, settings

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index import kvstore
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.documents import pdf_bytes, write_texts

gc.disable()  # until all modules are imported and all tests are collected

# The suite tries the same examples everywhere; `HYPOTHESIS_PROFILE=random` other ones in each run, `long` many.
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("random", settings.get_profile("ci"), derandomize=False)
settings.register_profile("long", settings.get_profile("random"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_ENVIRONMENT = re.compile(
    r".*_API_KEY|OPENAI_.*|ANTHROPIC_.*|OLLAMA_HOST|HF_TOKEN"
    r"|LLAMA_INDEX_CONTEXTUAL_(?!CHROMIUM$|DATA$|REGENERATE$).*"  # those are settings of the suite
    r"|.*_PROXY",  # a proxy would take requests to the loopback interface out of this machine
    re.IGNORECASE,
)
_TERMINAL = ("COLUMNS", "LINES", "TERMINAL_WIDTH", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS")

SLOW = Path(__file__).parent / "slow"


class NetworkError(RuntimeError):
    """A test tried to connect to another machine."""


class PickleError(RuntimeError):
    """A test tried to unpickle data, which can execute code."""


def pytest_sessionstart() -> None:
    """Forget settings of the terminal, which the command line reads when it is imported, and keep compiled modules."""
    for name in _TERMINAL:
        os.environ.pop(name, None)
    # Otherwise, each worker and each child process would compile all modules again.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C reach the tests and their children, also where a shell in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def _sealed() -> Iterator[None]:
    """Prevent tests from using the network, finding keys, or unpickling files.

    The patch on pickle is global: pytest, hypothesis, pytest-cov and NumPy look it up when they call it and need no
    unpickling here; multiprocessing keeps its own reference, taken at the import above.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in filter(_ENVIRONMENT.fullmatch, list(os.environ)):
            patch.delenv(name)
        for name in ("connect", "connect_ex", "sendto"):
            patch.setattr(socket.socket, name, _only_loopback(getattr(socket.socket, name)))
        patch.setattr(socket, "getaddrinfo", _only_local_names(socket.getaddrinfo))
        for name in ("load", "loads"):
            patch.setattr(pickle, name, _refuse_pickle)
        patch.setattr(pickle, "Unpickler", _NoUnpickler)
        # Each HTTP client reads the certificates of all authorities, and no connection to this machine needs one.
        patch.setattr(ssl.SSLContext, "load_verify_locations", lambda *arguments, **options: None)
        yield


def _only_loopback(real: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(self: socket.socket, *arguments: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(arguments[-1][0]):
            raise NetworkError(f"A test tried to reach {arguments[-1]!r}: only the loopback interface is allowed.")
        return real(self, *arguments)

    return guarded


def _only_local_names(real: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(host: Any, *arguments: Any, **options: Any) -> Any:
        if host and not _is_loopback(host):
            raise NetworkError(f"A test tried to look up {host!r}: only the loopback interface is allowed.")
        return real(host, *arguments, **options)

    return guarded


def _is_loopback(host: str | bytes) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return name == "localhost"


def _refuse_pickle(*_arguments: Any, **_options: Any) -> NoReturn:
    raise PickleError("Nothing in this package is stored as pickle.")


class _NoUnpickler:
    """Unpickler that NLTK can subclass at import, but that cannot be created."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        _refuse_pickle(*arguments, **options)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test that needs a symbolic link, which Windows lets only some users create."""
    try:
        return (yield)
    except OSError as error:
        if getattr(error, "winerror", None) == 1314:
            pytest.skip("this user may not create symbolic links")
        raise


@pytest.hookimpl(optionalhook=True)  # for runs without xdist
def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than there are processors, because many tests wait for other processes."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """Exempt all modules and tests from garbage collection, which would otherwise look through them again and again."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in `tests/slow`, which plain `pytest` leaves out."""
    for item in items:
        if SLOW in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _fast_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing wait for the disk, except in tests of durability: those in `tests/slow` or marked `durable`."""
    if request.node.get_closest_marker("slow") is None and request.node.get_closest_marker("durable") is None:
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)
        opened = tuple(line.replace("EXTRA", "OFF") for line in kvstore._PRAGMAS["durable"])
        monkeypatch.setitem(kvstore._PRAGMAS, "durable", opened)


@pytest.fixture(autouse=True)
def _no_keys_of_other_tests() -> Iterator[None]:
    """Forget the keys of the models that other tests have called: a stream holds back what may be the start of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llama_index_contextual._utils.redaction._of_models", set())
        yield


@pytest.fixture
def lasting_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep idle connections open; clients close them after five seconds, which pass between two calls under load."""
    for limits in (httpx._config.DEFAULT_LIMITS, openai._base_client.DEFAULT_CONNECTION_LIMITS):
        monkeypatch.setattr(limits, "keepalive_expiry", None)


@pytest.fixture
def manager(tmp_path: Path) -> ProjectManager:
    """An empty root folder of projects."""
    return ProjectManager(tmp_path / "knowledge")


@pytest.fixture
def project(manager: ProjectManager) -> Project:
    """An empty project that needs neither key nor network."""
    return manager.create("reports", ProjectConfig.local())


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """A folder with one Markdown and one plain text file."""
    return write_texts(tmp_path / "reports")


@pytest.fixture
def tiny_folder(text_folder: Path) -> Path:
    """A folder with one Markdown, one plain text, and one PDF file of two pages."""
    (text_folder / "tariff.pdf").write_bytes(pdf_bytes())
    return text_folder
