"""Query engine that searches, packs the passages into a prompt, answers the question, and checks the citations.

The search returns a `Draft` with the prepared prompt for one answer, so that the chat engine and the evaluation can
search and answer in separate steps.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.llms import LLM, ChatMessage
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import run_sync, twin
from llama_index_contextual._utils.templates import enclosed, require_known
from llama_index_contextual._utils.text import parse_json
from llama_index_contextual._version import __version__
from llama_index_contextual.answering import prompts
from llama_index_contextual.answering.citations import Passage, check_citations, fold
from llama_index_contextual.answering.guards import Guards, guards_of
from llama_index_contextual.answering.intent import IntentRetriever
from llama_index_contextual.answering.judge import Judge
from llama_index_contextual.answering.response import (
    AnswerAccount,
    AnswerUsage,
    AsyncGroundedStream,
    GroundedResponse,
    GroundedStream,
    calls_made,
)
from llama_index_contextual.answering.streaming import (
    AnswerStream,
    Completion,
    StreamFilter,
    Timeouts,
    blocking,
    split_reasoning,
)
from llama_index_contextual.config import default
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.index.analysis import cut_text, is_function_word, normalise_query
from llama_index_contextual.index.answers import ANSWERS_FILE, AnswerFile
from llama_index_contextual.index.versions import live_if_sound
from llama_index_contextual.metadata import storable_text
from llama_index_contextual.models import is_named, model_name, settings_llm
from llama_index_contextual.postprocessor import AdjacentChunkMerger, ContextWindowPacker, MergedChunk
from llama_index_contextual.retrievers.base import alimit_query, as_bundle, limit_query, without_span
from llama_index_contextual.retrievers.conversational import ConversationalRetriever
from llama_index_contextual.search.response import Source
from llama_index_contextual.search.results import RetrievalResponse
from llama_index_contextual.search.search import with_warnings

# ---- cache -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WrittenAnswer:
    """Model output to which the guards have been applied. Its citations are checked each time it is shown.

    Attributes:
        text: The answer.
        original: Full text written by the model; personal data is masked if it is also masked in answers.
        reasoning: Reasoning before the answer, masked in the same way.
        verdict: The verdict of the judge, or None.
    """

    text: str
    original: str
    reasoning: str | None = None
    verdict: dict[str, Any] | None = None


VersionName = Callable[[], str | None]

_QUESTION_MARKS = "?¿？؟ "
_WORD = re.compile(r"\w+")


class AnswerCache:
    """On-disk cache of answers.

    The key depends on the whole prompt, so an answer is never reused for a different version, filter, style or
    conversation. Spellings of a question that mean the same share an answer (see `question_form`). Only complete
    answers are cached, and only if the documents answer the question. Use `AnswerCache.of` for the cache of a project.

    Args:
        path: The file, readable only by its owner; it can be deleted at any time.
        max_entries: Maximum number of answers; the oldest are removed first.
        current: Function that returns the name of the version whose answers may be added; None for any version.
        scope: Description of the documents that may be searched; an answer is never used in another scope.

    Example:
        >>> engine = GroundedQueryEngine(retriever, llm, cache=AnswerCache("answers.sqlite"))  # doctest: +SKIP
    """

    def __init__(
        self, path: str | Path, *, max_entries: int = 1000, current: VersionName | None = None, scope: str = ""
    ) -> None:
        self._file = AnswerFile(Path(path), max_entries=max_entries)
        self._current = current
        self._scope = scope

    @classmethod
    def of(cls, project_dir: Path, scope: str = "") -> AnswerCache:
        """Return the cache in a project's directory, to which only answers from the live version are added."""
        return cls(project_dir / ANSWERS_FILE, current=lambda: live_if_sound(project_dir), scope=scope)

    def __len__(self) -> int:
        return len(self._file)

    def get(self, key: str) -> WrittenAnswer | None:
        """Return the cached answer, or None."""
        content = self._file.get(key + self._scope)
        return None if content is None else WrittenAnswer(**parse_json(content))

    def put(self, key: str, answer: WrittenAnswer, *, version: str | None, form: str = "", question: str = "") -> None:
        """Add an answer that is based on the given version, if answers from this version may be added.

        Args:
            key: Key of the prompt.
            answer: The answer.
            version: The version.
            form: Key that the question shares with its other spellings.
            question: The question.
        """
        current = self._current
        self._file.put(
            key + self._scope,
            json.dumps(asdict(answer)).encode(),
            form=form + self._scope,
            question=storable_text(question),
            is_current=lambda: current is None or current() == version,
        )

    def questions(self, form: str) -> list[str]:
        """Return the questions with the given key of all their spellings that have answers, the most recent first."""
        return self._file.questions(form + self._scope)

    def clear(self) -> None:
        """Remove all answers."""
        self._file.clear()


