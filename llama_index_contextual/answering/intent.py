"""What a question wants, and how to search for it: by patterns, then by words, then, if there is one, by a model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, get_args

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.llms import LLM
from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_contextual._utils.calls import run_sync
from llama_index_contextual._utils.templates import fill
from llama_index_contextual.answering.streaming import AnswerStream
from llama_index_contextual.config import Mode
from llama_index_contextual.errors import ModelError
from llama_index_contextual.retrievers.base import CheckedRetriever, arespond_of, respond_of, specificity_of
from llama_index_contextual.retrievers.response import RetrievalResponse, RetrievedChunk

Intent = Literal[
    "factual",
    "comparison",
    "explanation",
    "aggregation",
    "procedural",
    "clarification",
    "chitchat",
    "out_of_scope",
    "opinion",
    "temporal",
]
Tier = Literal["pattern", "words", "llm", "default"]

INTENTS: tuple[Intent, ...] = get_args(Intent)


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """How a question is searched.

    Attributes:
        top_k: Passages; 0 retrieves nothing.
        mode: Which indexes; None takes the project's.
        semantic_weight: Share of the semantic ranking, 0 to 1; None takes the project's.
        by_aspect: Whether each side of a comparison is searched on its own.
        from_conversation: Whether what only asks back, such as "What do you mean by that?", is answered from the
            conversation, if there is one, and not searched.
    """

    top_k: int
    mode: Mode | None = None
    semantic_weight: float | None = None
    by_aspect: bool = False
    from_conversation: bool = False


PLANS: Mapping[Intent, SearchPlan] = MappingProxyType(
    {
        "factual": SearchPlan(top_k=5),
        "comparison": SearchPlan(top_k=10, by_aspect=True),
        "explanation": SearchPlan(top_k=8),
        "aggregation": SearchPlan(top_k=15),
        "procedural": SearchPlan(top_k=6),
        "clarification": SearchPlan(top_k=3, from_conversation=True),
        "chitchat": SearchPlan(top_k=0),
        "out_of_scope": SearchPlan(top_k=0),
        "opinion": SearchPlan(top_k=5),
        "temporal": SearchPlan(top_k=6),
    }
)
"""What each intent is searched with, unless a table of one's own says otherwise."""


@dataclass(frozen=True)
class IntentGuess:
    """What a question seems to want.

    Attributes:
        intent: The intent.
        tier: What decided: a pattern, the scores of words, a model, or nothing ("default": factual).
    """

    intent: Intent
    tier: Tier


_OPENING = r"^(?:(?:and|so|but|ok|okay|well|then|also|thanks|thank you|got it|great|please|by the way)[\s,.!]+)*"
_WRITTEN: tuple[tuple[Intent, str], ...] = (
    (
        "chitchat",
        r"^\W*(?:(?:hi|hello|hey|ok|okay|thanks?|thank you|thx|bye|goodbye|omg|wow|great|cool|nice|perfect|alright"
        r"|all right|good (?:morning|evening|night|day)|see ya|see you|you'?re welcome|no problem|how are you"
        r"|very much|so much|a lot|there|then|can you help me|help me|got it|i see|lol|haha)[\W]*)+$",
    ),
    (
        "out_of_scope",
        r"^\W*(?:(?:please|hi|hello|hey|ok|so|can you|could you|will you|would you)\W+)*"
        r"(?:tell me (?:a|another) joke(?: about .*)?|write (?:me )?a (?:poem|song|story)\b.*|who are you"
        r"|what(?:'s| is) the weather(?: like| today| tomorrow| now| outside)*(?: in .*)?|what(?:'s| is) your name"
        r"|what can you do(?: for me)?|play (?:me )?(?:some )?music|set (?:an? )?(?:alarm|timer)"
        r"(?: (?:for|at|in) \d.*)?)(?: please)?\W*$",
    ),
    (
        "clarification",
        rf"{_OPENING}(?:what do you mean|what does that mean|can you (?:clarify|rephrase|repeat|explain that)"
        r"|could you (?:clarify|rephrase|repeat)|i meant?\b|i don'?t understand|sorry\?|pardon|are you saying"
        r"|which one do you mean|say that again|no,? i meant?)",
    ),
    (
        "comparison",
        r"\b(?:differences?|differ|compar\w+|versus|vs\.?|pros\s*(?:and|/|&)\s*cons|similar(?:it\w+)?"
        r" (?:to|between)|the same as|same thing as|as \w+ as|better than|worse than|rather than|advantages? over"
        r"|distinguish\w*|more \w+ than|less \w+ than|\w+er than|or instead)\b|^\W*\w+ or \w+\W*$",
    ),
    (
        "procedural",
        rf"{_OPENING}(?:how (?:do|can|should|would|could|to|does one|must|might) (?!you (?:think|feel))"
        r"|(?:what|which) (?:are the )?(?:steps|procedures?)|steps to|guide (?:me|to)|where (?:can|do|should) i"
        r"|what should i do|instructions? )",
    ),
    (
        "opinion",
        r"\b(?:should (?:i|we|one)|do you (?:think|believe|recommend)|would you|your opinion|what do you think"
        r"|is it (?:worth|better|safe|safer|wise|smart|good|bad|ok(?:ay)?) |good idea|better off|recommend|best "
        r"(?:way|option|choice)|is it a good|worth it)\b",
    ),
    (
        "temporal",
        r"^\W*(?:when|since when|until when|how long ago|what (?:year|date|time|month|day)|in (?:which|what)"
        r" (?:year|month)|by when|how (?:recent|soon|often))\b|\b(?:last|this|next|previous|past) "
        r"(?:year|quarter|month|week|decade)\b|\b(?:timeline|chronolog\w+|history of)\b",
    ),
    (
        "aggregation",
        r"\b(?:list (?:all|the|of|every)|all (?:of )?the|summar\w+|overview|overall|in total|total number"
        r"|enumerate|what are (?:the|some|all)|which (?:are|\w+s are)|what (?:kinds?|types|categories|sorts)"
        r"|tell me (?:more )?about|examples of|name (?:all|some|the)|give me (?:a list|an overview))\b",
    ),
    (
        "explanation",
        rf"{_OPENING}(?:why|how come|explain|describe|what causes?|what (?:is|are) the (?:reason|cause|purpose"
        r"|meaning)|what makes|how (?:does|do|did|is|are|was|were) (?!many|much|old|long|far|big|tall|often)"
        r"|what happens|in what way)|\b(?:explain|the reasons? (?:why|for)|meaning of|works?\?)",
    ),
)
_PATTERNS = tuple((intent, re.compile(pattern, re.IGNORECASE)) for intent, pattern in _WRITTEN)
_WORDS: Mapping[str, tuple[Intent, float]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("who", "where", "which", "whose", "much", "name", "number", "is", "are", "did"), ("factual", 1.0)
        ),
        **dict.fromkeys(("does", "do", "was", "can", "has", "have", "price", "cost", "rate"), ("factual", 0.6)),
        **dict.fromkeys(
            ("because", "reason", "cause", "effect", "impact", "role", "mean", "means"), ("explanation", 1.4)
        ),
        **dict.fromkeys(("benefits", "factors", "requirements", "types", "options", "about"), ("aggregation", 1.2)),
        **dict.fromkeys(("process", "apply", "register", "create", "avoid", "fix", "get", "make"), ("procedural", 0.9)),
        **dict.fromkeys(("best", "better", "worst", "safer", "prefer", "worth", "risk"), ("opinion", 1.2)),
        **dict.fromkeys(("same", "both", "than", "either", "unlike", "contrast"), ("comparison", 1.3)),
        **dict.fromkeys(("year", "date", "deadline", "recently", "currently", "ago"), ("temporal", 1.2)),
    }
)
_ASKS_BACK = re.compile(
    rf"{_OPENING}(?:what do you mean|what does (?:that|this|it) mean"
    r"|(?:can|could) you (?:clarify|rephrase|repeat|explain)|i don'?t understand|sorry|pardon(?: me)?|say that again)"
    r"(?:\W+(?:by|with|that|this|it|all|again|please|for me|once more|your (?:last )?answer|in other words))*\W*$",
    re.IGNORECASE,
)
_WORD = re.compile(r"[a-z']+")
_LEAST = 1.0
_READ = 2_000
"""Characters of a question in which its intent is looked for."""


