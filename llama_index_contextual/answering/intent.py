"""Query routing by intent: classify a question, and search with the plan for its intent.

A question is classified by patterns, then by scored words, and then, if an LLM is given, by the LLM. If the intent is
still unclear, the question is treated as "factual". `PLANS` contains the default search plan for each intent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any, Literal

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import LLM, ChatMessage
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.schema import QueryBundle, QueryType
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from llama_index_contextual._utils.calls import twin
from llama_index_contextual._utils.templates import enclosed, require_known
from llama_index_contextual.answering.prompts import conversation_text, require_template
from llama_index_contextual.answering.streaming import AnswerStream
from llama_index_contextual.config import Mode
from llama_index_contextual.errors import ConfigurationError, ModelError
from llama_index_contextual.index.analysis import cut_query
from llama_index_contextual.retrievers.base import CheckedRetriever, arespond_of, as_bundle, specificity_of
from llama_index_contextual.search.results import RetrievalResponse, RetrievedChunk

Tier = Literal["pattern", "words", "llm", "default"]
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

# ---- search plans ----------------------------------------------------------------------------------------------------


class SearchPlan(BaseModel):
    """Search options for questions with a particular intent.

    Attributes:
        top_k: Number of passages; 0 retrieves nothing.
        mode: Indexes to search; None uses the project's setting.
        semantic_weight: Weight of the semantic ranking, from 0 to 1; None uses the project's setting.
        by_aspect: Whether to search for each side of a comparison separately.
        from_conversation: Whether a question about the previous answer, such as "What do you mean by that?", is
            answered from the conversation, if there is one, without a search.

    Raises:
        ValidationError: A value is invalid.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    top_k: int = Field(default=5, ge=0)
    mode: Mode | None = None
    semantic_weight: float | None = Field(default=None, ge=0, le=1)
    by_aspect: bool = False
    from_conversation: bool = False


