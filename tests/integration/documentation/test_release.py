"""The workflows that test and publish a version, and the container image: what they may do, and what they use."""

from __future__ import annotations

import http.server
import os
import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from llama_index_contextual._version import __version__
from tests.support.source import ROOT

DOCKER = ROOT / "examples" / "docker"
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
TESTS = WORKFLOW.with_name("tests.yml")
FROM, COPY = "FROM", "COPY"


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments, continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", (DOCKER / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def jobs() -> dict[str, Any]:
    """Return the jobs of the release workflow."""
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    return found


# ---- container image -------------------------------------------------------------------------------------------------


def test_the_image_runs_as_a_user_without_privileges() -> None:
    stages = [at for at, (name, _) in enumerate(instructions()) if name == FROM]
    last = instructions()[stages[-1] :]
    (user,) = (rest for name, rest in last if name == "USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user), "a number: Kubernetes cannot check names"
    assert next(at for at, (name, _) in enumerate(last) if name == "USER") > max(
        at for at, (name, _) in enumerate(last) if name in ("RUN", COPY)
    )


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    copied = [rest.split() for name, rest in instructions() if name == COPY and "--from" not in rest]
    sources = [part for words in copied for part in words[:-1] if not part.startswith("--")]
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    assert all((ROOT / source).exists() for source in sources), sources
    assert all(any(f"{source}/".startswith(f"{line[1:]}/") for line in ignored if line[0] == "!") for source in sources)


def test_the_image_holds_no_secret() -> None:
    assert not any(name == "ARG" for name, _ in instructions())
    assert not re.search(r"key|token|password", " ".join(rest for name, rest in instructions() if name == "ENV"), re.I)


def test_the_servers_are_read_only_and_published_on_this_machine_only() -> None:
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert set(services) == {"workbench", "mcp"}
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["secrets"] == ["token"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_token_is_neither_committed_nor_sent_to_the_builder() -> None:
    secret = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["secrets"]["token"]["file"]
    token = (DOCKER / secret).relative_to(ROOT).as_posix()
    assert token in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    sent = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert not any(token.startswith(line[1:]) for line in sent if line[0] == "!")


def test_stopping_a_container_interrupts_the_command_like_ctrl_c() -> None:
    # As process 1, Python would ignore SIGTERM outside the servers.
    assert ("STOPSIGNAL", "SIGINT") in instructions()


@pytest.mark.skipif(os.name == "nt", reason="a script for the shell of POSIX")
def test_the_entrypoint_takes_the_token_from_the_secret_file(tmp_path: Path) -> None:
    program = tmp_path / "llama-index-contextual"
    program.write_text('#!/bin/sh\necho "$LLAMA_INDEX_CONTEXTUAL_UI_TOKEN $LLAMA_INDEX_CONTEXTUAL_MCP_TOKEN $*"\n')
    program.chmod(0o755)
    secret = tmp_path / "token"
    secret.write_text("sixteen-characters\n")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TOKEN_FILE": str(secret)}
    done = subprocess.run([DOCKER / "entrypoint.sh", "serve", "a b"], env=environment, capture_output=True, text=True)
    assert done.stdout == "sixteen-characters sixteen-characters serve a b\n"


@pytest.mark.parametrize(("status", "code"), [(200, 0), (401, 0), (500, 1)])
def test_a_server_that_asks_for_a_token_is_healthy(status: int, code: int) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        environment = os.environ | {"PORT": str(server.server_port)}  # without SYSTEMROOT, Windows starts no Python
        done = subprocess.run([sys.executable, DOCKER / "healthcheck.py"], env=environment)
        thread.join()
    assert done.returncode == code


def test_a_server_that_does_not_answer_is_not_healthy() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        port = server.server_port
    environment = os.environ | {"PORT": str(port)}
    done = subprocess.run([sys.executable, DOCKER / "healthcheck.py"], env=environment, capture_output=True)
    assert done.returncode == 1


# ---- release workflow ------------------------------------------------------------------------------------------------


def test_only_the_job_that_publishes_may_ask_for_an_identity() -> None:
    assert yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["permissions"] == {}
    assert jobs()["build"]["permissions"] == {"contents": "read"}
    assert jobs()["publish"]["permissions"] == {"id-token": "write"}
    assert jobs()["publish"]["environment"]["name"] == "pypi"
    assert "secrets." not in WORKFLOW.read_text(encoding="utf-8")


@pytest.mark.parametrize("workflow", [WORKFLOW, TESTS], ids=lambda path: path.name)
def test_every_action_is_pinned_to_a_commit_with_its_version(workflow: Path) -> None:
    uses = re.findall(r"uses: (.*)", workflow.read_text(encoding="utf-8"))
    assert uses
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in uses), uses


def test_what_is_published_was_built_checked_and_is_attested() -> None:
    runs = [step.get("run", "") for step in jobs()["build"]["steps"]]
    # Without --sdist or --wheel, `build` builds the wheel from the sdist.
    assert runs.index("python -m build") < runs.index("twine check --strict dist/*")
    assert jobs()["publish"]["needs"] == "build"
    assert jobs()["publish"]["steps"][-1]["with"] == {"attestations": True}


@pytest.mark.skipif(os.name == "nt", reason="runs on Linux")
def test_a_tag_that_does_not_name_the_version_stops_the_release() -> None:
    (check,) = (step["run"] for step in jobs()["build"]["steps"] if "_version.py" in step.get("run", ""))
    check = check.replace("python -c", f"{sys.executable} -c")
    for version, code in ((f"v{__version__}", 0), ("v9.9.9", 1)):
        done = subprocess.run(
            ["bash", "-c", check], cwd=ROOT, env={"GITHUB_REF_NAME": version, "PATH": "/usr/bin:/bin"}
        )
        assert done.returncode == code


# ---- tests on all systems --------------------------------------------------------------------------------------------


def test_the_systems_and_versions_that_the_package_names_are_tested_with_the_command_of_the_readme() -> None:
    workflow = yaml.safe_load(TESTS.read_text(encoding="utf-8"))
    job = workflow["jobs"]["tests"]
    matrix = job["strategy"]["matrix"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    versions = [match[1] for name in classifiers if (match := re.search(r"Python :: (3\.\d+)$", name))]
    assert matrix["python"] == versions
    systems = {"ubuntu": "POSIX :: Linux", "macos": "MacOS", "windows": "Microsoft :: Windows"}
    named = {name.removeprefix("Operating System :: ") for name in classifiers if name.startswith("Operating System")}
    assert {systems[system.partition("-")[0]] for system in matrix["os"]} == named
    assert f"\n{job['steps'][-1]['run']}\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert workflow["permissions"] == {}
    assert job["permissions"] == {"contents": "read"}
