"""What people do in the Workbench, from the search to the marked page, on the example documents."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from urllib.parse import parse_qs, quote_plus, urlsplit

import pypdfium2
import pytest

from llama_index_contextual.project.manager import ProjectManager
from tests.slow.browser.conftest import run_axe
from tests.slow.browser.harness import Pages, Served, Watch, follow, overflow, serve
from tests.support.examples import DATA
from tests.support.server import LoopbackProvider

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


def test_nothing_found_says_what_to_try(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/p/examples/?q=xylophone&mode=lexical")
    expect(page.get_by_role("region", name="Results")).to_contain_text("No passage was found.")
    follow(page.get_by_role("link", name="search by meaning and words"))
    expect(page.get_by_role("searchbox")).to_have_value("xylophone")
    expect(page).to_have_url(re.compile("mode=hybrid"))


def test_a_question_that_is_not_answered_has_a_low_confidence(page: Page, served: Served) -> None:
    search(page, served, "Who won the world chess championship in 1972?")
    expect(page.locator(".verdict")).to_contain_text("Low confidence: even the best passage")


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


def test_the_mode_can_be_changed_and_the_question_stays(page: Page, served: Served) -> None:
    search(page, served, STOP)
    for label, mode in (("words (lexical)", "lexical"), ("meaning (semantic)", "semantic")):
        page.get_by_text("Options and filters").click()
        page.get_by_label(label).check()
        follow(page.get_by_role("button", name="Search"))
        expect(page.get_by_role("searchbox")).to_have_value(STOP)
        expect(page.get_by_role("region", name="Results")).to_contain_text(f"{mode} search")


def test_an_impossible_request_is_explained(page: Page, served: Served, watch: Watch) -> None:
    watch.expect("status of 4|cannot be parsed")
    for query, text in (
        ("q=water&mode=psychic", "The mode 'psychic' is unknown"),
        ("q=water&top_k=a+lot", "between 1 and 100"),
        ("q=water&where=colour%3Dred", "No document has the field 'colour'"),
        ("q=water&file=missing.pdf", "missing.pdf"),
        (f"q={'a' * 5000}", "5,000 characters"),
    ):
        page.goto(f"{served.url}/p/examples/?{query}")
        expect(page.get_by_role("alert")).to_contain_text(text)
    for path in ("/p/missing/", "/p/examples/passage/missing", "/p/examples/document?id=missing", "/missing"):
        page.goto(f"{served.url}{path}")
        expect(page.get_by_role("alert")).to_contain_text("Not found")


# ---- passages --------------------------------------------------------------------------------------------------------


def test_the_mark_on_the_page_covers_the_words_of_the_passage(page: Page, served: Served) -> None:
    open_pdf_passage(page, served)
    image_is_loaded(page)
    text = page.locator(".passage-beside pre.text").inner_text()
    number = int(page.locator(".sheet").first.get_attribute("aria-label").split()[1])  # type: ignore[union-attr]
    boxes = page.locator(".mark-line").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect()).map(({left, top, right, bottom}) =>"
        " [left + scrollX, top + scrollY, right + scrollX, bottom + scrollY])"
    )
    left, top, width, height = page.locator(".sheet img").first.evaluate(
        "one => { const box = one.getBoundingClientRect();"
        " return [box.left + scrollX, box.top + scrollY, box.width, box.height] }"
    )
    covered = total = 0
    document = pypdfium2.PdfDocument(DATA / PDF)
    sheet = document[number - 1]
    letters, page_width, page_height = sheet.get_textpage(), *sheet.get_size()
    whole = letters.get_text_range()
    for line in whole.splitlines():
        words = line.strip()
        if len(words) < 40 or words not in " ".join(text.split()):
            continue
        first = whole.index(words)
        for at in range(first, first + len(words)):
            x0, y0, x1, y1 = letters.get_charbox(at)
            if x1 <= x0 or y1 <= y0:
                continue
            x = left + (x0 + x1) / 2 * width / page_width
            y = top + (page_height - (y0 + y1) / 2) * height / page_height
            total += 1
            covered += any(a - 1 <= x <= c + 1 and b - 1 <= y <= d + 1 for a, b, c, d in boxes)
    document.close()
    assert total > 200
    assert covered / total > 0.98


def test_the_words_of_the_question_are_marked_on_the_page(pages: Pages, served: Served) -> None:
    page = pages.open(viewport={"width": 390, "height": 844})
    open_pdf_passage(page, served)
    image_is_loaded(page)
    assert page.locator(".mark-word").count() > 0
    page.get_by_role("link", name="To the marked lines").click()
    expect(page.locator(".mark-line").first).to_be_in_viewport()


def test_the_next_and_the_previous_chunk_are_one_step_away(page: Page, served: Served) -> None:
    open_pdf_passage(page, served)
    start, url = page.locator(".steps .soft").first.inner_text(), page.url
    follow(page.get_by_role("link", name="Next chunk"))
    expect(page.locator(".steps .soft").first).not_to_have_text(start)
    follow(page.get_by_role("link", name="Previous chunk"))
    expect(page).to_have_url(url)
    follow(page.get_by_role("link", name=re.compile("Results for")))
    expect(page.get_by_role("searchbox")).to_have_value(LEAKAGE)


def test_a_passage_of_markdown_is_shown_as_it_reads(page: Page, served: Served) -> None:
    search(page, served, "outlet pressure normal readings call control room")
    follow(page.locator(".result", has_text="station-manual.md").locator(".result-link").first)
    rendered = page.locator(".rendered")
    expect(rendered.locator("table").first).to_be_visible()
    expect(rendered.get_by_role("heading", name="Normal readings").first).to_be_attached()
    assert rendered.locator(".in-passage").count() > 0
    assert "|---|" not in rendered.inner_text()


def test_a_passage_of_plain_text_is_marked_in_its_document(page: Page, served: Served) -> None:
    search(page, served, "water tariff standing charge")
    follow(page.locator(".result", has_text="water-tariff-2025.txt").locator(".result-link").first)
    passage, text = page.locator("#passage"), page.locator(".document-text")
    expect(passage).to_be_visible()
    assert passage.inner_text().strip() in text.inner_text()


def test_a_document_lists_its_chunks(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/p/examples/project")
    follow(page.get_by_role("link", name=re.compile("Station equipment")))
    expect(page.locator(".segment").first).to_be_visible()
    follow(page.locator(".chunk .place a").first)
    expect(page).to_have_url(re.compile("/passage/"))


def test_a_citation_leads_to_the_marked_page(page: Page, served: Served, provider: LoopbackProvider) -> None:
    provider.reset()
    provider.enqueue("“Leakage fell to 16.8 % of the water put into supply” [Source 1] [Source 2] [Source 3].")
    page.goto(f"{served.url}/p/examples/ask")
    page.get_by_role("textbox", name="Question").fill(LEAKAGE)
    page.get_by_role("textbox", name="Question").press("Enter")
    expect(page).to_have_url(re.compile(r"\?answer="))
    follow(page.get_by_role("article").get_by_role("link", name="verified"))
    expect(page.get_by_role("heading", name=re.compile("On its page"))).to_be_visible()
    image_is_loaded(page)
    assert page.locator(".mark-line").count() > 0
    expect(page.locator(".passage-beside pre.text")).to_contain_text("Leakage fell to 16.8 %")


# ---- projects and versions -------------------------------------------------------------------------------------------


def test_each_project_can_be_reached_from_the_list(page: Page, served: Served) -> None:
    page.goto(served.url)
    names = page.locator(".cards a").all_inner_texts()
    assert names == [project.name for project in served.projects]
    follow(page.get_by_role("link", name="manual", exact=True))
    expect(page).to_have_url(f"{served.url}/p/manual/")
    search(page, served, "pump", "manual")
    assert set(files_of(page)) == {"station-manual.md"}
    follow(page.get_by_role("link", name="All projects"))
    expect(page.get_by_role("heading", name="Projects")).to_be_visible()


def test_the_project_view_shows_documents_versions_cost_and_failures(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/p/examples/project")
    for heading in ("Documents", "Versions", "Cost", "Failures"):
        expect(page.get_by_role("heading", name=heading)).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("live"))).to_have_count(1)
    page.get_by_label("Find by name or title").fill("tariff")
    follow(page.get_by_role("button", name="Find"))
    expect(page.get_by_role("region", name="Table of documents").locator("tbody tr")).to_have_count(1)


def test_a_new_version_is_shown_while_the_page_is_open(root: Path, chrome: Browser, tmp_path: Path) -> None:
    shutil.copytree(root / "manual", tmp_path / "growing")
    project = ProjectManager(tmp_path).load("growing")
    with serve([ProjectManager(tmp_path).load("growing")]) as served:
        watch = Watch(served.url)
        pages = Pages(chrome, watch)
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
        watch.expect("404")
        page.reload()
        expect(page.get_by_role("alert")).to_contain_text("no such passage in the live version")
        page.goto(f"{served.url}/p/growing/project")
        expect(page.get_by_role("region", name="Table of documents").locator("tbody tr")).to_have_count(1)
        pages.close()
        assert watch.unexpected() == []


# ---- ways of using it ------------------------------------------------------------------------------------------------


def test_going_back_keeps_the_question_and_the_filters(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/p/examples/?q={quote_plus(STOP)}&mode=lexical&top_k=5&file=station-manual.md")
    follow(page.locator(".result-link").nth(1))
    follow(page.get_by_role("link", name="Next chunk"))
    page.go_back()
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value(STOP)
    expect(page.locator(".result")).to_have_count(5)
    expect(page.locator(".chips")).to_contain_text("station-manual.md")


def test_a_slash_at_the_start_goes_to_the_box_and_is_not_typed(page: Page, served: Served) -> None:
    for path in ("", "ask"):
        page.goto(f"{served.url}/p/examples/{path}")
        page.wait_for_load_state()  # the script has run
        box = page.locator("#q")
        expect(box).to_be_focused()
        page.keyboard.type("/pump/hour")
        expect(box).to_have_value("pump/hour")
        box.fill("")
        page.keyboard.type("/pump")
        expect(box).to_have_value("/pump")


def test_the_keyboard_is_enough(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/p/examples/")
    expect(page.get_by_role("searchbox")).to_be_focused()
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
