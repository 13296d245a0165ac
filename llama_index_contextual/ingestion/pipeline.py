"""Components that process a document: parsers, contextualizer and embedding model.

`Pipeline` holds them as the settings select them: ordinary LlamaIndex components, connected to the ledger. An
`Embedder` embeds the chunks of one run and charges the run's account. An `Executor` reads files and embeds texts in
this process; a subclass can do this elsewhere.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, Document, MetadataMode, TransformComponent

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.redaction import get_logger
from llama_index_contextual.config import DEFAULT_LLM, LOCAL, ProjectConfig
from llama_index_contextual.contextualizer import Contextualizer, StructuralContextualizer
from llama_index_contextual.contextualizer.base import ChunkFailure, chunk_places
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prompts import DEFAULT_PROMPT
from llama_index_contextual.embeddings.batching import fault_of
from llama_index_contextual.embeddings.contextual import (
    ContextualEmbedding,
    GroupVectors,
    Vectors,
    aembed,
    aembed_groups,
    document_parts,
    unusable,
    unusable_error,
)
from llama_index_contextual.embeddings.windows import Window, WindowSplitter, average, window_splitter
from llama_index_contextual.index.ledger import Ledger, document_keys, stored_name, vector_key
from llama_index_contextual.ingestion.plan import FileReader, Inputs, Job
from llama_index_contextual.ingestion.report import ProgressCounter
from llama_index_contextual.models import embedding_identity, own_prefixes
from llama_index_contextual.money.account import Account
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.readers import DocumentReader
from llama_index_contextual.readers.ocr import PageStore

logger = get_logger(__name__)


@dataclass(frozen=True)
class _Unit:
    """Texts that are embedded together: one chunk or, for a contextual model, the chunks of a document.

    Attributes:
        places: Positions of the chunks.
        keys: Ledger key of each chunk's vector.
        windows: The text of one chunk, divided into windows; or the texts of several chunks, one window for each.
        model: Model name under which the vectors are stored.
    """

    places: Sequence[int]
    keys: tuple[str, ...]
    windows: Sequence[Window]
    model: str

    def outcome(self, answer: GroupVectors) -> tuple[dict[str, Vectors], dict[str, str]]:
        """Return the usable vectors of the chunks, and the faults of the others, by ledger key.

        If a chunk is embedded in several windows, its vector is the average of their vectors.
        """
        rows, faults = answer.rows, answer.faults
        if len(self.windows) > len(self.keys):
            rows = average(self.windows, rows)
            fault = next(iter(faults.values()), fault_of(rows[0]))
            faults = {} if fault is None else {0: fault}
        vectors = {key: row for at, (key, row) in enumerate(zip(self.keys, rows, strict=True)) if at not in faults}
        return vectors, {self.keys[at]: fault for at, fault in faults.items()}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Components that process a document.

    Attributes:
        parsers: Segment parser and chunk parser.
        contextualizer: Contextualizer, or None for plain RAG.
        embed_model: Embedding model, or None if there is no semantic index.
        embed_model_name: Name of the embedding model.
        ledger: Store of contexts and vectors that have already been paid for.
        splitter: Splitter for texts that are too long for the embedding model, or None.
    """

    parsers: Sequence[TransformComponent]
    contextualizer: Contextualizer | None
    embed_model: BaseEmbedding | None
    embed_model_name: str | None
    ledger: Ledger
    splitter: WindowSplitter | None = None

    def parse(self, job: Job, *, seconds: float = math.inf, check: Callable[[], None] | None = None) -> list[BaseNode]:
        """Return the chunks of a document; `FORMER_CONTEXT` is the context that an LLM wrote for the same chunk.

        Args:
            job: The document.
            seconds: Time limit for cutting the document, as in `cut`.
            check: Function that may raise an exception to stop, as in `cut`.

        Raises:
            TimeoutError: The limit is exceeded.
        """
        if job.document is None:
            return list(job.nodes or [])
        nodes = cut(job.document, self.parsers, seconds=seconds, check=check) if job.nodes is None else job.nodes
        if isinstance(self.contextualizer, LLMContextualizer):
            chunk_keys = self.contextualizer.chunk_keys(nodes, job.source)
            former = self.ledger.chunk_contexts(chunk_keys)
            for node, key, place in zip(nodes, chunk_keys, chunk_places(nodes), strict=True):
                node.metadata[keys.CHUNK_KEY] = key
                if context := former.get(key) or job.former.get(place):
                    node.metadata[keys.FORMER_CONTEXT] = context
        return list(nodes)


