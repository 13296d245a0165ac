"""Variants of a project: the same documents with other settings, built beside it and removed afterwards.

root/.NAME.compare/     another comparison of the same project waits for its lock
  .lock
  1/ 2/ …               one project directory for each variant
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM

from llama_index_contextual import metadata as keys
from llama_index_contextual.calls import run_sync
from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.contextualizer.prices import PriceTable
from llama_index_contextual.ingestion.report import ReportProgress
from llama_index_contextual.ingestion.run import arun
from llama_index_contextual.ingestion.stages import make_stages
from llama_index_contextual.ingestion.work import RunOptions
from llama_index_contextual.models import model_name
from llama_index_contextual.retrievers.live import LiveIndexes, ProjectRetriever
from llama_index_contextual.storage import files
from llama_index_contextual.storage.ledger import Ledger
from llama_index_contextual.storage.project_file import project_ledger, write_lock
from llama_index_contextual.storage.scratch import scratch
from llama_index_contextual.storage.version import OpenVersion


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What variants need of their project.

    Attributes:
        directory: Where it is.
        config: Its settings.
        live: Its live version.
        llm: Writes contexts; None makes the one that the settings name when the first context is due.
        load_embed_model: Gives the model that embeds chunks and queries.
        model_id: What to call the model of `llm`; None takes its own name.
    """

    directory: Path
    config: ProjectConfig
    live: LiveIndexes
    llm: LLM | None
    load_embed_model: Callable[[], BaseEmbedding]
    model_id: str | None = None

    @property
    def llm_name(self) -> str:
        """Name of the LLM, as prices and reports know it."""
        return self.config.llm if self.llm is None else model_name(self.llm, self.model_id)

    @property
    def version(self) -> OpenVersion:
        """The live version.

        Raises:
            NoVersionError: Nothing has been ingested yet.
        """
        return self.live.current().version


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A project's documents with other settings, ready for questions.

    Attributes:
        config: The settings.
        live: The version.
        chunks: Number of chunks.
        cost: Dollars that its contexts cost, whenever they were paid; None where it is not known.
        failures: Chunks whose context the LLM failed to write; they have the structural one.
    """

    config: ProjectConfig
    live: LiveIndexes
    chunks: int
    cost: float | None
    failures: int = 0

    def as_retriever(self, *, similarity_top_k: int, mode: Mode | None = None) -> BaseRetriever:
        """Return a retriever that gives so many results."""
        return ProjectRetriever(self.live, self.config, mode=mode, similarity_top_k=similarity_top_k)


class Workspace:
    """Builds the variants of one comparison.

    Args:
        origin: The project.
        directory: An empty directory that is removed afterwards.
    """

    def __init__(self, origin: Origin, directory: Path) -> None:
        self._origin, self._directory = origin, directory
        self._built = 0
        self._open = ExitStack()

    def build(
        self,
        config: ProjectConfig,
        *,
        left_out: frozenset[str] = frozenset(),
        progress: ReportProgress | None = None,
    ) -> Variant:
        """Return the project's documents with these settings; what was paid for before comes from the ledger.

        Where the live version has been built with them, it is asked itself.

        Args:
            config: The settings.
            left_out: Ids of documents that the variant does not have.
            progress: Called as the work proceeds.

        Raises:
            ModelError: A model cannot be made or reached; what was paid for is in the ledger.
            ProjectLockedError: Another process is writing to the project.
        """
        origin, version = self._origin, self._origin.version
        built_with = ProjectConfig.recorded(version.manifest.config)
        with ExitStack() as stack:
            stack.enter_context(write_lock(origin.directory))
            ledger = stack.enter_context(project_ledger(origin.directory))
            if not left_out and not config.rebuild_fields(built_with):
                records = version.manifest.documents
                failures = sum(len(record.fallback_chunks) for record in records)
                cost = _cost(version, config, origin.llm_name, ledger)
                chunks = version.manifest.chunks
                return Variant(config=config, live=origin.live, chunks=chunks, cost=cost, failures=failures)
            self._built += 1
            directory = self._directory / str(self._built)
            files.make_directory(directory)
            embed_model = origin.load_embed_model() if config.faiss else None
            stages = make_stages(
                config, ledger=ledger, llm=origin.llm, embed_model=embed_model, model_id=origin.model_id
            )
            report = run_sync(
                lambda: arun(
                    [],
                    RunOptions(remove=left_out, purpose="compare"),
                    project_dir=directory,
                    config=config,
                    stages=stages,
                    before=version,
                    progress=progress,
                )
            )
            live = LiveIndexes(directory, origin.directory.name, lambda _: origin.load_embed_model())
            built = live.current().version
            self._open.callback(built.close)
            return Variant(
                config=config,
                live=live,
                chunks=report.chunks,
                cost=_cost(built, config, origin.llm_name, ledger),
                failures=len(report.failures),
            )

    def close(self) -> None:
        """Close the variants."""
        self._open.close()


@contextlib.contextmanager
def workspace(origin: Origin) -> Iterator[Workspace]:
    """Give a place for variants beside the project, and remove it at the end, also what an interrupted one left.

    Raises:
        ProjectLockedError: The project is being compared by another process.
    """
    with scratch(origin.directory) as directory, contextlib.closing(Workspace(origin, directory)) as space:
        yield space


def _cost(version: OpenVersion, config: ProjectConfig, llm: str, ledger: Ledger) -> float | None:
    """Return the dollars that the LLM's contexts of a version cost by the ledger."""
    if config.context != "llm":
        return 0.0
    contexts = [
        node.metadata[keys.CONTEXT]
        for node in version.docstore.iterate()
        if node.metadata.get(keys.CONTEXT_SOURCE) == "llm" and not node.metadata.get(keys.CONTEXT_GIVEN)
    ]
    used = ledger.usage(contexts)
    if used is None:
        return None
    return PriceTable(config.prices).dollars(
        llm,
        input_tokens=used.input_tokens,
        cached_tokens=used.cached_tokens,
        output_tokens=used.output_tokens,
        sender=config.service_tier or "live",
    )
