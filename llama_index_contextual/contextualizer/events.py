"""LlamaIndex instrumentation: what happens to each call for contexts."""

from __future__ import annotations

from llama_index.core.instrumentation.events import BaseEvent


class ContextCallEvent(BaseEvent):
    """One attempt of a call for contexts has ended.

    Attributes:
        doc_id: Id of the document.
        node_ids: Ids of the chunks whose contexts were asked for.
        model: Name of the LLM.
        attempt: Which attempt, from 1.
        seconds: How long it took.
        input_tokens: Tokens of the prompt by the provider's count, or None.
        cached_tokens: Those of them that came from its cache, or None.
        output_tokens: Tokens of the answer, or None.
        error: Why it failed, or None.
    """

    doc_id: str
    node_ids: list[str]
    model: str
    attempt: int
    seconds: float
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "ContextCallEvent"
