"""Two hundred strings that would act if any view took them for markup; nowhere may they do more than be read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from llama_index.core.schema import Document, NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.ui.views import Links
from tests.slow.browser.conftest import with_llm
from tests.slow.browser.harness import Pages, Served, Watch, chromium, follow, serve
from tests.support.records import ApiError
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT

pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
from playwright.sync_api import Page, expect

# Two hundred different strings, each with its number: `hit` is defined in each page of this test, and tells the number.
ALL: list[str] = json.loads((ROOT / "tests" / "data" / "injection.json").read_text(encoding="utf-8"))
PER_DOCUMENT = 10
PARAMETERS = (
    *((name, "") for name in ("mode", "where", "file", "top_k", "part", "type", "folder", "date", "language")),
    *(("answer", "ask"), ("id", "document"), ("find", "project"), ("start", "project"), ("doc", "image")),
    *(("page", "image"), ("chunk", "picture"), ("mark", "picture"), ("v", "picture"), ("doc", "original")),
)
"""Names of request parameters, with the view that reads them."""
GROUPS = [ALL[at : at + PER_DOCUMENT] for at in range(0, len(ALL), PER_DOCUMENT)]

# What no view has, or has of its own only.
_FOREIGN = """() => {
  const wrong = [...window.hits.map((n) => `string ${n} was run`)];
  if (document.contentType === "text/plain") return wrong;
  const banned = "iframe, frame, object, embed, base, style, meta[http-equiv], math, foreignObject, animate, set," +
    " use, video, audio, source, marquee, template, noscript, applet, portal, dialog";
  for (const element of document.querySelectorAll(banned)) wrong.push(`element ${element.outerHTML.slice(0, 120)}`);
  const addresses = ["href", "src", "action", "formaction", "xlink:href", "data", "poster", "ping", "srcset"];
  for (const element of document.querySelectorAll("*")) {
    const tag = element.tagName.toLowerCase();
    for (const { name, value } of element.attributes) {
      if (name.startsWith("on") || name === "srcdoc" || name === "style") wrong.push(`${tag} with ${name}=${value}`);
      if (!addresses.includes(name)) continue;
      const url = new URL(value, location.href);
      const isLink = tag === "a" && ["http:", "https:", "mailto:"].includes(url.protocol) && name === "href";
      if (url.origin !== location.origin && !isLink) wrong.push(`${tag} with ${name}=${value}`);
      if (tag === "script" && !url.pathname.startsWith("/static/")) wrong.push(`script of ${value}`);
    }
    if (tag === "script" && !element.src) wrong.push(`script ${element.textContent.slice(0, 80)}`);
  }
  if (document.body.innerText.includes("1337")) wrong.push("a template in a text was evaluated");
  return wrong;
}"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, provider: LoopbackProvider) -> Iterator[Served]:
    """The Workbench with a project in which every string is a name, title, heading, text, fact and context."""
    chromium()
    pytest.importorskip("starlette", reason="needs the extra ui")
    root = tmp_path_factory.mktemp("injection")
    project = ProjectManager(root).create("strings", ProjectConfig.local())
    assert len(list(_files(root / "files"))) > 30
    project.ingest([*_documents(), *_chunks(), root / "files"])
    with serve([with_llm(root, "strings", provider)]) as served:
        yield served


def _documents() -> Iterator[Document]:
    for group in GROUPS:
        text = "\n\n".join(f"# {string}\n\nThe pump is described by {string} and stops." for string in group)
        metadata: dict[str, Any] = {f"{string} key": string for string in group[:4]}
        metadata |= {"title": group[0], "file_name": f"{group[1]}.md", "section": group[2], "author": group[3]}
        yield Document(text=text, id_=f"document {group[4]}", metadata=metadata)


def _chunks() -> Iterator[TextNode]:
    for number, string in enumerate(ALL):
        metadata = {"context": f"Context with {string} as given.", "context_source": "given", "section": string}
        source = RelatedNodeInfo(node_id=f"chunks {number // PER_DOCUMENT} {ALL[number // PER_DOCUMENT]}")
        yield TextNode(
            id_=" ".join(f"chunk {number} {string}".split()),  # routes have no line breaks
            text=f"A chunk about valves: {string}",
            metadata=metadata,
            relationships={NodeRelationship.SOURCE: source},
        )


def _files(folder: Path) -> Iterator[Path]:
    """Yield files whose names are strings, as far as the file system has such names."""
    for at, string in enumerate(ALL[::4]):
        name, below = (one.replace("/", "-").replace("\n", " ") for one in (string, ALL[at % 8]))
        path = folder / below / f"{name}.md"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"# {string}\n\nA file about gauges: {string}\n", encoding="utf-8")
        except (OSError, ValueError):  # Windows has no < in names
            continue
        yield path


@pytest.fixture
def page(pages: Pages) -> Page:
    page = pages.open()
    page.context.add_init_script("window.hits = []; window.hit = (number) => window.hits.push(number);")
    return page


def assert_inactive(page: Page) -> None:
    page.mouse.move(300, 300)
    assert page.evaluate(_FOREIGN) == [], page.url


