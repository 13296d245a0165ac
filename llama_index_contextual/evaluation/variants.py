"""Variants of a project in a temporary directory, their prices, and samples of documents to compare them on."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import MetadataMode

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import run_sync
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import LOCAL, Mode, ProjectConfig
from llama_index_contextual.contextualizer.cost import PriceTable, Tokens
from llama_index_contextual.embeddings.batching import embedding_tokens
from llama_index_contextual.embeddings.contextual import ContextualEmbedding
from llama_index_contextual.errors import InputError, Remedy
from llama_index_contextual.evaluation.questions import Evidence, Question, ids_by_name, require_files
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.index.project_file import project_ledger, scratch, write_lock
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.ingestion.changes import arun
from llama_index_contextual.ingestion.estimate import estimate
from llama_index_contextual.ingestion.pipeline import make_stages
from llama_index_contextual.ingestion.plan import RunOptions
from llama_index_contextual.ingestion.report import ReportProgress
from llama_index_contextual.ingestion.state import ProjectState
from llama_index_contextual.models import embedding_identity
from llama_index_contextual.retrievers.project import ProjectRetriever
from llama_index_contextual.search.live import LiveIndexes

# ---- Variants of a project -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A project's documents, indexed with other settings.

    Attributes:
        config: The settings.
        live: The indexes.
        chunks: Number of chunks.
        cost: Cost of its contexts in dollars, including those from earlier runs; None if unknown.
        failures: Number of chunks with a structural context because the LLM failed.
        embed_model: Embedding model, if it is not the project's.
    """

    config: ProjectConfig
    live: LiveIndexes
    chunks: int
    cost: float | None
    failures: int = 0
    embed_model: BaseEmbedding | None = None

    def as_retriever(self, *, similarity_top_k: int, mode: Mode | None = None) -> BaseRetriever:
        """Return a retriever that returns `similarity_top_k` results."""
        return ProjectRetriever(self.live, self.config, mode=mode, similarity_top_k=similarity_top_k)


class Workspace:
    """A temporary directory with the variants of one comparison.

    Args:
        origin: The project.
        directory: An empty directory, which the caller removes afterwards.
    """

    def __init__(self, origin: ProjectState, directory: Path) -> None:
        self._origin, self._directory = origin, directory
        self._built = 0
        self._open = ExitStack()

    def build(
        self,
        config: ProjectConfig,
        *,
        excluded: frozenset[str] = frozenset(),
        progress: ReportProgress | None = None,
        embed_model: BaseEmbedding | None = None,
    ) -> Variant:
        """Build a variant with these settings; contexts and embeddings in the ledger are reused.

        If the live version was built with the same settings, it is the variant.

        Args:
            config: The settings.
            excluded: Ids of documents to exclude.
            progress: Called as the work proceeds.
            embed_model: Embedding model; None for the project's.

        Raises:
            ModelError: A model cannot be loaded or reached; the replies received so far are in the ledger.
            ProjectLockedError: Another process is writing to the project.
        """
        origin, version = self._origin, self._origin.live.current()
        built_with = ProjectConfig(**version.manifest.config)
        with ExitStack() as stack:
            stack.enter_context(write_lock(origin.directory))
            ledger = stack.enter_context(project_ledger(origin.directory))
            if embed_model is None and not excluded and not config.rebuild_fields(built_with):
                records = version.records
                failures = sum(len(record.fallback_chunks) for record in records)
                cost = _cost(version, config, origin.context_llm_name, ledger)
                chunks = version.manifest.chunks
                return Variant(config=config, live=origin.live, chunks=chunks, cost=cost, failures=failures)
            self._built += 1
            directory = self._directory / str(self._built)
            files.make_directory(directory)
            own_model = embed_model or (origin.embed_model if config.builds_semantic else None)
            stages = make_stages(config, ledger=ledger, llm=origin.llm, embed_model=own_model, model_id=origin.model_id)
            report = run_sync(
                lambda: arun(
                    [],
                    RunOptions(remove=excluded, purpose="compare"),
                    project_dir=directory,
                    config=config.changed(backend="files"),  # variants are temporary
                    make_stages=lambda: stages,
                    before=version,
                    progress=progress,
                )
            )
            live = LiveIndexes(
                directory,
                origin.directory.name,
                lambda *_: embed_model or origin.embed_model,
                origin.context_llm,
            )
            built = live.current()
            self._open.callback(built.close)
            return Variant(
                config=config,
                live=live,
                chunks=report.chunks,
                cost=_cost(built, config, origin.context_llm_name, ledger),
                failures=len(report.failures),
                embed_model=embed_model,
            )

    def close(self) -> None:
        """Close the variants."""
        self._open.close()


