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
from dataclasses import asdict, dataclass, field, replace
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
from llama_index_contextual._utils.cache import LRUCache
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
from llama_index_contextual.errors import ConfigurationError, ModelError
from llama_index_contextual.index.analysis import cut_query, cut_text, is_function_word, normalise_query
from llama_index_contextual.index.answers import ANSWERS_FILE, AnswerFile
from llama_index_contextual.index.versions import live_if_sound
from llama_index_contextual.metadata import storable_text
from llama_index_contextual.models import is_named, model_name, settings_llm
from llama_index_contextual.postprocessor import AdjacentChunkMerger, ContextWindowPacker, MergedChunk
from llama_index_contextual.retrievers.base import (
    alimit_query,
    as_bundle,
    limit_query,
    without_span,
)
from llama_index_contextual.retrievers.conversational import ConversationalRetriever, ConversationQuery
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

_TRANSLATED = "The question is in {}, and most documents are in {}: its translation was used."
_TRANSLATIONS = 1_000  # number of translations of questions that an engine keeps in memory
_QUESTION_MARKS = "?¿？؟ "
_WORD = re.compile(r"\w+")


class AnswerCache:
    """On-disk cache of answers.

    The key depends on the whole prompt, so an answer is never reused for a different version, filter, style or
    conversation. Spellings of a question that mean the same share an answer (see `question_form`). Only complete
    answers are cached, and only if the documents answer the question. `AnswerCache.from_project` returns the cache of a
    project.

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
    def from_project(cls, project_dir: Path, scope: str = "") -> AnswerCache:
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

    def translation(self, key: str) -> str | None:
        """Return the translation of a question, or None."""
        content = self._file.get(key + self._scope)
        return None if content is None else content.decode()

    def put_translation(self, key: str, text: str) -> None:
        """Add the translation of a question."""
        self._file.put(key + self._scope, text.encode())

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
        translate: Whether the model translates a question into the language of most documents if the search cannot
            relate the two languages.
        not_found: The answer if nothing was found. The prompt also requests this answer if the passages do not answer
            the question. The default is in German if the question is.
        small_talk: The answer to chitchat, if questions are routed by intent. The default is in German if the question
            is.
        system_prompt: Text that replaces the rules and the style; {not_found} is a placeholder for `not_found`.
    """

    style: str = default("style")
    answer_tokens: int = default("answer_tokens")
    context: bool = True
    min_confidence: float | None = None
    translate: bool = field(default=default("translate"), repr=False)  # without effect on the answer to a prompt
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
    ({context_str} and {query_str}), "clarify_prompt", "translate_prompt" and, with intents or a judge, "intent_prompt"
    and "judge_prompt".
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
        self._translations: LRUCache[str, str] = LRUCache(_TRANSLATIONS)
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
        templates = {name: prompts.require_template(name, template) for name, template in prompts_dict.items()}
        if (template := templates.pop("judge_prompt", None)) is not None and self.judge is not None:
            self.judge = replace(self.judge, prompt=template)
        if (template := templates.pop("intent_prompt", None)) is not None:
            self.retriever.retriever.update_prompts({"intent_prompt": template})
        self._prompts |= templates

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
            variant = copy(query)
            variant.query_str = spelling
            variant_draft = await self._adraft(variant, history, draft.calls)
            draft = replace(draft, calls=variant_draft.calls)
            if variant_draft.ready is not None and variant_draft.ready.from_cache:
                retrieval = replace(variant_draft.retrieval, query=query.query_str)
                ready = replace(variant_draft.ready, retrieval=retrieval)
                return replace(variant_draft, question=draft.question, retrieval=retrieval, ready=ready)
        return draft

    draft = twin(adraft)

    async def _adraft(self, query: QueryBundle, history: Sequence[ChatMessage], calls: Sequence[AnswerUsage]) -> Draft:
        with self._event(CBEventType.RETRIEVE, cut_text(query.query_str)) as event, calls_made() as usages:
            response, notes = await self.retriever.arespond(query), list[str]()
            if (foreign := response.foreign) and (translation := await self._atranslate(query, foreign, history)):
                query, response = translation, await self.retriever.arespond(translation)
                notes.append(_TRANSLATED.format(*map(str.capitalize, foreign)))
            if self.wider is not None and self._needs_wider(response):
                response = _better(response, await self.wider.arespond(query))
            response = with_warnings(response, notes)
            event.on_end(payload={EventPayload.NODES: list(response.results)})
        prepare = partial(self._prepare, calls=(*calls, *usages))
        return await asyncio.to_thread(prepare, query, response, history)

    async def _atranslate(
        self, query: QueryBundle, languages: tuple[str, str], history: Sequence[ChatMessage]
    ) -> QueryBundle | None:
        """Return a query with its translation, or None if it has texts of its own for the search, or the model fails.

        The response of the search then keeps its warning.

        Args:
            query: The query.
            languages: Languages of the question and of the documents.
            history: The conversation before the question.
        """
        text = (query.rewrite if isinstance(query, ConversationQuery) else None) or query.query_str
        has_own_texts = bool(query.custom_embedding_strs or getattr(query, "lexical_texts", None))
        if not self.options.translate or has_own_texts or query.embedding is not None:
            return None
        conversation = prompts.conversation_text(history) if text == query.query_str else ""
        translation = await self._atranslation(text, languages[1].capitalize(), conversation)
        return None if translation is None else ConversationQuery(query.query_str, rewrite=translation)

    async def _atranslation(self, question: str, language: str, conversation: str) -> str | None:
        """Return the translation of a question, from the cache or by the model, or None if the model fails.

        Translations that may contain parts of a conversation or personal data are not stored on disk.
        """
        form = question_form(question)
        key = self._key(self._translate_messages(form, language, conversation), None, form)
        stored = self.cache if self._has_names() and not conversation else None
        if (translation := self._translations.get(key)) is None and stored is not None:
            translation = await asyncio.to_thread(stored.translation, key)
        if translation is None:
            translation = await self.arewrite(self._translate_messages(question, language, conversation))
            if translation and stored is not None and self._mask(translation) == translation:
                await asyncio.to_thread(stored.put_translation, key, translation)
        if translation is not None:
            self._translations.put(key, translation)
        return translation

    def _translate_messages(self, question: str, language: str, conversation: str) -> list[ChatMessage]:
        template = self._prompts["translate_prompt"]
        text = template.get_template(llm=self._llm)
        history, question = enclosed(conversation or "(none)", text), enclosed(cut_query(question), text)
        return template.format_messages(llm=self._llm, language=language, history=history, question=question)

    async def arewrite(self, messages: Sequence[ChatMessage]) -> str | None:
        """Return the question that the model writes in reply to a prompt, or None if it fails."""
        try:
            completion = await self.answer_stream.acomplete(messages)
        except ModelError:
            return None
        text = completion.text.strip().strip('"“”')
        return text if text and completion.problem is None else None

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
        packers = self._postprocessors if postprocessors is None else postprocessors
        search_query, _ = limit_query(query)
        rewrite = query.rewrite if isinstance(query, ConversationQuery) else None
        hits = self._pack(QueryBundle(rewrite) if rewrite else search_query, response, packers)
        in_conversation = history and response.intent == "clarification" and response.mode_used == "none"
        if not hits and not in_conversation:
            text = options.small_talk if response.intent == "chitchat" else options.not_found
            text = prompts.in_language_of(question, text)
            no_answer = GroundedResponse(text, [], found=False, retrieval=response, usage=self._account.charge(calls))
            return Draft(question, response, [], [], _with_metadata(no_answer))
        passages = prompts.passages_prompt(hits, context=options.context)
        if doubt := response.doubt(options.min_confidence):
            passages = f"{passages}\n\n{doubt}"
        messages = self._messages(question, passages if hits else None, history)
        draft = Draft(question, response, hits, messages, calls=calls)
        if self.cache is None or not self._has_names():
            return draft
        form = question_form(self.retriever.explicit(search_query.query_str))
        key = self._key(self._messages(form, passages if hits else None, history), response.version, form)
        if (cached_answer := self.cache.get(key)) is None:
            form_key = self._key(self._messages(form, None, history), response.version, form)
            search_text = search_query.query_str
            spellings = [text for text in self.cache.questions(form_key) if normalise_query(text) != search_text]
            return replace(draft, key=key, form=form_key, spellings=spellings)
        answer = replace(self._check_answer(draft, cached_answer), from_cache=True, usage=self._account.charge(calls))
        return replace(draft, ready=_with_metadata(answer))

    def _messages(self, question: str, passages: str | None, history: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return the whole prompt; without passages, the question is answered from the conversation."""
        prompt_messages, rules = [ChatMessage(question)], self._prompts["clarify_prompt"]
        if passages is not None:
            template, rules = self._prompts["text_qa_template"], self._prompts["system_prompt"]
            text = template.get_template(llm=self._llm)
            values = {"context_str": enclosed(passages, text), "query_str": enclosed(question, text)}
            prompt_messages = template.format_messages(llm=self._llm, **values)
        conversation = prompts.without_citations(history)
        not_found = prompts.in_language_of(question, self.options.not_found)
        return prompts.with_rules(rules, [*conversation, *prompt_messages], not_found=not_found)

    def _pack(
        self, query: QueryBundle, response: RetrievalResponse, postprocessors: Sequence[BaseNodePostprocessor]
    ) -> list[NodeWithScore]:
        """Run the postprocessors on search results and return the passages that fit the token budget."""
        hits = response.to_nodes()
        for postprocessor in postprocessors:
            hits = postprocessor.postprocess_nodes(hits, query_bundle=query)
        # Also pack before merging, because trimming a passage merged from many hits could remove the best hit.
        result = self._packer.postprocess_nodes(hits, query_bundle=query)
        result = AdjacentChunkMerger().postprocess_nodes(result, query_bundle=query)
        return self._packer.postprocess_nodes(result, query_bundle=query)

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
            guarded_answer = self._apply_guards(completion.text)
            answer = self._check_answer(draft, guarded_answer, problem=completion.problem)
            with calls_made() as judge_calls:
                refusals = [fold(text).strip(".!") for text in self._refusals(draft.question)]
                is_refusal = fold(str(answer)).strip(".!") in refusals
                if self.judge is not None and not is_refusal:
                    answer = self.judge.review(self._mask(draft.question), answer)
            answer = replace(answer, usage=self._usage(draft, completion, judge_calls))
            completion.answer = _with_metadata(answer)
            is_sound = answer.partial is None and answer.found and "error" not in (answer.verdict or {})
            if self.cache is not None and draft.key is not None and is_sound:
                guarded_answer = replace(guarded_answer, verdict=answer.verdict)
                self.cache.put(
                    draft.key,
                    guarded_answer,
                    version=draft.retrieval.version,
                    form=draft.form or "",
                    question=self._mask(draft.question),
                )
        return completion.answer

    def _usage(
        self, draft: Draft, completion: Completion, judge_calls: Sequence[AnswerUsage] = ()
    ) -> AnswerUsage | None:
        """Return the total usage of all calls for an answer, and record their cost if this has not been done yet."""
        if completion.usage is None:
            answer_calls = () if completion.calls is None else (completion.calls,)
            completion.usage = self._account.charge([*draft.calls, *answer_calls, *judge_calls])
        return completion.usage

    def _apply_guards(self, text: str) -> WrittenAnswer:
        """Apply the guards to the model's text and return the result, which may be shown and stored."""
        reasoning, _ = split_reasoning(text, self.options.style)
        # The result is the same as the streamed text, except for invalid citations, which the check removes later.
        stream_filter = StreamFilter(self.options.style, self.guards)
        clean = stream_filter.feed(text) + stream_filter.flush()
        return WrittenAnswer(clean, self._mask(text), None if reasoning is None else self._mask(reasoning))

    def _check_answer(self, draft: Draft, answer: WrittenAnswer, *, problem: str | None = None) -> GroundedResponse:
        """Check the citations in an answer and return the answer with a report on them."""
        passages = [self._passage(hit) for hit in draft.hits]
        _, text = split_reasoning(answer.original, self.options.style)
        refusals = [self._mask(refusal).rstrip(".") for refusal in self._refusals(draft.question)]
        has_answer = bool(text.strip()) and not any(refusal in text for refusal in refusals)
        report = check_citations(answer.text, passages, question=self._mask(draft.question), found=has_answer)
        answer_text = report.text
        if not answer_text:
            problem = problem or "The model returned an empty answer."
        return GroundedResponse(
            answer_text or problem,
            draft.hits,
            found=has_answer,
            partial=problem,
            citations=report if passages else None,  # an answer based only on the conversation has no citations
            retrieval=draft.retrieval,
            original=None if answer.original == answer_text else answer.original,
            reasoning=answer.reasoning,
            verdict=answer.verdict,
            metadata={} if answer.verdict is None else {"verdict": answer.verdict},
        )

    def _refusals(self, question: str) -> set[str]:
        """Return the sentences by which the model says that the passages do not answer a question."""
        return {self.options.not_found, prompts.in_language_of(question, self.options.not_found)}

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

    def _key(self, messages: Sequence[ChatMessage], version: str | None, question: str) -> str:
        """Return the key under which an answer to the form of a question, with its prompt, is cached."""
        values = [getattr(self._llm, name, None) for name in _MODEL_SETTINGS]
        settings = f"{self.options} {self.guards} {self.judge and self.judge.settings} {values}"
        rows: list[Any] = [__version__, self.answer_stream.name, version, settings, question]
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
