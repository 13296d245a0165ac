"""An ingestion whose contexts are asked for in batches: the replies are brought in before the version is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from llama_index_contextual.contextualizer.batch import BatchProgress
from llama_index_contextual.contextualizer.batch_sender import BatchReplies, asend_batches, require_batch_api
from llama_index_contextual.contextualizer.cost import CONTEXT_TOKENS, AnswerLimit
from llama_index_contextual.contextualizer.estimate import missing, requests_of
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prices import PriceTable, SenderKind
from llama_index_contextual.contextualizer.requests import ContextRequest
from llama_index_contextual.contextualizer.spending import BatchAccount, CallBudget, Spending
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.ingestion.jobs import Job
from llama_index_contextual.ingestion.stages import Stages
from llama_index_contextual.storage.receipts import RunCost


async def abring_replies(
    stages: Stages,
    jobs: Callable[[], Iterator[Job]],
    *,
    submit: bool,
    spending: Spending,
    tell: Callable[[BatchProgress], None] | None = None,
) -> BatchReplies | None:
    """Wait for the batches under way, and send what is missing in further ones.

    Args:
        stages: What a document passes.
        jobs: Gives the documents that need work, each time that it is called.
        submit: Whether to send what is missing; otherwise only what is under way is waited for.
        spending: Says what may be sent, and books what is answered.
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
    account = BatchAccount(spending, writer.model, llm=writer.llm, replies=replies)

    def requests() -> Iterator[ContextRequest]:
        account.begin_round()
        seen: set[str] = set()
        for job in jobs():
            for segment, todo, _ in missing(writer, stages.parse(job)):
                for request in requests_of(writer, segment, todo) if todo else ():
                    custom_id = replies.id_of(request)
                    if custom_id not in seen and not journal.knows(custom_id):
                        seen.add(custom_id)
                        account.reserve(custom_id, request)
                        yield request

    await asend_batches(
        writer.llm,
        writer.model,
        journal,
        requests if submit else None,
        tell=tell,
        uploaded=account.sent,
        answered=account.book,
    )
    account.begin_round()
    return replies


def spending_of(stages: Stages, prices: PriceTable, *, max_cost: float | None, purpose: str) -> Spending:
    """Return the account of a run.

    Args:
        stages: What a document passes.
        prices: What models cost.
        max_cost: Dollars that the run must not pass, or None.
        purpose: What the run is for; stands in its receipt.

    Raises:
        ConfigurationError: There is a limit, and a price is not known.
    """
    writer = stages.contextualizer if isinstance(stages.contextualizer, LLMContextualizer) else None
    mean = None if writer is None else stages.ledger.mean_context_tokens(writer.model)
    llm = None if writer is None else writer.model
    if mean is None and writer is not None:
        mean = CONTEXT_TOKENS + AnswerLimit.of(writer.model, writer.llm).expected_hidden_tokens
    spending = Spending(
        prices,
        max_cost=max_cost,
        context_tokens=mean or CONTEXT_TOKENS,
        receipts=stages.ledger.receipts,
        receipt=RunCost(purpose=purpose, llm=llm, embed_model=stages.embed_model_name),
    )
    for name in (stages.embed_model_name, llm):
        if name is not None:
            spending.require_price(name)
    return spending


def paid_stages(stages: Stages, spending: Spending, replies: BatchReplies | None) -> Stages:
    """Return the stages of a run whose calls are booked, and answered from batches where these have replies."""
    writer = stages.contextualizer
    if not isinstance(writer, LLMContextualizer):
        return replace(stages, spending=spending)
    sender: SenderKind = writer.service_tier or "live"
    budget = CallBudget(spending, writer.model, llm=writer.llm, sender=sender, replies=replies)
    writer = writer.model_copy(update={"budget": budget, "replies": replies})
    return replace(stages, spending=spending, contextualizer=writer)
