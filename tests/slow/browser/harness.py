"""A server of the Workbench in a thread, and pages of a browser that report what goes wrong in them.

The browser is the Chromium of the system: `chromium` in the PATH, or the program that the environment variable
LLAMA_INDEX_CONTEXTUAL_CHROMIUM names. Nothing is downloaded, and no name but the loopback interface resolves in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page

    from llama_index_contextual.project.project import Project

CHROMIUM = "LLAMA_INDEX_CONTEXTUAL_CHROMIUM"

PATIENCE = 120.0
"""Seconds after which a wait counts as a failure; a busy machine may need most of them."""

SWITCHES = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-extensions"),
    "--host-resolver-rules=MAP rebound.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
# Notes of violations survive in the page even if the console is not watched.
_NOTE_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.effectiveDirective} blocked ${event.blockedURI} in ${event.sourceFile}`));
"""


def chromium() -> str:
    """Return the path of the browser, or skip the test without one."""
    path = os.environ.get(CHROMIUM) or shutil.which("chromium")
    if path is None or not os.path.exists(path):
        pytest.skip(f"needs a browser: install chromium, or name one in the variable {CHROMIUM}")
    return path


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Run the browser without a window.

    While it runs, asyncio considers this thread to be inside an event loop, so it must end before other tests run.
    """
    path = chromium()
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    playwright.expect.set_options(timeout=PATIENCE * 1000)
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=path, args=list(SWITCHES), timeout=PATIENCE * 1000)
        try:
            yield running
        finally:
            running.close()


@dataclass
class Served:
    """A running server.

    Attributes:
        url: Its address, without a slash at the end.
        projects: The projects that it shows.
        responses: Path and status of every response so far.
    """

    url: str
    projects: Sequence[Project] = ()
    responses: list[tuple[str, int]] = field(default_factory=list)


@contextlib.contextmanager
def serve_app(app: Any) -> Iterator[str]:
    """Serve an ASGI application on a free port of the loopback interface, and return its address."""
    uvicorn = pytest.importorskip("uvicorn", reason="needs the extra ui")
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    started = threading.Event()
    startup = server.startup

    async def announce(sockets: list[socket.socket] | None = None) -> None:
        await startup(sockets=sockets)
        started.set()

    server.startup = announce
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="workbench", daemon=True)
    thread.start()
    try:
        if not started.wait(PATIENCE):
            raise RuntimeError("the server did not start")
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listening.close()


@contextlib.contextmanager
def serve(projects: Sequence[Project], **options: Any) -> Iterator[Served]:
    """Serve the Workbench with some projects; options are those of `make_app`."""
    from llama_index_contextual.ui.app import make_app
    from llama_index_contextual.ui.pages import PageRenderer

    app, responses = make_app(projects, **options), []
    app.state.originals.renderer = PageRenderer(seconds=PATIENCE, waiting_seconds=PATIENCE)

    async def recorded(scope: Any, receive: Any, send: Any) -> None:
        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start":
                responses.append((scope["path"], message["status"]))
            await send(message)

        await app(scope, receive, noted)

    with contextlib.closing(app.state.originals.renderer), serve_app(recorded) as url:
        yield Served(url, projects, responses)


@dataclass
class Watch:
    """What went wrong in the pages of a test: errors, violations of the policy, dialogs, and requests to other hosts.

    Attributes:
        url: The address to which alone requests may go; data and blob addresses load nothing.
        problems: The problems so far.
        expected: Patterns of problems that the test provokes on purpose.
    """

    url: str
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def expect(self, pattern: str) -> None:
        """Accept problems that match a regular expression."""
        self.expected.append(pattern)

    def unexpected(self) -> list[str]:
        """Return the problems that the test did not provoke."""
        return [line for line in self.problems if not any(re.search(pattern, line) for pattern in self.expected)]

    def attach(self, page: Page) -> None:
        """Watch a page."""

        def requested(address: str) -> None:
            if not address.startswith((f"{self.url}/", "data:", "blob:", "about:")) and address != self.url:
                self.problems.append(f"request to {address}")

        def spoke(kind: str, text: str, place: str) -> None:
            if kind in ("error", "warning"):
                self.problems.append(f"console {kind}: {text} ({place})")

        def asked(dialog: Any) -> None:
            self.problems.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("request", lambda request: requested(request.url))
        page.on("console", lambda line: spoke(line.type, line.text, line.location.get("url", "")))
        page.on("pageerror", lambda error: self.problems.append(f"error in the page: {error}"))
        page.on("dialog", asked)
        page.on("crash", lambda _: self.problems.append("the page crashed"))

    def check(self, page: Page) -> None:
        """Add the violations of the content security policy in a page; without JavaScript, the console has them."""
        with contextlib.suppress(Exception):  # the page may be closed, or have no JavaScript
            self.problems += [f"policy: {line}" for line in page.evaluate("window.violations || []")]


@dataclass
class Pages:
    """Opens watched pages; each has a context, with cookies and storage, of its own.

    Attributes:
        browser: The browser.
        watch: Collects the problems of all pages.
    """

    browser: Browser
    watch: Watch
    _contexts: list[BrowserContext] = field(default_factory=list)

    def open(self, path: str | None = None, **options: Any) -> Page:
        """Open a page of the server; options are those of Playwright's `new_context`."""
        context = self.browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce", **options}
        )
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE * 1000)
        context.add_init_script(_NOTE_VIOLATIONS)
        context.on("page", self.watch.attach)
        page = context.new_page()
        if path is not None:
            page.goto(f"{self.watch.url}{path}")
        return page

    def close(self) -> None:
        """Close all pages, after collecting their problems."""
        for context in self._contexts:
            for page in context.pages:
                self.watch.check(page)
            context.close()
        self._contexts.clear()


def follow(link: Locator) -> None:
    """Click a link or a button that leads to another address, and wait until the page there has loaded."""
    link.wait_for()
    page, before = link.page, link.page.url
    link.click()
    page.wait_for_url(lambda url: url != before)


def overflow(page: Page) -> list[str]:
    """Return the elements that make a page wider than its window; elements inside a scrolling one do not."""
    found: list[str] = page.evaluate(
        """() => {
          const width = document.documentElement.clientWidth;
          if (document.documentElement.scrollWidth <= width) return [];
          const clipped = (element) => {
            for (let at = element.parentElement; at; at = at.parentElement)
              if (at !== document.body && getComputedStyle(at).overflowX !== "visible") return true;
            return false;
          };
          const wide = [...document.body.querySelectorAll("*")]
            .filter((e) => e.getBoundingClientRect().right > width + 1 && !clipped(e))
            .map((e) => `${e.tagName.toLowerCase()}.${e.className} to ${Math.round(e.getBoundingClientRect().right)}`);
          return wide.length ? wide : [`the document is ${document.documentElement.scrollWidth} wide`];
        }"""
    )
    return found
