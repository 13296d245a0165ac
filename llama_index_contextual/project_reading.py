"""The reading side of a project: everything answers from whatever version is live when it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, QueryType
from llama_index.core.storage.storage_context import StorageContext
from llama_index.core.tools import FunctionTool
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual.answering.build import Intents, by_intent, chat_engine, query_engine
from llama_index_contextual.answering.cache import AnswerCache
from llama_index_contextual.answering.chat_engine import ChatMode, GroundedChatEngine
from llama_index_contextual.config import Mode
from llama_index_contextual.errors import InputError, NoVersionError
from llama_index_contextual.forks import cached_property
from llama_index_contextual.project_base import ProjectBase
from llama_index_contextual.results import RetrievalResponse
from llama_index_contextual.retrievers.live import ProjectRetriever
from llama_index_contextual.retrievers.queries import as_bundle, as_bundles
from llama_index_contextual.tools import describe_documents, search_tool


class ProjectReading(ProjectBase):
    """What asks a project."""

    def retrieve(
        self,
        query: QueryType,
        *,
        mode: Mode | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        explain: bool = False,
    ) -> RetrievalResponse:
        """Return the passages that answer a question best, with their evidence.

        Args:
            query: The question.
            mode: "semantic", "lexical" or "hybrid"; None takes `config.mode`. A mode whose index is absent falls back,
                with a warning in the response.
            top_k: Results; None takes `config.top_k`.
            filters: Only chunks whose metadata passes count, in every index, before ranking.
            explain: Say of every result why it stands where it stands, and of the next ones why not.

        Raises:
            InputError: The query is empty or top_k is not positive.
            NoVersionError: Nothing has been ingested yet.
        """
        retriever = self.as_retriever(mode=mode, similarity_top_k=top_k, filters=filters)
        return retriever.respond(as_bundle(query), explain=explain)

    def retrieve_many(
        self,
        queries: Sequence[QueryType],
        *,
        mode: Mode | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
    ) -> list[RetrievalResponse]:
        """Do as `retrieve` does for several questions; all are answered by one version, and embedded together."""
        retriever = self.as_retriever(mode=mode, similarity_top_k=top_k, filters=filters)
        return retriever.respond_many(as_bundles(queries))

    async def aretrieve(
        self,
        query: QueryType,
        *,
        mode: Mode | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        explain: bool = False,
    ) -> RetrievalResponse:
        """Do as `retrieve` does, without blocking the event loop."""
        retriever = self.as_retriever(mode=mode, similarity_top_k=top_k, filters=filters)
        return await retriever.arespond(as_bundle(query), explain=explain)

    @overload
    def as_retriever(
        self,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Literal[False] = False,
    ) -> ProjectRetriever: ...

    @overload
    def as_retriever(
        self,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Intents,
    ) -> BaseRetriever: ...

    def as_retriever(
        self,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Intents = False,
    ) -> BaseRetriever:
        """Return a LlamaIndex retriever that answers from whatever version is live when it is asked.

        Args:
            mode: As in `retrieve`.
            similarity_top_k: Results; with `intents`, the plan of a question's intent decides.
            filters: As in `retrieve`.
            intents: As in `as_query_engine`.

        Raises:
            ModelError: `intents` is "llm", and the project's LLM cannot be made.
        """
        retriever = ProjectRetriever(
            self._live, self.config, mode=mode, similarity_top_k=similarity_top_k, filters=filters
        )
        return by_intent(retriever, intents, lambda: self._llm or self._load_answering_llm())

    def as_query_engine(
        self,
        *,
        llm: LLM | None = None,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Intents = False,
        **kwargs: Any,
    ) -> BaseQueryEngine:
        """Return a LlamaIndex query engine that answers from the passages only and checks its citations.

        Args:
            llm: Writes the answer; None takes the project's.
            mode: As in `retrieve`.
            similarity_top_k: Results of the search.
            filters: As in `retrieve`.
            intents: True searches every question by what it wants, as `PLANS` in `answering.intent` says: how many
                passages, by which indexes, a comparison by each side too, chitchat not at all; "llm" also asks the
                model where neither patterns nor words decide; a table of one's own changes single plans.
            **kwargs: For `GroundedQueryEngine`, `AnswerOptions` and `ConversationalRetriever`: style, answer_tokens
                (otherwise the project's), min_confidence, timeouts, streaming, reference_date, guards and judge (True:
                the usual ones), cache (True: `answer_cache`), adjacent ("bridge" also reads a chunk between two hits,
                "expand" those beside them that are on the topic, which embeds them), …; what only
                `RetrieverQueryEngine.from_args` knows gives that engine.

        Raises:
            ConfigurationError: An option is unknown or wrong.
            ModelError: The project's LLM cannot be made: no key, no package, no such name.
        """
        answering = llm or self._llm or self._load_answering_llm()
        retriever = self.as_retriever(mode=mode, similarity_top_k=similarity_top_k, filters=filters)
        options = {"intents": intents, **self._with_cache(kwargs)}
        return query_engine(retriever, self._embed_model_of_live, answering, **options)

    def as_chat_engine(
        self,
        *,
        llm: LLM | None = None,
        mode: ChatMode = "blend",
        search_mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Intents = False,
        **kwargs: Any,
    ) -> GroundedChatEngine:
        """Return a LlamaIndex chat engine that keeps one conversation.

        Args:
            llm: Writes the answers; None takes the project's.
            mode: How follow-up questions are searched: "blend", "condense" or "simple".
            search_mode: As `mode` in `retrieve`.
            similarity_top_k: Results of the search; the three best passages of them are read.
            filters: As in `retrieve`.
            intents: As in `as_query_engine`; all passages that a plan finds are then read.
            **kwargs: For `GroundedChatEngine`, `GroundedQueryEngine`, `AnswerOptions` and `ConversationalRetriever`,
                as in `as_query_engine`.

        Raises:
            ConfigurationError: An option is unknown or wrong.
            ModelError: The project's LLM cannot be made: no key, no package, no such name.
        """
        answering = llm or self._llm or self._load_answering_llm()
        retriever = self.as_retriever(mode=search_mode, similarity_top_k=similarity_top_k, filters=filters)
        options = {"mode": mode, "intents": intents, **self._with_cache(kwargs)}
        return chat_engine(retriever, self._embed_model_of_live, answering, **options)

    @cached_property
    def answer_cache(self) -> AnswerCache:
        """The answers that the project's engines made with `cache=True` keep and share."""
        return AnswerCache()

    def _with_cache(self, options: dict[str, Any]) -> dict[str, Any]:
        return {**options, "cache": self.answer_cache} if options.get("cache") is True else options

    def _embed_model_of_live(self) -> BaseEmbedding:
        try:
            live = self._live.current()
        except NoVersionError:
            return self.embed_model
        return live.embed_model if live.version.has_semantic else self.embed_model

    def as_tool(self, *, name: str | None = None, description: str | None = None, **options: Any) -> FunctionTool:
        """Return the search as a tool for LlamaIndex agents (FunctionAgent, ReActAgent).

        Args:
            name: Name of the tool; None makes it from the project's.
            description: When to use it; None says it from the project's documents.
            **options: For `retrieve`: mode, top_k, filters.
        """
        return search_tool(
            name or f"search_{self.name}",
            description or describe_documents(self.name, self.documents()),
            retrieve=lambda query: self.retrieve(query, **options),
            aretrieve=lambda query: self.aretrieve(query, **options),
        )

    @property
    def storage_context(self) -> StorageContext:
        """The live version as a LlamaIndex StorageContext that cannot be changed."""
        return self._live.current().version.storage_context

    @property
    def index(self) -> VectorStoreIndex:
        """The live version as a LlamaIndex VectorStoreIndex that cannot be changed."""
        return self._live.current().index

    def metadata_keys(self) -> list[str]:
        """Return the metadata keys of the live version's chunks: what a filter can name."""
        return self._live.current().version.docstore.metadata_keys()

    def chunks(self, doc_id: str) -> list[BaseNode]:
        """Return the chunks of a document with their contexts, in the order of its text; none where it is unknown."""
        return list(self._live.current().version.docstore.iterate(doc_id=doc_id))

    def read(self, doc_id: str, start: int = 0, end: int | None = None) -> str:
        """Return the original text of a document between two character offsets.

        Raises:
            InputError: No such document.
        """
        version = self._live.current().version
        record = version.manifest.document(doc_id)
        if record is None:
            raise InputError(f"Project {self.name!r} has no document {doc_id!r}.", value=doc_id)
        return version.read_text(record, start, end)