@contextlib.contextmanager
def workspace(origin: ProjectState) -> Iterator[Workspace]:
    """Open a workspace next to the project and remove it at the end, along with leftovers of an interrupted run.

    Raises:
        ProjectLockedError: Another process is comparing variants of the project.
    """
    with scratch(origin.directory) as directory, contextlib.closing(Workspace(origin, directory)) as space:
        yield space


def _cost(version: OpenVersion, config: ProjectConfig, llm: str, ledger: Ledger) -> float | None:
    """Return the cost of the LLM's contexts of a version in dollars, computed from the ledger."""
    if config.context != "llm":
        return 0.0
    contexts = [
        keys.context_parts(node.metadata)[1]
        for node in version.docstore.iterate()
        if node.metadata.get(keys.CONTEXT_SOURCE) == "llm" and not node.metadata.get(keys.CONTEXT_GIVEN)
    ]
    used = ledger.usage(contexts)
    if used is None:
        return None
    tokens = Tokens(input_tokens=used.input_tokens, cached_tokens=used.cached_tokens, output_tokens=used.output_tokens)
    return PriceTable(config.prices).dollars(llm, tokens, sender=config.service_tier or "live")


def embedding_cost(variant: Variant) -> float | None:
    """Return the cost of embedding the chunks of a variant in dollars, including earlier runs; None if unknown."""
    version = variant.live.current()
    name = version.manifest.embed_model
    if name in (None, LOCAL):
        return 0.0
    texts = (node.get_content(metadata_mode=MetadataMode.EMBED) for node in version.docstore.iterate())
    return PriceTable(variant.config.prices).dollars(name, Tokens(input_tokens=sum(map(embedding_tokens, texts))))


def price(
    origin: ProjectState,
    config: ProjectConfig,
    *,
    excluded: frozenset[str] = frozenset(),
    embed_model: BaseEmbedding | None = None,
) -> float | None:
    """Return the cost of building a variant now in dollars, or None if a price is unknown.

    Contexts and embeddings in the project's ledger cost nothing.

    Args:
        origin: The project.
        config: The settings of the variant.
        excluded: Ids of documents to exclude.
        embed_model: Embedding model; None for the project's.
    """
    model = embed_model or (origin.embed_model if config.builds_semantic else None)
    name = None if model is None else embedding_identity(model)
    if config.context != "llm" and name in (None, LOCAL):
        return 0.0
    with contextlib.closing(Ledger(origin.directory / LEDGER_FILE, read_only=True)) as ledger:
        return estimate(
            [],
            RunOptions(remove=excluded),
            config=config,
            stages=make_stages(config, ledger=ledger, llm=origin.llm, embed_model=None, model_id=origin.model_id),
            embed_model=name,
            dimensions=getattr(model, "dimensions", None),
            before=origin.live.current(),
            sender=config.service_tier or "live",
            contextual=model if isinstance(model, ContextualEmbedding) else None,
        ).dollars


def price_of_all(origin: ProjectState, configs: Iterable[ProjectConfig], *, excluded: frozenset[str]) -> float | None:
    """Return the cost of building several variants now in dollars, or None if a price is unknown."""
    return total_price([price(origin, config, excluded=excluded) for config in configs])


