"""300 hostile uploads and requests: nothing is written outside, nothing hidden is seen, and nothing fails.

The server has a socket, so that broken bodies and many connections at once are real.
"""

from __future__ import annotations

import io
import json
import os
import random
import socket
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.support.models import ScriptedLLM
from tests.support.source import ROOT

pytest.importorskip("starlette", reason="needs the extra ui")
from llama_index_contextual.api.app import add_api
from llama_index_contextual.ui.adding import Adding
from llama_index_contextual.ui.app import make_app
from llama_index_contextual.ui.users import TokensFile, add_token, new_user
from tests.slow.browser.harness import serve_app

SEED = 60
SECRET = "quincunx severance"
HIDDEN = "zygote"
"""Word of a hidden document that no request contains."""
STRINGS: list[str] = json.loads((ROOT / "tests" / "data" / "injection.json").read_text(encoding="utf-8"))
NAMES = (
    *(
        "../evil.txt",
        "../../../../tmp/evil.txt",
        "..\\..\\evil.txt",
        "/etc/evil.txt",
        "C:\\evil.txt",
        "a/../../evil.txt",
    ),
    *(
        "....//evil.txt",
        "%2e%2e/evil.txt",
        "evil.txt\0.pdf",
        "CON.txt",
        "aux",
        "nul.txt",
        ".bashrc",
        "~$x.docx",
        "a" * 3_000,
    ),
    *(
        "\u202etxt.exe",
        "evil.txt.",
        "evil.txt ",
        "a\r\nX-Injected: 1.txt",
        '"; filename="../evil.txt',
        "x/" * 100 + "e.txt",
    ),
    *(
        "file:///etc/passwd",
        "\\\\host\\share\\e.txt",
        "CURRENT",
        "../project.json",
        "../../tokens.json",
        "ledger.sqlite",
    ),
    *("../changes.jsonl", "../versions/x.txt", "../../../root/.ssh/authorized_keys.txt", "inbox/../../e.md", "e.TXT"),
)
FILTERS: tuple[Any, ...] = (
    *(
        {"group": "hr"},
        {"group": ["it", "hr"]},
        {"group": {"!=": "it"}},
        "group=hr",
        ["group=hr", "group=it"],
        "group!=it",
    ),
    *({"filters": [], "condition": "or"}, {"filters": [{"key": "group", "value": "hr"}], "condition": "or"}),
    *(
        {"group": {"nin": []}},
        {"group": {"contains": ""}},
        {"group~": "h"},
        "group~h",
        {"": ""},
        [[]],
        {"file": "salaries.md"},
    ),
)


def bombs() -> list[bytes]:
    """Return contents that are small on the wire and large or broken inside."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"<w:p>" * 30_000_000)
        archive.writestr("[Content_Types].xml", b"<Types/>")
    laughs = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + b"".join(
        b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(9)
    )
    return [
        zipped.getvalue(),
        laughs + b"]><html><body>&j;</body></html>",
        b"%PDF-1.7\n1 0 obj<</Type/Catalog/Pages 1 0 R>>endobj trailer<</Root 1 0 R>>",
        b"<div>" * 200_000,
        b"\x00" * 100_000,
        os.urandom(50_000),
        b"a,b\n" * 10 + b'"' * 100_000,
        b"From: x\nContent-Type: multipart/mixed; boundary=b\n\n" + b"--b\n" * 5_000,
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A server with visible and hidden documents, in a folder in which every other file is known."""
    folder = tmp_path_factory.mktemp("hostile")
    manager = ProjectManager(folder / "root")
    texts = {"pumps.md": ("# Pumps\n\nPump P-7 stops.", "it"), "salaries.md": (f"The {SECRET} plan of {HIDDEN}.", "hr")}
    manager.create("plant", ProjectConfig.local()).ingest(
        [Document(text=text, id_=name, metadata={"group": group}) for name, (text, group) in texts.items()]
    )
    project = manager.load("plant", llm=ScriptedLLM())
    entries: dict[str, dict[str, Any]] = {
        "ada": {"rights": ["search", "ask", "add"], "filters": {"group": "it"}, "requests_per_minute": 100_000},
        "reader": {"rights": ["search", "ask"], "filters": {"group": "it"}, "requests_per_minute": 100_000},
        "none": {"rights": ["add"], "filters": {"group": "none"}, "requests_per_minute": 100_000},
    }
    tokens = {name: add_token(folder / "tokens.json", new_user(name, **values)) for name, values in entries.items()}
    adding = Adding(project)
    app = add_api(make_app([project], users=TokensFile(folder / "tokens.json"), adding={"plant": adding}))
    with serve_app(app) as url:
        yield {"url": url, "tokens": tokens, "folder": folder, "project": project, "adding": adding}
    adding.stop()