def guess_intent(question: str) -> IntentGuess:
    """Return what a question seems to want, without a model; English only, any other language is "factual".

    Example:
        >>> [guess_intent(text).intent for text in ("Thank you!", "How do I file an order?", "A vs B?", "Who paid?")]
        ['chitchat', 'procedural', 'comparison', 'factual']
    """
    question = question[:_READ]
    for intent, pattern in _PATTERNS:
        if pattern.search(question):
            return IntentGuess(intent, "pattern")
    scores: dict[Intent, float] = {}
    for word in _WORD.findall(question.lower()):
        if word in _WORDS:
            intent, weight = _WORDS[word]
            scores[intent] = scores.get(intent, 0.0) + weight
    best = max(scores, key=lambda found: scores[found], default=None)
    if best is None or scores[best] < _LEAST:
        return IntentGuess("factual", "default")
    return IntentGuess(best, "words")


def asks_back(question: str) -> bool:
    """Return whether a message asks about what was said just before, and names nothing to search for; English only.

    Example:
        >>> [asks_back(text) for text in ("What do you mean by that?", "What do you mean by dry?", "I meant TS-104.")]
        [True, False, False]
    """
    return _ASKS_BACK.match(question[:_READ]) is not None


_ASK = """\
What does the question want? Answer with one word of this list and nothing else: {intents}.

Question: {question}"""


def intent_messages(question: str) -> list[ChatMessage]:
    """Return the messages that ask a model for an intent."""
    prompt = fill(_ASK, {"intents": ", ".join(INTENTS), "question": question[:_READ]})
    return [ChatMessage(role=MessageRole.USER, content=prompt)]


def read_intent(answer: str) -> Intent | None:
    """Return the intent that a model named, or None when it named none or several.

    Example:
        >>> read_intent("Out_of_scope."), read_intent("I think so")
        ('out_of_scope', None)
    """
    words = set(re.findall(r"[a-z_]+", answer.lower().replace("out of scope", "out_of_scope")))
    named = [intent for intent in INTENTS if intent in words]
    return named[0] if len(named) == 1 else None


_SIDES = re.compile(
    r"(?:differences? between|compare|comparing|similarit\w+ between|distinguish between) (?P<a>.+?) "
    r"(?:and|with|to|from) (?P<b>[^?.!]+)|(?<![^?.!,])(?P<c>[^?.!,]+?) (?:vs\.?|versus) (?P<d>[^?.!,]+)",
    re.IGNORECASE,
)


def aspects_of(question: str) -> Sequence[str]:
    """Return the sides of a comparison, or nothing where it does not name them.

    Example:
        >>> aspects_of("What is the difference between debit cards and credit cards?")
        ('debit cards', 'credit cards')
    """
    match = _SIDES.search(" ".join(question[:_READ].split()))  # a pattern for white space would try every length of it
    if match is None:
        return ()
    return tuple(match[name].strip() for name in ("abcd"[at] for at in range(4)) if match[name])


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
        self._speaker = None if llm is None else AnswerStream(llm)

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
