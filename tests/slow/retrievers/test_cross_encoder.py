"""Cross-encoders by the real sentence-transformers: a small BERT with random weights, made here and read from a folder.

Skipped without the extra `rerank`; CONTRIBUTING.md names the command that runs these tests.
"""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core.schema import TextNode

from llama_index_contextual import metadata as keys
from llama_index_contextual.errors import ModelError
from llama_index_contextual.index.base import Chunk
from llama_index_contextual.search import rerank
from llama_index_contextual.search.rerank import CrossEncoderReranker
from llama_index_contextual.search.response import Hit
from llama_index_contextual.search.results import RetrievedChunk

pytest.importorskip("torch", reason="needs the extra rerank: pip install 'llama-index-contextual[rerank]'")
pytest.importorskip("sentence_transformers", reason="needs the extra rerank")

LENGTH = 64
WORDS = [f"word{number}" for number in range(300)]
QUESTION = "word1 word2 word3"
IDENTITY = "torch.nn.modules.linear.Identity"
SIGMOID = "torch.nn.modules.activation.Sigmoid"


def make_model(
    folder: Path, *, length: int = LENGTH, activation: str | None = IDENTITY, initializer_range: float = 0.02
) -> str:
    """Write a cross-encoder with random weights, and return its folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    vocabulary = {word: at for at, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    names = {"unk": "[UNK]", "pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in names.items()},
    ).save_pretrained(folder)
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=length,
        num_labels=1,
        initializer_range=initializer_range,
    )
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        model.classifier.weight *= 100  # random weights alone give almost the same output for every text
    model.save_pretrained(folder)
    if activation is not None:
        settings = json.loads((folder / "config.json").read_text())
        settings["sentence_transformers"] = {"activation_fn": activation}
        (folder / "config.json").write_text(json.dumps(settings))
    return str(folder)


@pytest.fixture(scope="module", autouse=True)
def offline() -> Any:
    """Keep the Hugging Face hub out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reranker(model: str) -> CrossEncoderReranker:
    return CrossEncoderReranker(model, device="cpu")


def words(count: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def hits_of(*nodes: TextNode | str) -> list[Hit]:
    made = [
        TextNode(id_=f"n{at}", text=node) if isinstance(node, str) else node for at, node in enumerate(nodes, start=1)
    ]
    return [Hit(chunk=Chunk.from_node(node), score=1 / rank, rank=rank) for rank, node in enumerate(made, start=1)]


def contextualized(text: str, context: str) -> TextNode:
    return TextNode(
        id_="with context",
        text=text,
        metadata={keys.CONTEXT: context},
        metadata_template=keys.METADATA_TEMPLATE,
        text_template=keys.TEXT_TEMPLATE,
    )


def logit(folder: str, question: str, text: str) -> float:
    """Return the output for a pair by transformers alone, without anything cut off."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    encoded = AutoTokenizer.from_pretrained(folder)(question, text, return_tensors="pt")
    assert encoded["input_ids"].shape[1] <= LENGTH
    with torch.inference_mode():
        return float(AutoModelForSequenceClassification.from_pretrained(folder).eval()(**encoded).logits[0, 0])


def sigmoid(value: float) -> float:
    return 1 / (1 + float(np.exp(-value)))


@pytest.mark.parametrize("activation", [IDENTITY, SIGMOID, None])
def test_scores_are_the_sigmoid_of_the_output_whatever_the_activation_of_the_model(
    tmp_path: Path, activation: str | None
) -> None:
    folder = make_model(tmp_path / "model", activation=activation)
    texts = [words(20, seed) for seed in range(4)]
    reranked = CrossEncoderReranker(folder, device="cpu").rerank(QUESTION, hits_of(*texts))
    expected = {f"n{at}": sigmoid(logit(folder, QUESTION, text)) for at, text in enumerate(texts, start=1)}
    assert {hit.node_id: hit.score for hit in reranked.hits} == pytest.approx(expected, abs=1e-5)
    assert [hit.node_id for hit in reranked.hits] == sorted(expected, key=lambda name: -expected[name])
    assert [reranked.decisions[hit.node_id].after for hit in reranked.hits] == [1, 2, 3, 4]
    assert all(reranked.decisions[hit.node_id].before == hit.rank for hit in reranked.hits)


@pytest.mark.parametrize("count", [1, 49, 50, 51, 52, 60, 90, 111, 1_000])
@pytest.mark.parametrize("context", ["", "word5 word6 word7.", "word8 " * 40])
def test_windows_cover_a_passage_and_the_model_cuts_nothing_off(
    reranker: CrossEncoderReranker, model: str, count: int, context: str
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    hit = hits_of(contextualized(words(count, count), context))[0]
    passage, length = rerank._encoder_input(RetrievedChunk.of_hit(hit))
    windows = reranker.windows(QUESTION, passage, length)
    head = passage[:length]
    assert all(len(tokenizer(QUESTION, window)["input_ids"]) <= LENGTH for window in windows)
    at, fits = 0, 0 < len(context) < 60
    assert head.strip() == context.strip()
    text = passage[length:] if fits and len(windows) > 1 else passage
    for window in windows:
        if fits:
            assert window.startswith(head)
        body = window.removeprefix(head) if fits and len(windows) > 1 else window
        start = text.index(body)
        assert start <= at  # no gap to the window before
        at = max(at, start + len(body))
    assert at == len(text)


def test_texts_in_any_script_are_read_completely(reranker: CrossEncoderReranker) -> None:
    text = "温度传感器。 " * 80 + "🌡️ e\u0301 \ud800 " * 40
    reranked = reranker.rerank("温度？ \ud800", hits_of(text, ""))
    assert len(reranked.hits) == 2
    assert all(0 < (hit.score or 0.0) < 1 for hit in reranked.hits)


def test_a_question_as_long_as_the_model_leaves_half_of_it_for_the_passage(
    model: str, reranker: CrossEncoderReranker
) -> None:
    question, text = words(200, 1), words(25, 2)
    (hit,) = reranker.rerank(question, hits_of(text)).hits
    half = (LENGTH - 3 - rerank._SLACK) // 2
    assert hit.score == pytest.approx(sigmoid(logit(model, " ".join(question.split()[:half]), text)), abs=1e-5)


def test_threads_share_a_model(reranker: CrossEncoderReranker) -> None:
    questions = [words(3 + at % 5, at) for at in range(16)]
    hits = hits_of(*(words(40 + at, at) for at in range(6)))
    alone = [reranker.rerank(question, hits) for question in questions]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda question: reranker.rerank(question, hits), questions))
    assert together == alone


def test_a_model_without_a_classifier_is_refused(tmp_path: Path) -> None:
    from transformers import BertModel

    folder = make_model(tmp_path / "model")
    BertModel.from_pretrained(folder).save_pretrained(folder)
    with pytest.raises(ModelError, match="has no trained classifier, so its scores would be random: choose another"):
        CrossEncoderReranker(folder, device="cpu")


def test_a_model_that_reads_a_few_words_is_refused(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", length=16)
    with pytest.raises(ModelError, match="reads only 16 tokens"):
        CrossEncoderReranker(folder, device="cpu")
