"""Requests for contexts through the Batch API: sent ahead, answered from what has come, and live where nothing has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from llama_index.core.llms import LLM

from llama_index_contextual.clients import own_client
from llama_index_contextual.contextualizer.batch import BatchProgress, BatchRunner
from llama_index_contextual.contextualizer.requests import ContextRequest, Usage
from llama_index_contextual.contextualizer.senders import LiveSender, Reply, Sender
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.models import load_llm, provider_of
from llama_index_contextual.storage.batches import BatchJournal
from llama_index_contextual.storage.ledger import content_key

ROUNDS = 3
"""What an expired batch did not reach is sent in another one, so often in all; the rest is sent live."""


class BatchReplies:
    """The replies of batches, each of them given once: a request that is asked again is sent live.

    Args:
        journal: Keeps the replies.
        model: Name of the LLM, as in the settings.
    """

    def __init__(self, journal: BatchJournal, model: str) -> None:
        self._journal, self._model = journal, model
        self._used: set[str] = set()
        self._booked: set[str] = set()

    def id_of(self, request: ContextRequest) -> str:
        """Return by what a request is known again: everything that is asked, and of whom."""
        return content_key("batch", self._model, request.prompt)

    def has(self, request: ContextRequest) -> bool:
        """Return whether the reply to a request is here and was not given yet."""
        custom_id = self.id_of(request)
        return custom_id not in self._used and self._journal.reply(custom_id) is not None

    def is_booked(self, request: ContextRequest) -> bool:
        """Return whether this run has booked what the reply costs when it came."""
        return self.id_of(request) in self._booked

    def note_booked(self, custom_id: str) -> None:
        """Remember that a reply is booked, and is not to be when it is used."""
        self._booked.add(custom_id)

    def take(self, request: ContextRequest) -> Reply | None:
        """Return the reply to a request the first time that it is asked for."""
        custom_id = self.id_of(request)
        found = None if custom_id in self._used else self._journal.reply(custom_id)
        if found is None:
            return None
        self._used.add(custom_id)
        return Reply(
            found.text, Usage(found.input_tokens, found.cached_tokens, found.output_tokens), found.finish_reason
        )

    def over(self, live: Sender) -> Sender:
        """Return a sender that answers from the replies, and by another one where there is none."""
        return _BatchFirst(self, live)

    def forget_used(self) -> None:
        """Remove what was given: its contexts are in the ledger."""
        self._journal.forget_replies(self._used)
        self._used.clear()


class _BatchFirst:
    def __init__(self, replies: BatchReplies, live: Sender) -> None:
        self._replies, self._live = replies, live

    async def send(self, request: ContextRequest) -> Reply:
        """Return the answer to a request."""
        return self._replies.take(request) or await self._live.send(request)


class _Bodies(LiveSender):
    """The JSON of requests as a live call would send it."""

    def body(self, request: ContextRequest) -> dict[str, Any]:
        """Return the body of a request."""
        from llama_index.llms.openai.utils import to_openai_message_dicts

        llm = cast(Any, self._llm)
        messages = to_openai_message_dicts([self._message(request)], model=llm.model)
        return {"messages": messages, **llm._get_model_kwargs(**self._options(request))}


def require_batch_api(model: str) -> None:
    """Refuse a model whose provider has no Batch API.

    Raises:
        ConfigurationError: It has none.
    """
    provider = provider_of(model)
    if provider is None or not provider.has_batch_api:
        raise ConfigurationError(
            f"{model!r} cannot be asked in batches: that is for OpenAI's models. Leave batch out.", setting="llm"
        )


async def asend_batches(
    llm: LLM | None,
    model: str,
    journal: BatchJournal,
    requests: Callable[[], Iterator[ContextRequest]] | None,
    *,
    tell: Callable[[BatchProgress], None] | None = None,
    **options: Any,
) -> None:
    """Send requests in batches and wait for their replies; without requests, wait for what is under way.

    Args:
        llm: The LLM; None loads the one of that name.
        model: Its name, as in the settings.
        journal: Remembers what is under way, and keeps the replies.
        requests: Gives the requests that need an answer, each time that it is called.
        tell: Called as the provider proceeds.
        **options: For `BatchRunner`.

    Raises:
        ConfigurationError: The provider has no Batch API.
        ModelError: The provider refuses the requests, or cannot be reached.
    """
    require_batch_api(model)
    given = llm or load_llm(model)
    replies = BatchReplies(journal, model)
    async with own_client(given) as lent:
        bodies = _Bodies(lent)
        runner = BatchRunner(journal, cast(Any, lent)._get_aclient(), model=model, tell=tell, **options)
        await runner.collect()
        for _ in range(ROUNDS if requests is not None else 0):
            found = requests() if requests is not None else iter(())
            await runner.submit((replies.id_of(request), bodies.body(request)) for request in found)
            if not await runner.collect():
                break
