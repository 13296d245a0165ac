"""What the variants of a project would cost, before anything is sent."""

from __future__ import annotations

import contextlib

from llama_index_contextual.config import LOCAL, ProjectConfig
from llama_index_contextual.contextualizer.estimate import EmbeddingCount
from llama_index_contextual.evaluation.workspace import Origin
from llama_index_contextual.ingestion.estimate import estimate
from llama_index_contextual.ingestion.run import RunOptions
from llama_index_contextual.ingestion.stages import make_stages
from llama_index_contextual.models import model_name
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger


def price(origin: Origin, config: ProjectConfig, *, left_out: frozenset[str] = frozenset()) -> float | None:
    """Return the dollars that building a variant would cost now, or None where a price is not known.

    What is in the project's ledger costs nothing.

    Args:
        origin: The project.
        config: The settings of the variant.
        left_out: Ids of documents that it does not have.
    """
    model = origin.load_embed_model() if config.faiss else None
    name = None if model is None else model_name(model)
    if config.context != "llm" and name in (None, LOCAL):
        return 0.0
    path = origin.directory / LEDGER_FILE
    with contextlib.closing(Ledger(path if path.exists() else None)) as ledger:
        return estimate(
            [],
            RunOptions(remove=left_out),
            config=config,
            stages=make_stages(config, ledger=ledger, llm=origin.llm, embed_model=None),
            embedding=EmbeddingCount(name, getattr(model, "dimensions", None)),
            before=origin.version,
            sender=config.service_tier or "live",
        ).dollars