def test_the_detector_reports_an_active_string(page: Page, served: Served, watch: Watch) -> None:
    watch.expect("Content Security Policy|policy")
    page.goto(served.url)
    assert_inactive(page)
    page.evaluate("""() => {
      document.body.insertAdjacentHTML("beforeend", "<b onclick=x></b><base target=x><a href='javascript:x'>x</a>");
      hit(7);
    }""")
    found = "\n".join(page.evaluate(_FOREIGN))
    assert all(text in found for text in ("string 7", "b with onclick", "<base", "a with href=javascript:x"))


def test_queries_and_results_are_inactive(page: Page, served: Served) -> None:
    for group in GROUPS:
        query = f"pump valve {' '.join(group)}"
        page.goto(f"{served.url}/p/strings/?{urlencode({'q': query, 'top_k': 10})}")
        expect(page.get_by_role("searchbox")).to_have_value(re.compile("^pump valve "))
        expect(page.locator(".result-link").first).to_be_visible()
        assert_inactive(page)


def test_parameters_are_inactive(page: Page, served: Served, watch: Watch) -> None:
    watch.expect("status of 4|cannot be parsed")
    for at, string in enumerate(ALL):
        name, path = PARAMETERS[at % len(PARAMETERS)]
        parameters = {"q": f"pump {string}", "id": "x", "doc": "x", "page": "1", name: string}
        page.goto(f"{served.url}/p/strings/{path}?{urlencode(parameters)}")
        assert_inactive(page)
    for string in ALL[2::20]:
        for path in ("/{}", "/p/{}/", "/p/strings/passage/{}"):
            page.goto(served.url + path.format(quote(string, safe="")))
            assert_inactive(page)


def test_documents_and_passages_are_inactive(page: Page, served: Served) -> None:
    (project,) = served.projects
    links, records = Links("strings"), list(project.documents())
    assert len(records) > 40
    nodes = [node for record in records for node in project.chunks(record.doc_id)]
    paths = [f"/p/strings/document?{urlencode({'id': record.doc_id})}" for record in records[:40]]
    paths += [links.passage(node.node_id, q=f"pump {ALL[at % len(ALL)]}") for at, node in enumerate(nodes[::9])]
    for path in paths:
        page.goto(f"{served.url}{path}")
        expect(page.get_by_role("main")).to_contain_text(re.compile("pump|about"))
        assert_inactive(page)


def test_original_files_are_inactive(page: Page, served: Served) -> None:
    (project,) = served.projects
    records = [record for record in project.documents() if record.path is not None]
    assert len(records) > 30
    for record in records:
        page.goto(f"{served.url}{Links('strings').original(record.doc_id)}")
        assert page.evaluate("document.contentType") == "text/plain"
        expect(page.locator("body")).to_contain_text("A file about gauges")
        assert_inactive(page)


def test_facets_and_the_results_before_and_after_are_inactive(page: Page, served: Served) -> None:
    for string in ALL[:8]:
        page.goto(f"{served.url}/p/strings/?{urlencode({'q': f'gauges {string}', 'mode': 'lexical'})}")
        assert_inactive(page)
        folder = page.locator("input[name=folder]").first
        folder.check()
        page.wait_for_url(re.compile("folder="))
        assert_inactive(page)
        follow(page.locator(".result-link").first)
        expect(page.locator(".steps")).to_be_visible()
        assert_inactive(page)


def test_collected_questions_are_inactive_and_saved_as_they_are(page: Page, served: Served) -> None:
    questions = [f"valves {string}"[:300] for string in ALL[::20]]
    for question in questions:
        page.goto(f"{served.url}/p/strings/?{urlencode({'q': question})}")
        page.get_by_role("button", name="This answers it").first.click()
        assert_inactive(page)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download questions").click()
    lines = Path(saved.value.path()).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["question"] for line in lines] == [question.strip() for question in questions]


def test_the_project_view_is_inactive(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/p/strings/project")
    for _ in range(10):
        assert_inactive(page)
        following = page.get_by_role("link", name="Next")
        if not following.count():
            break
        follow(following.first)


def ask(page: Page, served: Served, question: str) -> None:
    page.goto(f"{served.url}/p/strings/ask")
    page.get_by_role("textbox", name="Question").fill(question)
    page.get_by_role("button", name="Ask", exact=True).click()


def test_answers_are_inactive(page: Page, served: Served, provider: LoopbackProvider) -> None:
    provider.reset()
    for group in GROUPS:
        answer = "\n\n".join(f"{string} [Source 1]" for string in group)
        provider.enqueue(f"Before. {answer}\n\nThe end.")
        ask(page, served, f"Which pump or valve? {group[0]}")
        expect(page.get_by_role("article")).to_have_count(GROUPS.index(group) + 1)
        expect(page.get_by_role("article").last).to_contain_text("Before.")
        expect(page.locator("#status")).to_have_text("The answer is complete.")
        assert_inactive(page)
        page.reload()
        expect(page.get_by_role("article").last).to_contain_text("Before.")
        assert_inactive(page)


def test_errors_of_the_provider_are_inactive(page: Page, served: Served, provider: LoopbackProvider) -> None:
    provider.reset()
    for string in ALL[::20]:
        refusal = ApiError(400, f"The prompt was refused: {string}")
        provider.enqueue(refusal, refusal)  # the second call is without optional parameters
        ask(page, served, "Which pump?")
        expect(page.get_by_role("alert")).to_be_visible()
        assert_inactive(page)
