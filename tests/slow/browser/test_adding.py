"""Documents are added in the browser: from an empty project to an answer, on wide and narrow windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.ui.adding import Adding
from tests.slow.browser.conftest import run_axe, with_llm
from tests.slow.browser.harness import Pages, Served, Watch, overflow, serve
from tests.support.server import LoopbackProvider

pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
from playwright.sync_api import Browser, Page, expect

FIVE = {
    "pumps.md": "# Pumps\n\nPump P-7 stops after three days without oil.\n",
    "valves.txt": "Valve V-3 leaks at night.\n",
    "weirs.html": "<h1>Weirs</h1><p>The weir opens in spring.</p>",
    "tariff.csv": "meter,price\nsmall,12\nlarge,40\n",
    "notes.md": "# Notes\n\nThe quarry gate opens at nine.\n",
}
ADD = "/p/fresh/add"


@pytest.fixture
def fresh(tmp_path: Path, provider: LoopbackProvider) -> Iterator[Served]:
    """The Workbench with the empty projects "fresh" and "priced", to which documents can be added."""
    provider.reset()
    manager = ProjectManager(tmp_path / "root")
    manager.create("fresh", ProjectConfig.local())
    manager.create("priced", ProjectConfig.local(context="llm", llm="openai:gpt-4o-mini"))
    projects = [with_llm(tmp_path / "root", name, provider) for name in ("fresh", "priced")]
    adding = {project.name: Adding(project) for project in projects}
    with serve(projects, adding=adding) as served:
        yield served
    for one in adding.values():
        one.stop()


@pytest.fixture
def pages(chrome: Browser, fresh: Served) -> Iterator[Pages]:
    """Pages of this server in which nothing may go wrong."""
    watch = Watch(fresh.url)
    opened = Pages(chrome, watch)
    yield opened
    opened.close()
    assert watch.unexpected() == []


@pytest.fixture
def five(tmp_path: Path) -> list[Path]:
    """Five files of a user."""
    folder = tmp_path / "five"
    folder.mkdir()
    for name, text in FIVE.items():
        (folder / name).write_text(text, encoding="utf-8")
    return sorted(folder.iterdir())


def all_read(page: Page, number: int) -> None:
    expect(page.locator(".added-read")).to_have_count(number)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_from_an_empty_project_to_an_answer(
    pages: Pages, provider: LoopbackProvider, five: list[Path], width: int, scheme: Any
) -> None:
    page = pages.open("/p/fresh/", viewport={"width": width, "height": 844}, color_scheme=scheme)
    page.get_by_role("link", name="Add documents").click()
    expect(page.get_by_role("heading", name="Add documents")).to_be_visible()
    page.set_input_files("#files", five)
    expect(page.locator("#sending li")).to_have_count(5)
    assert run_axe(page) == []
    page.get_by_role("button", name="Add 5 files").click()
    all_read(page, 5)
    assert run_axe(page) == []
    assert overflow(page) == []
    provider.enqueue("It stops “after three days without oil” [Source 1].")
    page.get_by_role("link", name="Ask").click()
    page.get_by_role("textbox", name="Question").fill("When does pump P-7 stop?")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_role("article").last.locator(".check-label")).to_have_text("verified")


def test_files_are_dropped_and_unsuitable_ones_say_why_before_they_are_sent(pages: Pages, fresh: Served) -> None:
    page = pages.open(ADD)
    page.wait_for_load_state("networkidle")
    data = page.evaluate_handle(
        """() => {
          const data = new DataTransfer();
          data.items.add(new File(["Valve V-3 leaks."], "valves.txt"));
          data.items.add(new File(["PK"], "archive.zip"));
          data.items.add(new File([], "empty.txt"));
          return data;
        }"""
    )
    page.dispatch_event("#upload", "drop", {"dataTransfer": data})
    expect(page.locator("#sending li")).to_have_text(
        ["valves.txt1 kB", "archive.zipThis type is not read", "empty.txtEmpty"]
    )
    page.get_by_role("button", name="Add 1 file").click()
    all_read(page, 1)
    sent = [path for path, _ in fresh.responses if path == ADD]
    assert len(sent) >= 2


def test_removing_and_undoing(pages: Pages, five: list[Path]) -> None:
    page = pages.open(ADD)
    page.set_input_files("#files", five[:2])
    page.get_by_role("button", name="Add 2 files").click()
    all_read(page, 2)
    page.get_by_role("button", name="Remove notes.md").click()
    all_read(page, 1)
    page.get_by_role("button", name="Undo: Removed notes.md").click()
    all_read(page, 2)


def test_the_price_is_confirmed_before_anything_is_sent(
    pages: Pages, provider: LoopbackProvider, five: list[Path]
) -> None:
    page = pages.open("/p/priced/add")
    page.set_input_files("#files", five[:1])
    page.get_by_role("button", name="Add 1 file").click()
    button = page.get_by_role("button", name="Add for $")
    expect(button).to_be_visible()
    assert provider.calls() == []
    assert run_axe(page) == []
    page.goto("about:blank")  # the page is left
    page.go_back()
    page.get_by_role("button", name="Add for $").click()
    all_read(page, 1)
    assert len(provider.calls()) == 1


def test_without_a_script_the_form_sends_all_files(pages: Pages, five: list[Path]) -> None:
    page = pages.open(ADD, java_script_enabled=False)
    page.set_input_files("#files", five)
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("heading", name="Added files")).to_be_visible()
    all_read(page, 5)  # the page is loaded again every few seconds
    assert overflow(page) == []


def test_a_connection_that_breaks_off_can_be_resumed(pages: Pages, five: list[Path]) -> None:
    page = pages.open(ADD)
    pages.watch.expect("Failed to load resource")
    page.route(f"**{ADD}", lambda route: route.abort() if route.request.method == "POST" else route.continue_())
    page.set_input_files("#files", five[:2])
    page.get_by_role("button", name="Add 2 files").click()
    again = page.get_by_role("button", name="Send 2 files again")
    expect(again).to_be_visible()
    page.unroute(f"**{ADD}")
    again.click()
    all_read(page, 2)
