"""What eight Agno agents at once take against one: `python -m tests.benchmarks.agents`.

Each run calls the model, searches the example documents, and calls the model again; the model is a provider on the
loopback interface with a fixed latency. Prints the median of some rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from tempfile import TemporaryDirectory
from typing import Any

from agno.agent import Agent
from agno.models.openai.like import OpenAILike

from llama_index_contextual.agno import ContextualKnowledge
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.support.examples import DATA
from tests.support.records import Request
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider

QUESTION = "What does error TS-999 mean?"
ANSWER = "The processor did not answer its watchdog."


def reply(request: Request) -> Reply | str:
    """Search once, then answer."""
    if any(message["role"] == "tool" for message in request.messages):
        return ANSWER
    call = {"name": "search_knowledge_base", "arguments": json.dumps({"query": QUESTION})}
    return Reply(tool_calls=[{"id": "call_1", "type": "function", "function": call}], finish_reason="tool_calls")


async def timed(number: int, knowledge: ContextualKnowledge, provider: LoopbackProvider) -> float:
    """Return the seconds that some agents take together, each with a question of its own."""

    def run() -> Any:
        model = OpenAILike(id="gpt-4.1-mini", base_url=provider.api_base, api_key="sk-any")
        return Agent(model=model, knowledge=knowledge, search_knowledge=True, telemetry=False).arun(QUESTION)

    began = time.perf_counter()
    outputs = await asyncio.gather(*(run() for _ in range(number)))
    seconds = time.perf_counter() - began
    for output in outputs:
        if output.content != ANSWER or not output.references:
            raise SystemExit(f"an agent did not search: {output.content!r}")
    return seconds


async def measured(rounds: int, latency: float) -> None:
    """Print the medians and their ratio."""
    with TemporaryDirectory() as root, LoopbackProvider(reply=reply, latency=latency) as provider:
        project = ProjectManager(root).create("utility", ProjectConfig.local())
        await project.aingest([DATA])
        knowledge = ContextualKnowledge(project, max_results=5)
        await timed(1, knowledge, provider)  # imports, and the first connection
        pairs = [(await timed(1, knowledge, provider), await timed(8, knowledge, provider)) for _ in range(rounds)]
    one, eight = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"one {one:.2f} s, eight at once {eight:.2f} s: {eight / one:.2f} times as long ({latency} s a model call)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency", type=float, default=0.5, help="seconds that the provider takes for a call")
    arguments = parser.parse_args()
    asyncio.run(measured(arguments.rounds, arguments.latency))
