"""How far a comparison or a sweep is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from llama_index_contextual.ingestion.report import ReportProgress


@dataclass(frozen=True, kw_only=True)
class VariantProgress:
    """How far a comparison or a sweep is.

    Attributes:
        stage: What is being done.
        name: Name of the variant, or "" where it concerns all.
        done: Chunks or questions that are done.
        total: Questions in all; 0 where it is not known.
        dollars: What is about to be spent ("price"), or None where it is not known.
    """

    stage: Literal["questions", "price", "build", "ask"]
    name: str = ""
    done: int = 0
    total: int = 0
    dollars: float | None = None


ShowVariants = Callable[[VariantProgress], None]


def told(tell: ShowVariants, name: str) -> ReportProgress:
    """Return what tells how far the building of a variant is."""
    return lambda progress: tell(VariantProgress(stage="build", name=name, done=progress.chunks_done))
