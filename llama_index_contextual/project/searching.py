"""Search of a project whose queries need no model of LlamaIndex, which takes longer to import than a search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from llama_index_contextual.config import LOCAL, Mode, ProjectConfig
from llama_index_contextual.embeddings.words import WordEmbedder
from llama_index_contextual.search.live import LiveIndexes, SearchableVersion
from llama_index_contextual.search.search import (
    Query,
    SearchSettings,
    bounded,
    finished,
    require_positive,
    search,
)

if TYPE_CHECKING:
    from llama_index_contextual.search.response import SearchResponse


def search_locally(
    directory: Path, config: ProjectConfig, question: str, *, mode: Mode | None, top_k: int | None, explain: bool
) -> SearchResponse | None:
    """Search as `Project.retrieve` does, without importing LlamaIndex.

    Args:
        directory: Directory of the project.
        config: Its settings.
        question: The question.
        mode: Indexes to search; None uses `config.mode`.
        top_k: Number of results; None uses `config.top_k`.
        explain: Whether to explain the ranks of the results.

    Returns:
        The response; None if it needs LlamaIndex: a reranker, an engine, or an embedding model other than `local`.

    Raises:
        InputError: The question is empty, or `top_k` is not positive.
        NoVersionError: Nothing has been ingested yet.
    """
    if config.rerank is not None:
        return None
    text, notes = bounded(question)
    settings = SearchSettings.of(
        config,
        mode=mode or config.mode,
        k=require_positive(config.top_k if top_k is None else top_k),
        filters=None,
        explain=explain,
    )

    def run(version: SearchableVersion) -> SearchResponse | None:
        manifest = version.manifest
        if version.is_remote:
            return None
        embeds = version.has_semantic and (settings.mode != "lexical" or not version.has_lexical)
        if embeds and {manifest.embed_model, manifest.config["embed_model"]} != {LOCAL}:
            return None
        embedder = WordEmbedder() if embeds else None
        return search(Query.of(text), version.index, settings, embedder=embedder, version=version.name)

    response = LiveIndexes(directory, directory.name, _no_model).run(run)
    return None if response is None else finished(response, question, notes)


def _no_model(setting: str, built: str) -> NoReturn:
    raise AssertionError(f"{built!r} is not loaded here")  # pragma: no cover
