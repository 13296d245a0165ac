"""An ingestion whose contexts are asked for in batches: the replies are brought in before the version is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from llama_index_contextual.contextualizer.batch import BatchProgress
from llama_index_contextual.contextualizer.batch_sender import BatchReplies, asend_batches, require_batch_api
from llama_index_contextual.contextualizer.cost import CONTEXT_TOKENS, Tokens
from llama_index_contextual.contextualizer.estimate import missing, requests_of
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prices import PriceTable
from llama_index_contextual.contextualizer.requests import ContextRequest
from llama_index_contextual.contextualizer.spending import CallBudget, Reservation, Spending
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.ingestion.jobs import Job
from llama_index_contextual.ingestion.stages import Stages
from llama_index_contextual.storage.batches import BatchReply


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
    account = _BatchAccount(spending, writer.model, replies)

    def requests() -> Iterator[ContextRequest]:
        account.begin_round()
        seen: set[str] = set()
        for job in jobs():
            for segment, todo, _ in missing(writer, stages.parse(job)):
                for request in requests_of(writer, segment, todo) if todo else ():
                    custom_id = replies.id_of(request)
                    if custom_id not in seen and not journal.knows(custom_id):
                        seen.add(custom_id)
                        account.reserve(request)
                        yield request

    await asend_batches(
        writer.llm, writer.model, journal, requests if submit else None, tell=tell, answered=account.book
    )
    account.begin_round()
    return replies


class _BatchAccount:
    """The money of batches: put aside while they are under way, booked when they are answered.

    Args:
        spending: Of the run.
        model: Name of the model.
        replies: Is told which replies are booked.
    """

    def __init__(self, spending: Spending, model: str, replies: BatchReplies) -> None:
        self._spending, self._model, self._replies = spending, model, replies
        self._budget = CallBudget(spending, model, sender="batch")
        self._under_way: list[Reservation] = []

    def begin_round(self) -> None:
        """Put back what was put aside: no batch is under way, and what was answered is booked."""
        for call in self._under_way:
            call.release()
        self._under_way.clear()

    def reserve(self, request: ContextRequest) -> None:
        """Put aside the most that a request can cost."""
        self._under_way.append(self._budget.reserve(request))

    def book(self, replies: Sequence[BatchReply]) -> None:
        """Book replies; those without a count of tokens are booked when they are used, by our own count."""
        for reply in replies:
            if reply.input_tokens is not None and reply.output_tokens is not None:
                tokens = Tokens(1, reply.input_tokens, reply.cached_tokens or 0, reply.output_tokens)
                self._spending.book(self._model, tokens, sender="batch")
                self._replies.note_booked(reply.custom_id)


def spending_of(stages: Stages, prices: PriceTable, *, max_cost: float | None) -> Spending:
    """Return the account of a run.

    Args:
        stages: What a document passes.
        prices: What models cost.
        max_cost: Dollars that the run must not pass, or None.

    Raises:
        ConfigurationError: There is a limit, and a price is not known.
    """
    writer = stages.contextualizer if isinstance(stages.contextualizer, LLMContextualizer) else None
    mean = None if writer is None else stages.ledger.mean_context_tokens(writer.model)
    spending = Spending(prices, max_cost=max_cost, context_tokens=mean or CONTEXT_TOKENS)
    for name in (stages.embed_model_name, None if writer is None else writer.model):
        if name is not None:
            spending.require_price(name)
    return spending


def paid_stages(stages: Stages, spending: Spending, replies: BatchReplies | None) -> Stages:
    """Return the stages of a run whose calls are booked, and answered from batches where these have replies."""
    writer = stages.contextualizer
    if not isinstance(writer, LLMContextualizer):
        return replace(stages, spending=spending)
    budget = CallBudget(spending, writer.model, sender=writer.service_tier or "live", replies=replies)
    writer = writer.model_copy(update={"budget": budget, "replies": replies})
    return replace(stages, spending=spending, contextualizer=writer)
