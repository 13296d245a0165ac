"""Modes of a misbehaving provider, and the guarantees that must hold in all of them.

`run_mode` lets a project ingest documents while a loopback provider misbehaves, and once more when it is healthy again.
The real `openai` client speaks to it, and the real settings, ledger and store are used.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import struct
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote
from zlib import crc32

import pytest
from llama_index.core.schema import Document, MetadataMode

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ContextualError
from llama_index_contextual.project.manager import ProjectManager
from tests.support.batches import BatchPlan
from tests.support.charges import NO_COUNTS, charged_times, cost_at, reported_as
from tests.support.records import CHAT_PATH, EMBEDDINGS_PATH, Answer, Request
from tests.support.server import LoopbackProvider

KEY = "sk-loop/0123456789+abcdefSECRETsecret=SECRET"
SETTINGS: dict[str, Any] = {"llm": "openai:gpt-4o-mini", "chunk_size": 40, "chunk_overlap": 4}

Tamper = Callable[[Request, Answer], None]


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One mode of misbehaviour.

    Attributes:
        tamper: Changes the answers to the requests that are hit.
        setup: Sets the provider up beyond that, such as by faults.
        path: The endpoint that is hit.
        hits_all: Whether every request is hit; otherwise about half of them, the same ones each time.
        times: How often a request is hit; None until the provider is healthy again.
        timeout: Seconds that a call may take.
        may_stop: Whether the run may end with an error of ours; otherwise it must end with a report.
        batch_plan: Sends the requests in a batch with this plan; None sends them live.
    """

    tamper: Tamper | None = None
    setup: Callable[[LoopbackProvider], object] | None = None
    path: str = CHAT_PATH
    hits_all: bool = False
    times: int | None = None
    timeout: float = 300.0
    may_stop: bool = False
    batch_plan: BatchPlan | None = None


@dataclass
class Outcome:
    """Result of a mode.

    Attributes:
        first: How the run in this mode ended.
        calls: Total number of calls to the provider.
        wrong: Violated guarantees.
    """

    first: str = ""
    calls: int = 0
    wrong: list[str] = field(default_factory=list)


# ---- the modes -------------------------------------------------------------------------------------------------------


def payload(change: Callable[[dict[str, Any]], object]) -> Tamper:
    """Change the JSON of an answer in place."""
    return lambda _, answer: change(answer.payload) and None


def choice(**changes: Any) -> Tamper:
    """Change the first choice of a chat answer."""
    return payload(lambda answer: answer["choices"][0].update(changes))


def text(change: Callable[[str], str | None]) -> Tamper:
    """Change the text of the model."""

    def tamper(_: Request, answer: Answer) -> None:
        message = answer.payload["choices"][0]["message"]
        message["content"] = change(message["content"])

    return tamper


def raw(content: bytes, kind: str = "application/json", status: int = 200, **headers: str) -> Tamper:
    """Answer with any bytes."""

    def tamper(_: Request, answer: Answer) -> None:
        answer.status, answer.content = status, content
        answer.headers |= {"content-type": kind, **headers}

    return tamper


def error(status: int, *, headers: Mapping[str, str] | None = None) -> Tamper:
    """Answer with an error whose message and headers repeat what was sent, the key in every form."""

    def tamper(request: Request, answer: Answer) -> None:
        header = request.headers["authorization"]
        answer.status = status
        answer.payload = {"error": {"message": f"Refused: {' | '.join(echoes(header))}", "type": "odd", "code": None}}
        answer.headers |= {"x-echo": header, **(headers or {})}

    return tamper


def echoes(header: str) -> list[str]:
    """Return the value of a header in the forms in which a provider may repeat it."""
    scheme, _, key = header.partition(" ")
    encoded = base64.b64encode(header.encode()).decode()
    return [
        *(header, quote(header, safe=""), encoded, base64.b64encode(f"user:{key}".encode()).decode()),
        *(json.dumps([scheme, key]), json.dumps(header).replace("/", "\\/")),
    ]


def first_vector(*values: float) -> Tamper:
    """Replace the first vector of an answer."""

    def tamper(_: Request, answer: Answer) -> None:
        item = answer.payload["data"][0]
        row = struct.pack(f"<{len(values)}f", *values)
        item["embedding"] = base64.b64encode(row).decode() if isinstance(item["embedding"], str) else list(values)

    return tamper


def _vector(change: Callable[[dict[str, Any]], object]) -> Tamper:
    """Change the first vector of an answer, with its index."""
    return payload(lambda answer: change(answer["data"][0]))


