"""A retriever that searches every question by what it wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import LLM
from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_contextual.answering.intent import (
    PLANS,
    Intent,
    IntentGuess,
    SearchPlan,
    aspects_of,
    guess_intent,
    intent_messages,
    read_intent,
)
from llama_index_contextual.answering.streaming import Speaker
from llama_index_contextual.calls import run_sync
from llama_index_contextual.errors import ModelError


class IntentRetriever(BaseRetriever):
    """Guesses the intent of a question and searches it as a table says.

    A comparison is searched as a whole and by each side, which take turns; chitchat and what is out of scope retrieve
    nothing. Where neither patterns nor words decide and there is a model, the model does.

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

    def _queries(self, bundle: QueryBundle, plan: SearchPlan) -> list[QueryBundle]:
        sides = aspects_of(bundle.query_str) if plan.by_aspect else ()
        return [bundle, *(replace(bundle, query_str=side, embedding=None) for side in sides)]

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        plan = self.plans[self.guess(query_bundle.query_str).intent]
        if plan.top_k < 1:
            return []
        retriever = self._make(plan)
        return _by_turns([retriever.retrieve(query) for query in self._queries(query_bundle, plan)], plan.top_k)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        plan = self.plans[(await self.aguess(query_bundle.query_str)).intent]
        if plan.top_k < 1:
            return []
        retriever = self._make(plan)
        found = await asyncio.gather(*(retriever.aretrieve(query) for query in self._queries(query_bundle, plan)))
        return _by_turns(found, plan.top_k)


def _by_turns(found: list[list[NodeWithScore]], count: int) -> list[NodeWithScore]:
    """Return the first hits of every search by turns, each node once."""
    taken: dict[str, NodeWithScore] = {}
    for rank in range(max(map(len, found), default=0)):
        for hits in found:
            if rank < len(hits):
                taken.setdefault(hits[rank].node.node_id, hits[rank])
    return list(taken.values())[:count]
