"""Time for the pages that these tests draw."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llama_index_contextual.ui.pages import PageRenderer

PATIENCE = 300.0


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """Let pages take as long as they need, except where a test sets a limit."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("seconds", "waiting_seconds"):
            patch.setitem(PageRenderer.__init__.__kwdefaults__, name, PATIENCE)
        yield
