"""Requests that must be refused: without the token, under another name, and from web pages of another origin."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slow.browser.conftest import with_llm
from tests.slow.browser.harness import PATIENCE, Pages, Served, Watch, serve, serve_app
from tests.support.server import LoopbackProvider

pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
from playwright.sync_api import Browser, Error, Frame, Page, expect

TOKEN = "correct-horse-battery-staple"
SECRET = "station-manual"
SEARCH = "/p/examples/?q=emergency+stop"
ASK = "/p/examples/ask"


@pytest.fixture(scope="module")
def locked(root: Path, provider: LoopbackProvider) -> Iterator[Served]:
    """The Workbench with a token."""
    with serve([with_llm(root, "examples", provider)], token=TOKEN) as served:
        yield served


@pytest.fixture(scope="module")
def foreign() -> Iterator[str]:
    """A web page of another origin: the same machine, another port."""
    responses = pytest.importorskip("starlette.responses", reason="needs the extra ui")

    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        if scope["type"] == "http":
            page = "<title>Elsewhere</title><link rel=icon href='data:,'><body>A page of somebody else.</body>"
            await responses.HTMLResponse(page)(scope, receive, send)

    with serve_app(app) as url:
        yield url


@pytest.fixture
def locked_pages(chrome: Browser, locked: Served) -> Iterator[Pages]:
    """Pages of the server with a token."""
    opened = Pages(chrome, Watch(locked.url))
    yield opened
    opened.close()


def test_the_login_leads_to_the_page_that_was_wanted(locked_pages: Pages, locked: Served) -> None:
    page = locked_pages.open(SEARCH)
    assert SECRET not in page.content()
    locked_pages.watch.expect("403|401")
    page.get_by_label("Token").fill("not the token")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("This is not the token.")
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{locked.url}{SEARCH}")
    expect(page.get_by_role("main")).to_contain_text(SECRET)
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert TOKEN not in cookie["value"]
    page = locked_pages.open(f"{SEARCH}&token={TOKEN}")
    assert page.url == f"{locked.url}{SEARCH}", "the token of an address does not stay in it"
    expect(page.get_by_role("main")).to_contain_text(SECRET)
    assert locked_pages.watch.unexpected() == []


# ---- other origins ---------------------------------------------------------------------------------------------------


@dataclass
class Attacker:
    """A page of another origin, and the responses that its requests to the Workbench get.

    The browser hides some of them from the page and from its tools, so they are noted by the server, which has no
    other client.
    """

    page: Page
    served: Served

    def assert_refused(self) -> None:
        """Wait for a response, and check that all are refusals; the icon that a browser looks for does not count."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and not (statuses := self._statuses()):
            self.page.wait_for_timeout(25)
        assert statuses == {403}
        self.served.responses.clear()

    def _statuses(self) -> set[int]:
        return {status for path, status in self.served.responses if path.startswith("/p/")}


@pytest.fixture
def attacker(chrome: Browser, foreign: str, served: Served) -> Iterator[Attacker]:
    """The page of another origin, with a server of its own: others may still be answering pages of earlier tests."""
    with serve(served.projects) as attacked:
        context = chrome.new_context()
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        page.goto(foreign)
        yield Attacker(page, attacked)
        context.close()


def content(frame: Frame) -> str:
    """Return the HTML of a frame; the browser may remove the frame of an object that was refused at any moment."""
    try:
        return frame.content()
    except Error:
        if frame.is_detached():
            return ""
        raise


def test_fetch_of_another_origin_is_refused(attacker: Attacker) -> None:
    for mode, credentials in (("cors", "include"), ("cors", "omit"), ("no-cors", "include"), ("no-cors", "omit")):
        text = attacker.page.evaluate(
            "([url, options]) => fetch(url, options).then((r) => r.text(), (e) => `failed: ${e}`)",
            [f"{attacker.served.url}{SEARCH}", {"mode": mode, "credentials": credentials}],
        )
        assert SECRET not in text
        attacker.assert_refused()


def test_no_question_of_another_origin_is_paid_for(attacker: Attacker, provider: LoopbackProvider) -> None:
    provider.reset()
    for options in (
        "{method: 'POST', mode: 'no-cors', body: new URLSearchParams({q: 'How long?'})}",
        "{method: 'POST', mode: 'no-cors', body: 'q=How', headers: {'Content-Type': 'text/plain'}}",
        "{method: 'POST', body: 'q=How', headers: {Accept: 'application/x-ndjson'}}",
        "{method: 'POST', body: 'q=How', headers: {Authorization: 'Bearer x'}}",
    ):
        attacker.page.evaluate(f"url => fetch(url, {options}).catch(() => null)", f"{attacker.served.url}{ASK}")
        attacker.assert_refused()
    assert provider.calls() == []


@pytest.mark.parametrize("target", ["_self", "_blank", "frame"])
def test_a_form_of_another_origin_is_refused(attacker: Attacker, provider: LoopbackProvider, target: str) -> None:
    provider.reset()
    attacker.page.evaluate(
        """([action, target]) => {
          document.body.innerHTML = `<iframe name="frame"></iframe><form method="post" target="${target}"
            action="${action}"><input name="q" value="How long?"></form>`;
          document.forms[0].submit();
        }""",
        [f"{attacker.served.url}{ASK}", target],
    )
    attacker.assert_refused()
    assert provider.calls() == []


@pytest.mark.parametrize(
    "html",
    [
        "<img src='{url}'>",
        "<iframe src='{url}'></iframe>",
        "<script src='{url}'></script>",
        "<object data='{url}'></object>",
        "<embed src='{url}'>",
        "<link rel=stylesheet href='{url}'>",
        "<video preload=auto src='{url}'></video>",
        "<iframe sandbox='allow-scripts allow-same-origin' src='{url}'></iframe>",
    ],
)
def test_no_element_of_another_origin_loads_a_view(attacker: Attacker, html: str) -> None:
    attacker.page.evaluate(
        """html => new Promise((done) => {
          const fragment = document.createRange().createContextualFragment(html);
          fragment.firstChild.onload = fragment.firstChild.onerror = () => done();
          document.body.append(fragment);
        })""",
        html.format(url=f"{attacker.served.url}{SEARCH}"),
    )
    attacker.assert_refused()
    for frame in attacker.page.frames[1:]:
        assert SECRET not in content(frame)


def test_a_window_of_another_origin_is_cut_off(attacker: Attacker) -> None:
    page = attacker.page
    with page.context.expect_page() as opened:
        page.evaluate("url => { window.other = window.open(url); }", f"{attacker.served.url}{SEARCH}")
    expect(opened.value.get_by_role("main")).to_contain_text(SECRET)  # a person may follow a link
    assert opened.value.evaluate("window.opener") is None
    page.wait_for_function("window.other.closed")
    read = "() => { try { return window.other.document.body.innerText; } catch { return ''; } }"
    assert SECRET not in page.evaluate(read)
