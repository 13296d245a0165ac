"""The files endpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tests.support.records import Answer, ApiError, Request
from tests.support.wire import parse_multipart


@dataclass(eq=False)
class StoredFile:
    """A file kept by the service."""

    info: dict[str, Any]
    content: bytes


class Files:
    """Files by id."""

    def __init__(self) -> None:
        self._files: dict[str, StoredFile] = {}
        self._stored = 0

    def upload(self, request: Request, max_bytes: int) -> Answer:
        """Store a file sent as a multipart form."""
        form = parse_multipart(request.headers.get("content-type", ""), request.raw)
        if "file" not in form or "purpose" not in form:
            raise ApiError(400, "Missing required parameter: 'file' or 'purpose'.", code="missing_required_parameter")
        (filename, content), purpose = form["file"], form["purpose"][1].decode()
        # The record of the upload keeps what was sent, not its bytes.
        request.fields.update({"purpose": purpose, "filename": filename, "bytes": len(content)})
        if purpose == "batch" and len(content) > max_bytes:
            raise ApiError(413, f"File is too large: {len(content)} bytes, at most {max_bytes}.", param="file")
        return Answer(payload=self.store(content, filename or "upload", purpose).info)

    def store(self, content: bytes, filename: str, purpose: str) -> StoredFile:
        """Keep a file under a new id."""
        self._stored += 1
        file_id = f"file-{self._stored}"
        info = {
            "id": file_id,
            "object": "file",
            "bytes": len(content),
            "created_at": int(time.time()),
            "filename": filename,
            "purpose": purpose,
            "status": "processed",
        }
        self._files[file_id] = StoredFile(info, content)
        return self._files[file_id]

    def get(self, file_id: str) -> StoredFile:
        """Return a file, or refuse with 404."""
        if file_id not in self._files:
            raise ApiError(404, f"No such File object: {file_id}", param="id")
        return self._files[file_id]

    def delete(self, file_id: str) -> Answer:
        """Forget a file."""
        del self._files[self.get(file_id).info["id"]]
        return Answer(payload={"id": file_id, "object": "file", "deleted": True})
