"""The components that a project's settings ask for."""

from __future__ import annotations

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer import Contextualizer, LLMContextualizer, StructuralContextualizer
from llama_index_contextual.contextualizer.prompts import DEFAULT_PROMPT
from llama_index_contextual.ingestion.pipeline import Stages
from llama_index_contextual.models import model_name
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.storage.ledger import Ledger


def make_stages(config: ProjectConfig, *, ledger: Ledger, llm: LLM | None, embed_model: BaseEmbedding | None) -> Stages:
    """Return the stages that a document passes.

    Args:
        config: The settings of the project.
        ledger: Keeps what was paid for.
        llm: Writes contexts; None makes the one that the settings name when the first context is due.
        embed_model: Embeds chunks, or None without a semantic index.
    """
    return Stages(
        parsers=(
            SegmentNodeParser(segment_size=config.segment_size, segment_overlap=config.segment_overlap),
            ChunkNodeParser(chunk_size=config.chunk_size, chunk_overlap=config.chunk_overlap),
        ),
        contextualizer=_contextualizer(config, ledger, llm),
        embed_model=embed_model,
        embed_model_name=None if embed_model is None else model_name(embed_model),
        ledger=ledger,
    )


def _contextualizer(config: ProjectConfig, ledger: Ledger, llm: LLM | None) -> Contextualizer | None:
    if config.context == "none":
        return None
    if config.context == "structural":
        return StructuralContextualizer(segment_size=config.segment_size)
    return LLMContextualizer(
        llm=llm,
        model=config.llm,
        prompt=config.context_prompt or DEFAULT_PROMPT,
        variables=config.context_variables,
        chunks_per_call=config.chunks_per_call,
        num_workers=config.llm_concurrency,
        requests_per_minute=config.requests_per_minute,
        tokens_per_minute=config.tokens_per_minute,
        service_tier=config.service_tier,
        segment_size=config.segment_size,
        ledger=ledger,
    )