def outside(folder: Path) -> dict[str, int]:
    """Return the files outside the places for added files, with their sizes; files of versions are left out."""
    inner = folder / "root" / "plant"
    changing = {
        "inbox",
        "waiting",
        "removed",
        "versions",
        "parts",
        "CURRENT",
        ".lock",
        "ledger.sqlite",
        "changes.jsonl",
    }
    changing |= {"skipped.json", "answers.sqlite", "ledger.sqlite-journal", "answers.sqlite-journal"}
    files = {path for path in folder.rglob("*") if path.is_file()}
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in files
        if not (path.is_relative_to(inner) and path.relative_to(inner).parts[0] in changing)
    }


def raw(url: str, data: bytes) -> bytes:
    """Send bytes over a socket, end the sending side, and return what the server answers."""
    place = urlsplit(url)
    with socket.create_connection((str(place.hostname), int(place.port or 0)), timeout=60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := connection.recv(65_536):
                answer += part
        except ConnectionError:
            pass
    return answer


def check(response: httpx.Response, wrong: list[str], what: str) -> None:
    text = response.text
    if response.status_code >= 500:
        wrong.append(f"{what}: {response.status_code} {text[:200]}")
    if HIDDEN in text or ("salaries" in text and "salaries" not in what) or "root:" in text:
        wrong.append(f"{what}: something hidden: {text[:300]}")
    if "x-injected" in response.headers:
        wrong.append(f"{what}: an injected header")


def test_no_hostile_upload_or_request_writes_outside_shows_what_is_hidden_or_fails(world: dict[str, Any]) -> None:
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    url, tokens, before = world["url"], world["tokens"], outside(world["folder"])
    headers = {name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()}
    wrong: list[str] = []
    count = 0
    contents = bombs()
    with httpx.Client(base_url=url, timeout=120) as client:
        for number in range(130):  # names and contents
            name = chance.choice(NAMES) if number >= len(NAMES) else NAMES[number]
            if number >= len(NAMES) and chance.random() < 0.5:
                name = (
                    f"{chance.choice(STRINGS)[:200]}{chance.choice(('.docx', '.html', '.pdf', '.txt', '.eml', '.csv'))}"
                )
            content = chance.choice(contents) if chance.random() < 0.5 else f"Upload {number}.".encode()
            path, user = chance.choice((("/api/add", "ada"), ("/p/plant/add", "ada"), ("/api/add", "none")))
            form = {"file": (name.encode("utf-8", "replace").decode(), content)}
            response = client.post(path, files=form, headers=headers[user])
            check(response, wrong, f"upload {name[:60]!r}")
            count += 1
        for number in range(120):  # filters that widen, wrong rights and types, and strings everywhere
            filters, text = chance.choice(FILTERS), chance.choice((SECRET, "salaries", *STRINGS[:40]))
            user = chance.choice(("ada", "reader", "none", "nobody"))
            own = headers.get(user, {"Authorization": f"Bearer {chance.choice(('x' * 9_000, 'Bearer', '0'))}"})
            messages = [{"role": chance.choice(("user", "system", "tool", text)), "content": text}]
            calls: tuple[tuple[str, str, dict[str, Any]], ...] = (
                (
                    "POST",
                    "/api/search",
                    {"json": {"query": text, "filters": filters, "top_k": chance.choice((1, 50, -1))}},
                ),
                ("POST", "/api/ask", {"json": {"question": text, "filters": filters}}),
                (
                    "POST",
                    "/v1/chat/completions",
                    {"json": {"model": "plant", "messages": messages, "filters": filters}},
                ),
                (
                    "POST",
                    "/v1/chat/completions",
                    {"json": {"model": "plant:passages", "messages": messages, "stream": True}},
                ),
                ("POST", "/v1/chat/completions", {"json": chance.choice(([], {}, {"model": [1]}, {"messages": {}}))}),
                (
                    "GET",
                    "/api/passage",
                    {"params": {"doc_id": chance.choice(("salaries.md", "../../tokens.json", text))}},
                ),
                ("GET", "/api/documents", {"params": {"filters": json.dumps(filters), "offset": "9" * 30}}),
                ("GET", f"/v1/models/{'../' * 5}etc/passwd", {}),
                ("POST", "/p/plant/add/change", {"data": {"remove": chance.choice(NAMES)[:900]}}),
                ("POST", "/p/plant/add/change", {"data": {"undo": text, "confirm": "x"}}),
                ("PATCH", "/v1/chat/completions", {"json": {}}),
            )
            method, path, options = chance.choice(calls)
            if user == "nobody" and number % 5:
                continue  # wrong tokens are slowed on purpose
            check(client.request(method, path, headers=own, **options), wrong, f"{method} {path} {options}")
            count += 1
    host, token = urlsplit(url).netloc, tokens["ada"]
    head = f"POST /api/add HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
    form = "Content-Type: multipart/form-data; boundary=b\r\n"
    part = '--b\r\nContent-Disposition: form-data; name="file"; filename="half.txt"\r\n\r\n'
    broken = [  # half bodies and lengths that lie
        f"{head}{form}Content-Length: 99999\r\n\r\n{part}half",
        f"{head}{form}Content-Length: {10**15}\r\n\r\n{part}",
        f"{head}{form}Content-Length: -1\r\n\r\n{part}",
        f"{head}{form}Transfer-Encoding: chunked\r\n\r\n5\r\n--b\r\n\r\n0\r\n\r\n",
        f"{head}{form}Content-Length: 3\r\n\r\n--b",
        f"{head}Content-Length: 10\r\n\r\n",
        f"{head}{form}Content-Length: 400\r\n\r\n{part}{'x' * 20}\r\n--b--\r\n",
        head.replace("/api/add", "/v1/chat/completions") + 'Content-Length: 500\r\n\r\n{"model": "plant"',
        head.replace("/api/add", "/p/plant/add/change") + "Content-Length: 500\r\n\r\nremove=",
        head.replace("/api/add", "/p/plant/add") + f"{form}Content-Length: 500\r\n\r\n{part}",
    ]
    for number in range(40):
        answer = raw(url, broken[number % len(broken)].encode())
        status = answer.partition(b" ")[2][:3]
        wrong += [f"raw {number}: {answer[:100]!r}"] if status.startswith(b"5") else []
        count += 1

    def at_once(number: int) -> httpx.Response:
        with httpx.Client(base_url=url, timeout=120) as one:
            if number % 2:
                body = {"model": "plant:passages", "messages": [{"role": "user", "content": SECRET}]}
                return one.post("/v1/chat/completions", json=body, headers=headers["reader"])
            form = {"file": (f"../{number}.txt", b"x"), "more": (f"at-once-{number}.txt", f"Number {number}.".encode())}
            return one.post("/api/add", files=form, headers=headers["ada"])

    with ThreadPoolExecutor(50) as pool:
        for response in pool.map(at_once, range(50)):
            check(response, wrong, "50 at once")
            count += 1
    adding = world["adding"]
    while adding.ingest.is_running:
        time.sleep(0.1)
    assert adding.ingest.error == ""
    assert wrong == []
    assert count >= 300
    assert outside(world["folder"]) == before
    left = list((world["folder"] / "root" / "plant").rglob("*.part"))
    assert left == []
    print(f"{count} uploads and requests: 0 written outside, 0 seen, 0 failed")
