"""What people do in the Workbench, from the search to the marked page, on the example documents."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, quote_plus, urlsplit

import pypdfium2
import pytest

from llama_index_contextual.project.manager import ProjectManager
from tests.slow.browser.conftest import run_axe
from tests.slow.browser.harness import Pages, Served, Watch, follow, overflow, serve
from tests.support.examples import DATA

pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
from playwright.sync_api import Browser, Page, expect

STOP = "How long must the pressure booster stand still after an emergency stop?"
LEAKAGE = "What was the leakage in the Water segment of Haldermoor in the first quarter of 2024?"
PDF = "quarterly-reports-2024.pdf"


def search(page: Page, served: Served, question: str, project: str = "examples") -> None:
    page.goto(f"{served.url}/p/{project}/")
    page.get_by_role("searchbox").fill(question)
    follow(page.get_by_role("button", name="Search"))
    expect(page.get_by_role("region", name="Results")).to_be_visible()


def files_of(page: Page) -> list[str]:
    """Return the document of each result."""
    links = page.locator(".result .place a").evaluate_all("all => all.map((link) => link.href)")
    return [parse_qs(urlsplit(link).query)["id"][0] for link in links]


def open_pdf_passage(page: Page, served: Served) -> None:
    search(page, served, LEAKAGE)
    follow(page.locator(".result", has_text=PDF).locator(".result-link").first)
    expect(page.get_by_role("heading", name=re.compile("On its page"))).to_be_visible()


def image_is_loaded(page: Page) -> None:
    page.wait_for_function(
        "() => { const one = document.querySelector('.sheet img'); return one && one.complete && one.naturalWidth > 0 }"
    )


# ---- search ----------------------------------------------------------------------------------------------------------


def test_a_question_finds_the_passage_and_marks_its_words(page: Page, served: Served) -> None:
    search(page, served, STOP)
    first = page.locator(".result").first
    expect(first).to_contain_text("station-manual.md")
    marked = page.locator(".result mark").all_inner_texts()
    assert {"emergency", "stop"} <= {word.lower() for word in marked}
    assert all(re.fullmatch(r"[\w-]+", word) for word in marked), "whole words are marked"
    expect(page.locator(".verdict")).to_have_text(re.compile("confidence: the best passage"))
    first.get_by_text("Why this rank").click()
    expect(first.get_by_text("Lexical", exact=True)).to_be_visible()


def test_a_filter_by_file_can_be_set_and_removed(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/p/examples/")
    page.get_by_role("searchbox").fill("water")
    page.get_by_text("Options and filters").click()
    page.get_by_label("water-tariff-2025.txt").check()
    follow(page.get_by_role("button", name="Search"))
    expect(page.locator(".chips")).to_contain_text("water-tariff-2025.txt")
    assert set(files_of(page)) == {"water-tariff-2025.txt"}
    follow(page.get_by_role("link", name=re.compile("Remove the filter")))
    expect(page.get_by_role("searchbox")).to_have_value("water")
    expect(page.locator(".chips")).to_have_count(0)
    assert len(set(files_of(page))) > 1


def test_nothing_found_says_what_to_try_and_a_wrong_request_what_is_wrong(
    page: Page, served: Served, watch: Watch
) -> None:
    page.goto(f"{served.url}/p/examples/?q=xylophone&mode=lexical")
    follow(page.get_by_role("link", name="search by meaning and words"))
    expect(page.get_by_role("searchbox")).to_have_value("xylophone")
    expect(page).to_have_url(re.compile("mode=hybrid"))
    watch.expect("status of 4")
    page.goto(f"{served.url}/p/examples/?q=water&mode=psychic")
    expect(page.get_by_role("alert")).to_contain_text("The mode 'psychic' is unknown")


# ---- passages --------------------------------------------------------------------------------------------------------


def test_the_mark_on_the_page_covers_the_words_of_the_passage(page: Page, served: Served) -> None:
    open_pdf_passage(page, served)
    image_is_loaded(page)
    text = " ".join(page.locator(".passage-beside pre.text").inner_text().split())
    number = int(page.locator(".sheet").first.get_attribute("aria-label").split()[1])  # type: ignore[union-attr]
    place = "(one) => { const box = one.getBoundingClientRect(); return [box.left, box.top, box.right, box.bottom] }"
    boxes = page.locator(".mark-line").evaluate_all(f"all => all.map({place})")
    left, top, right, bottom = page.locator(".sheet img").first.evaluate(place)
    with closing(pypdfium2.PdfDocument(DATA / PDF)) as document:
        sheet = document[number - 1]
        letters, (width, height) = sheet.get_textpage(), sheet.get_size()
        whole = letters.get_text_range()
        lines = [line.strip() for line in whole.splitlines() if len(line.strip()) >= 40 and line.strip() in text]
        starts = [whole.index(line) for line in lines]
        places = [start + at for start, line in zip(starts, lines, strict=True) for at in range(len(line))]
        edges = [letters.get_charbox(at) for at in places]
    covered = [
        any(a - 1 <= x <= c + 1 and b - 1 <= y <= d + 1 for a, b, c, d in boxes)
        for x0, y0, x1, y1 in edges
        if x1 > x0 and y1 > y0
        for x in [left + (x0 + x1) / 2 * (right - left) / width]
        for y in [top + (height - (y0 + y1) / 2) * (bottom - top) / height]
    ]
    assert len(covered) > 200
    assert sum(covered) / len(covered) > 0.98


def test_the_marked_words_and_the_neighbours_of_a_passage_are_one_step_away(pages: Pages, served: Served) -> None:
    page = pages.open(viewport={"width": 390, "height": 844})
    open_pdf_passage(page, served)
    image_is_loaded(page)
    assert page.locator(".mark-word").count() > 0
    page.get_by_role("link", name="To the marked lines").click()
    expect(page.locator(".mark-line").first).to_be_in_viewport()
    start = page.locator(".steps .soft").first.inner_text()
    follow(page.get_by_role("link", name="Next chunk"))
    expect(page.locator(".steps .soft").first).not_to_have_text(start)
    follow(page.get_by_role("link", name="Previous chunk"))
    expect(page.locator(".steps .soft").first).to_have_text(start)
    follow(page.get_by_role("link", name=re.compile("Results for")))
    expect(page.get_by_role("searchbox")).to_have_value(LEAKAGE)


def test_markdown_is_shown_as_it_reads_and_plain_text_with_its_passage(page: Page, served: Served) -> None:
    search(page, served, "outlet pressure normal readings call control room")
    follow(page.locator(".result", has_text="station-manual.md").locator(".result-link").first)
    rendered = page.locator(".rendered")
    expect(rendered.locator("table").first).to_be_visible()
    assert rendered.locator(".in-passage").count() > 0
    assert "|---|" not in rendered.inner_text()
    search(page, served, "water tariff standing charge")
    follow(page.locator(".result", has_text="water-tariff-2025.txt").locator(".result-link").first)
    passage, text = page.locator("#passage"), page.locator(".document-text")
    expect(passage).to_be_visible()
    assert passage.inner_text().strip() in text.inner_text()


# ---- projects and versions -------------------------------------------------------------------------------------------


def test_projects_and_documents_are_reached_by_links(page: Page, served: Served) -> None:
    page.goto(served.url)
    assert page.locator(".cards a").all_inner_texts() == [project.name for project in served.projects]
    follow(page.get_by_role("link", name="examples", exact=True))
    expect(page).to_have_url(f"{served.url}/p/examples/")
    page.goto(f"{served.url}/p/examples/project")
    page.get_by_label("Find by name or title").fill("Station equipment")
    follow(page.get_by_role("button", name="Find"))
    expect(page.get_by_role("region", name="Table of documents").locator("tbody tr")).to_have_count(1)
    follow(page.get_by_role("link", name=re.compile("Station equipment")))
    follow(page.locator(".chunk .place a").first)
    expect(page).to_have_url(re.compile("/passage/"))
    follow(page.get_by_role("link", name="All projects"))
    expect(page.get_by_role("heading", name="Projects")).to_be_visible()


def test_a_new_version_is_shown_while_the_page_is_open(root: Path, chrome: Browser, tmp_path: Path) -> None:
    shutil.copytree(root / "manual", tmp_path / "growing")
    project = ProjectManager(tmp_path).load("growing")
    with serve([ProjectManager(tmp_path).load("growing")]) as served:
        pages = Pages(chrome, Watch(served.url, expected=["404"]))
        page = pages.open()
        search(page, served, "standing charge of the water tariff", "growing")
        assert set(files_of(page)) == {"station-manual.md"}
        passage = page.locator(".result-link").first.get_attribute("href")
        project.ingest([DATA / "water-tariff-2025.txt"])
        page.reload()
        assert files_of(page)[0] == "water-tariff-2025.txt"
        page.goto(f"{served.url}{passage}")
        expect(page.get_by_role("heading", name="Text of the passage")).to_be_visible()
        project.remove("station-manual.md")
        page.reload()
        expect(page.get_by_role("alert")).to_contain_text("no such passage in the live version")
        pages.close()
        assert pages.watch.unexpected() == []


# ---- ways of using it ------------------------------------------------------------------------------------------------


def test_going_back_keeps_the_question_and_the_filters(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/p/examples/?q={quote_plus(STOP)}&mode=lexical&top_k=5&file=station-manual.md")
    follow(page.locator(".result-link").nth(1))
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value(STOP)
    expect(page.locator(".result")).to_have_count(5)
    expect(page.locator(".chips")).to_contain_text("station-manual.md")


def test_the_keyboard_is_enough(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/p/examples/")
    page.wait_for_load_state()  # the script has run
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("/pump/hour")
    expect(page.locator("#q")).to_have_value("pump/hour")  # the first slash goes to the box and is not typed
    page.locator("#q").fill("")
    page.keyboard.type("/pump")
    expect(page.locator("#q")).to_have_value("/pump")
    page.locator("#q").fill("")
    page.keyboard.type(LEAKAGE)
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Results")).to_be_visible()
    page.wait_for_load_state()  # the script has run
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator(".result-link").first).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".result-link").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/passage/"))
    page.wait_for_load_state()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()  # Chromium moves the focus after it has handled the key
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent.trim()"))
        if page.evaluate("document.activeElement === document.body"):  # after the last one
            break
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
    assert any("Next chunk" in text or "Previous chunk" in text for text in reached)


def test_without_javascript_every_view_but_the_stream_works(pages: Pages, served: Served) -> None:
    page = pages.open(java_script_enabled=False)
    page.goto(f"{served.url}/p/examples/")
    page.get_by_role("searchbox").fill(LEAKAGE)
    page.get_by_role("searchbox").press("Enter")
    expect(page.get_by_role("region", name="Results")).to_be_visible()
    follow(page.locator(".result", has_text=PDF).locator(".result-link").first)
    expect(page.locator(".mark-line").first).to_be_attached()
    follow(page.get_by_role("link", name="Next chunk"))
    follow(page.get_by_role("link", name="Project").first)
    expect(page.get_by_role("heading", name="Versions")).to_be_visible()


VIEWS = {
    "projects": "/",
    "start": "/p/examples/",
    "results": f"/p/examples/?q={quote_plus(LEAKAGE)}&file={PDF}",
    "nothing": "/p/examples/?q=xylophone&mode=lexical",
    "page": f"passage {LEAKAGE} {PDF}",
    "markdown": f"passage {STOP} station-manual.md",
    "text": "passage standing charge water-tariff-2025.txt",
    "document": "/p/examples/document?id=station-manual.md",
    "project": "/p/examples/project",
    "ask": "/p/examples/ask",
    "no LLM": "/p/manual/ask",
    "not found": "/p/examples/passage/missing",
}


def show(page: Page, served: Served, view: str) -> None:
    path = VIEWS[view]
    if not path.startswith("passage "):
        page.goto(f"{served.url}{path}")
        return
    question, _, file = path.removeprefix("passage ").rpartition(" ")
    page.goto(f"{served.url}/p/examples/?q={quote_plus(question)}&file={file}")
    follow(page.locator(".result-link").first)
    expect(page.get_by_role("heading", name="Segments and chunks")).to_be_visible()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_every_view_fits_and_is_accessible(pages: Pages, served: Served, watch: Watch, scheme: str, width: int) -> None:
    watch.expect("404")
    page = pages.open(color_scheme=scheme, viewport={"width": width, "height": 844})
    problems = {}
    for view in VIEWS:
        show(page, served, view)
        found = overflow(page)
        closed = page.locator("details:not([open]) > summary")
        for _ in range(min(3, closed.count())):
            closed.first.click()
        found += overflow(page)
        found += [f"{one['id']}: {one['nodes'][0]['html'][:200]} ({len(one['nodes'])} times)" for one in run_axe(page)]
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(map(int, re.findall(r"\d+", background)[:3])) > 3 * 128
        found += [] if light == (scheme == "light") else [f"the background is {background}"]
        problems |= {view: found} if found else {}
    assert problems == {}
