"""Context written by any LlamaIndex LLM that sees the segment and the chunk: the published method."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal

from llama_index.core.llms import LLM, ChatMessage
from llama_index.core.schema import BaseNode
from pydantic import Field, PrivateAttr, field_validator, model_validator

from llama_index_contextual.calls import RetryPolicy, acall, describe
from llama_index_contextual.clients import own_client
from llama_index_contextual.contextualizer.base import ChunkContext, Contextualizer, Progress
from llama_index_contextual.contextualizer.prompts import DEFAULT_PROMPT
from llama_index_contextual.contextualizer.requests import plan_requests
from llama_index_contextual.contextualizer.segments import Segment
from llama_index_contextual.contextualizer.structural import StructuralContextualizer, truncate
from llama_index_contextual.errors import ContextualizationError, ModelError
from llama_index_contextual.models import load_llm, model_name
from llama_index_contextual.node_parser.tokenizer import count_tokens
from llama_index_contextual.storage.ledger import Ledger, LedgerEntry
from llama_index_contextual.templates import ContextPrompt, check_template

MAX_CONTEXT_TOKENS = 200

_TAGS = re.compile(r"</?\s*(?:context|answer|output)\s*>", re.IGNORECASE)
_PREFIX = re.compile(
    r"^(?:(?:assistant|(?:short |succinct )*context|answer|here(?:['’]s| is)\b[^:.!?]{0,160})\s*:\s*)+", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|[。！？]")
_FATAL_STATUS = frozenset({401, 403, 404})


class LLMContextualizer(Contextualizer):
    """Asks an LLM for one or two sentences that situate each chunk in its segment, one call per chunk.

    A chunk whose call fails for good gets the structural context and is reported; it never stops the others. What can
    succeed for no chunk (no key, no such model, no quota) raises `ModelError`.

    Args:
        llm: Any LlamaIndex LLM; None loads `model` when the first call is due.
        model: Name of the LLM, as in `ProjectConfig.llm`; taken from `llm` when that is given.
        prompt: Template with {header}, {segment} and {chunk}.
        num_workers: Calls in flight, at most.
        on_error: What a chunk gets whose call failed: the structural context, or nothing: the error is raised.
        ledger: Where contexts are kept that were paid for.

    Raises:
        ConfigurationError: The prompt template lacks a variable, or has one that is unknown.

    Example:
        >>> from llama_index.core.llms import MockLLM
        >>> from llama_index.core.schema import TextNode
        >>> contextualizer = LLMContextualizer(llm=MockLLM(max_tokens=5))
        >>> contextualizer([TextNode(text="Revenue grew by 3 %.")])[0].metadata["context_source"]
        'llm'
    """

    llm: LLM | None = Field(default=None, exclude=True, repr=False, description="The LLM; its key is never shown.")
    model: str = Field(default="openai:gpt-4.1", description="Name of the LLM, as provider:name.")
    prompt: str = Field(default=DEFAULT_PROMPT, description="Template with {header}, {segment} and {chunk}.")
    num_workers: int = Field(default=8, gt=0, description="Calls in flight, at most.")
    on_error: Literal["structural", "raise"] = Field(
        default="structural", description="What a chunk gets whose call failed for good."
    )
    ledger: Ledger | None = Field(default=None, exclude=True, repr=False, description="Contexts that were paid for.")
    retry: RetryPolicy = Field(
        default_factory=RetryPolicy, exclude=True, description="When a failed call is sent again."
    )

    _structural: StructuralContextualizer = PrivateAttr(default_factory=StructuralContextualizer)

    def __init__(self, **values: Any) -> None:
        if isinstance(values.get("prompt"), str):
            check_template(values["prompt"])  # pydantic would bury the sentence in a ValidationError
        super().__init__(**values)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "LLMContextualizer"

    @field_validator("prompt")
    @classmethod
    def _usable(cls, value: str) -> str:
        return check_template(value)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("llm") is not None:
            return {**values, "model": model_name(values["llm"])}
        return values

    async def _acontexts_of_all(
        self, work: Sequence[tuple[Segment, list[BaseNode]]], progress: Progress
    ) -> list[list[ChunkContext]]:
        limit = asyncio.Semaphore(self.num_workers)
        run = _Run(self.llm, self.model)

        async def one(segment: Segment, chunk: BaseNode) -> ChunkContext:
            async with limit:
                context = await self._acontext(segment, chunk, run)
            progress(1)
            return context

        try:
            async with run, asyncio.TaskGroup() as group:
                tasks = [[group.create_task(one(segment, chunk)) for chunk in chunks] for segment, chunks in work]
        except BaseExceptionGroup as failed:
            first = failed.exceptions[0]
            raise first from first.__cause__
        return [[task.result() for task in of_segment] for of_segment in tasks]

    async def _acontexts(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        return (await self._acontexts_of_all([(segment, list(chunks))], lambda _done: None))[0]

    async def _acontext(self, segment: Segment, chunk: BaseNode, run: _Run) -> ChunkContext:
        (request,) = plan_requests(segment, [chunk], prompt=ContextPrompt(self.prompt), model=self.model)
        (key,) = request.keys
        if self.ledger is not None and (known := self.ledger.context(key)) is not None:
            return ChunkContext(known, "llm")
        try:
            answer, entry = await self._ask(key, request.prompt, run)
        except ModelError:
            raise
        except Exception as error:  # noqa: BLE001 - any LLM class may raise anything; the chunk is reported
            return self._failed(segment, chunk, describe(error, setting="llm", model=self.model), error)
        if not answer:
            return self._failed(segment, chunk, f"{self.model!r} answered with an empty context.", None)
        if self.ledger is not None:
            self.ledger.add_contexts([entry])
        return ChunkContext(answer, "llm", paid=True)

    async def _ask(self, key: str, prompt: str, run: _Run) -> tuple[str, LedgerEntry]:
        llm = await run.llm()
        message = ChatMessage(role="user", content=prompt)
        try:
            response = await acall(lambda: llm.achat([message]), self.retry)
        except Exception as error:
            if _is_fatal(error):
                raise ModelError(describe(error, setting="llm", model=self.model), setting="llm") from error
            raise
        answer = clean(response.message.content or "")
        usage = getattr(response.raw, "usage", None)
        details = getattr(usage, "prompt_tokens_details", None)
        return answer, LedgerEntry(
            key=key,
            context=answer,
            model=self.model,
            input_tokens=getattr(usage, "prompt_tokens", None),
            cached_tokens=getattr(details, "cached_tokens", None),
            output_tokens=getattr(usage, "completion_tokens", None),
        )

    def _failed(self, segment: Segment, chunk: BaseNode, reason: str, error: Exception | None) -> ChunkContext:
        if self.on_error == "raise":
            raise ContextualizationError(reason, node_ids=(chunk.node_id,)) from error
        structural = self._structural.contexts(segment, [chunk])[0]
        return ChunkContext(structural.text, structural.source, error=reason)


class _Run(AsyncExitStack):
    """The LLM of one run: loaded for the first call, with a client that ends with the run."""

    def __init__(self, given: LLM | None, name: str) -> None:
        super().__init__()
        self._given, self._name = given, name
        self._lent: LLM | None = None

    async def llm(self) -> LLM:
        if self._lent is None:
            self._lent = await self.enter_async_context(own_client(self._given or load_llm(self._name)))
        return self._lent


def _is_fatal(error: Exception) -> bool:
    """Return whether no chunk can succeed: no such model, a refused key, an empty account."""
    code = getattr(error, "code", None)
    status = getattr(error, "status_code", None)
    return (
        status in _FATAL_STATUS
        or code in ("insufficient_quota", "model_not_found", "invalid_api_key")
        or (isinstance(error, ValueError) and "nknown model" in str(error))
    )


def clean(answer: str) -> str:
    """Return an LLM's answer as a context: no tags, no role prefix, one paragraph, at most 200 tokens.

    A longer answer is cut behind its last whole sentence, or at a word where it has none.
    """
    text = " ".join(_TAGS.sub(" ", answer).split())
    text = _PREFIX.sub("", text).strip()
    if len(text) > 1 and text[0] == text[-1] == '"' and text.count('"') == 2:
        text = text[1:-1].strip()
    if count_tokens(text) <= MAX_CONTEXT_TOKENS:
        return text
    cut = truncate(text, MAX_CONTEXT_TOKENS)
    ends = [match.end() for match in _SENTENCE_END.finditer(cut)]
    return cut[: ends[-1]] if ends else cut
