"""The harness itself: each kind of problem in a page fails the test that opened it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.slow.browser.conftest import run_axe
from tests.slow.browser.harness import Pages, Watch, overflow, serve_app

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGES = {
    "/clean": "<p>Nothing happens.</p>",
    "/console": "<script>console.error('told')</script>",
    "/error": "<script>missing()</script>",
    "/dialog": "<script>alert(1)</script>",
    "/elsewhere": "<img src='http://127.0.0.2:9/a.png' alt=''>",
    "/policy": "<script src='data:text/javascript,1'></script>",
    "/wide": "<div id='wide' style='width: 2000px'>wide</div>",
    "/unnamed": "<html lang='en'><head><title>t</title></head><body><main><button></button></main></body></html>",
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    responses = pytest.importorskip("starlette.responses", reason="needs the extra ui")

    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        if scope["type"] == "http":
            body = PAGES.get(scope["path"], "")
            policy = {"Content-Security-Policy": "script-src 'unsafe-inline'"}
            await responses.HTMLResponse(f"<link rel=icon href='data:,'>{body}", headers=policy)(scope, receive, send)

    with serve_app(app) as url:
        yield url


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/console", "console error: told"),
        ("/error", "error in the page: missing is not defined"),
        ("/dialog", "dialog: 1"),
        ("/elsewhere", "request to http://127.0.0.2:9/a.png"),
        ("/policy", "policy: script-src-elem blocked data"),
    ],
)
def test_a_problem_in_a_page_is_reported(url: str, chrome: Browser, path: str, problem: str) -> None:
    watch = Watch(url)
    pages = Pages(chrome, watch)
    pages.open("/clean")
    pages.close()
    assert watch.unexpected() == []
    page = pages.open(path)
    if problem.startswith("policy"):
        page.wait_for_function("window.violations.length > 0")
    pages.close()
    assert any(line.startswith(problem) for line in watch.unexpected()), watch.problems
    watch.expect(".")
    assert watch.unexpected() == []


def test_a_page_that_is_too_wide_is_reported(url: str, chrome: Browser) -> None:
    pages = Pages(chrome, Watch(url))
    assert overflow(pages.open("/clean")) == []
    assert any("div" in line for line in overflow(pages.open("/wide")))
    pages.close()


def test_a_control_without_a_name_is_reported(url: str, chrome: Browser) -> None:
    pages = Pages(chrome, Watch(url))
    assert [one["id"] for one in run_axe(pages.open("/unnamed"))] == ["button-name"]
    pages.close()
