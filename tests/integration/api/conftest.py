"""A server with the API: two projects, users with different rights, and an LLM on the loopback interface."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document
from llama_index.llms.openai import OpenAI
from starlette.testclient import TestClient

from llama_index_contextual.api.app import add_api
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.ui.adding import Adding
from llama_index_contextual.ui.app import make_app
from llama_index_contextual.ui.users import TokensFile, add_token, new_user
from tests.support.recorder import PATIENCE
from tests.support.server import LoopbackProvider

BASE = "http://127.0.0.1:8010"
PUMP = "# Pumps\n\nPump P-7 stops after three days without oil.\n"
SALARY = "The severance of the quincunx team is 90,000 crowns.\n"
QUESTION = "When does pump P-7 stop?"
ANSWER = "It stops “after three days without oil” [Source 1]."

USERS: dict[str, dict[str, Any]] = {
    "ada": {"rights": ["search", "ask", "add"]},
    "it": {"filters": {"group": "it"}},
    "adder": {"rights": ["search", "ask", "add"], "filters": {"group": "it"}},
    "finder": {"rights": ["search"]},
    "asker": {"rights": ["ask"]},
    "slow": {"requests_per_minute": 3},
    "poor": {"rights": ["search", "ask", "add"], "dollars_per_hour": 0.000001},
}


@pytest.fixture(scope="session")
def plants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the projects "plant", of two groups, and "empty"; no test changes it."""
    root = tmp_path_factory.mktemp("plants")
    manager = ProjectManager(root)
    groups = {"pumps.md": (PUMP, "it"), "salaries.md": (SALARY, "hr")}
    documents = [Document(text=text, id_=name, metadata={"group": group}) for name, (text, group) in groups.items()]
    manager.create("plant", ProjectConfig.local()).ingest(documents)
    manager.create("empty", ProjectConfig.local())
    return root


@pytest.fixture(scope="session")
def provider() -> Iterator[LoopbackProvider]:
    """The provider of the LLM."""
    with LoopbackProvider() as running:
        yield running


@dataclass
class Server:
    """A server in this process.

    Attributes:
        app: The application.
        client: Client without a token.
        tokens: Tokens of the users.
        project: The project "plant".
        provider: The provider of its LLM.
        adding: The added files of the project.
    """

    app: Any
    client: TestClient
    tokens: dict[str, str]
    project: Project
    provider: LoopbackProvider
    adding: dict[str, Adding] = field(default_factory=dict)

    def headers(self, user: str) -> dict[str, str]:
        """Return the headers of a user."""
        return {"Authorization": f"Bearer {self.tokens[user]}"}

    def get(self, path: str, user: str = "ada", **options: Any) -> Any:
        """Send a GET request of a user."""
        return self.client.get(path, headers=self.headers(user), **options)

    def post(self, path: str, json: Any = None, user: str = "ada", **options: Any) -> Any:
        """Send a POST request of a user."""
        return self.client.post(path, json=json, headers=self.headers(user), **options)

    def ask(self, question: str = QUESTION, user: str = "ada", model: str = "plant", **fields: Any) -> Any:
        """Request a chat completion with one message."""
        messages = [{"role": "user", "content": question}]
        return self.post("/v1/chat/completions", {"model": model, "messages": messages, **fields}, user)

    def wait(self) -> None:
        """Wait until all added files have been read."""
        deadline = time.monotonic() + PATIENCE
        while any(one.ingest is not None and one.ingest.is_running for one in self.adding.values()):
            assert time.monotonic() < deadline, "the files are still being read"
            time.sleep(0.02)


@pytest.fixture
def make_server(plants: Path, tmp_path: Path, provider: LoopbackProvider) -> Iterator[Callable[..., Server]]:
    """A function that starts a server over a copy of the projects."""
    provider.reset()
    started: list[Server] = []

    def make(*, changes: bool = True, config: dict[str, Any] | None = None, **options: Any) -> Server:
        root = tmp_path / "root"
        shutil.copytree(plants, root)
        llm = OpenAI(
            model="gpt-4o-mini",
            api_key="any",
            api_base=provider.api_base,
            max_retries=0,
            reuse_client=False,
            timeout=60,
        )
        manager = ProjectManager(root)
        if config:
            manager.load("plant").update_config(**config)
        projects = [manager.load("plant", llm=llm), manager.load("empty", llm=llm)]
        file = tmp_path / "tokens.json"
        tokens = {name: add_token(file, new_user(name, **values)) for name, values in USERS.items()}
        adding = {project.name: Adding(project) for project in projects} if changes else {}
        app = add_api(make_app(projects, users=TokensFile(file), adding=adding, **options))
        client = TestClient(app, base_url=BASE, follow_redirects=False)
        server = Server(app, client, tokens, projects[0], provider, adding)
        started.append(server)
        return server

    yield make
    for server in started:
        for adding in server.adding.values():
            adding.stop()


@pytest.fixture
def server(make_server: Callable[..., Server]) -> Server:
    """A server to which documents can be added."""
    return make_server()