def question_form(question: str) -> str:
    """Return a question without the details of its spelling that do not change its meaning.

    These are white space, the Unicode form, question marks at its ends, and letter case. A function word in capitals
    stays as it is, unless the whole question is in capitals, because it is an acronym: "WHO" and "US" do not mean "who"
    and "us".

    Example:
        >>> question_form(" What does Error  TS-999 mean ?"), question_form("What is the WHO's advice?")
        ('what does error ts-999 mean', "what is the WHO's advice")
    """
    text = normalise_query(question).strip(_QUESTION_MARKS)
    if text.isupper() and text.count(" ") > 1:
        return text.casefold()
    return _WORD.sub(lambda match: match[0] if _is_acronym(match[0]) else match[0].casefold(), text)


def _is_acronym(word: str) -> bool:
    return len(word) > 1 and word.isupper() and is_function_word(word.casefold())


# ---- engine ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """Options that determine how a question is answered.

    Attributes:
        style: "instruction", "persona" (few words), "chain_of_thought", or your own description, which is added to the
            rules.
        answer_tokens: Maximum total number of tokens for the passages in the prompt.
        context: Whether the prompt includes the generated context, marked as background.
        min_confidence: Search confidence below which a wider search is made. If the confidence is still below this
            limit, the prompt states that the passages have little in common with the question, but the model still
            answers. If set, the limit also applies to follow-up questions, each of which then needs a second search.
            None uses the level "low".
        not_found: The answer if nothing was found. The prompt also requests this answer if the passages do not answer
            the question.
        small_talk: The answer to chitchat, if questions are routed by intent.
        system_prompt: Text that replaces the rules and the style; {not_found} is a placeholder for `not_found`.
    """

    style: str = default("style")
    answer_tokens: int = default("answer_tokens")
    context: bool = True
    min_confidence: float | None = None
    not_found: str = prompts.NOT_FOUND
    small_talk: str = prompts.SMALL_TALK
    system_prompt: str | None = None


@dataclass(frozen=True)
class Draft:
    """The prepared prompt for an answer.

    Attributes:
        question: The question.
        retrieval: The search result.
        hits: The passages in the prompt.
        messages: The whole prompt.
        ready: The answer, if no model call is needed because there are no passages or the answer is in the cache.
        key: Key of the answer in the cache; None if there is no cache.
        form: Key in the cache that the question shares with its other spellings; None if there is no cache.
        spellings: Other spellings of the question that have answers in the cache. The search may find other passages
            for them, so that their prompts have other keys.
        calls: Usage of the model calls that were made to prepare the prompt.
    """

    question: str
    retrieval: RetrievalResponse
    hits: list[NodeWithScore]
    messages: list[ChatMessage]
    ready: GroundedResponse | None = None
    key: str | None = None
    form: str | None = None
    spellings: Sequence[str] = ()
    calls: Sequence[AnswerUsage] = ()


class GroundedQueryEngine(BaseQueryEngine):
    """Query engine that answers only from passages, cites its sources, and checks the citations.

    Adjacent hits are merged into one passage, and the best passages that fit the budget go into the prompt. If the
    confidence of the search is low, `wider` is searched as well. If nothing was found, the answer is
    `options.not_found`, without a call to the model. Otherwise the model determines whether the passages answer the
    question; if the confidence of the search is low, this is stated in the prompt.

    `get_prompts` and `update_prompts` give access to "system_prompt" (the rules, with {not_found}), "text_qa_template"
    ({context_str} and {query_str}), "clarify_prompt" and, with intents or a judge, "intent_prompt" and "judge_prompt".
    Citations are checked regardless of the prompts.

    Args:
        retriever: The retriever; a `ConversationalRetriever` accepts `ConversationQuery` objects.
        llm: The model that writes the answer; None uses the LLM assigned to LlamaIndex's `Settings.llm`.
        wider: A retriever with more candidates and results, used if the confidence of the search is low.
        options: Answer options.
        timeouts: Timeouts for calls to the model.
        node_postprocessors: Postprocessors that run before merging and packing, such as a reranker.
        streaming: Whether `query` streams the answer.
        guards: Guards applied to every answer before it is shown, as in `guards_of`: True also masks personal data,
            False leaves the model's text unchanged.
        cache: Answer cache; None calls the model every time.
        judge: Judge that checks every answer, even a streamed or partial answer, before it is shown; None shows
            answers immediately.
        text_qa_template: Template of the message with {context_str}, the numbered passages, and {query_str}.
        account: Call prices, and the function that records their cost; None uses list prices and records
            nothing.
        callback_manager: Callback manager for LlamaIndex's events; None uses `Settings.callback_manager`.

    Raises:
        ConfigurationError: There is no LLM, or a template lacks a variable.

    Example:
        >>> engine = project.as_query_engine(style="persona")  # doctest: +SKIP
        >>> print(engine.query("How long does food keep?"))  # doctest: +SKIP
        Three days [Source 1].
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        llm: LLM | None = None,
        *,
        wider: BaseRetriever | None = None,
        options: AnswerOptions | None = None,
        timeouts: Timeouts | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
        streaming: bool = False,
        guards: Guards | bool | None = None,
        cache: AnswerCache | None = None,
        judge: Judge | None = None,
        text_qa_template: BasePromptTemplate | None = None,
        account: AnswerAccount | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        super().__init__(callback_manager or Settings.callback_manager)
        if (llm := llm or settings_llm()) is None:
            raise ConfigurationError("The engine has no LLM: pass llm=, or assign Settings.llm.", setting="llm")
        if self.callback_manager.handlers and not llm.callback_manager.handlers:
            llm.callback_manager = self.callback_manager
        self.retriever = _conversational(retriever)
        self.wider = None if wider is None else _conversational(wider)
        self.options = options or AnswerOptions()
        self.streaming = streaming
        self.answer_stream = AnswerStream(llm, timeouts)
        self._llm = llm
        self.guards = guards_of(guards)
        self.cache = cache
        self.judge = judge
        self._account = account or AnswerAccount()
        self._postprocessors = list(node_postprocessors)
        for postprocessor in self._postprocessors if self.callback_manager.handlers else ():
            postprocessor.callback_manager = self.callback_manager
        most = self.options.answer_tokens
        self._packer = ContextWindowPacker(max_tokens=most, compress=True, min_tokens=min(64, most))
        self._prompts = prompts.default_prompts(self.options.style, self.options.system_prompt)
        if text_qa_template is not None:
            self._update_prompts({"text_qa_template": text_qa_template})

    # ---- Prompts and events ------------------------------------------------------------------------------------------

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {}

    def _get_prompts(self) -> dict[str, BasePromptTemplate]:
        judge = {} if self.judge is None else {"judge_prompt": self.judge.prompt}
        intents = self.retriever.retriever
        return {**self._prompts, **(intents.get_prompts() if isinstance(intents, IntentRetriever) else {}), **judge}

    def _update_prompts(self, prompts_dict: dict[str, BasePromptTemplate]) -> None:
        require_known(prompts_dict, self._get_prompts())
        checked = {name: prompts.require_template(name, template) for name, template in prompts_dict.items()}
        if (template := checked.pop("judge_prompt", None)) is not None and self.judge is not None:
            self.judge = replace(self.judge, prompt=template)
        if (template := checked.pop("intent_prompt", None)) is not None:
            self.retriever.retriever.update_prompts({"intent_prompt": template})
        self._prompts |= checked

    @contextmanager
    def _event(self, kind: CBEventType, query: str) -> Iterator[Any]:
        """Send an event to LlamaIndex's callbacks, which predate its instrumentation."""
        with self.callback_manager.event(kind, payload={EventPayload.QUERY_STR: query}) as event:
            yield event

    @without_span
    def query(self, str_or_query_bundle: QueryType) -> RESPONSE_TYPE:
        """Answer a question.

        Raises:
            InputError: The question is empty, or is neither a string nor a QueryBundle.
            ModelError: The model cannot be reached or does not begin to answer in time.
        """
        as_bundle(str_or_query_bundle)  # raises a clearer error than LlamaIndex's pydantic model would
        return super().query(str_or_query_bundle)

    @without_span
    async def aquery(self, str_or_query_bundle: QueryType) -> RESPONSE_TYPE:
        """Asynchronous version of `query`."""
        as_bundle(str_or_query_bundle)
        return await super().aquery(str_or_query_bundle)

    # ---- Search ------------------------------------------------------------------------------------------------------

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the passages for an answer prompt."""
        return self.draft(query_bundle).hits

    async def adraft(
        self, query: QueryBundle, *, history: Sequence[ChatMessage] = (), calls: Sequence[AnswerUsage] = ()
    ) -> Draft:
        """Search and return the prepared prompt for the answer.

        Args:
            query: The question.
            history: The conversation before the question.
            calls: Usage of the calls already made for the question.

        Raises:
            InputError: The question is empty or has the wrong type.
        """
        query = as_bundle(query)
        draft = await self._adraft(query, history, calls)
        for spelling in draft.spellings:
            respelled = copy(query)
            respelled.query_str = spelling
            other = await self._adraft(respelled, history, draft.calls)
            draft = replace(draft, calls=other.calls)
            if other.ready is not None and other.ready.from_cache:
                retrieval = replace(other.retrieval, query=query.query_str)
                ready = replace(other.ready, retrieval=retrieval)
                return replace(other, question=draft.question, retrieval=retrieval, ready=ready)
        return draft

    draft = twin(adraft)

    async def _adraft(self, query: QueryBundle, history: Sequence[ChatMessage], calls: Sequence[AnswerUsage]) -> Draft:
        with self._event(CBEventType.RETRIEVE, cut_text(query.query_str)) as event, calls_made() as made:
            response = await self.retriever.arespond(query)
            if self.wider is not None and self._needs_wider(response):
                response = _better(response, await self.wider.arespond(query))
            event.on_end(payload={EventPayload.NODES: list(response.results)})
        prepare = partial(self._prepare, calls=(*calls, *made))
        return await asyncio.to_thread(prepare, query, response, history)

    async def aprepare(
        self,
        question: str,
        response: RetrievalResponse,
        *,
        history: Sequence[ChatMessage] = (),
    ) -> Draft:
        """Prepare the answer prompt for a search result, without applying the engine's postprocessors."""
        prepare = partial(self._prepare, postprocessors=())
        return await asyncio.to_thread(prepare, QueryBundle(question), response, history)

    def _needs_wider(self, response: RetrievalResponse) -> bool:
        if response.mode_used == "none":  # a question that needs no search does not need a wider search either
            return False
        return not response.results or bool(response.doubt(self.options.min_confidence))

    def _prepare(
        self,
        query: QueryBundle,
        response: RetrievalResponse,
        history: Sequence[ChatMessage],
        *,
        postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        calls: Sequence[AnswerUsage] = (),
    ) -> Draft:
        # The part of a long question that is not searched is not sent to the model either.
        question, options = self.retriever.explicit(cut_text(query.query_str)), self.options
        chosen = self._postprocessors if postprocessors is None else postprocessors
        searched, _ = limit_query(query)
        hits = self._pack(searched, response, chosen)
        in_conversation = history and response.intent == "clarification" and response.mode_used == "none"
        if not hits and not in_conversation:
            text = options.small_talk if response.intent == "chitchat" else options.not_found
            no_answer = GroundedResponse(text, [], found=False, retrieval=response, usage=self._account.book(calls))
            return Draft(question, response, [], [], _with_metadata(no_answer))
        passages = prompts.passages_prompt(hits, context=options.context)
        if doubt := response.doubt(options.min_confidence):
            passages = f"{passages}\n\n{doubt}"
        messages = self._messages(question, passages if hits else None, history)
        draft = Draft(question, response, hits, messages, calls=calls)
        if self.cache is None or not self._has_names():
            return draft
        form = question_form(self.retriever.explicit(searched.query_str))
        key = self._key(self._messages(form, passages if hits else None, history), response, form)
        if (written := self.cache.get(key)) is None:
            shared = self._key(self._messages(form, None, history), response, form)
            own = searched.query_str
            others = [text for text in self.cache.questions(shared) if normalise_query(text) != own]
            return replace(draft, key=key, form=shared, spellings=others)
        answer = replace(self._check_answer(draft, written), from_cache=True, usage=self._account.book(calls))
        return replace(draft, ready=_with_metadata(answer))

    def _messages(self, question: str, passages: str | None, history: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return the whole prompt; without passages, the question is answered from the conversation."""
        asked, rules = [ChatMessage(question)], self._prompts["clarify_prompt"]
        if passages is not None:
            template, rules = self._prompts["text_qa_template"], self._prompts["system_prompt"]
            text = template.get_template(llm=self._llm)
            values = {"context_str": enclosed(passages, text), "query_str": enclosed(question, text)}
            asked = template.format_messages(llm=self._llm, **values)
        conversation = prompts.without_citations(history)
        return prompts.with_rules(rules, [*conversation, *asked], not_found=self.options.not_found)

    def _pack(
        self, query: QueryBundle, response: RetrievalResponse, postprocessors: Sequence[BaseNodePostprocessor]
    ) -> list[NodeWithScore]:
        """Run the postprocessors on search results and return the passages that fit the token budget."""
        hits = response.to_nodes()
        for postprocessor in postprocessors:
            hits = postprocessor.postprocess_nodes(hits, query_bundle=query)
        # Also pack before merging, because trimming a passage merged from many hits could remove the best hit.
        packed = self._packer.postprocess_nodes(hits, query_bundle=query)
        packed = AdjacentChunkMerger().postprocess_nodes(packed, query_bundle=query)
        return self._packer.postprocess_nodes(packed, query_bundle=query)

    # ---- Answer ------------------------------------------------------------------------------------------------------

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        with self._event(CBEventType.QUERY, query_bundle.query_str) as event:
            response = await self.aanswer(await self.adraft(query_bundle), streaming=self.streaming)
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return _sync_readable(run_sync(lambda: self._aquery(query_bundle)))

    async def asynthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Answer a question from the given passages, without searching or applying the engine's postprocessors.

        Args:
            query_bundle: The question.
            nodes: The passages; only passages that fit the budget go into the prompt.
            additional_source_nodes: Nodes to add to the `source_nodes` of the answer; they cannot be cited.
        """
        _, notes = await alimit_query(query_bundle)
        question = cut_text(as_bundle(query_bundle).query_str)
        retrieval = with_warnings(RetrievalResponse.of_nodes(question, nodes), notes)
        draft = await self.aprepare(question, retrieval)
        response = await self.aanswer(draft, streaming=self.streaming)
        return replace(response, source_nodes=[*response.source_nodes, *(additional_source_nodes or ())])

    def synthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Blocking version of `asynthesize`."""
        return _sync_readable(run_sync(lambda: self.asynthesize(query_bundle, nodes, additional_source_nodes)))

    async def aanswer(self, draft: Draft, *, streaming: bool = False) -> GroundedResponse | AsyncGroundedStream:
        """Return the answer to a prepared prompt.

        Raises:
            ModelError: The model cannot be reached or does not begin to answer in time.
        """
        with self._event(CBEventType.SYNTHESIZE, draft.question) as event:
            completion = Completion()
            response: GroundedResponse | AsyncGroundedStream
            if streaming:
                pieces = self.astream(draft, completion)
                response = AsyncGroundedStream(pieces, draft.hits, finish=lambda: self.finish(draft, completion))
            else:
                if draft.ready is None:
                    completion = await self.answer_stream.acomplete(draft.messages)
                response = await asyncio.to_thread(self.finish, draft, completion)
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    async def astream(self, draft: Draft, completion: Completion) -> AsyncGenerator[str, None]:
        """Stream the answer to a prepared prompt and yield the pieces that can be shown."""
        if draft.ready is not None:
            yield str(draft.ready)
            return
        passages = [self._passage(hit) for hit in draft.hits]
        stream_filter, is_empty = StreamFilter(self.options.style, self.guards, passages=passages), True
        try:
            async with aclosing(self.answer_stream.astream(draft.messages, completion)) as pieces:
                async for piece in pieces:
                    if (part := stream_filter.feed(piece)) and self.judge is None:
                        is_empty = False
                        yield part
        except (GeneratorExit, asyncio.CancelledError):
            self._usage(draft, completion)
            raise
        if self.judge is None and (part := stream_filter.flush()):
            is_empty = False
            yield part
        if self.judge is not None or is_empty:
            yield str(await asyncio.to_thread(self.finish, draft, completion))

    def finish(self, draft: Draft, completion: Completion) -> GroundedResponse:
        """Extract the answer from a completion, check its citations, have it judged, cache it and return it."""
        if draft.ready is not None:
            return draft.ready
        if completion.answer is None:
            written = self._apply_guards(completion.text)
            answer = self._check_answer(draft, written, problem=completion.problem)
            with calls_made() as made:
                is_refusal = fold(str(answer)).strip(".!") == fold(self.options.not_found).strip(".!")
                if self.judge is not None and not is_refusal:
                    answer = self.judge.review(self._mask(draft.question), answer)
            answer = replace(answer, usage=self._usage(draft, completion, made))
            completion.answer = _with_metadata(answer)
            is_sound = answer.partial is None and answer.found and "error" not in (answer.verdict or {})
            if self.cache is not None and draft.key is not None and is_sound:
                written = replace(written, verdict=answer.verdict)
                self.cache.put(
                    draft.key,
                    written,
                    version=draft.retrieval.version,
                    form=draft.form or "",
                    question=self._mask(draft.question),
                )
        return completion.answer

    def _usage(self, draft: Draft, completion: Completion, judged: Sequence[AnswerUsage] = ()) -> AnswerUsage | None:
        """Return the total usage of all calls for an answer, and record their cost if this has not been done yet."""
        if completion.usage is None:
            own = () if completion.calls is None else (completion.calls,)
            completion.usage = self._account.book([*draft.calls, *own, *judged])
        return completion.usage

    def _apply_guards(self, text: str) -> WrittenAnswer:
        """Apply the guards to the model's text and return the result, which may be shown and stored."""
        reasoning, _ = split_reasoning(text, self.options.style)
        # The result is the same as the streamed text, except for invalid citations, which the check removes later.
        stream_filter = StreamFilter(self.options.style, self.guards)
        clean = stream_filter.feed(text) + stream_filter.flush()
        return WrittenAnswer(clean, self._mask(text), None if reasoning is None else self._mask(reasoning))

    def _check_answer(self, draft: Draft, written: WrittenAnswer, *, problem: str | None = None) -> GroundedResponse:
        """Check the citations in an answer and return the answer with a report on them."""
        passages = [self._passage(hit) for hit in draft.hits]
        _, text = split_reasoning(written.original, self.options.style)
        found = bool(text.strip()) and self._mask(self.options.not_found).rstrip(".") not in text
        report = check_citations(written.text, passages, question=self._mask(draft.question), found=found)
        shown = report.text
        if not shown:
            problem = problem or "The model returned an empty answer."
        return GroundedResponse(
            shown or problem,
            draft.hits,
            found=found,
            partial=problem,
            citations=report if passages else None,  # an answer based only on the conversation has no citations
            retrieval=draft.retrieval,
            original=None if written.original == shown else written.original,
            reasoning=written.reasoning,
            verdict=written.verdict,
            metadata={} if written.verdict is None else {"verdict": written.verdict},
        )

    def _passage(self, hit: NodeWithScore) -> Passage:
        node = hit.node
        # The prompt includes facts and column headers with the text, so their numbers count as part of the passage.
        head = "\n".join(str(node.metadata[key]) for key in (keys.FACTS, keys.TABLE_HEAD) if node.metadata.get(key))

        def locate(start: int, end: int) -> Source:
            chunk = (hit.chunk_at(start) if isinstance(hit, MergedChunk) else None) or node
            return Source.of(chunk).at(start, end, keys.places_of(chunk.metadata))

        return Passage(self._mask(node.get_content()), Source.of(node), self._mask(head), locate)

    def _mask(self, text: str) -> str:
        return text if self.guards is None else self.guards.hide(text)

    def _key(self, messages: Sequence[ChatMessage], response: RetrievalResponse, question: str) -> str:
        """Return the key under which an answer to the form of a question, with its prompt, is cached."""
        values = [getattr(self._llm, name, None) for name in _MODEL_SETTINGS]
        settings = f"{self.options} {self.guards} {self.judge and self.judge.settings} {values}"
        rows: list[Any] = [__version__, self.answer_stream.name, response.version, settings, question]
        rows += [[message.role.value, message.content or ""] for message in messages]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    def _has_names(self) -> bool:
        """Return whether all models have names, which are needed to distinguish them in a cache key."""
        models = [self._llm] if self.judge is None else [self._llm, self.judge.llm]
        return all(is_named(model_name(model)) for model in models)


_MODEL_SETTINGS = ("temperature", "max_tokens", "reasoning_effort", "api_base", "base_url")


def _conversational(retriever: BaseRetriever) -> ConversationalRetriever:
    return retriever if isinstance(retriever, ConversationalRetriever) else ConversationalRetriever(retriever)


def _sync_readable(response: RESPONSE_TYPE) -> RESPONSE_TYPE:
    """Convert an asynchronously streamed answer so that it can be read without an event loop."""
    if not isinstance(response, AsyncGroundedStream):
        return response
    return GroundedStream(blocking(response.response_gen), response.source_nodes, finish=response.finish)


def _better(first: RetrievalResponse, second: RetrievalResponse) -> RetrievalResponse:
    """Return the better of two responses, with the intent of the first.

    A response with hits is better than a response without hits. If both or neither have hits, the response with the
    higher confidence is better.
    """
    order = [(bool(response.results), response.confidence or 0.0) for response in (first, second)]
    return replace(second, intent=first.intent) if order[1] > order[0] else first


def _with_metadata(response: GroundedResponse) -> GroundedResponse:
    """Add the nodes' metadata, as LlamaIndex's engines do, and a summary of the answer to a response's metadata."""
    by_node: dict[str, Any] = {hit.node.node_id: hit.node.metadata for hit in response.source_nodes}
    return replace(response, metadata={**by_node, **(response.metadata or {}), "answer": response.summary()})
