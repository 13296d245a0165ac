"""Embedding replies with wrong indexes, which are refused, and with unusable vectors, which are refused alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import TextNode
from pydantic import PrivateAttr

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ModelError
from llama_index_contextual.project.manager import ProjectManager
from tests.integration.embeddings.providers import CHUNKS, MODELS, OPENAI, PER_TOKEN, billed, embedded
from tests.integration.ingestion.support import passages
from tests.support.cli import run
from tests.support.models import CountingEmbedding
from tests.support.records import Answer, Request
from tests.support.server import LoopbackProvider


@pytest.fixture
def provider(every_provider: LoopbackProvider) -> LoopbackProvider:
    return every_provider


# ---- indexes ---------------------------------------------------------------------------------------------------------

WRONG_INDEXES: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "duplicate": lambda data: data[1].update(index=0),
    "missing": lambda data: data[1].pop("index"),
    "null": lambda data: data[1].update(index=None),
    "negative": lambda data: [item.update(index=-1 - item["index"]) for item in data],
    "from 1": lambda data: [item.update(index=1 + item["index"]) for item in data],
    "out of range": lambda data: data[-1].update(index=10**9),
    "a string": lambda data: [item.update(index=str(item["index"])) for item in data],
    "true": lambda data: data[1].update(index=True),
    "too few": lambda data: data.pop(),
    "too many": lambda data: data.append({**data[0], "index": len(data)}),
    "none": lambda data: data.clear(),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, name) for kind in ("OpenAI", "Voyage") for name in WRONG_INDEXES),
        *(
            (kind, name)
            for kind in ("OpenAI, floats", "OpenAI, own HTTP client", "Azure")
            for name in ("from 1", "none")
        ),
    ],
)
def test_a_reply_with_wrong_indexes_is_refused_and_booked(
    provider: LoopbackProvider, manager: ProjectManager, kind: str, name: str
) -> None:
    provider.usage_factor = 50  # what is booked is not an estimate
    provider.tamper = lambda _, answer: WRONG_INDEXES[name](answer.payload["data"])
    expected = r"with the index|did not return one vector per text|is not that of Voyage's API"
    with pytest.raises(ModelError, match=expected):
        embedded(manager, MODELS[kind](provider))
    project = manager.load("p", embed_model=MODELS[kind](provider))
    assert len([record for record in provider.history if record.worked]) == 1, "nothing was sent again"
    assert project.versions() == []
    assert project.info().ledger.embeddings == 0
    assert project.cost().dollars == pytest.approx(billed(provider) * PER_TOKEN)
    assert not project.cost().is_estimated


@pytest.mark.parametrize("kind", ["OpenAI", "OpenAI, floats", "Azure", "Voyage"])
def test_vectors_in_any_order_belong_to_their_texts(
    provider: LoopbackProvider, manager: ProjectManager, kind: str
) -> None:
    provider.tamper = lambda _, answer: answer.payload["data"].reverse()
    project, _ = embedded(manager, MODELS[kind](provider))
    for node in passages(24):
        assert project.retrieve(node.text, mode="semantic", top_k=1)[0].node_id == node.node_id


def test_a_query_is_refused_if_its_reply_has_another_index(provider: LoopbackProvider, manager: ProjectManager) -> None:
    project, _ = embedded(manager, MODELS["OpenAI"](provider))
    provider.tamper = lambda _, answer: answer.payload["data"][0].update(index=1)
    with pytest.raises(ModelError, match="with the index 1 instead of the indexes 0 to 0"):
        project.retrieve("passage", mode="semantic")


# ---- unusable vectors ------------------------------------------------------------------------------------------------


class OneBad(CountingEmbedding):
    """Returns an unusable vector for texts with a word."""

    bad: Any = None
    word: str = "13"
    _is_healthy: bool = PrivateAttr(default=False)

    def vector(self, text: str) -> list[float]:
        is_bad = self.word in text and not self._is_healthy
        return self.bad if is_bad else super().vector(text)  # type: ignore[no-any-return]


@pytest.mark.parametrize("indexes", ["hybrid", "semantic"])
@pytest.mark.parametrize("bad", [[float("nan")] * 64, [1e38] * 64, [0.0] * 64, [1.0]])
def test_a_chunk_with_an_unusable_vector_is_reported_and_it_alone_is_retried(
    manager: ProjectManager, bad: list[float], indexes: Any
) -> None:
    model = OneBad(bad=bad)
    config = ProjectConfig(context="none", indexes=indexes, mode="semantic")
    project = manager.create("p", config, embed_model=model)
    report = project.ingest(passages(24))
    (failure,) = report.failures
    assert (failure.node_id, failure.step, failure.is_held_back) == ("n13", "embedding", False)
    assert failure.error.startswith("'CountingEmbedding:counting' returned a vector that ")
    assert "no vector for" in str(report)
    assert "These chunks are found by their words only. To embed them again: project.retry_failed()" in str(report)
    assert (report.chunks, project.info().unembedded_chunks, project.info().ledger.embeddings) == (24, 1, 23)
    assert project.retrieve("Passage 12 of the handbook", top_k=1)[0].node_id == "n12"
    assert project.verify().sound
    again = project.retry_failed()
    assert (again.version, again.rebuilt, len(again.failures)) == (report.version, (), 1)
    model._is_healthy = True
    done = project.retry_failed()
    assert (len(done.rebuilt), done.failures) == (1, ())
    assert project.info().unembedded_chunks == 0
    assert [model.texts.count(text) for text in dict.fromkeys(model.texts)].count(1) == 23, "the rest was kept"
    hits = project.retrieve("Passage 13 of the handbook", top_k=24)
    similarity = {hit.node_id: hit.semantic.score for hit in hits if hit.semantic is not None}
    assert similarity["n13"] == max(similarity.values())


def test_a_single_document_without_a_usable_vector_is_added_to_other_documents(manager: ProjectManager) -> None:
    model = OneBad(bad=[float("nan")])
    project = manager.create("p", ProjectConfig(context="none"), embed_model=model)
    with pytest.raises(ModelError, match="returned a vector that contains values that are not finite numbers"):
        project.ingest([TextNode(id_="x", text="number 13")])
    project.ingest(passages(3))
    report = project.ingest([TextNode(id_="x", text="number 13")])
    assert [failure.node_id for failure in report.failures] == ["x"]
    assert project.retrieve("number", mode="lexical")[0].node_id == "x"


def test_a_failed_vector_is_shown_by_the_command_line(
    provider: LoopbackProvider, manager: ProjectManager, tmp_path: Path
) -> None:
    def spoil(request: Request, answer: Answer) -> None:
        for item, text in zip(answer.payload["data"], request.inputs, strict=True):
            if "valve" in text:
                item["embedding"] = [0.0] * 16

    provider.tamper = spoil
    manager.create("p", ProjectConfig(context="none", embed_model=OPENAI))
    for name, text in (("a.txt", "The pump runs dry."), ("b.txt", "Close valve 7.")):
        (tmp_path / name).write_text(text)
    options = ["--root", str(manager.root), "--quiet"]
    lines = run("ingest", "p", tmp_path / "a.txt", tmp_path / "b.txt", *options).err.splitlines()
    assert lines[0] == f"no vector for b.txt: '{OPENAI}' returned a vector that is zero."
    assert lines[1] == "These chunks are found by their words only. To embed them again:"
    assert lines[2].strip().startswith("llama-index-contextual retry p")
    assert "unembedded    1 chunk without a vector (see `retry`)" in run("info", "p", *options[:2]).out
    assert "1 chunk without a vector (see `retry`)" in run("documents", "p", *options[:2]).out
    provider.tamper = None
    assert run("retry", "p", *options).err == ""
    assert "unembedded" not in run("info", "p", *options[:2]).out


BAD: dict[str, Any] = {
    "NaN": [float("nan")] * 16,
    "infinite in 32 bits": [1e39] * 16,
    "absurdly long": [1e38] * 16,
    "zero": [0.0] * 16,
    "short": [1.0],
    "empty": [],
    "no base64": "????",
    "cut base64": "AAA=",
    "null": None,
    "null in a list": [None] * 16,
    "strings": ["x"] * 16,
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, name) for kind in ("OpenAI", "Voyage") for name in BAD),
        *(
            (kind, name)
            for kind in ("OpenAI, floats", "OpenAI's interface", "Azure")
            for name in ("NaN", "short", "null")
        ),
        # Ollama's own client rejects the whole reply if a vector is something else.
        *(("Ollama", name) for name in ("NaN", "infinite in 32 bits", "absurdly long", "zero", "short", "empty")),
    ],
)
def test_the_other_vectors_of_every_provider_are_kept(
    provider: LoopbackProvider, manager: ProjectManager, kind: str, name: str
) -> None:
    def spoil(request: Request, answer: Answer) -> None:
        for at, text in enumerate(request.inputs):
            if text.startswith("Passage 3 "):
                if "embeddings" in answer.payload:
                    answer.payload["embeddings"][at] = BAD[name]
                else:
                    item = answer.payload["data"][at]
                    (item["data"][0] if "data" in item else item)["embedding"] = BAD[name]

    provider.tamper = spoil
    project, report = embedded(manager, MODELS[kind](provider))
    assert [failure.node_id for failure in report.failures] == ["n3"]
    assert report.paid is not None
    assert (report.paid.embedding_tokens, report.paid.is_estimated) == (billed(provider), False)
    assert project.info().ledger.embeddings == CHUNKS - 1
    sent = [text for record in provider.history for text in record.inputs if text != "x"]
    assert sorted({sent.count(text) for text in sent}) == [1, 2], "only the chunk itself was sent again"


@pytest.mark.parametrize("name", ["NaN", "absurdly long", "zero", "empty", "null", "strings"])
@pytest.mark.parametrize("kind", ["OpenAI", "OpenAI, floats", "Voyage"])
def test_an_unusable_vector_of_a_query_is_an_error(
    provider: LoopbackProvider, manager: ProjectManager, kind: str, name: str
) -> None:
    project, _ = embedded(manager, MODELS[kind](provider))

    def spoil(_: Request, answer: Answer) -> None:
        (item,) = answer.payload["data"]
        (item["data"][0] if "data" in item else item)["embedding"] = BAD[name]

    provider.tamper = spoil
    with pytest.raises(ModelError, match=r"returned an embedding of the query that .*: run the same query again"):
        project.retrieve("passage", mode="semantic")
    provider.tamper = None
    assert project.retrieve("passage", mode="semantic")
