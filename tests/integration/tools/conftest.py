"""Time for the searches of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llama_index_contextual.tools import document_tools


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """Let a search take as long as it needs, except where a test sets a limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_tools, "GREP_SECONDS", 300.0)
        yield
