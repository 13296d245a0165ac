"""A server that is killed during uploads loses no file that it has accepted, and mixes none."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.support.recorder import PATIENCE

pytest.importorskip("starlette", reason="needs the extra ui")
from llama_index_contextual.ui.users import add_token, new_user

SEED = 61
UPLOADS = 40
KILLS = 8


class Server:
    """A server in a process of its own, which is started again after each kill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = ""
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process, and wait until it has announced its address."""
        arguments = ["serve", "plant", "--port", "0", "--api", "--allow-changes"]
        arguments += ["--tokens", str(self._folder / "tokens.json"), "--root", str(self._folder / "root")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llama_index_contextual", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment | {"PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Workbench: "):
                self.url = line.split()[1].rstrip("/")
                return
        raise RuntimeError("the server did not start")

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    ProjectManager(tmp_path / "root").create("plant", ProjectConfig.local(indexes="lexical"))
    one = Server(tmp_path)
    yield one
    with contextlib.suppress(AssertionError):
        one.kill()


def content_of(number: int) -> bytes:
    """Return the content of an upload, which names its number in every line."""
    return "".join(f"Line {line} of upload {number}.\n" for line in range(2_000)).encode()


def test_kills_during_uploads_lose_nothing_and_mix_nothing(server: Server, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    token = add_token(tmp_path / "tokens.json", new_user("ada", rights=["add"], requests_per_minute=100_000))
    accepted: dict[int, str] = {}
    is_over = threading.Event()
    server.start()

    def send() -> None:
        for number in range(UPLOADS):
            while number not in accepted and not is_over.is_set():
                form = {"file": (f"upload-{number}.txt", content_of(number))}
                try:
                    response = httpx.post(
                        f"{server.url}/api/add", files=form, headers={"Authorization": f"Bearer {token}"}, timeout=30
                    )
                except httpx.HTTPError:
                    time.sleep(0.05)  # the server is being started again
                    continue
                if response.status_code == 202:
                    accepted[number] = response.json()["files"][0]["path"]

    sender = threading.Thread(target=send)
    sender.start()
    kills = 0
    while kills < KILLS:
        reached = UPLOADS * (kills + 1) // (KILLS + 1)
        while len(accepted) < reached and sender.is_alive():
            time.sleep(0.005)
        time.sleep(chance.random() * 0.05)
        server.kill()
        kills += 1
        server.start()
    sender.join(PATIENCE)
    is_over.set()
    assert len(accepted) == UPLOADS
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as client:
        deadline = time.monotonic() + PATIENCE
        while (state := client.get("/api/add").json())["is_running"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert state["error"] == ""
    server.kill()

    inbox = tmp_path / "root" / "plant" / "inbox"
    found = {path.name: path.read_bytes() for path in inbox.rglob("*") if path.is_file() and path.suffix == ".txt"}
    expected = {f"upload-{number}.txt": content_of(number) for number in range(UPLOADS)}
    assert {name for name in expected if found.get(name) != expected[name]} == set(), "lost or mixed"
    assert set(found) == set(expected), "a repeated upload has the same content, and is kept once"
    project = ProjectManager(tmp_path / "root").load("plant")
    texts = {record.doc_id: project.read(record.doc_id).encode() for record in project.documents()}
    assert {name.rpartition("/")[2]: text for name, text in texts.items()} == expected
    assert project.verify().sound
    print(f"{KILLS} kills during {UPLOADS} uploads: 0 lost, 0 mixed")
