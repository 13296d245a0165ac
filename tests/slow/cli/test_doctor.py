"""The `doctor` command on broken installations and projects: each problem is named, and its command solves it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock
from packaging.requirements import Requirement

from llama_index_contextual.cli.doctor import LOCKS
from llama_index_contextual.config import KEYS, ProjectConfig, read_dotenv
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import at_a_terminal, run
from tests.support.documents import write_texts
from tests.support.server import LoopbackProvider

COMMAND = "llama-index-contextual"
KEY = "sk-proj-7Hq2WmZx94LbTn3V"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the commands are written for the shells of POSIX")


@pytest.fixture(autouse=True)
def _without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*KEYS, *(address for addresses in KEYS.values() for address in addresses)):
        monkeypatch.delenv(name, raising=False)


def checks(*arguments: str) -> list[dict[str, Any]]:
    """Return the checks of the projects; those of the installation depend on where the tests run."""
    found: list[dict[str, Any]] = run("doctor", "--json", *arguments).json["checks"]
    return [check for check in found if check["place"] != "Installation"]


def findings() -> list[dict[str, Any]]:
    return [check for check in checks() if check["command"] is not None]


def finding() -> dict[str, Any]:
    """Return the only finding."""
    (result,) = findings()
    assert f"{result['message']}" in run("doctor").out
    assert f"    {result['command']}\n" in run("doctor").out
    return result


def mend(command: str, answer: str | None = None) -> None:
    """Run a command as a shell does; those of this package run in this process."""
    for part in command.split(" && ") if COMMAND in command else [command]:
        words = shlex.split(part)
        if words[0] == COMMAND:
            result = run(*words[1:], answer=answer)
            assert result.code == 0, (part, result.err)
        else:
            subprocess.run(["bash", "-c", part], input=answer, text=True, check=True, capture_output=True)


def parts(project: Project) -> Path:
    return project.directory / "parts" / "p000001"


# ---- projects --------------------------------------------------------------------------------------------------------


def test_nothing_is_found_in_a_sound_project_and_the_state_is_shown(ingested: Project) -> None:
    assert findings() == []
    shown = run("doctor", "a").out
    assert "v000001 is live: 2 documents" in shown
    assert "local can be loaded" in shown
    assert str(ingested.directory.parent) in shown


def damage_current(project: Project) -> None:
    (project.directory / "CURRENT").write_text("nonsense")


def truncate_a_part(project: Project) -> None:
    with open(parts(project) / "docstore.sqlite", "rb+") as file:
        file.truncate(5_000)


def damage_the_ledger(project: Project) -> None:
    with open(project.directory / "ledger.sqlite", "rb+") as file:
        file.seek(100)
        file.write(b"\xff" * 4_000)


def interrupt_a_writer(project: Project) -> None:
    (project.directory / "versions" / "v000002.building").mkdir()
    (project.directory / ".lock").touch()


def interrupt_a_comparison(project: Project) -> None:
    scratch = project.directory.with_name(".a.compare")
    scratch.mkdir()
    (scratch / "text").write_text("A text.")


def change_a_setting(project: Project) -> None:
    project.update_config(chunk_size=400, chunk_overlap=0)


@pytest.mark.parametrize(
    ("damage", "message", "command", "harmless"),
    [
        (damage_current, "CURRENT does not contain the name of a version", "rollback a --to v000001", False),
        (truncate_a_part, "docstore.sqlite has 5000 bytes instead of", "verify a --repair", False),
        (damage_the_ledger, "ledger.sqlite is damaged", "verify a --repair", False),
        (interrupt_a_writer, "v000002.building was left by an interrupted run", "verify a --repair", True),
        (interrupt_a_comparison, ".a.compare was left by an interrupted run", "verify a --repair", True),
        (change_a_setting, "v000001 was built with other settings (chunk_size, chunk_overlap)", "rebuild a", True),
    ],
)
def test_a_broken_project_is_named_and_its_command_mends_it(
    ingested: Project, damage: Callable[[Project], None], message: str, command: str, harmless: bool
) -> None:
    damage(ingested)
    result = finding()
    assert message in result["message"]
    assert result["command"] == f"{COMMAND} {command} --root {shlex.quote(str(ingested.directory.parent))}"
    assert result["harmless"] is harmless
    assert run("doctor").code == (0 if harmless else 1)
    mend(result["command"])
    for rest in findings():  # a repaired project lacks the documents of the damaged part
        mend(rest["command"])
        mend(f"{COMMAND} verify a --repair")
    assert findings() == []
    assert len(ProjectManager(ingested.directory.parent).load("a").documents()) == 2


def test_documents_whose_folder_is_gone_are_named_and_removed_if_the_user_says_so(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_texts(tmp_path / "reports")
    single = tmp_path / "single note.txt"
    single.write_text("The valve is green.")
    ProjectManager(root).create("a", ProjectConfig.local()).ingest([folder, single])
    shutil.rmtree(folder)
    single.unlink()
    of_folder, of_file = findings()
    assert of_folder["message"].startswith(f"files of 2 documents are missing in {folder}, such as reports/")
    assert "single note.txt: restore them, or remove the documents" in of_file["message"]
    assert run("doctor").code == 0
    at_a_terminal(monkeypatch)
    mend(of_folder["command"], answer="y\n")
    mend(of_file["command"])
    assert findings() == []
    assert ProjectManager(root).load("a").documents() == []


def test_a_newer_format_is_named_with_the_upgrade(ingested: Project) -> None:
    path = ingested.directory / "project.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    result = finding()
    assert "project.json has format 99, this release reads up to 1" in result["message"]
    assert result["command"] == "pip install --upgrade llama-index-contextual"


def test_a_full_disk_is_named_and_forgetting_old_versions_mends_it(
    ingested: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingested.remove(ingested.documents()[0].doc_id)

    def usage(_: Path) -> Any:
        return SimpleNamespace(free=1_000_000 if len(ingested.versions()) > 1 else 10**10)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    result = finding()
    assert result["message"] == "the disk is full: 1.0 MB are free, the next version may need 100.0 MB"
    at_a_terminal(monkeypatch)
    mend(result["command"], answer="y\n")
    assert findings() == []


def test_a_folder_that_is_read_only_is_named(ingested: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    root, access = ingested.directory.parent, os.access

    def as_a_user(path: Any, mode: int, **options: Any) -> bool:  # the superuser may write anywhere
        if path == root and mode & os.W_OK:
            return bool(root.stat().st_mode & 0o200)
        return access(path, mode, **options)

    monkeypatch.setattr(os, "access", as_a_user)
    root.chmod(0o555)
    result = finding()
    assert (result["place"], result["message"]) == ("Projects folder", f"{root} is read-only")
    mend(result["command"])
    assert findings() == []


@pytest.mark.skipif(not LOCKS.exists(), reason="only Linux lists locks")
def test_a_process_that_writes_is_named_and_what_it_writes_is_not_called_a_leftover(ingested: Project) -> None:
    interrupt_a_writer(ingested)
    with FileLock(ingested.directory / ".lock"):
        assert findings() == []
        assert f"process {os.getpid()} is writing to it" in run("doctor").out
    assert len(findings()) == 1


# ---- models ----------------------------------------------------------------------------------------------------------


def created(root: Path, **settings: Any) -> None:
    ProjectManager(root).create("a", ProjectConfig.local(**settings))


def test_a_missing_extra_for_the_embedding_model_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llama_index_contextual import models

    created(root, embed_model="fastembed:BAAI/bge-small-en-v1.5")
    with monkeypatch.context() as patch:
        patch.setattr(models.importlib.util, "find_spec", lambda _: None)
        result = findings()[0]
    assert result["message"].startswith("'fastembed:BAAI/bge-small-en-v1.5' needs a package that is not installed")
    assert result["command"] == 'pip install "llama-index-contextual[fastembed]"'
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda _: object())
    assert findings() == [], "a model that may have to be downloaded is not loaded"


def test_a_missing_folder_of_a_model_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llama_index_contextual import models

    monkeypatch.setattr(models.importlib.util, "find_spec", lambda _: object())
    created(root, embed_model="fastembed:/no/such/folder")
    result = finding()
    assert "'/no/such/folder' is a path, but there is no such folder" in result["message"]
    assert result["command"] == f"{COMMAND} settings a --root {root}"
    mend(result["command"])


def test_a_missing_key_is_named_and_its_command_asks_for_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created(root, embed_model="openai:text-embedding-3-small")
    result = finding()
    assert result["message"] == "'openai:text-embedding-3-small' needs OPENAI_API_KEY, which is not set."
    mend(result["command"], answer=f"{KEY}\n")
    monkeypatch.setenv("OPENAI_API_KEY", "")
    environment: dict[str, str] = {}
    read_dotenv(".env", environment)
    monkeypatch.setenv("OPENAI_API_KEY", environment["OPENAI_API_KEY"])
    assert os.environ["OPENAI_API_KEY"] == KEY
    assert findings() == []
    assert not pieces_of(KEY, run("doctor").out)


def test_a_server_that_does_not_answer_or_refuses_the_key_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created(root, embed_model="openai:text-embedding-3-small")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but it accepts no connection
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        results = findings()
    assert results
    for result in results:
        assert f"{address} does not answer" in result["message"]
        assert result["command"] == f"curl {address}/models"
    with LoopbackProvider(require_key="another") as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.api_base)
        assert {f"{provider.api_base} refuses the key" in result["message"] for result in findings()} == {True}
        provider.require_key = KEY
        assert findings() == []
    assert provider.totals()["paid_calls"] == 0


def test_servers_on_other_machines_are_contacted_only_with_the_option(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx

    contacted: list[str] = []

    def get(url: str, **_: Any) -> httpx.Response:
        contacted.append(url)
        return httpx.Response(200)

    monkeypatch.setattr(httpx, "get", get)
    created(root, embed_model="openai:text-embedding-3-small")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "https://models.example/v1")
    assert findings() == []
    assert contacted == []
    assert any("https://models.example/v1 answers" in check["message"] for check in checks("--online"))
    assert set(contacted) == {"https://models.example/v1/models"}


def pieces_of(secret: str, text: str) -> set[str]:
    """Return the parts of a secret, of six characters, that a text contains."""
    return {secret[at : at + 6] for at in range(len(secret) - 5)} & {text[at : at + 6] for at in range(len(text))}


def test_no_key_is_ever_shown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": "ak-93kd0WqLmZpX", "HF_TOKEN": "hf_QmZp83LxWn2T"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    password = "Vb7Rk2Lq0Zt9"
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://me:{password}@127.0.0.1:9/v1?key={KEY}")
    created(root, embed_model="openai:text-embedding-3-small", answer_llm="openai:gpt-4.1")
    for options in ((), ("--json",), ("--online",)):
        result = run("doctor", *options)
        assert "does not answer" in result.out
        for secret in (*secrets.values(), password):
            assert pieces_of(secret, result.out + result.err) == set(), options
    assert "API keys in the environment: OPENAI_API_KEY, ANTHROPIC_API_KEY" in result.out


# ---- the installation ------------------------------------------------------------------------------------------------


def of_installation() -> list[dict[str, Any]]:
    found = run("doctor", "--json").json["checks"]
    return [check for check in found if check["place"] == "Installation" and check["command"] is not None]


@pytest.mark.usefixtures("root")
def test_a_version_below_the_pin_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = of_installation()
    with monkeypatch.context() as patch:
        old = tmp_path / "site" / "pypdf-1.0.dist-info"
        old.mkdir(parents=True)
        (old / "METADATA").write_text("Metadata-Version: 2.1\nName: pypdf\nVersion: 1.0\n")
        patch.syspath_prepend(old.parent)
        (result,) = [check for check in of_installation() if check not in before]
        assert run("doctor").code == 1
    assert result["message"] == "pypdf 1.0 is installed: pypdf<8,>=7 is needed"
    pip, install, requirement = shlex.split(result["command"])
    assert (pip, install) == ("pip", "install")
    assert Requirement(requirement).specifier.contains(metadata.version("pypdf"))
    assert of_installation() == before


@pytest.mark.usefixtures("root")
def test_a_missing_package_is_named_and_an_incomplete_extra_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = of_installation()
    version = metadata.version

    def without(name: str) -> str:
        if name in ("faiss-cpu", "wordllama"):
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without)
    (result,) = [check for check in of_installation() if check not in before]
    assert result["message"].startswith("faiss-cpu is not installed: faiss-cpu<")
    (absent,) = [line for line in run("doctor").out.splitlines() if line.startswith("  ok: not installed: ")]
    assert re.search(r"[:,] local( \(without wordllama\))?[,;]", absent)
    assert 'pip install "llama-index-contextual[NAME]"' in absent
