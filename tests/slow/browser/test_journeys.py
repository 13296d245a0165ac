"""What people do in the Workbench, from the search to the marked page, on the example documents."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from urllib.parse import quote_plus

import pypdfium2
import pytest

from llama_index_contextual.config import ProjectConfig
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


def open_pdf_passage(page: Page, served: Served) -> None:
    search(page, served, LEAKAGE)
    follow(page.locator(".group", has_text=PDF).locator(".result-link").first)
    expect(page.get_by_role("region", name=re.compile(r"Page \d+.* of"))).to_be_visible()


def image_is_loaded(page: Page) -> None:
    page.wait_for_function(
        "() => { const one = document.querySelector('.sheet img'); return one && one.complete && one.naturalWidth > 0 }"
    )


# ---- passages --------------------------------------------------------------------------------------------------------


def test_the_mark_on_the_page_covers_the_words_of_the_passage(page: Page, served: Served) -> None:
    open_pdf_passage(page, served)
    image_is_loaded(page)
    text = " ".join((page.locator(".beside pre.text").text_content() or "").split())
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


@pytest.mark.parametrize(("question", "file"), [(LEAKAGE, PDF), (STOP, "station-manual.md")])
def test_the_browser_opens_a_result_at_its_sentence(page: Page, served: Served, question: str, file: str) -> None:
    search(page, served, question)
    link = page.locator(".group", has_text=file).locator(".result-link").first
    sentence, is_row = link.inner_text(), link.locator(".row").count() == 1
    follow(link)
    page.wait_for_function("scrollY > 0")
    assert page.evaluate(
        "() => { const at = passage.getBoundingClientRect().top; return at > 0 && at < innerHeight / 2 }"
    )
    marked = page.locator(".beside .quote").inner_text()
    if is_row:  # beside the passage, each cell is on a line of its own
        assert sorted(marked.split()) == sorted(sentence.split())
    else:
        assert "".join(marked.split())[:60] == "".join(sentence.split())[:60]


# ---- ways of using it ------------------------------------------------------------------------------------------------


def test_the_keyboard_is_enough(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/p/examples/")
    page.wait_for_load_state()  # the script has run
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
    expect(page).to_have_url(re.compile("/passage/.*#passage$"))
    page.wait_for_load_state()
    page.keyboard.press("Tab")  # from the mark
    expect(page.get_by_role("link", name="Skip to the content")).not_to_be_focused()
    page.goto(page.url.partition("#")[0])
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
    assert any("Passage after" in text or "Passage before" in text for text in reached)


def test_words_are_searched_while_typing_and_meaning_on_enter(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/p/examples/")
    page.wait_for_load_state()  # the script has run
    parts: list[str] = []
    page.on("request", lambda request: parts.append(request.url) if "part=results" in request.url else None)
    page.get_by_role("searchbox").press_sequentially("pressure booster", delay=5)
    expect(page.locator(".result-link").first).to_be_visible()
    assert page.url.endswith("/p/examples/")
    assert parts
    assert all("mode=lexical" in part for part in parts)
    page.get_by_role("searchbox").fill("")
    expect(page.get_by_role("heading", name="Newest documents")).to_be_visible()  # the start page again
    page.get_by_role("searchbox").fill("pressure booster")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("q=pressure"))
    expect(page.locator(".verdict")).to_contain_text("match")  # of meaning and words
    assert "mode=lexical" not in page.url


@pytest.mark.parametrize("has_script", [True, False])
def test_facets_narrow_the_search_with_and_without_a_script(pages: Pages, served: Served, has_script: bool) -> None:
    page = pages.open("/p/examples/?q=leakage", java_script_enabled=has_script)
    page.get_by_role("checkbox", name=re.compile("^PDF")).check()
    if not has_script:
        follow(page.get_by_role("button", name="Apply"))
    page.wait_for_url(re.compile("type=pdf"))
    groups = page.locator(".group:not(.folded .group)")
    expect(groups).to_have_count(1)
    expect(groups).to_contain_text(PDF)
    follow(page.get_by_role("link", name="Remove the filter PDF"))
    expect(page.get_by_role("checkbox", name=re.compile("^PDF"))).not_to_be_checked()
    assert page.locator(".group").count() > 1


def test_on_a_phone_the_facets_are_a_sheet(pages: Pages, served: Served) -> None:
    page = pages.open("/p/examples/?q=leakage", viewport={"width": 390, "height": 844})
    choice = page.get_by_role("checkbox", name=re.compile("^Text"))
    expect(choice).not_to_be_visible()
    page.get_by_role("button", name="Filters").click()
    choice.check()
    page.get_by_role("checkbox", name=re.compile("^PDF")).check()  # nothing is sent before the button
    follow(page.get_by_role("button", name="Show passages"))
    assert "type=text" in page.url
    assert "type=pdf" in page.url
    expect(page.get_by_role("button", name="Filters 2")).to_be_visible()


def unfold(page: Page) -> None:
    """Show all results: those that are less likely to answer the question, and the further ones of a document."""
    page.locator("details.folded, details.more").evaluate_all("all => all.forEach((one) => { one.open = true; })")


def test_a_quotation_is_copied_with_its_file_and_page(pages: Pages, served: Served) -> None:
    page = pages.open(f"/p/examples/?q={quote_plus(LEAKAGE)}", permissions=["clipboard-read", "clipboard-write"])
    unfold(page)
    result = page.locator(
        ".result:not(:has(.row))", has_text="page"
    ).first  # the copied text of a row names its columns
    quotation = result.locator(".result-link").inner_text()
    result.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(f"“{' '.join(quotation.split())}”")
    assert re.search(rf"\({re.escape(PDF)}, .*page \d+.*\)$", copied)


def test_the_quotation_of_a_passage_is_copied_and_its_link_opens_the_same_mark(pages: Pages, served: Served) -> None:
    page = pages.open(permissions=["clipboard-read", "clipboard-write"])
    search(page, served, LEAKAGE)
    unfold(page)
    follow(page.locator(".group", has_text=PDF).locator(".result:not(:has(.row)) .result-link").first)
    quoted = page.locator(".beside .quote").inner_text()
    page.get_by_role("button", name="Copy quotation").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(f"“{' '.join(quoted.split())}” ({PDF}, ")
    assert re.search(r"page \d+", copied)
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('http')")
    other = pages.open(page.evaluate("navigator.clipboard.readText()").removeprefix(served.url))
    expect(other.locator(".beside .quote")).to_have_text(quoted)
    boxes = "all => all.map((one) => one.getAttribute('x') + ' ' + one.getAttribute('y'))"
    assert other.locator(".mark-sentence").evaluate_all(boxes) == page.locator(".mark-sentence").evaluate_all(boxes)


def test_pictures_show_the_marked_place_when_they_come_into_view(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/p/examples/?q={quote_plus(LEAKAGE)}&type=pdf")
    picture = page.locator(".thumb img").first
    page.wait_for_function("one => one.complete && one.naturalWidth > 100", arg=picture.element_handle())
    assert page.locator(".thumb img").last.evaluate("one => one.loading") == "lazy"


VIEWS = {
    "projects": "/",
    "start": "/p/examples/",
    "results": f"/p/examples/?q={quote_plus(LEAKAGE)}",
    "facets": "/p/examples/?q=leakage&type=text&date=2025",
    "browse": "/p/examples/?type=pdf",
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
    expect(page.get_by_role("complementary", name="Quotation")).to_be_visible()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_every_view_fits_and_is_accessible(pages: Pages, served: Served, watch: Watch, scheme: str, width: int) -> None:
    watch.expect("404")
    page = pages.open(color_scheme=scheme, viewport={"width": width, "height": 844})
    problems = {}
    for view in VIEWS:
        show(page, served, view)
        found = overflow(page)
        closed = page.locator("details:not([open]) > summary").filter(visible=True)
        for _ in range(min(3, closed.count())):
            closed.first.click()
        found += overflow(page)
        found += [f"{one['id']}: {one['nodes'][0]['html'][:200]} ({len(one['nodes'])} times)" for one in run_axe(page)]
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(map(int, re.findall(r"\d+", background)[:3])) > 3 * 128
        found += [] if light == (scheme == "light") else [f"the background is {background}"]
        problems |= {view: found} if found else {}
    assert problems == {}


def test_a_wide_row_of_a_sheet_is_a_list_within_its_result_on_a_phone(chrome: Browser, tmp_path: Path) -> None:
    names = [f"Column number {number}" for number in range(9)]
    values = [f"Value {number} of the pump" for number in range(9)]
    (tmp_path / "stock.csv").write_text(f"{','.join(names)}\n{','.join(values)}\n")
    project = ProjectManager(tmp_path / "root").create("stock", ProjectConfig.local())
    project.ingest([tmp_path / "stock.csv"])
    with serve([project]) as served, chrome.new_context(viewport={"width": 390, "height": 844}) as context:
        page = context.new_page()
        page.goto(f"{served.url}/p/stock/?q=pump")
        cells = page.locator("blockquote .cells").first
        expect(cells.locator("dd")).to_have_text(values)
        expect(cells.locator("dt")).to_have_text(names)
        right = page.evaluate(
            "Math.max(...[...document.querySelectorAll('.cells dd')].map(e => e.getBoundingClientRect().right))"
        )
        assert right <= 390
        quoted = page.locator(".mini .quoted").first
        quoted.scroll_into_view_if_needed()
        box, frame = quoted.bounding_box(), page.locator(".thumb").first.bounding_box()
        assert box is not None
        assert frame is not None
        assert frame["y"] <= box["y"] <= box["y"] + box["height"] <= frame["y"] + frame["height"]


def test_the_marked_lines_of_a_page_are_within_the_screen_of_a_phone(chrome: Browser, tmp_path: Path) -> None:
    project = ProjectManager(tmp_path / "root").create("reports", ProjectConfig.local())
    project.ingest([DATA / "quarterly-reports-2024.pdf"])
    with serve([project]) as served, chrome.new_context(viewport={"width": 390, "height": 844}) as context:
        page = context.new_page()
        page.goto(f"{served.url}/p/reports/?q=How+did+revenue+develop+in+the+second+quarter")
        page.locator("a.result-link").first.click()
        page.wait_for_load_state("networkidle")
        marks = [box for mark in page.locator(".marks rect").all() if (box := mark.bounding_box()) is not None]
        assert len(marks) > 3
        assert min(box["x"] for box in marks) >= 0
        assert max(box["x"] + box["width"] for box in marks) <= 390