def _said(content: str | None, **more: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


_EMBEDDINGS = {"path": EMBEDDINGS_PATH, "hits_all": True, "may_stop": True}

MODES: Mapping[str, Mode] = {
    # errors that pass, and errors that stay
    "429 storm": Mode(tamper=error(429), hits_all=True, times=2),
    "429 storm, Retry-After": Mode(tamper=error(429, headers={"retry-after": "0.01"}), hits_all=True, times=2),
    "429 for ever": Mode(tamper=error(429), hits_all=True, may_stop=True),
    "400, echo": Mode(tamper=error(400)),
    "401, echo": Mode(tamper=error(401), may_stop=True),
    "500, echo": Mode(tamper=error(500), may_stop=True),
    "502": Mode(tamper=raw(b"<html>Bad gateway</html>", "text/html", 502), hits_all=True, may_stop=True),
    "503, then well": Mode(tamper=error(503), hits_all=True, times=1),
    # nothing comes, or half of it
    "hang": Mode(setup=lambda provider: provider.fault("hang", 2), timeout=10.0, may_stop=True),
    "slow first byte": Mode(setup=lambda provider: setattr(provider, "latency", 0.1)),
    "connection reset": Mode(setup=lambda provider: provider.fault("drop", 5), may_stop=True),
    "truncated body": Mode(setup=lambda provider: provider.fault("drop_in_body", 5), may_stop=True),
    "invalid JSON": Mode(setup=lambda provider: provider.fault("malformed_json", 5), may_stop=True),
    "HTML page": Mode(tamper=raw(b"<html><body>Sign in</body></html>", "text/html")),
    "wrong content type": Mode(tamper=raw(b'{"choices": []}', "text/plain")),
    "redirect": Mode(tamper=raw(b"", status=302, location="/v1/elsewhere"), may_stop=True),
    # what the model says
    "empty choices": Mode(tamper=payload(lambda answer: answer.update(choices=[]))),
    "null content": Mode(tamper=text(lambda _: None)),
    "NUL": Mode(tamper=text(lambda said: f"\0{said}\0")),
    "only NUL": Mode(tamper=text(lambda _: "\0\0")),
    "lone surrogates": Mode(tamper=text(lambda said: f"\ud800{said}\udfff")),
    "control characters": Mode(tamper=text(lambda said: f"\x1b[31m{said}\x9b\x7f\x08")),
    "50,000 characters": Mode(tamper=text(lambda said: f"{said} " * (50_000 // len(said or " ")))),
    "50,000 letters": Mode(tamper=text(lambda _: "a" * 50_000)),
    "key in the answer": Mode(tamper=text(lambda said: f"{said} Sent with the key {KEY}."), hits_all=True),
    "cut by length": Mode(tamper=choice(finish_reason="length", message=_said("This passage of the rep"))),
    "content filter": Mode(tamper=choice(finish_reason="content_filter", message=_said(None))),
    "refusal": Mode(tamper=choice(message=_said(None, refusal="I cannot help with that."))),
    "reasoning only": Mode(tamper=choice(message=_said("", reasoning_content="The chunk is about a pump. " * 50))),
    # counts
    **{f"usage: {form}": Mode(tamper=reported_as(form, CHAT_PATH), hits_all=True) for form in NO_COUNTS},
    **{f"usage: {n} times": Mode(tamper=charged_times(n, CHAT_PATH), hits_all=True) for n in (2, 100)},
    # batches
    "nofile": Mode(batch_plan=BatchPlan(output="missing")),
    "truncated": Mode(batch_plan=BatchPlan(output="truncated")),
    "expired": Mode(batch_plan=BatchPlan(ending="expired")),
    "cancelled": Mode(batch_plan=BatchPlan(ending="cancelled", finished=0)),
    "failed": Mode(batch_plan=BatchPlan(ending="failed")),
    "no error file": Mode(batch_plan=BatchPlan(ending="expired", error_output="gone")),
    # embeddings
    "embeddings: 500, echo": Mode(tamper=error(500), **_EMBEDDINGS),
    "embeddings: 400, echo": Mode(tamper=error(400), **_EMBEDDINGS),
    "embeddings: NaN": Mode(tamper=first_vector(*[float("nan")] * 1536), **_EMBEDDINGS),
    "embeddings: NaN once": Mode(tamper=first_vector(*[float("nan")] * 1536), times=1, **_EMBEDDINGS),
    "embeddings: zeros": Mode(tamper=first_vector(*[0.0] * 1536), times=1, **_EMBEDDINGS),
    "embeddings: short vector": Mode(tamper=first_vector(1.0, 0.0), **_EMBEDDINGS),
    "embeddings: missing items": Mode(tamper=payload(lambda answer: answer["data"].pop()), **_EMBEDDINGS),
    "embeddings: wrong order": Mode(tamper=payload(lambda answer: answer["data"].reverse()), **_EMBEDDINGS),
    "embeddings: no data": Mode(tamper=payload(lambda answer: answer.update(data=[])), **_EMBEDDINGS),
    "embeddings: surplus items": Mode(
        tamper=payload(lambda answer: answer["data"].append(answer["data"][0])), **_EMBEDDINGS
    ),
    "embeddings: absurdly long": Mode(tamper=first_vector(*[1e38] * 1536), **_EMBEDDINGS),
    "embeddings: infinite": Mode(tamper=first_vector(*[float("inf")] * 1536), **_EMBEDDINGS),
    "embeddings: null vector": Mode(tamper=_vector(lambda item: item.update(embedding=None)), **_EMBEDDINGS),
    "embeddings: broken base64": Mode(tamper=_vector(lambda item: item.update(embedding="AAA=")), **_EMBEDDINGS),
    "embeddings: index 1 twice": Mode(tamper=_vector(lambda item: item.update(index=1)), **_EMBEDDINGS),
    "embeddings: index -1": Mode(tamper=_vector(lambda item: item.update(index=-1)), **_EMBEDDINGS),
    "embeddings: index as text": Mode(tamper=_vector(lambda item: item.update(index="0")), **_EMBEDDINGS),
    "embeddings: no index": Mode(tamper=_vector(lambda item: item.pop("index")), **_EMBEDDINGS),
    **{
        f"embeddings: usage: {form}": Mode(tamper=reported_as(form, EMBEDDINGS_PATH), **_EMBEDDINGS)
        for form in NO_COUNTS
    },
    **{
        f"embeddings: usage: {n} times": Mode(tamper=charged_times(n, EMBEDDINGS_PATH), **_EMBEDDINGS) for n in (2, 100)
    },
}


# ---- a run -----------------------------------------------------------------------------------------------------------


class _Misbehaviour:
    """Tampers with the requests that a mode hits, and counts the answers that are left as they are.

    Args:
        mode: The mode.
    """

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.healthy = self.asked_only = False
        self.delivered: Counter[str] = Counter()
        self._hit: Counter[str] = Counter()

    def __call__(self, request: Request, answer: Answer) -> None:
        question = f"{request.path} {request.text}"
        if self._hits(request, question):
            self._hit[question] += 1
            if self.mode.tamper is not None:
                self.mode.tamper(request, answer)
        elif answer.status != 200 or self.asked_only or request.batch_id:  # the file of a batch may be lost
            return
        elif request.path == CHAT_PATH:
            self.delivered[question] += 1
        else:
            self.delivered.update(f"{request.path} {item}" for item in request.inputs)

    def _hits(self, request: Request, question: str) -> bool:
        if self.healthy or request.path != self.mode.path or self.mode.tamper is None:
            return False
        if self.mode.times is not None and self._hit[question] >= self.mode.times:
            return False
        return self.mode.hits_all or crc32(request.chunk.encode()) % 2 == 0


def documents() -> list[Document]:
    """Return documents of a few chunks each."""
    sentence = "Pump {0}{1} of yard {0} runs dry when valve {1} is shut and the oil of the mill is low."
    texts = ["\n\n".join(sentence.format(n, s) for s in range(5)) for n in range(3)]
    return [Document(id_=f"doc-{n}", text=text) for n, text in enumerate(texts)]


def run_mode(mode: Mode, folder: Path) -> Outcome:
    """Ingest while the provider misbehaves, and again when it is healthy; return the violated guarantees.

    Args:
        mode: What it does.
        folder: An empty folder.
    """
    outcome, log, misbehaviour = Outcome(), StringIO(), _Misbehaviour(mode)
    logger, handler = logging.getLogger("llama_index_contextual"), logging.StreamHandler(log)
    with LoopbackProvider(context_tokens=12, embedding_encoding="cl100k_base", tamper=misbehaviour) as provider:
        logger.addHandler(handler)
        try:
            with mock.patch.dict(os.environ, OPENAI_API_KEY=KEY, OPENAI_BASE_URL=provider.api_base):
                output = list(_runs(mode, misbehaviour, provider, folder, outcome))
        finally:
            logger.removeHandler(handler)
        outcome.calls = len(provider.calls())
    outcome.wrong += [f"{times} times: {what[:80]}" for what, times in misbehaviour.delivered.items() if times > 1]
    outcome.wrong += [f"key in {where}" for where, said in [*output, ("logs", log.getvalue())] if leaks(said)]
    files = (path for path in folder.rglob("*") if path.is_file())
    outcome.wrong += [f"key in {path.name}" for path in files if leaks(path.read_bytes().decode("latin-1"))]
    return outcome


def _runs(
    mode: Mode, misbehaviour: _Misbehaviour, provider: LoopbackProvider, folder: Path, outcome: Outcome
) -> Iterator[tuple[str, str]]:
    """Yield all output, with its place."""
    config = ProjectConfig(call_timeout=mode.timeout, **SETTINGS)
    project = ProjectManager(folder / "knowledge").create("p", config)
    if mode.setup is not None:
        mode.setup(provider)
    provider.batch_plan = mode.batch_plan or BatchPlan()
    quick, delay = RetryPolicy(attempts=4, base_delay=0.001, max_delay=0.02), RetryPolicy.delay  # before it is patched
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RetryPolicy, "delay", lambda _, attempt, error: delay(quick, attempt, error))
        patch.setattr("llama_index_contextual.contextualizer.sending.POLL_SECONDS", 0.0)
        try:
            report = project.ingest(documents(), batch=mode.batch_plan is not None)
            outcome.first = f"{len(report.failures)} of {report.chunks} chunks failed"
            yield "report", f"{report} {report!r} {report.to_dict()!r}"
        except ContextualError as error:
            outcome.first = type(error).__name__
            yield "error", "\n".join(all_of(error))
            if not mode.may_stop:
                outcome.wrong.append(f"ended by {error}")
        except Exception as error:  # noqa: BLE001 - what is wrong is reported, whatever it is
            outcome.wrong.append(f"foreign: {error!r}")
        misbehaviour.healthy = True
        project.update_config(call_timeout=Mode.timeout)
        provider.clear_faults()
        provider.latency = 0.0
        try:
            report = project.ingest(documents())
            if any(record.has_failed_chunks for record in project.documents()):
                report = project.retry_failed()
            if held_back := [failure for failure in report.failures if failure.is_held_back]:
                sent = len(provider.calls())
                report = project.retry_failed()
                if len(provider.calls()) > sent:
                    outcome.wrong.append("contexts that are held back were requested without a limit")
                report = project.retry_failed(max_cost=1.0)
                if mode.batch_plan is not None and len(provider.chat_calls) != len(held_back):
                    outcome.wrong.append("a reply that was read was paid for again")
        except Exception as error:  # noqa: BLE001 - as above
            outcome.wrong.append(f"a later ingest did not complete: {error}")
            return
    yield "later report", f"{report} {report!r} {report.to_dict()!r} {project!r} {project.info()!r}"
    chunks = [chunk for record in project.documents() for chunk in project.chunks(record.doc_id)]
    if report.failures or {chunk.metadata["context_source"] for chunk in chunks} != {"llm"}:
        outcome.wrong.append("a later ingest did not complete")
    # A provider charges nothing for a call that it answers with an error.
    charged = cost_at(record for record in provider.charged() if record.status in (0, 200))
    if charged > project.cost().dollars + 1e-9:
        outcome.wrong.append(f"the project shows less than the {charged} dollars that were charged")
    if not project.verify().sound:
        outcome.wrong.append("the project is damaged")
    misbehaviour.asked_only = True
    response = project.retrieve("Which pump runs dry when valve 3 is shut?")
    for chunk in chunks[:3]:
        best = project.retrieve(chunk.get_content(metadata_mode=MetadataMode.EMBED), mode="semantic", top_k=1)
        if best[0].node_id != chunk.node_id:
            outcome.wrong.append("vectors belong to other chunks")
    yield "results", "\n".join(hit.node.get_content(metadata_mode=MetadataMode.EMBED) for hit in response)


# ---- leaks -----------------------------------------------------------------------------------------------------------


def leaks(said: str) -> bool:
    """Return whether a text holds the key in any form in which the provider repeats it."""
    squeezed = "".join(said.split())
    forms = {"".join(form.split()) for form in (KEY, *echoes(f"Bearer {KEY}"))}
    return any(form in squeezed for form in forms)


def all_of(error: BaseException) -> Iterator[str]:
    """Yield all texts of an exception and its causes: formatted, arguments and attributes."""
    yield "".join(traceback.format_exception(error))
    recorded: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is None or id(one) in recorded:
            continue
        recorded.add(id(one))
        yield f"{one} {one!r} {one.args!r} {vars(one)!r}"
        yield from (repr(getattr(value, "headers", "")) for value in vars(one).values())
        chain += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