@dataclass(frozen=True, kw_only=True)
class Embedder:
    """Embedding of the chunks of one run.

    Attributes:
        model: Embedding model, or None if there is no semantic index.
        name: Name of the embedding model.
        ledger: Store of vectors that have already been paid for.
        account: Account of the run.
        splitter: Splitter for texts that are too long for the embedding model, or None.
        dimensions: Length of the vectors in the previous version, or None.
    """

    model: BaseEmbedding | None
    name: str | None
    ledger: Ledger
    account: Account
    splitter: WindowSplitter | None = None
    dimensions: int | None = None

    async def aembed(self, nodes: Sequence[BaseNode]) -> tuple[Vectors | None, list[ChunkFailure]]:
        """Return the unit vectors of chunks, taken from the ledger if possible, and the chunks without a usable vector.

        The vector of a chunk without a usable vector is zero.

        Raises:
            ModelError: The model failed, or no vector is usable.
        """
        model, name = self.model, self.name
        if model is None or name is None or not nodes:
            return None, []
        if name == LOCAL:
            texts = await asyncio.to_thread(lambda: [node.get_content(MetadataMode.EMBED) for node in nodes])
            return await aembed(model, texts, name=LOCAL), []
        units = await asyncio.to_thread(self._units, nodes, model, name)
        every = [key for unit in units for key in unit.keys]
        length = getattr(model, "dimensions", None)  # length requested from the model, if any
        vectors = await asyncio.to_thread(self.ledger.vectors, every, dimensions=length)
        faults: dict[str, str] = {}
        if missing := [unit for unit in units if not vectors.keys() >= set(unit.keys)]:
            new = await self._aembed_new(model, name, missing, faults)
            vectors.update(new)
            # Stored vectors of a different length cannot be in the same index as vectors that the model returns now.
            length = next(map(len, new.values()), None)
            foreign_keys = {key for key, vector in vectors.items() if len(vector) != (length or len(vector))}
            if foreign_units := [unit for unit in units if not foreign_keys.isdisjoint(unit.keys)]:
                vectors = {key: vector for key, vector in vectors.items() if key not in foreign_keys}
                vectors.update(await self._aembed_new(model, name, foreign_units, faults))
        if not vectors and self.dimensions is None:
            raise unusable_error(name, next(iter(faults.values())))
        zeros = np.zeros(next(map(len, vectors.values()), self.dimensions or 0), dtype=np.float32)
        places = {place: key for unit in units for place, key in zip(unit.places, unit.keys, strict=True)}
        failures = [
            ChunkFailure(node.node_id, node.ref_doc_id or "", unusable(name, faults[key]), step="embedding")
            for place, node in enumerate(nodes)
            if (key := places[place]) not in vectors
        ]
        return np.stack([vectors.get(places[place], zeros) for place in range(len(nodes))]), failures

    def _units(self, nodes: Sequence[BaseNode], model: BaseEmbedding, name: str) -> list[_Unit]:
        """Group the texts of chunks, including their contexts, into units that are embedded together."""
        length = getattr(model, "dimensions", None)
        texts = [node.get_content(MetadataMode.EMBED) for node in nodes]
        name = stored_name(name, own_prefixes(model)[1])
        if isinstance(model, ContextualEmbedding):
            parts = [(part, [texts[at] for at in part]) for part in document_parts(model, nodes, texts)]
            return [
                _Unit(part, tuple(document_keys(group, name, length)), [Window(text, 1) for text in group], name)
                for part, group in parts
            ]
        units = []
        for at, (node, text) in enumerate(zip(nodes, texts, strict=True)):
            windows, model_key = [Window(text, 1)], name
            if self.splitter is not None:
                body = len(node.get_content(MetadataMode.NONE).rstrip())
                windows = self.splitter.split(text, max(0, len(text) - body))
                model_key = name if len(windows) == 1 else self.splitter.name(name)
            units.append(_Unit([at], (vector_key(text, model_key, length),), windows, model_key))
        return units

    async def _aembed_new(
        self, model: BaseEmbedding, name: str, units: Sequence[_Unit], faults: dict[str, str]
    ) -> dict[str, Vectors]:
        """Embed the units and return a mapping of ledger keys to vectors.

        The vectors of each response are stored in the ledger before the next call. Unusable vectors are left out, and
        their faults are added to `faults`.
        """
        units = list({unit.keys: unit for unit in units}.values())
        vectors: dict[str, Vectors] = {}
        texts = [[window.text for window in unit.windows] for unit in units]
        async with aclosing(aembed_groups(model, texts, name=name, account=self.account)) as answers:
            async for answer in answers:
                by_model: dict[str, dict[str, Vectors]] = defaultdict(dict)
                for at, group in answer.items():
                    usable, unusable_ones = units[at].outcome(group)
                    by_model[units[at].model].update(usable)
                    faults.update(unusable_ones)
                for stored_name, by_key in by_model.items():
                    if by_key:
                        rows = np.stack(list(by_key.values()))
                        await asyncio.to_thread(self.ledger.add_vectors, stored_name, list(by_key), rows)
                    vectors.update(by_key)
        return vectors


