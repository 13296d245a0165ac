"""Two hundred strings that would act if any view took them for markup; nowhere may they do more than be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from llama_index.core.schema import Document, NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.slow.browser.conftest import with_llm
from tests.slow.browser.harness import Pages, Served, Watch, chromium, follow, serve
from tests.support.server import LoopbackProvider

pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
from playwright.sync_api import Page, expect

# `hit` is defined in each page of this test. Every string has a number, so that a hit tells which one it was.
_CALL = "hit(@)"
_ELSEWHERE = "https://elsewhere.invalid/@"
_ELEMENTS = (
    f"<script>{_CALL}</script>",
    f"<script src='{_ELSEWHERE}.js'></script>",
    f"<img src=x onerror={_CALL}>",
    f"<img src='{_ELSEWHERE}.png' alt=''>",
    f"<svg onload={_CALL}></svg>",
    f"<svg/onload={_CALL}//",
    f"<svg><script>{_CALL}</script></svg>",
    f"<svg><animate attributeName=x dur=1s onbegin={_CALL}></animate></svg>",
    f"<svg><foreignObject><img src=x onerror={_CALL}></foreignObject></svg>",
    f"<svg><use href='data:image/svg+xml,<svg id=x onload={_CALL}>#x'></use></svg>",
    f"<math><mi xlink:href='javascript:{_CALL}'>m</mi></math>",
    f"<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=x onerror={_CALL}&gt;'>",
    f"<body onload={_CALL}>",
    f"<body onpageshow={_CALL}>",
    f"<iframe src='javascript:parent.{_CALL}'></iframe>",
    f"<iframe srcdoc='<script>parent.{_CALL}</script>'></iframe>",
    f"<iframe src='{_ELSEWHERE}'></iframe>",
    f"<object data='javascript:{_CALL}'></object>",
    f"<embed src='{_ELSEWHERE}.svg'>",
    f"<details open ontoggle={_CALL}>x</details>",
    f"<video><source onerror={_CALL} src=x></video>",
    f"<audio src=x onerror={_CALL}></audio>",
    f"<input autofocus onfocus={_CALL}>",
    f"<select autofocus onfocus={_CALL}></select>",
    f"<button onclick={_CALL} autofocus>x</button>",
    f"<marquee onstart={_CALL}>x</marquee>",
    f"<form action='{_ELSEWHERE}'><button>x</button></form>",
    f"<button form=ask formaction='{_ELSEWHERE}'>x</button>",
    f"<base href='{_ELSEWHERE}'>",
    f"<meta http-equiv=refresh content='0;url={_ELSEWHERE}'>",
    f"<link rel=stylesheet href='{_ELSEWHERE}.css'>",
    f"<link rel=preload as=image href='{_ELSEWHERE}.png'>",
    f"<style>@import '{_ELSEWHERE}.css';</style>",
    f"<p style=\"background: url('{_ELSEWHERE}.gif')\">x</p>",
    f"<a href='javascript:{_CALL}'>x</a>",
    f"<a href='data:text/html,<script>{_CALL}</script>'>x</a>",
    f"<a href='{_ELSEWHERE}' ping='{_ELSEWHERE}'>x</a>",
    f"<template><script>{_CALL}</script></template>",
    f"<noscript><p title='</noscript><img src=x onerror={_CALL}>'>",
    f"<scr<script>ipt>{_CALL}</scr</script>ipt>",
    f"<IMG SRC=x ONERROR={_CALL}>",
    f"<img/src=x/onerror={_CALL}>",
    f"<img src=x\u2028onerror={_CALL}>",
    f"<img src=`x`onerror={_CALL}>",
    f"<!--><img src=x onerror={_CALL}>-->",
    f"<![CDATA[><img src=x onerror={_CALL}>]]>",
    f"<?xml version='1.0'?><img src=x onerror={_CALL}>",
    f"＜script＞{_CALL}＜/script＞",
    f"\u202e<img src=x onerror={_CALL}>\u202c",
    f"\ufeff<img src=x onerror={_CALL}>",
)
_ESCAPED = (
    f"&lt;img src=x onerror={_CALL}&gt;",
    f"&#60;img src=x onerror={_CALL}&#62;",
    f"&#x3c;script&#x3e;{_CALL}&#x3c;/script&#x3e;",
    f"%3Cimg src=x onerror={_CALL}%3E",
    f"%253Cscript%253E{_CALL}%253C/script%253E",
    f"\\x3cscript\\x3e{_CALL}\\x3c/script\\x3e",
    f"\\u003cscript\\u003e{_CALL}\\u003c/script\\u003e",
    f"+ADw-script+AD4-{_CALL}+ADw-/script+AD4-",
)
_TEMPLATES = (
    "{{ 7 * 191 }} @",
    "{% for one in range(9) %}@{% endfor %}",
    "{{ request.app.state.token }} @",
    "{# @ #}",
    f"${{{_CALL}}}",
    f"#{{{_CALL}}}",
    f"<%= {_CALL} %>",
    f"';{_CALL};'",
    f'";{_CALL};"',
    f"`${{{_CALL}}}`",
    f"javascript:{_CALL}",
    f"{_CALL}",
)
_MARKDOWN = (
    f"[x](javascript:{_CALL})",
    f"[x](JaVaScRiPt:{_CALL})",
    f"[x](java\tscript:{_CALL})",
    f"[x](&#106;avascript:{_CALL})",
    f"[x](javascript&colon;{_CALL})",
    f"[x](\u0001javascript:{_CALL})",
    f"[x](vbscript:{_CALL})",
    "[x](data:text/html;base64,PHNjcmlwdD5oaXQoMSk8L3NjcmlwdD4= '@')",
    f"[x](//elsewhere.invalid/@ '\" onmouseover=\"{_CALL}')",
    f'[x](https://elsewhere.invalid/"onmouseover="{_CALL})',
    f"![x]({_ELSEWHERE}.png)",
    f"![x](x.png' onerror='{_CALL})",
    f'![" onerror="{_CALL}](x)',
    f"[![x]({_ELSEWHERE}.png)](javascript:{_CALL})",
    f"<javascript:{_CALL}>",
    f'<{_ELSEWHERE}"onclick="{_CALL}>',
    f"[y]\n\n[y]: javascript:{_CALL}",
    f"[Source 1](javascript:{_CALL})",
    f"[Source 1]: javascript:{_CALL} 'x'",
    f"[Source <img src=x onerror={_CALL}> 1]",
    f"“words of <img src=x onerror={_CALL}> a quotation”",
    f'"words 77 <b onclick={_CALL}>of a</b> quotation"',
    f"| <img src=x onerror={_CALL}> |\n|---|\n| <svg onload={_CALL}> |",
    f"```<img src=x onerror={_CALL}>\n</code></pre><script>{_CALL}</script>\n```",
    f"`</code><img src=x onerror={_CALL}>`",
    f"    </pre><img src=x onerror={_CALL}>",
    f"> <script>{_CALL}</script>",
    f"# <img src=x onerror={_CALL}>",
    f"\U000f0000\U000f0001<img src=x onerror={_CALL}>\U000f0002",
    f"<div\n\nonclick={_CALL}>x</div>",
)
_ESCAPES = (
    *('"', "'", '">', "'>", "-->", "]]>", "</title>", "</textarea>", "</style>", "</script>", "</pre>", "</mark>"),
    *(
        "</option></select>",
        "</code></pre>",
        "</svg>",
        "</p></article></main>",
        '" x="',
        "' x='",
        "\\",
        "`",
        "*/",
        "}}",
    ),
)


def strings() -> list[str]:
    """Return two hundred different strings."""
    attributes = [f'{escape} onmouseover="{_CALL}" autofocus onfocus={_CALL} ' for escape in ('"', "'", '">', "'/")]
    escaping = [f"{escape}<img src=x onerror={_CALL}>" for escape in _ESCAPES]
    escaping += [f"{escape}<script>{_CALL}</script>" for escape in _ESCAPES]
    escaping += [f'{escape} onclick="{_CALL}" y="' for escape in _ESCAPES]
    upper = [core.upper().replace("HIT(@)", _CALL) for core in _ELEMENTS[:40]]
    cores = [*_ELEMENTS, *_ESCAPED, *_TEMPLATES, *_MARKDOWN, *attributes, *upper, *escaping]
    return [core.replace("@", str(number)) for number, core in enumerate(dict.fromkeys(cores), start=1)][:200]


ALL = strings()
PER_DOCUMENT = 10
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
    project.ingest([*_documents(), *_chunks(), *_files(root / "files")])
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
    folder.mkdir()
    for string in ALL[::4]:
        path = folder / f"{string.replace('/', '-').replace(chr(10), ' ')}.md"
        try:
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


def test_there_are_two_hundred_different_strings() -> None:
    assert len(set(ALL)) == 200


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
        for half in (group[::2], group[1::2]):
            query = f"pump valve {' '.join(half)}"
            page.goto(f"{served.url}/p/strings/?{urlencode({'q': query, 'top_k': 10})}")
            expect(page.get_by_role("searchbox")).to_have_value(re.compile("^pump valve "))
            expect(page.locator(".result-link").first).to_be_visible()
            assert_inactive(page)


def test_parameters_are_inactive(page: Page, served: Served, watch: Watch) -> None:
    watch.expect("status of 4|cannot be parsed")
    names = ("mode", "where", "file", "top_k", "answer", "id", "find", "doc", "page")
    paths = ("", "", "", "", "ask", "document", "project", "image", "image")
    for at, string in enumerate(ALL[::4]):
        name, path = names[at % len(names)], paths[at % len(names)]
        parameters = {"q": f"pump {string}", "id": "x", "doc": "x", "page": "1", name: string}
        page.goto(f"{served.url}/p/strings/{path}?{urlencode(parameters)}")
        assert_inactive(page)
    for string in ALL[2::20]:
        for path in (
            f"/{quote(string, safe='')}",
            f"/p/{quote(string, safe='')}/",
            f"/p/strings/passage/{quote(string)}",
        ):
            page.goto(f"{served.url}{path}")
            assert_inactive(page)


def test_documents_are_inactive(page: Page, served: Served) -> None:
    (project,) = served.projects
    records = list(project.documents())
    assert len(records) > 40
    for record in [*records[:40], *records[40::10]]:
        page.goto(f"{served.url}/p/strings/document?{urlencode({'id': record.doc_id})}")
        expect(page.get_by_role("main")).to_contain_text(re.compile("The pump|about"))
        assert_inactive(page)


def test_passages_are_inactive(page: Page, served: Served) -> None:
    (project,) = served.projects
    nodes = [node for record in project.documents() for node in project.chunks(record.doc_id)]
    from llama_index_contextual.ui.views import Links

    links = Links("strings")
    for at, node in enumerate(nodes[::6]):
        page.goto(f"{served.url}{links.passage(node.node_id, q=f'pump {ALL[at % len(ALL)]}')}")
        expect(page.get_by_role("main")).to_contain_text(re.compile("pump|about"))
        assert_inactive(page)


def test_the_project_view_is_inactive(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/p/strings/project")
    for _ in range(10):
        assert_inactive(page)
        following = page.get_by_role("link", name="Next")
        if not following.count():
            break
        follow(following.first)


def test_answers_are_inactive(page: Page, served: Served, provider: LoopbackProvider) -> None:
    provider.reset()
    for group in GROUPS:
        answer = "\n\n".join(f"{string} [Source 1]" for string in group)
        provider.enqueue(f"Before. {answer}\n\nThe end.")
        page.goto(f"{served.url}/p/strings/ask")
        page.get_by_role("textbox", name="Question").fill(f"Which pump or valve? {group[0]}"[:3000])
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.get_by_role("article")).to_contain_text("Before.")
        expect(page.get_by_role("status")).to_have_text("The answer is complete.")
        assert_inactive(page)
        page.reload()
        expect(page.get_by_role("article")).to_contain_text("Before.")
        assert_inactive(page)


def test_errors_of_the_provider_are_inactive(page: Page, served: Served, provider: LoopbackProvider) -> None:
    from tests.support.records import ApiError

    provider.reset()
    for string in ALL[::20]:
        provider.enqueue(ApiError(400, f"The prompt was refused: {string}"))
        page.goto(f"{served.url}/p/strings/ask")
        page.get_by_role("textbox", name="Question").fill("Which pump?")
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.get_by_role("alert")).to_be_visible()
        assert_inactive(page)
