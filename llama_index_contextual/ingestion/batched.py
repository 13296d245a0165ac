"""An ingestion whose contexts are asked for in batches: the replies are brought in before the version is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from llama_index_contextual.contextualizer.batch import BatchProgress
from llama_index_contextual.contextualizer.batch_sender import BatchReplies, asend_batches, require_batch_api
from llama_index_contextual.contextualizer.cost import CONTEXT_TOKENS, CallForm, most_output_tokens
from llama_index_contextual.contextualizer.estimate import missing, requests_of
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prices import PriceTable
from llama_index_contextual.contextualizer.requests import ContextRequest
from llama_index_contextual.contextualizer.spending import CallBudget, Spending
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.ingestion.jobs import Job
from llama_index_contextual.ingestion.pipeline import Stages


async def abring_replies(
    stages: Stages,
    jobs: Callable[[], Iterator[Job]],
    *,
    submit: bool,
    prices: PriceTable,
    max_cost: float | None = None,
    tell: Callable[[BatchProgress], None] | None = None,
) -> BatchReplies | None:
    """Wait for the batches under way, and send what is missing in further ones.

    Args:
        stages: What a document passes.
        jobs: Gives the documents that need work, each time that it is called.
        submit: Whether to send what is missing; otherwise only what is under way is waited for.
        prices: What models cost.
        max_cost: Dollars that what is sent must not pass.
        tell: Called as the provider proceeds.

    Returns:
        The replies, or None where no batch plays a part.

    Raises:
        ConfigurationError: No LLM writes the contexts, or its provider has no Batch API.
        BudgetExceededError: A batch could pass the limit; it was not sent.
        ModelError: The provider refuses the requests, or cannot be reached.
    """
    writer = stages.contextualizer
    if not isinstance(writer, LLMContextualizer):
        if submit:
            raise ConfigurationError(
                "Batches are for contexts that an LLM writes: set context to 'llm', or leave batch out.",
                setting="context",
            )
        return None
    journal = stages.ledger.batches
    if submit:
        require_batch_api(writer.model)
    replies = BatchReplies(journal, writer.model)
    if not submit and not journal.open_batches(writer.model):
        return replies if journal.has_replies() else None
    limit = Spending(prices, max_cost=max_cost)

    def requests() -> Iterator[ContextRequest]:
        for job in jobs():
            for segment, todo, _ in missing(writer, stages.parse(job)):
                for request in requests_of(writer, segment, todo) if todo else ():
                    if not journal.knows(replies.id_of(request)):
                        _reserve(limit, writer.model, request)
                        yield request

    await asend_batches(writer.llm, writer.model, journal, requests if submit else None, tell=tell)
    return replies


def _reserve(limit: Spending, model: str, request: ContextRequest) -> None:
    limit.reserve(
        model,
        input_tokens=CallForm.of(model).input_tokens(request),
        output_tokens=most_output_tokens(request),
        sender="batch",
    )


def paid_stages(
    stages: Stages, prices: PriceTable, *, max_cost: float | None, replies: BatchReplies | None
) -> tuple[Stages, Spending]:
    """Return the stages of a run whose calls are booked, and answered from batches where these have replies.

    Raises:
        ConfigurationError: There is a limit, and a price is not known.
    """
    writer = stages.contextualizer if isinstance(stages.contextualizer, LLMContextualizer) else None
    mean = None if writer is None else stages.ledger.mean_context_tokens(writer.model)
    spending = Spending(prices, max_cost=max_cost, context_tokens=mean or CONTEXT_TOKENS)
    for name in (stages.embed_model_name, None if writer is None else writer.model):
        if name is not None:
            spending.require_price(name)
    if writer is None:
        return replace(stages, spending=spending), spending
    budget = CallBudget(
        spending,
        writer.model,
        sender=writer.service_tier or "live",
        is_batched=None if replies is None else replies.has,
    )
    writer = writer.model_copy(update={"budget": budget, "replies": replies})
    return replace(stages, spending=spending, contextualizer=writer), spending
