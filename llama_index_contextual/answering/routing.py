"""A retriever that searches every question by what it wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import LLM
from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_contextual.answering.intent import (
    PLANS,
    Intent,
    IntentGuess,
    SearchPlan,
    asks_back,
    aspects_of,
    guess_intent,
    intent_messages,
    read_intent,
)
from llama_index_contextual.answering.streaming import Speaker
from llama_index_contextual.calls import run_sync
from llama_index_contextual.errors import ModelError
from llama_index_contextual.results import RetrievalResponse, RetrievedChunk
from llama_index_contextual.retrievers.base import CheckedRetriever, arespond_of, respond_of, specificity_of


class IntentRetriever(CheckedRetriever):
    """Guesses the intent of a question and searches it as a table says.

    A comparison is searched as a whole and by each side, which take turns; chitchat and what is out of scope retrieve
    nothing, nor does what only asks back in a conversation. Where neither patterns nor words decide and there is a
    model, the model does.

    Args:
        make: Gives a retriever for a plan, such as `lambda plan: project.as_retriever(mode=plan.mode, ...)`.
        plans: How each intent is searched; those that are left out are searched as `PLANS` says.
        llm: Decides where nothing else does; None leaves such a question factual.

    Example:
        >>> make = lambda plan: project.as_retriever(mode=plan.mode, similarity_top_k=plan.top_k)  # doctest: +SKIP
        >>> retriever = IntentRetriever(make)  # doctest: +SKIP
    """

    def __init__(
        self,
        make: Callable[[SearchPlan], BaseRetriever],
        *,
        plans: Mapping[Intent, SearchPlan] | None = None,
        llm: LLM | None = None,
    ) -> None:
        super().__init__()
        self._make = make
        self.plans: dict[Intent, SearchPlan] = {**PLANS, **(plans or {})}
        self._speaker = None if llm is None else Speaker(llm)

    async def aguess(self, question: str) -> IntentGuess:
        """Return what a question wants."""
        guess = guess_intent(question)
        if guess.tier != "default" or self._speaker is None:
            return guess
        try:
            spoken = await self._speaker.aspeak(intent_messages(question))
        except ModelError:
            return guess  # a search need not wait for a model
        named = read_intent(spoken.text)
        return guess if named is None else IntentGuess(named, "llm")

    def guess(self, question: str) -> IntentGuess:
        """Do as `aguess` does, for callers without an event loop."""
        return guess_intent(question) if self._speaker is None else run_sync(lambda: self.aguess(question))

    def respond(self, bundle: QueryBundle) -> RetrievalResponse:
        """Return the results with their evidence, and the intent that they were searched for."""
        intent = self.guess(bundle.query_str).intent
        plan = self.plans[intent]
        if _needs_no_search(bundle, plan):
            return _unsearched(bundle, intent)
        retriever = self._make(plan)
        found = [respond_of(retriever, query) for query in _queries(bundle, plan)]
        return _by_turns(found, plan.top_k, intent)

    async def arespond(self, bundle: QueryBundle) -> RetrievalResponse:
        """Do as `respond` does, without blocking the event loop."""
        intent = (await self.aguess(bundle.query_str)).intent
        plan = self.plans[intent]
        if _needs_no_search(bundle, plan):
            return _unsearched(bundle, intent)
        retriever = self._make(plan)
        found = await asyncio.gather(*(arespond_of(retriever, query) for query in _queries(bundle, plan)))
        return _by_turns(found, plan.top_k, intent)

    def specificity(self, text: str) -> float | None:
        """Return how specific a text is among the passages; see `specificity_of`."""
        return specificity_of(self._make(self.plans["factual"]), text)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.respond(query_bundle).to_nodes()

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return (await self.arespond(query_bundle)).to_nodes()


def _needs_no_search(bundle: QueryBundle, plan: SearchPlan) -> bool:
    within = plan.from_conversation and bool(getattr(bundle, "history", ()))
    return plan.top_k < 1 or (within and asks_back(bundle.query_str))


def _queries(bundle: QueryBundle, plan: SearchPlan) -> list[QueryBundle]:
    return [bundle, *(QueryBundle(side) for side in (aspects_of(bundle.query_str) if plan.by_aspect else ()))]


def _unsearched(bundle: QueryBundle, intent: Intent) -> RetrievalResponse:
    return RetrievalResponse(query=bundle.query_str, mode_requested="none", mode_used="none", results=(), intent=intent)


def _by_turns(found: Sequence[RetrievalResponse], count: int, intent: Intent) -> RetrievalResponse:
    """Return the first search's response with the first results of every search by turns, each once."""
    taken: dict[str, RetrievedChunk] = {}
    for rank in range(max(map(len, found))):
        for response in found:
            if rank < len(response):
                taken.setdefault(response[rank].node_id, response[rank])
    chosen = list(taken.values())[:count]
    results = tuple(replace(chunk, rank=rank) for rank, chunk in enumerate(chosen, start=1))
    return replace(found[0], results=results, intent=intent)
