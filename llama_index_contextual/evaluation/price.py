"""What the variants of a project would cost, before anything is sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from llama_index_contextual.config import LOCAL, ProjectConfig
from llama_index_contextual.contextualizer.estimate import EmbeddingCount
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.workspace import Origin
from llama_index_contextual.ingestion.estimate import estimate
from llama_index_contextual.ingestion.stages import make_stages
from llama_index_contextual.ingestion.work import RunOptions
from llama_index_contextual.models import embedding_identity
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.wording import counted


def price(origin: Origin, config: ProjectConfig, *, left_out: frozenset[str] = frozenset()) -> float | None:
    """Return the dollars that building a variant would cost now, or None where a price is not known.

    What is in the project's ledger costs nothing.

    Args:
        origin: The project.
        config: The settings of the variant.
        left_out: Ids of documents that it does not have.
    """
    model = origin.load_embed_model() if config.faiss else None
    name = None if model is None else embedding_identity(model)
    if config.context != "llm" and name in (None, LOCAL):
        return 0.0
    with contextlib.closing(Ledger(origin.directory / LEDGER_FILE, read_only=True)) as ledger:
        return estimate(
            [],
            RunOptions(remove=left_out),
            config=config,
            stages=make_stages(config, ledger=ledger, llm=origin.llm, embed_model=None, model_id=origin.model_id),
            embedding=EmbeddingCount(name, getattr(model, "dimensions", None)),
            before=origin.version,
            sender=config.service_tier or "live",
        ).dollars


def price_of_all(origin: Origin, configs: Iterable[ProjectConfig], *, left_out: frozenset[str]) -> float | None:
    """Return the dollars that building several variants would cost now, or None where a price is not known."""
    prices = [price(origin, config, left_out=left_out) for config in configs]
    known = [dollars for dollars in prices if dollars is not None]
    return sum(known) if len(known) == len(prices) else None


def require_affordable(dollars: float | None, max_cost: float | None, documents: int) -> None:
    """Do nothing where a price is within the limit, or there is none.

    Raises:
        InputError: It is higher, or not known.
    """
    if max_cost is None:
        return
    if dollars is None:
        raise InputError(
            "The cost cannot be told beforehand: give the models' prices in the setting `prices`, or leave max_cost out"
            " and take a small sample."
        )
    if dollars > max_cost:
        raise InputError(
            f"{counted(documents, 'document')} would cost about ${dollars:.4f}, more than max_cost (${max_cost:.4f}):"
            f" take a smaller sample or a cheaper LLM.",
            value=max_cost,
        )
