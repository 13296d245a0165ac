"""A server on the loopback interface that speaks the part of Ollama's API that the models of LlamaIndex use."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

Answer = Callable[[str], str]
"""From the last message of a chat to what the model says."""


@dataclass
class LoopbackOllama:
    """The server; models are all known but those named "no-such…".

    Attributes:
        answer: What the model says.
        cut: Whether answers break off in the middle.
        requests: (path, body) of every request.
    """

    answer: Answer = lambda prompt: "A context of the passage in its text, as long as it has to be here."
    cut: bool = False
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __enter__(self) -> LoopbackOllama:
        """Start the server."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        """What OLLAMA_HOST holds."""
        return f"127.0.0.1:{self._server.server_port}"

    def bodies(self, path: str) -> list[dict[str, Any]]:
        """Return the bodies of all requests to a path."""
        return [body for calls, body in self.requests if calls == path]

    def lines(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield what is answered."""
        if path == "/api/show":
            yield {"model_info": {"llama.context_length": 8192}, "details": {}, "capabilities": ["completion"]}
        elif path == "/api/embed":
            texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
            yield {"model": body["model"], "embeddings": [_vector(text) for text in texts]}
        else:
            words = self.answer(body["messages"][-1]["content"]).split(" ")
            pieces = [f" {word}" if at else word for at, word in enumerate(words)]
            if not body.get("stream"):
                pieces = ["".join(pieces)]
            for piece in pieces:
                yield _said(body, piece)
            yield _said(body, "", done=True, done_reason="stop", prompt_eval_count=9, eval_count=len(words))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        ollama = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                ollama.requests.append((self.path, body))
                if body["model"].startswith("no-such"):
                    self._send(404, [{"error": f"model '{body['model']}' not found"}])
                    return
                lines = list(ollama.lines(self.path, body))
                if self.path == "/api/chat" and not body.get("stream"):
                    lines = [{**lines[-1], "message": lines[0]["message"]}]
                self._send(200, lines)

            def _send(self, status: int, lines: list[dict[str, Any]]) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/x-ndjson")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for line in lines[: len(lines) // 2] if ollama.cut and len(lines) > 2 else lines:
                    text = json.dumps(line).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
                    self.wfile.flush()
                if ollama.cut and len(lines) > 2:
                    self.close_connection = True
                else:
                    self.wfile.write(b"0\r\n\r\n")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def _said(body: dict[str, Any], piece: str, **more: Any) -> dict[str, Any]:
    created = {"model": body["model"], "created_at": "2026-01-01T00:00:00Z", "done": False}
    return {**created, "message": {"role": "assistant", "content": piece}, **more}


def _vector(text: str) -> list[float]:
    """Return a vector in which texts that share words are near each other."""
    row = np.zeros(64)
    for word in text.lower().split():
        row[sum(map(ord, word)) % 64] += 1
    return [float(value) for value in row]
