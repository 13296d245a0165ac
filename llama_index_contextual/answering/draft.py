"""What an answer is written by, and what it is written from."""

from __future__ import annotations

from dataclasses import dataclass

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.schema import NodeWithScore

from llama_index_contextual.answering.prompts import NOT_FOUND, SMALL_TALK
from llama_index_contextual.answering.responses import GroundedResponse
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.results import RetrievalResponse


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """How an answer is written.

    Attributes:
        style: "instruction", "persona" (few words), "chain_of_thought", or rules of one's own.
        answer_tokens: Tokens of the passages that the model reads, at most.
        max_passages: Passages that the model reads, at most; None for as many as fit.
        context: Whether the model sees the generated context, marked as background.
        min_confidence: Confidence of a search below which the answer is `not_found`, without a call to the model; it
            holds for follow-ups too, which then need a second search each. None leaves the decision to the model,
            which is told the confidence. Searches without a confidence are always answered.
        not_found: The answer where nothing was found, and what the model is told to write when the passages do not
            answer.
        small_talk: What is said to chitchat, where questions are searched by their intent.

    Raises:
        ConfigurationError: A number is out of range.
    """

    style: str = "instruction"
    answer_tokens: int = 8000
    max_passages: int | None = None
    context: bool = True
    min_confidence: float | None = None
    not_found: str = NOT_FOUND
    small_talk: str = SMALL_TALK

    def __post_init__(self) -> None:
        for name in ("answer_tokens", "max_passages"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigurationError(f"{name}={value} is invalid: it must be at least 1.", setting=name)
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 1:
            raise ConfigurationError(
                f"min_confidence={self.min_confidence} is invalid: it is a probability, 0 to 1.",
                setting="min_confidence",
            )


@dataclass(frozen=True)
class Draft:
    """What an answer is about to be written from.

    Attributes:
        question: What was asked.
        retrieval: The search.
        hits: The passages that the model reads.
        messages: All that it reads.
        ready: The answer, where the model need not be asked: there is nothing to answer from, or it was given before.
    """

    question: str
    retrieval: RetrievalResponse
    hits: list[NodeWithScore]
    messages: list[ChatMessage]
    ready: GroundedResponse | None = None
