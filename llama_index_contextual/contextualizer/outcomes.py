"""What becomes of chunks: a context, or a sentence that says why there is none. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from llama_index.core.schema import BaseNode

from llama_index_contextual.contextualizer.quality import judge, read_group
from llama_index_contextual.contextualizer.requests import ContextRequest
from llama_index_contextual.contextualizer.segments import Segment
from llama_index_contextual.contextualizer.senders import Reply


@dataclass(frozen=True)
class Outcome:
    """What became of one chunk.

    Attributes:
        context: Its context, or None.
        paid: Whether a provider was asked for it in this call.
        problem: Why there is none, as a sentence.
        error: What was raised, if anything was.
    """

    context: str | None
    paid: bool = False
    problem: str = ""
    error: Exception | None = None


Settled = Callable[[Segment, BaseNode, Outcome], None]
"""Called when a chunk has its outcome; may raise a ContextualError, which stops the run."""


@dataclass
class Work:
    """The chunks of a segment that wait for a context, by key."""

    segment: Segment
    chunks: dict[str, list[BaseNode]]
    settled: Settled

    def wanted(self, keys: Iterable[str]) -> dict[str, BaseNode]:
        """Return one chunk of each key."""
        return {key: self.chunks[key][0] for key in keys}

    def settle(self, key: str, outcome: Outcome) -> None:
        """Give all chunks of a key their outcome; it is paid for once."""
        for chunk in self.chunks.pop(key):
            self.settled(self.segment, chunk, outcome)
            outcome = Outcome(outcome.context, False, outcome.problem, outcome.error)


def read_reply(request: ContextRequest, reply: Reply, model: str) -> tuple[dict[str, str], dict[str, Outcome]]:
    """Return the contexts that an answer holds, and what is wrong with the others, by the keys of the request.

    Args:
        request: What was asked.
        reply: What was answered.
        model: Name of the LLM, for the sentences.
    """
    numbers = request.ids or (0,)
    answers = read_group(reply.text, request.ids) if request.ids else {0: reply.text}
    # What is complete in an answer to several chunks is good, however the answer ends.
    reason = None if request.ids else reply.finish_reason
    good: dict[str, str] = {}
    bad: dict[str, Outcome] = {}
    for key, chunk, number in zip(request.keys, request.chunks, numbers, strict=True):
        verdict = judge(answers.get(number, ""), chunk.get_content(), reason)
        if verdict.context is not None:
            good[key] = verdict.context
        else:
            bad[key] = Outcome(None, problem=f"{model!r} {verdict.problem}.")
    return good, bad
