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
    "/console": ("<script>console.error('told')</script>", "console error: told"),
    "/error": ("<script>missing()</script>", "error in the page: missing is not defined"),
    "/dialog": ("<script>alert(1)</script>", "dialog: 1"),
    "/elsewhere": ("<img src='http://127.0.0.2:9/a.png' alt=''>", "request to http://127.0.0.2:9/a.png"),
    "/policy": ("<script src='data:text/javascript,1'></script>", "policy: script-src-elem blocked data"),
    "/wide": ("<div id='wide' style='width: 2000px'>wide</div>", ""),
    "/unnamed": ("<html lang=en><head><title>t</title></head><body><main><button></button></main></body></html>", ""),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    responses = pytest.importorskip("starlette.responses", reason="needs the extra ui")

    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        if scope["type"] == "http":
            body, _ = PAGES.get(scope["path"], ("<p>Nothing happens.</p>", ""))
            policy = {"Content-Security-Policy": "script-src 'unsafe-inline'"}
            await responses.HTMLResponse(f"<link rel=icon href='data:,'>{body}", headers=policy)(scope, receive, send)

    with serve_app(app) as url:
        yield url


def test_every_problem_of_a_page_is_reported(url: str, chrome: Browser) -> None:
    watch = Watch(url)
    pages = Pages(chrome, watch)
    assert overflow(pages.open("/clean")) == []
    pages.close()
    assert watch.unexpected() == []
    for path, (_, problem) in PAGES.items():
        page = pages.open(path)
        if problem.startswith("policy"):
            page.wait_for_function("window.violations.length > 0")
        elif path == "/wide":
            assert any("div" in line for line in overflow(page))
        elif path == "/unnamed":
            assert [one["id"] for one in run_axe(page)] == ["button-name"]
        pages.close()
        assert any(line.startswith(problem) for line in watch.unexpected()) or not problem, path
    watch.expect(".")
    assert watch.unexpected() == []
