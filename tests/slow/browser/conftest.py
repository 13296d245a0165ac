"""The browser, the projects of the examples, and watched pages."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ChatResponseAsyncGen
from pydantic import PrivateAttr

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.slow.browser.harness import PATIENCE, Pages, Served, Watch, browser, chromium, serve
from tests.support.examples import DATA
from tests.support.models import ScriptedLLM
from tests.support.server import LoopbackProvider

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SUFFIXES = (".md", ".pdf", ".txt")
COPIES: dict[str, dict[str, Any]] = {
    "slow": {},
    "judged": {"judge": True},
}
"""Copies of the project "manual" with other settings."""


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the projects of `served`; all workers of a run share it, and no test changes it."""
    chromium()
    pytest.importorskip("starlette", reason="needs the extra ui")
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    with FileLock(shared / "workbench.lock"):
        folder = shared / "workbench"
        if not folder.exists():
            _build(shared / "unfinished")
            (shared / "unfinished").rename(folder)
    return folder


def _build(folder: Path) -> None:
    manager = ProjectManager(folder)
    files = sorted(path for path in DATA.iterdir() if path.suffix in SUFFIXES)
    # The model must never end by itself while a test waits for the end of its call.
    seconds = 10 * PATIENCE
    patient = ProjectConfig.local(call_timeout=seconds, first_token_timeout=seconds, between_tokens_timeout=seconds)
    manager.create("examples", patient).ingest(files)
    manager.create("manual", patient).ingest([DATA / "station-manual.md"])
    for name, changes in COPIES.items():
        shutil.copytree(folder / "manual", folder / name)
        manager.load(name).update_config(**changes)


@pytest.fixture(scope="session")
def provider() -> Iterator[LoopbackProvider]:
    """A model provider on the loopback interface; a test that scripts it calls `reset` first."""
    with LoopbackProvider() as provider:
        yield provider


def with_llm(root: Path, name: str, provider: LoopbackProvider) -> Project:
    """Return a project whose LLM is the provider."""
    from llama_index.llms.openai import OpenAI

    llm = OpenAI(
        model="gpt-4o-mini",
        api_key="any",
        api_base=provider.api_base,
        max_retries=0,
        reuse_client=False,
        timeout=PATIENCE,
    )
    return ProjectManager(root).load(name, llm=llm)


class GatedLLM(ScriptedLLM):
    """A model that streams a piece when the test releases it, and tells whether its stream was closed early."""

    _pieces: deque[str | None] = PrivateAttr(default_factory=deque)
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)
    _read: threading.Event = PrivateAttr(default_factory=threading.Event)
    _closed: threading.Event = PrivateAttr(default_factory=threading.Event)

    def reset(self) -> None:
        """Forget the streams so far, and the pieces that none of them has read."""
        with self._lock:
            self._pieces.clear()
            self._read.clear()
            self._closed.clear()

    def release(self, *pieces: str, end: bool = False) -> None:
        """Send pieces, and end the stream if `end`."""
        with self._lock:
            self._pieces.extend((*pieces, *([None] if end else [])))
            self._read.clear()

    def wait_until_read(self) -> bool:
        """Wait until a stream has read all released pieces and needs the next one, and return whether it has."""
        return self._read.wait(PATIENCE)

    def wait_until_closed(self) -> bool:
        """Wait until the reader of a stream has stopped, and return whether it has."""
        return self._closed.wait(PATIENCE)

    async def astream_chat(self, messages: Any, **kwargs: Any) -> ChatResponseAsyncGen:
        """Return the pieces."""

        async def pieces() -> ChatResponseAsyncGen:
            try:
                while (piece := await self._next()) is not None:
                    yield ChatResponse(message=ChatMessage(role="assistant", content=piece), delta=piece)
            except (asyncio.CancelledError, GeneratorExit):
                self._closed.set()
                raise

        return pieces()

    async def _next(self) -> str | None:
        while True:
            with self._lock:
                if self._pieces:
                    return self._pieces.popleft()
                self._read.set()
            await asyncio.sleep(0.01)


@pytest.fixture(scope="session")
def gated() -> GatedLLM:
    """The model of the project "slow"."""
    return GatedLLM()


@pytest.fixture(scope="session")
def served(root: Path, provider: LoopbackProvider, gated: GatedLLM) -> Iterator[Served]:
    """The Workbench with four projects.

    "examples" has all files and an LLM; "manual" has one file and no LLM. The others are copies of "manual": the LLM of
    "slow" streams what a test releases, and the answers of "judged" are judged.
    """
    manager = ProjectManager(root)
    with_provider = [with_llm(root, name, provider) for name in ("examples", "judged")]
    with serve([*with_provider, manager.load("manual"), manager.load("slow", llm=gated)]) as served:
        yield served


@pytest.fixture(scope="package")
def chrome() -> Iterator[Browser]:
    """A browser; not for the whole session, because other tests cannot run an event loop next to it."""
    with browser() as running:
        yield running


@pytest.fixture
def watch(served: Served) -> Watch:
    """The problems of the pages of a test."""
    return Watch(served.url)


@pytest.fixture
def pages(chrome: Browser, watch: Watch) -> Iterator[Pages]:
    """Pages in which nothing may go wrong unless the test expects it."""
    opened = Pages(chrome, watch)
    yield opened
    opened.close()
    assert watch.unexpected() == []


@pytest.fixture
def page(pages: Pages) -> Page:
    """A page of 1280 by 800 pixels that is still empty; `page.goto(served.url + path)` fills it."""
    return pages.open()


def run_axe(page: Page) -> list[dict[str, Any]]:
    """Return the serious and critical findings of axe-core in a page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    response = axe.Axe().run(page).response
    return [one for one in response["violations"] if one["impact"] in ("serious", "critical")]
