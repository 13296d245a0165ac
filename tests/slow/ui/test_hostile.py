"""1,800 hostile requests to all routes: nothing fails, no other file is read, and nothing in a page can run."""

from __future__ import annotations

import html
import json
import random
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.documents import pdf_bytes
from tests.support.source import ROOT

testclient = pytest.importorskip("starlette.testclient", reason="needs the extra ui")
from llama_index_contextual.ui import make_app  # noqa: E402
from llama_index_contextual.ui.facets import NAMES  # noqa: E402

SEED = 32
REQUESTS = 1_800
SECRET = "only for the owner of this machine"
STRINGS: list[str] = json.loads((ROOT / "tests" / "data" / "injection.json").read_text(encoding="utf-8"))
PATHS = (
    *("../secret.txt", "..%2fsecret.txt", "/etc/passwd", "texts/../../secret.txt", "....//secret.txt", "texts\\..\\x"),
    *("file:///etc/passwd", "texts/a.md\0.pdf", "C:\\Windows\\win.ini", "\\\\host\\share", "texts", ".", "~", ""),
)
NUMBERS = ("-1", "0", "1e9", "٣", "NaN", "0x10", "9" * 400, "1 OR 1=1", "1;2", "½", "+1", " 1", "1.0", "")
SIGNS = (
    "\r\nX-Injected: 1",
    "\0",
    "\u202e\u2066",
    "\ufeff",
    "{{ 7 * 191 }}",
    "${jndi:ldap://x}",
    "' OR '1'='1",
    "%",
    "*" * 999,
)
VIEWS = ("", "ask", "project", "document", "image", "picture", "original", "passage/x")
NAMES_OF = ("q", "mode", "where", "file", "top_k", "part", "id", "find", "start", "doc", "page", "chunk", "mark", "v")
PARAMETERS = (*NAMES_OF, "answer", "style", "after", *NAMES)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "secret.txt").write_text(SECRET)
    (folder / "texts").mkdir()
    (folder / "texts" / "a.md").write_text("# Pumps\n\nThe pump stops.", encoding="utf-8")
    (folder / "texts" / "a.pdf").write_bytes(pdf_bytes())
    (folder / "texts" / "page.html").write_text("<p>The valve <script>hit(0)</script>opens.", encoding="utf-8")
    made = ProjectManager(folder / "root").create("p", ProjectConfig.local())
    made.ingest([folder / "texts"])
    return made


def value(chance: random.Random, known: list[str]) -> str:
    """Return a hostile value, sometimes with a part that is valid."""
    kinds: tuple[Callable[[], str], ...] = (
        lambda: chance.choice(STRINGS),
        lambda: chance.choice(PATHS),
        lambda: chance.choice(NUMBERS),
        lambda: chance.choice(SIGNS) + chance.choice(known),
        lambda: chance.choice(known) + chance.choice(STRINGS),
        lambda: "".join(
            chr(chance.choice((chance.randrange(1, 0x250), chance.randrange(0x2000, 0x2100)))) for _ in "12345"
        ),
        lambda: "x" * chance.choice((2_001, 4_001, 15_000)),
        lambda: chance.choice(known),
    )
    return chance.choice(kinds)()


def test_no_hostile_request_is_answered_with_an_error_a_foreign_file_or_active_markup(project: Project) -> None:
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    known = [record.doc_id for record in project.documents()]
    known += [node.node_id for doc_id in known for node in project.chunks(doc_id)]
    known += ["pump", "1", "kind=report", "0-9", "p", project.documents()[0].content_hash]
    app = make_app([project])
    client = testclient.TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    wrong = []
    for number in range(REQUESTS):
        view, name = chance.choice(VIEWS), chance.choice(PARAMETERS)
        given = {one: value(chance, known) for one in (name, *chance.sample(PARAMETERS, chance.randrange(4)))}
        # Every view also gets its own parameters, so that most requests pass its checks.
        own = {"document": ("id",), "image": ("doc", "page"), "picture": ("chunk", "mark"), "original": ("doc",)}
        given |= {one: value(chance, known) for one in own.get(view, ("q",))}
        path = f"/p/p/{view}"
        if chance.random() < 0.25:
            path = chance.choice(("/p/{}/", "/p/p/passage/{}", "/static/{}", "/{}", "/p/p/original/{}")).format(
                quote(value(chance, known)[:300], safe="/" if chance.random() < 0.5 else "", errors="replace")
            )
        address = f"{path}?{urlencode(given, errors='replace')}"
        method = chance.choice(("GET",) * 9 + ("POST",)) if view == "ask" else "GET"
        response = client.request(method, address[:60_000], follow_redirects=False)
        wrong += [(number, method, address[:300], problem) for problem in problems(response)]
    app.state.originals.renderer.close()
    assert wrong == []


def problems(response: Any) -> list[str]:
    """Return the problems of a response."""
    kind, text = response.headers.get("content-type", ""), response.text
    is_failure = response.status_code >= 500 and response.status_code != 503  # there is no LLM for answers
    found = [f"status {response.status_code}"] if is_failure else []
    found += ["a foreign file"] if SECRET in text or "root:" in text else []
    found += ["an injected header"] if "x-injected" in response.headers else []
    found += ["no policy"] if "default-src 'none'" not in response.headers.get("content-security-policy", "") else []
    if kind.startswith("text/html"):
        bare = re.sub(r'"[^"]*"', '""', text)
        found += ["a script"] if text.count("<script") != text.count('<script src="/static/') else []
        found += ["a handler"] if re.search(r"<[^>]*\s(?:on\w+|style|srcdoc)\s*=", bare) else []
        links = map(html.unescape, re.findall(r'\s(?:href|src|action)="([^"]*)"', text))
        found += [f"a link to {link[:80]}" for link in links if not re.match(r"/(?!/)|#", link)]
        found += ["an evaluated template"] if "1337" in text else []
    elif text and not kind.startswith(("text/plain", "image/", "text/css", "text/javascript", "application/")):
        found.append(f"content of type {kind}")
    is_download = response.headers.get("content-disposition", "").startswith("attachment")
    found += ["an open file that could run"] if "octet-stream" in kind and not is_download else []
    return found