PLANS: Mapping[Intent, SearchPlan] = {
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
"""Default search plan for each intent."""

_LISTED = (
    "factual (a fact, a name, a number, a place); comparison (how things differ or agree); explanation (why or how"
    " something is so); aggregation (a list, a summary or an overview); procedural (the steps to do something);"
    " clarification (an earlier message of this conversation); chitchat (no question: a greeting, thanks, small talk);"
    " out_of_scope (something that is not in documents of this kind: general knowledge, the weather, a joke); opinion"
    " (a judgement or a recommendation); temporal (a date, a period, an order of events)"
)
"""List of intents for the prompt."""


# ---- patterns and words ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IntentGuess:
    """The probable intent of a question.

    Attributes:
        intent: The intent.
        tier: Method that determined the intent: a pattern, scored words, a model, or "default" if the intent is unclear
            and "factual" is assumed.
        is_weak: Whether the intent is uncertain; in this case, the LLM is asked, if there is one.
    """

    intent: Intent
    tier: Tier
    is_weak: bool = False


_OPENING = r"^(?:(?:and|so|but|ok|okay|well|then|also|thanks|thank you|got it|great|please|by the way)[\s,.!]+)*"
_BEFORE = r"(?:that|this|it|these|those|them|what you (?:just )?said|your (?:last |previous )?(?:answer|point|reply)"
_BEFORE += r"|the (?:last|previous|first|second|third) (?:answer|part|point|one|sentence))"
_HOW = r"(?:please|a (?:bit|little)(?: more)?|further|more|again|for me|in (?:more|greater) detail|in simpler terms)"
_MORE = (
    r"(?:(?:can|could|would|will) you (?:please )?|i(?:'d| would) like you to |let'?s )?"
    r"(?:elaborate|expand|go (?:into|in) (?:more |greater )?details?|go deeper|say more|tell me more|be more specific"
    r"|clarify|rephrase|explain|give me (?:more|further|some) (?:details?|information)|give (?:me )?an example"
    r"|(?:some )?more (?:details?|information)|for example|for instance|such as|like what|in other words|meaning"
    r"|what exactly do you mean)"
    rf"(?:\W+(?:on|about|upon|into|of|for|by|with|regarding))?(?:\W+{_BEFORE})?(?:\W+{_HOW})*\W*$"
)
"""Pattern for requests that ask for more about the previous answer but contain nothing to search for."""
_SAID = (
    r"what (?:did|have) (?:you|i|we) (?:just )?(?:say|said|ask(?:ed)?(?: you)?|answer(?:ed)?|talk(?:ed)? about)"
    r"|what (?:was|were) (?:my|your|our) (?:last|previous|first) (?:questions?|answers?|messages?)"
    r"|(?:can|could|would) you (?:please )?(?:repeat|summari[sz]e) (?:what you said|(?:our|this|the) conversation)"
    r"|(?:please )?(?:repeat|summari[sz]e) (?:what you said|your (?:last |previous )?answer"
    r"|(?:our|this|the) (?:conversation|chat)(?: so far)?)"
)
"""Pattern for questions about the conversation itself."""
_PATTERN_TEXTS: Mapping[Intent, str] = {
    "chitchat": (
        r"^\W*(?:(?:hi|hello|hey|ok|okay|thanks?|thank you|thx|bye|goodbye|omg|wow|great|cool|nice|perfect|alright"
        r"|all right|good (?:morning|evening|night|day)|see ya|see you|you'?re welcome|no problem|how are you"
        r"|very much|so much|a lot|there|then|can you help me|help me|got it|i see|lol|haha)[\W]*)+$"
    ),
    "out_of_scope": (
        r"^\W*(?:(?:please|hi|hello|hey|ok|so|can you|could you|will you|would you)\W+)*"
        r"(?:tell me (?:a|another) joke(?: about .*)?|write (?:me )?a (?:poem|song|story)\b.*|who are you"
        r"|what(?:'s| is) the weather(?: like| today| tomorrow| now| outside)*(?: in .*)?|what(?:'s| is) your name"
        r"|what can you do(?: for me)?|play (?:me )?(?:some )?music|set (?:an? )?(?:alarm|timer)"
        r"(?: (?:for|at|in) \d.*)?)(?: please)?\W*$"
    ),
    "clarification": (
        rf"{_OPENING}(?:what do you mean|what does that mean|can you (?:clarify|rephrase|repeat|explain that)"
        r"|could you (?:clarify|rephrase|repeat)|i meant?\b|i don'?t understand|sorry\?|pardon|are you saying"
        rf"|which one do you mean|say that again|no,? i meant?|{_MORE}"
        rf"|(?:{_SAID})(?: (?:just now|again|before|earlier|so far|a moment ago|please))*\W*$)"
    ),
    "comparison": (
        r"\b(?:differences?|differ|compar\w+|versus|vs\.?|pros\s*(?:and|/|&)\s*cons|similar(?:it\w+)?"
        r" (?:to|between)|the same as|same thing as|as \w+ as|better than|worse than|rather than|advantages? over"
        r"|distinguish\w*|more \w+ than|less \w+ than|\w+er than|or instead)\b|^\W*\w+ or \w+\W*$"
    ),
    "procedural": (
        rf"{_OPENING}(?:how (?:do|can|should|would|could|to|does one|must|might) (?!you (?:think|feel))"
        r"|(?:what|which) (?:are the )?(?:steps|procedures?)|steps to|guide (?:me|to)|where (?:can|do|should) i"
        r"|what should i do|instructions? )"
    ),
    "opinion": (
        r"\b(?:should (?:i|we|one)|do you (?:think|believe|recommend)|would you|your opinion|what do you think"
        r"|is it (?:worth|better|safe|safer|wise|smart|good|bad|ok(?:ay)?) |good idea|better off|recommend|best "
        r"(?:way|option|choice)|is it a good|worth it)\b"
    ),
    "temporal": (
        r"^\W*(?:when|since when|until when|how long ago|what (?:year|date|time|month|day)|in (?:which|what)"
        r" (?:year|month)|by when|how (?:recent|soon|often))\b|\b(?:last|this|next|previous|past) "
        r"(?:year|quarter|month|week|decade)\b|\b(?:timeline|chronolog\w+|history of)\b"
    ),
    "aggregation": (
        r"\b(?:list (?:all|the|of|every)|all (?:of )?the|summar\w+|overview|overall|in total|total number"
        r"|enumerate|what are (?:the|some|all)|which (?:are|\w+s are)|what (?:kinds?|types|categories|sorts)"
        r"|tell me (?:more )?about|examples of|name (?:all|some|the)|give me (?:a list|an overview))\b"
    ),
    "explanation": (
        rf"{_OPENING}(?:why|how come|explain|describe|what causes?|what (?:is|are) the (?:reason|cause|purpose"
        r"|meaning)|what makes|how (?:does|do|did|is|are|was|were) (?!many|much|old|long|far|big|tall|often)"
        r"|what happens|in what way)|\b(?:explain|the reasons? (?:why|for)|meaning of|works?\?)"
    ),
}
_PATTERNS = tuple((intent, re.compile(pattern, re.IGNORECASE)) for intent, pattern in _PATTERN_TEXTS.items())
_WORDS: Mapping[str, tuple[Intent, float]] = {
    **dict.fromkeys(("who", "where", "which", "whose", "much", "name", "number", "is", "are", "did"), ("factual", 1.0)),
    **dict.fromkeys(("does", "do", "was", "can", "has", "have", "price", "cost", "rate"), ("factual", 0.6)),
    **dict.fromkeys(("because", "reason", "cause", "effect", "impact", "role", "mean", "means"), ("explanation", 1.4)),
    **dict.fromkeys(("benefits", "factors", "requirements", "types", "options", "about"), ("aggregation", 1.2)),
    **dict.fromkeys(("process", "apply", "register", "create", "avoid", "fix", "get", "make"), ("procedural", 0.9)),
    **dict.fromkeys(("best", "better", "worst", "safer", "prefer", "worth", "risk"), ("opinion", 1.2)),
    **dict.fromkeys(("same", "both", "than", "either", "unlike", "contrast"), ("comparison", 1.3)),
    **dict.fromkeys(("year", "date", "deadline", "recently", "currently", "ago"), ("temporal", 1.2)),
}
_ASKS_BACK = re.compile(
    rf"{_OPENING}(?:what do you mean|what does (?:that|this|it) mean"
    r"|(?:can|could) you (?:clarify|rephrase|repeat|explain)|i don'?t understand|sorry|pardon(?: me)?|say that again"
    rf"|{_SAID})"
    r"(?:\W+(?:by|with|that|this|it|all|again|please|for me|once more|your (?:last )?answer|in other words|just now"
    r"|before|earlier|so far|a moment ago))*\W*$",
    re.IGNORECASE,
)
_WORD = re.compile(r"[a-z']+")
_MIN_SCORE = 1.0
_SURE_SCORE = 2.0
_MAX_CHARS = 2_000
"""Number of characters at the beginning of a question that are examined."""


def guess_intent(question: str) -> IntentGuess:
    """Return the probable intent of a question without asking a model.

    The rules are for English; questions in other languages are treated as "factual".

    Example:
        >>> [guess_intent(text).intent for text in ("Thank you!", "How do I file an order?", "A vs B?", "Who paid?")]
        ['chitchat', 'procedural', 'comparison', 'factual']
    """
    question = question[:_MAX_CHARS]
    for intent, pattern in _PATTERNS:
        if pattern.search(question):
            return IntentGuess(intent, "pattern")
    scores: dict[Intent, float] = {}
    for word in _WORD.findall(question.lower()):
        if word in _WORDS:
            intent, weight = _WORDS[word]
            scores[intent] = scores.get(intent, 0.0) + weight
    best = max(scores, key=lambda intent: scores[intent], default=None)
    if best is None or scores[best] < _MIN_SCORE:
        return IntentGuess("factual", "default", is_weak=True)
    # Words such as "what is" do not show whether a question is in scope.
    return IntentGuess(best, "words", is_weak=best == "factual" or scores[best] < _SURE_SCORE)


def asks_for_clarification(question: str) -> bool:
    """Return whether a message asks about the conversation so far and contains nothing to search for.

    Only English is recognised.

    Example:
        >>> texts = ("What do you mean by that?", "What do you mean by dry?", "I meant TS-104.")
        >>> [asks_for_clarification(text) for text in texts]
        [True, False, False]
    """
    return _ASKS_BACK.match(question[:_MAX_CHARS]) is not None


_ASK = """\
What does the last question want? Answer with one word of this list and nothing else: {intents}.

{conversation}Question: {question}"""


INTENT_PROMPT = PromptTemplate(_ASK)

_MAX_CHARS_OF_TURN = 500


def intent_messages(
    question: str, template: BasePromptTemplate = INTENT_PROMPT, history: Sequence[ChatMessage] = ()
) -> list[ChatMessage]:
    """Return the prompt messages that ask a model for the intent of a question.

    Args:
        question: The question.
        template: Template with {intents} and {question}, and optionally {conversation}, the previous exchange.
        history: The conversation before the question; only part of the last exchange is sent.
    """
    last = [
        ChatMessage(role=message.role, content=(message.content or "")[:_MAX_CHARS_OF_TURN]) for message in history[-2:]
    ]
    conversation = f"The conversation before it:\n{conversation_text(last)}\n\n" if last else ""
    text = template.get_template()
    return template.format_messages(
        intents=_LISTED, question=enclosed(question[:_MAX_CHARS], text), conversation=enclosed(conversation, text)
    )


def read_intent(answer: str) -> Intent | None:
    """Return the intent in a model's reply, or None if the reply does not contain exactly one intent.

    Example:
        >>> read_intent("Out_of_scope."), read_intent("I think so")
        ('out_of_scope', None)
    """
    words = set(re.findall(r"[a-z_]+", answer.lower().replace("out of scope", "out_of_scope")))
    intents = [intent for intent in PLANS if intent in words]
    return intents[0] if len(intents) == 1 else None


_COMPARISON = re.compile(
    r"(?:differences? between|compare|comparing|similarit(?:y|ies) between|distinguish between) ", re.IGNORECASE
)
_SECOND_SIDE = re.compile(r" (?:and|with|to|from) ([^?.!]+)", re.IGNORECASE)
_VERSUS = re.compile(r"(?<![^?.!,])([^?.!,]+?) (?:vs\.?|versus) ([^?.!,]+)", re.IGNORECASE)


def aspects_of(question: str) -> Sequence[str]:
    """Return the two sides of a comparison, or an empty tuple if they are not stated in the question.

    Example:
        >>> aspects_of("What is the difference between debit cards and credit cards?")
        ('debit cards', 'credit cards')
    """
    text = " ".join(question[:_MAX_CHARS].split())
    comparison, versus = _COMPARISON.search(text), _VERSUS.search(text)
    second = _SECOND_SIDE.search(text, comparison.end() + 1) if comparison else None
    if comparison and second and (versus is None or comparison.start() <= versus.start()):
        return text[comparison.end() : second.start()].strip(), second[1].strip()
    return (versus[1].strip(), versus[2].strip()) if versus else ()


_PLANS_BY_INTENT = TypeAdapter(dict[Intent, SearchPlan])


class IntentRetriever(CheckedRetriever):
    """Retriever that guesses the intent of a question and searches with the plan for that intent.

    For a comparison, the whole question and each side are searched for, and the results are interleaved. By default,
    nothing is retrieved for chitchat, for questions that are out of scope, or for requests to clarify the previous
    answer. If patterns and words leave the intent uncertain and `llm` is given, the LLM is asked.

    A question may be out of scope for one collection but not for another. Therefore a question that the model considers
    out of scope is searched anyway, and the results are dropped only if the confidence is low. If the intent is
    uncertain and the confidence is low, the question is marked as out of scope, but its results are returned.

    Args:
        make: Function that returns a retriever for a plan, such as
            `lambda plan: project.as_retriever(mode=plan.mode, ...)`.
        plans: Search plans by intent; `PLANS` is used for all other intents. A plan may be a dict, as in a JSON file.
        llm: Model for questions whose intent is uncertain; None uses the probable intent.

    Raises:
        ConfigurationError: A plan is invalid.

    Example:
        >>> make = lambda plan: project.as_retriever(mode=plan.mode, similarity_top_k=plan.top_k)  # doctest: +SKIP
        >>> retriever = IntentRetriever(make)  # doctest: +SKIP
    """

    def __init__(
        self,
        make: Callable[[SearchPlan], BaseRetriever],
        *,
        plans: Mapping[str, SearchPlan | Mapping[str, Any]] | None = None,
        llm: LLM | None = None,
    ) -> None:
        super().__init__()
        self._make = make
        try:
            overrides = _PLANS_BY_INTENT.validate_python(plans or {})
        except ValidationError as error:
            wrong = error.errors()[0]
            place = ".".join(map(str, ("intents", *wrong["loc"])))
            raise ConfigurationError(f"{place} is invalid: {wrong['msg']}.", setting="intents") from error
        self.plans: dict[Intent, SearchPlan] = {**PLANS, **overrides}
        self._answer_stream = None if llm is None else AnswerStream(llm)
        self._prompt: BasePromptTemplate = INTENT_PROMPT

    def _get_prompts(self) -> dict[str, BasePromptTemplate]:
        return {} if self._answer_stream is None else {"intent_prompt": self._prompt}

    def _update_prompts(self, prompts: dict[str, BasePromptTemplate]) -> None:
        require_known(prompts, self._get_prompts())
        if "intent_prompt" in prompts:
            self._prompt = require_template("intent_prompt", prompts["intent_prompt"])

    async def aguess(self, question: str, history: Sequence[ChatMessage] = ()) -> IntentGuess:
        """Return the probable intent of a question. If the LLM is asked, it also receives the previous exchange."""
        guess = guess_intent(question)
        if not guess.is_weak or self._answer_stream is None:
            return guess
        try:
            messages = intent_messages(question, self._prompt, history)
            completion = await self._answer_stream.acomplete(messages)
        except ModelError:
            return guess  # the search also works without the model
        intent = read_intent(completion.text)
        return guess if intent is None else IntentGuess(intent, "llm")

    guess = twin(aguess)

    async def arespond(self, query: QueryType) -> RetrievalResponse:
        """Return the results with the confidence of the search and the intent of the question.

        Raises:
            InputError: The query is empty or has the wrong type.
        """
        bundle = as_bundle(query)
        question = cut_query(bundle.query_str)
        guess = await self.aguess(question, getattr(bundle, "history", ()))
        plan = self.plans[guess.intent]
        is_follow_up = plan.from_conversation and bool(getattr(bundle, "history", ()))
        if plan.top_k < 1 or (is_follow_up and asks_for_clarification(question)):
            if (guess.intent, guess.tier) != ("out_of_scope", "llm"):
                return empty_response(bundle, guess.intent)
            plan = self.plans["factual"]  # the documents may contain the answer, but the model has not seen them
        retriever = self._make(plan)
        sides = aspects_of(question) if plan.by_aspect else ()
        queries = [bundle, *(QueryBundle(side) for side in sides)]
        responses = await asyncio.gather(*(arespond_of(retriever, query) for query in queries))
        response = _interleave(responses, plan.top_k, guess.intent)
        level = response.confidence_level
        if plan is not self.plans[guess.intent]:
            is_near = level in ("medium", "high")
            return replace(response, intent="factual") if is_near else empty_response(bundle, guess.intent)
        is_foreign = guess.is_weak and level in ("low", "none")
        return replace(response, intent="out_of_scope") if is_foreign else response

    respond = twin(arespond)

    def specificity(self, text: str) -> float | None:
        """Return the specificity of a text; see `specificity_of`."""
        return specificity_of(self._make(self.plans["factual"]), text)


def unsearched_intent(message: str, history: Sequence[ChatMessage]) -> Intent | None:
    """Return the intent of a message that needs no search in this conversation, or None if it needs a search.

    Example:
        >>> unsearched_intent("Thanks!", ()), unsearched_intent("Thanks! And in winter?", ())
        ('chitchat', None)
        >>> unsearched_intent("What did you just say?", [ChatMessage("Three days.", role="assistant")])
        'clarification'
    """
    if history and asks_for_clarification(message):
        return "clarification"
    return "chitchat" if guess_intent(message).intent == "chitchat" else None


def empty_response(bundle: QueryBundle, intent: str) -> RetrievalResponse:
    """Return an empty response for a question that needs no search."""
    return RetrievalResponse(query=bundle.query_str, mode_requested="none", mode_used="none", results=(), intent=intent)


def _interleave(responses: Sequence[RetrievalResponse], count: int, intent: str) -> RetrievalResponse:
    """Interleave the results of several responses, without duplicates, in a copy of the first response."""
    chunks: dict[str, RetrievedChunk] = {}
    for chunk in chain.from_iterable(zip_longest(*responses)):
        if chunk is not None:
            chunks.setdefault(chunk.node_id, chunk)
    first = list(chunks.values())[:count]
    results = tuple(chunk.model_copy(update={"rank": rank}) for rank, chunk in enumerate(first, start=1))
    return replace(responses[0], results=results, intent=intent)
