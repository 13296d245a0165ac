"""Texts that are longer than a model reads: windows, their mean, their keys, and the word in the report."""

from __future__ import annotations

import re
from contextlib import closing
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import Document
from pydantic import Field

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.contextual import aembed_groups
from llama_index_contextual.embeddings.windows import OVERLAP, Window, WindowSplitter, average, window_splitter
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import CountingEmbedding


def words_of(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\S+", text)]


def splitter(room: int) -> WindowSplitter:
    return WindowSplitter(limit=room, room=room, spans=words_of)


# ---- windows ---------------------------------------------------------------------------------------------------------


@given(words=st.integers(1, 400), context=st.integers(0, 60), room=st.integers(8, 120), mark=st.sampled_from("wü"))
def test_windows_cover_a_text_in_order_and_fit_the_model(words: int, context: int, room: int, mark: str) -> None:
    head = "".join(f"c{at} " for at in range(context))
    text = head + " ".join(f"{mark}{at}" for at in range(words))
    windows = splitter(room).split(text, len(head))
    if words + context <= room:
        assert [window.text for window in windows] == [text]
        return
    assert all(len(words_of(window.text)) <= room for window in windows)
    repeated = 2 * (room - context) >= room
    assert all(window.text.startswith(head) for window in windows) or not repeated
    parts = [window.text.split()[context if repeated else 0 :] for window in windows]
    assert [len(part) for part in parts] == [window.tokens for window in windows]
    assert parts[0][0] == (f"{mark}0" if repeated or not context else "c0")
    assert parts[-1][-1] == f"{mark}{words - 1}"
    order = {word: at for at, word in enumerate(text.split())}
    for one, two in pairwise(parts):
        assert order[one[0]] < order[two[0]] <= order[one[-1]] + 1


@pytest.mark.parametrize("words", [101, 150, 199, 200, 750, 1000])
def test_windows_have_equal_lengths_and_overlap_by_an_eighth(words: int) -> None:
    windows = splitter(100).split(" ".join(str(at) for at in range(words)))
    lengths = [window.tokens for window in windows]
    assert max(lengths) - min(lengths) <= 1
    numbers = [[int(word) for word in window.text.split()] for window in windows]
    assert min(one[-1] - two[0] + 1 for one, two in pairwise(numbers)) >= 100 // OVERLAP - 1
    assert len(windows) == -(-(words - 100 // OVERLAP) // (100 - 100 // OVERLAP))


@pytest.mark.parametrize(("words", "repeated"), [(10, True), (11, False)])
def test_a_window_begins_with_the_context_if_it_leaves_half_the_window(words: int, repeated: bool) -> None:
    head = "c " * words + "\n\n"
    windows = splitter(20).split(head + " ".join(f"w{at}" for at in range(60)), len(head))
    assert all(window.text.startswith(head) for window in windows) == repeated
    assert windows[0].text.startswith("c c")
    assert windows[-1].text.endswith("w59")


def test_windows_are_cut_between_words_although_tokens_are_shorter() -> None:
    by_letters = WindowSplitter(limit=120, room=120, spans=lambda text: [(at, at + 1) for at in range(len(text))])
    text = " ".join(["pump"] * 100)
    windows = by_letters.split(text)
    assert len(windows) == 5
    assert {word for window in windows for word in window.text.split()} == {"pump"}
    script = by_letters.split("水" * 285)  # no place between words
    assert [len(window.text) for window in script] == [105, 105, 105]


@pytest.mark.parametrize("text", ["", " ", "\n" * 500, "a", "\ud800" * 300])
def test_a_text_without_words_stays_one_window(text: str) -> None:
    windows = window_splitter(CountingEmbedding(), "x:y", 32).split(text)  # type: ignore[union-attr]
    assert windows
    assert all(window.text == text or window.text for window in windows)


# ---- which models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "window", "limit"),
    [
        ("openai:text-embedding-3-small", "auto", None),
        ("ollama:all-minilm", None, None),
        ("ollama:all-minilm", "auto", 256),
        ("ollama:all-minilm", 100, 100),
        ("ollama:all-minilm", 9_000, 256),
        ("mine:unknown", 300, 300),
    ],
)
def test_what_a_model_reads_comes_from_the_setting_the_model_or_the_table(
    name: str, window: Any, limit: int | None
) -> None:
    made = window_splitter(CountingEmbedding(), name, window)
    assert (made and (made.limit, made.room)) == (limit and (limit, int(0.7 * limit)))


def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    from tokenizers import models, pre_tokenizers, processors

    made = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    made.enable_truncation(64)
    made.enable_padding()
    return made


@pytest.mark.parametrize("kind", ["sentence-transformers", "fastembed"])
def test_the_models_own_tokenizer_counts_and_is_left_alone(kind: str) -> None:
    own = tokenizer()
    models = {
        "sentence-transformers": {"max_seq_length": 64, "tokenizer": SimpleNamespace(backend_tokenizer=own)},
        "fastembed": {"model": SimpleNamespace(tokenizer=own)},
    }
    model = SimpleNamespace(_model=SimpleNamespace(**models[kind]), text_instruction="passage: ")
    made = window_splitter(model, "x:y", "auto")  # type: ignore[arg-type]
    assert made is not None
    # [CLS] and [SEP], "passage" and ":", and a margin of 2.
    assert (made.limit, made.room) == (64, 58)
    windows = made.split("Öl, " * 100)
    assert len(windows) == 4
    for window in windows:
        assert 50 < len(own.encode("passage: " + window.text).ids) <= 64
        assert window.text.endswith(",")
        assert len(made.spans(window.text)) <= 58
    assert own.truncation["max_length"] == 64
    assert own.padding is not None


# ---- the mean --------------------------------------------------------------------------------------------------------


class Table(CountingEmbedding):
    """Returns a given vector for each text."""

    rows: dict[str, list[float]] = Field(default_factory=dict)
    embed_batch_size: int = 2

    def vector(self, text: str) -> list[float]:
        return self.rows[text]


async def test_the_vector_is_the_mean_of_unit_vectors_weighted_by_tokens() -> None:
    model = Table(dimensions=2, rows={"a": [2.0, 0.0], "b": [0.0, 5.0], "c": [3.0, 4.0], "d": [1.0, 0.0]})
    texts = [[Window("a", 3), Window("b", 4)], [Window("c", 9)], [Window("a", 1), Window("b", 1), Window("d", 2)]]
    rows: dict[int, Any] = {}
    parts = [[window.text for window in windows] for windows in texts]
    async for vectors in aembed_groups(model, parts, name="x:y"):
        rows.update({at: average(texts[at], of_text.rows)[0] for at, of_text in vectors.items()})
    # (3 · [1, 0] + 4 · [0, 1]) / 5, as is, and (1 · [1, 0] + 1 · [0, 1] + 2 · [1, 0]) / √10
    np.testing.assert_allclose(rows[0], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(rows[1], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(rows[2], np.array([3, 1]) / np.sqrt(10), rtol=1e-6)
    assert model.batches == [2, 1, 2, 1], "the windows of a text are sent together"


# ---- in a project ----------------------------------------------------------------------------------------------------

WORDS = " ".join(f"Pump {at} needs oil and water." for at in range(120))
CONFIG = ProjectConfig.local(context="none", chunk_size=400, chunk_overlap=40)


def documents() -> list[Document]:
    return [Document(text=WORDS, doc_id="long"), Document(text="A short note about valves.", doc_id="short")]


def small() -> CountingEmbedding:
    return CountingEmbedding(model_name="all-minilm")


def vectors_in(project: Project) -> int:
    with closing(Ledger(project.directory / LEDGER_FILE, read_only=True)) as ledger:
        return ledger.info().embeddings


def test_chunks_that_are_too_long_for_the_model_are_embedded_in_windows(manager: ProjectManager) -> None:
    model = small()
    project = manager.create("p", CONFIG, embed_model=model)
    report = project.ingest(documents())
    long = report.chunks - 1
    assert long > 1
    assert len(model.texts) > report.chunks
    assert vectors_in(project) == report.chunks
    assert project.retrieve("valves", mode="semantic")[0].node.ref_doc_id == "short"
    reads_all = CountingEmbedding()
    report = manager.create("q", CONFIG, embed_model=reads_all).ingest(documents())
    assert len(reads_all.texts) == report.chunks


def test_windows_and_truncation_have_different_keys_and_share_short_texts(manager: ProjectManager) -> None:
    model = small()
    project = manager.create("p", CONFIG.changed(embed_window=None), embed_model=model)
    chunks = project.ingest(documents()).chunks
    assert len(model.texts) == chunks

    def rebuilt(window: Any) -> int:
        """Return how many texts were sent until the project is rebuilt with this setting."""
        assert project.update_config(embed_window=window) == ["embed_window"]
        project.rebuild()
        return len(model.texts)

    sent = rebuilt("auto")
    assert sent > chunks
    assert "A short note about valves." not in model.texts[chunks:]
    assert vectors_in(project) == chunks + chunks - 1
    assert [rebuilt(None), rebuilt("auto")] == [sent, sent]
    assert rebuilt(200) > sent


def test_forget_keeps_the_averaged_vectors_of_live_chunks(manager: ProjectManager) -> None:
    model = small()
    project = manager.create("p", CONFIG.changed(embed_window=None), embed_model=model)
    chunks = project.ingest(documents()).chunks
    project.update_config(embed_window="auto")
    project.rebuild()
    project.remove(["short"], forget=True)
    # Of the long document, the vectors of both kinds: their texts are live.
    assert vectors_in(project) == 2 * (chunks - 1)
    sent = len(model.texts)
    project.update_config(language="none")
    project.rebuild()
    assert len(model.texts) == sent


class Odd(CountingEmbedding):
    """Returns a vector of zeros for some texts."""

    def vector(self, text: str) -> list[float]:
        return [0.0] * 64 if text.startswith("odd") else super().vector(text)


def test_a_vector_of_zeros_is_not_kept_in_the_ledger(manager: ProjectManager) -> None:
    project = manager.create("p", ProjectConfig.local(context="none"), embed_model=Odd())
    project.ingest([Document(doc_id="a", text="pump"), Document(doc_id="b", text="odd valve")])
    assert vectors_in(project) == 1


@pytest.mark.parametrize("value", [0, 31, -1, "all", 1.5])
def test_an_invalid_window_is_refused_with_the_alternatives(value: object) -> None:
    message = rf"Setting 'embed_window' cannot be {value!r}: it must be .*; or it must be 'auto'"
    with pytest.raises(ConfigurationError, match=message):
        ProjectConfig(embed_window=value)
    assert ProjectConfig().embed_window == "auto"
