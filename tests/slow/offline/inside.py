"""Program that runs the installed command line in a network namespace without a network, except for a server in it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.server import LoopbackProvider

_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP


def start_loopback() -> None:
    """Bring up the loopback interface, which is down in a new namespace."""
    with socket.socket() as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(any_socket, _GET_FLAGS, request), 16)
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags | _UP))


def is_closed() -> bool:
    """Return whether no other machine can be reached."""
    with socket.socket() as other:
        return other.connect_ex(("192.0.2.1", 443)) == errno.ENETUNREACH


def main(program: str, folder: str, settings: dict[str, str]) -> None:
    """Run the commands from a new project to an answer, and print their JSON."""
    start_loopback()
    results: dict[str, Any] = {"closed": is_closed()}
    with LoopbackProvider(reply=lambda _: "TS-999 means that the pump runs dry [Source 1].") as provider:
        environment = {**os.environ, "OPENAI_BASE_URL": provider.api_base, "HOME": folder}
        environment.pop("PYTHONPATH", None)
        options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        question = "What does error TS-999 mean?"
        for command in (
            ["create", "manuals", "--local", *options],
            ["ingest", "manuals", "documents", "--quiet"],
            ["search", "manuals", question],
            ["ask", "manuals", question],
            ["doctor"],
        ):
            done = subprocess.run(
                [program, *command, "--json"], cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"{command}: {done.stdout}{done.stderr}")
            results[command[0]] = json.loads(done.stdout)
        results["calls"] = provider.totals()["paid_calls"]
    Path(folder, "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