def make_parsers(config: ProjectConfig) -> tuple[TransformComponent, TransformComponent]:
    """Return the segment parser and the chunk parser for the settings of a project."""
    return (
        SegmentNodeParser(segment_size=config.segment_size, segment_overlap=config.segment_size // 10),
        ChunkNodeParser(chunk_size=config.chunk_size, chunk_overlap=config.chunk_overlap),
    )


def cut(
    document: Document,
    parsers: Iterable[TransformComponent],
    *,
    seconds: float = math.inf,
    check: Callable[[], None] | None = None,
) -> Sequence[BaseNode]:
    """Return the chunks of a document.

    Args:
        document: The document.
        parsers: The segment parser and the chunk parser.
        seconds: Time limit, which is checked before each segment is divided.
        check: Called before each segment is divided; it may raise an exception to stop.

    Raises:
        TimeoutError: The limit is exceeded.
    """
    deadline = time.monotonic() + seconds

    def require_time() -> None:
        if time.monotonic() > deadline:
            raise TimeoutError
        if check is not None:
            check()

    nodes: Sequence[BaseNode] = [document]
    for parser in parsers:
        nodes = parser(InterruptibleNodes(nodes, require_time))
    return nodes


class InterruptibleNodes(list[BaseNode]):
    """List of nodes that calls a function before each node during iteration.

    The function may raise an exception to stop the iteration.
    """

    def __init__(self, nodes: Iterable[BaseNode], check: Callable[[], None]) -> None:
        super().__init__(nodes)
        self._check = check

    def __iter__(self) -> Iterator[BaseNode]:
        for node in super().__iter__():
            self._check()
            yield node


def make_pipeline(
    config: ProjectConfig,
    *,
    ledger: Ledger,
    llm: LLM | None,
    embed_model: BaseEmbedding | None,
    model_id: str | None = None,
    retries_refused: bool = False,
    renews_kept: bool = False,
) -> Pipeline:
    """Return the pipeline for the settings of a project.

    Args:
        config: Settings of the project.
        ledger: Store of contexts and vectors that have already been paid for.
        llm: LLM that writes contexts; None loads the LLM named in the settings when the first context is needed.
        embed_model: Embedding model, or None if there is no semantic index.
        model_id: Name for the model in `llm`; None uses the model's own name.
        retries_refused: Whether to request contexts again that the LLM refused to write in earlier runs.
        renews_kept: Whether to request contexts again that were written when their file was read differently.

    Raises:
        ModelError: A model has no name that distinguishes it from other models.
    """
    embed_model_name = None if embed_model is None else embedding_identity(embed_model)
    splitter = None
    # A contextual model divides documents itself.
    is_divided = embed_model_name == LOCAL or isinstance(embed_model, ContextualEmbedding)
    if embed_model is not None and embed_model_name is not None and not is_divided:
        splitter = window_splitter(embed_model, embed_model_name, config.embed_window)
    return Pipeline(
        parsers=make_parsers(config),
        contextualizer=_contextualizer(config, llm, model_id, retries_refused=retries_refused, renews_kept=renews_kept),
        embed_model=embed_model,
        embed_model_name=embed_model_name,
        ledger=ledger,
        splitter=splitter,
    )


def _contextualizer(
    config: ProjectConfig, llm: LLM | None, model_id: str | None, *, retries_refused: bool, renews_kept: bool
) -> Contextualizer | None:
    if config.context == "none":
        return None
    if config.context == "structural":
        return StructuralContextualizer(segment_size=config.segment_size, neighbours=config.context_neighbours)
    return LLMContextualizer(
        llm=llm,
        model_id=model_id,
        model=DEFAULT_LLM if config.llm is None else config.llm,
        prompt=config.context_prompt or DEFAULT_PROMPT,
        neighbours=config.context_neighbours,
        context_languages=config.context_languages,
        num_workers=config.llm_concurrency,
        call_timeout=config.call_timeout,
        requests_per_minute=config.requests_per_minute,
        tokens_per_minute=config.tokens_per_minute,
        service_tier=config.service_tier,
        segment_size=config.segment_size,
        retries_refused=retries_refused,
        renews_kept=renews_kept,
    )


class Executor:
    """Executor that reads, cuts and embeds documents in this process. A subclass can do this elsewhere.

    Everything else always stays in this process: the plan, the ledger, the account with its limit, the contextualizer,
    all calls to providers, and the version that is built.

    Attributes:
        groups_ahead: Minimum number of groups of chunks to start ahead of the current group.
    """

    groups_ahead = 0

    def reader(
        self, inputs: Inputs, config: ProjectConfig, page_store: PageStore, progress: ProgressCounter
    ) -> AbstractContextManager[FileReader]:
        """Return the reader for the files of a run."""
        return DocumentReader(
            limits=inputs.options.limits,
            passwords=inputs.options.passwords,
            pdf_engine=config.pdf_engine,
            file_metadata=inputs.facts.get,
            ocr=config.ocr,
            figures=config.figures,
            page_store=page_store,
            on_file=progress.reading,
            on_page=lambda pages, total: progress.set(pages_done=pages, pages_total=total),
        )

    def embed_model(self, pipeline: Pipeline) -> BaseEmbedding | None:
        """Return the embedding model of a run, which runs on this executor."""
        return pipeline.embed_model