def total_price(prices: Sequence[float | None]) -> float | None:
    """Return the sum of prices; None if one of them is not known."""
    known = [dollars for dollars in prices if dollars is not None]
    return sum(known) if len(known) == len(prices) else None


def require_affordable(dollars: float | None, max_cost: float | None, documents: int) -> None:
    """Raise an error if the cost is above the limit.

    Raises:
        InputError: There is a limit, and the cost is higher or unknown.
    """
    if max_cost is None:
        return
    if dollars is None:
        raise InputError(
            "The cost cannot be estimated: set the prices of the models in the setting `prices`",
            remedy=Remedy("or omit max_cost and use a small sample", "or omit --max-cost and use a small --sample"),
        )
    if dollars > max_cost:
        raise InputError(
            f"{pluralize(documents, 'document')} would cost about ${dollars:.4f}, more than the limit of"
            f" ${max_cost:.4f}: use a smaller sample or a cheaper LLM.",
            value=max_cost,
        )


# ---- A sample of documents -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """Some documents of a version, and the questions with their evidence in them.

    Attributes:
        questions: The questions, in the order of the set.
        excluded: Ids of the documents that are not in the sample.
        documents: Number of documents in the sample.
    """

    questions: Sequence[Question]
    excluded: frozenset[str]
    documents: int


def draw_sample(version: OpenVersion, questions: Sequence[Question], size: int | None, *, seed: int = 0) -> Sample:
    """Draw documents with evidence at random, and return them with the questions that have all evidence in them.

    Documents without evidence fill the rest of the sample, since they compete in retrieval.

    Args:
        version: The version with the documents.
        questions: The whole question set.
        size: Maximum number of documents; None for all.
        seed: Seed of the random numbers.

    Raises:
        InputError: The size is not positive or too small for any question, or all evidence is in files that are not
            documents of the version.
    """
    require_files(version.records, questions)
    ids = [record.doc_id for record in version.records]
    if size is not None and size < 1:
        raise InputError(f"The sample has {size} documents: use at least one.", value=size)
    if size is None or size >= len(ids):
        return Sample(questions, frozenset(), len(ids))
    needed = _documents_of(version, questions)
    order = random.Random(seed)
    groups = sorted({group for group in needed if group}, key=sorted)
    order.shuffle(groups)
    chosen: set[str] = set()
    for group in groups:
        if len(chosen | group) <= size:
            chosen |= group
    selected = [question for question, group in zip(questions, needed, strict=True) if group and group <= chosen]
    if not selected:
        raise InputError(
            f"No question has all its evidence in a sample of {pluralize(size, 'document')}: use a larger one, and"
            f" name files or chunks in the evidence.",
            value=size,
        )
    others = [doc_id for doc_id in ids if doc_id not in chosen]
    chosen |= set(order.sample(others, min(len(others), size - len(chosen))))
    return Sample(selected, frozenset(ids) - chosen, len(chosen))


def _documents_of(version: OpenVersion, questions: Sequence[Question]) -> list[frozenset[str]]:
    """Return for each question the documents of its evidence; empty if the document of an item is unknown."""
    by_name = ids_by_name(version.records)
    chunk_ids = [item.chunk_id for question in questions for item in question.evidence if item.chunk_id is not None]
    chunks = version.docstore.get_nodes(version.docstore.known(list(dict.fromkeys(chunk_ids))))
    by_chunk = {chunk.node_id: {chunk.ref_doc_id} for chunk in chunks if chunk.ref_doc_id is not None}

    def documents(item: Evidence) -> set[str]:
        if item.chunk_id is not None:
            return by_chunk.get(item.chunk_id, set())
        return by_name.get(item.file or "", set())

    groups = []
    for question in questions:
        sets = [documents(item) for item in question.evidence]
        groups.append(frozenset().union(*sets) if all(sets) else frozenset())
    return groups
