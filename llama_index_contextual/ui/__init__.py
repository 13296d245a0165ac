"""The Workbench, a web interface for reading projects (needs the `ui` extra)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llama_index_contextual.ui.app import make_app

__all__ = ["make_app"]


def __getattr__(name: str) -> Any:
    if name == "make_app":  # `token` needs no server
        from llama_index_contextual.ui.app import make_app

        return make_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
