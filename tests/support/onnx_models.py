"""Tiny models in ONNX format for fastembed: models whose tokenizer has one token for each word, and BERT models."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.float32]]


def lookup_model(rows: Rows) -> bytes:
    """Return a model that looks up a row for each token: `last_hidden_state = rows[input_ids]`."""
    return _model(rows, [_node("Gather", ("rows", "input_ids"), "last_hidden_state")], "last_hidden_state", 3)


def best_word_model(rows: Rows) -> bytes:
    """Return a model whose output for a text is the maximum of the rows of its tokens."""
    axes = field(1, "axes") + field(8, 1) + field(20, 7)
    keep = field(1, "keepdims") + field(3, 0) + field(20, 2)
    best = _node("ReduceMax", ("found",), "logits") + field(5, axes) + field(5, keep)
    return _model(rows, [_node("Gather", ("rows", "input_ids"), "found"), best], "logits", 2, width=rows.shape[1])


def bert_model(model: Any) -> bytes:
    """Return a `BertForSequenceClassification` of transformers in ONNX format, written without the `onnx` package."""
    graph, config = _Graph(), model.config
    weights = {name: value.numpy() for name, value in model.state_dict().items()}

    def norm(x: str, name: str) -> str:
        scale, bias = (graph.constant(weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return graph.add("LayerNormalization", x, scale, bias, epsilon=config.layer_norm_eps)

    def dense(x: str, name: str) -> str:
        product = graph.add("MatMul", x, graph.constant(weights[f"{name}.weight"].T))
        return graph.add("Add", product, graph.constant(weights[f"{name}.bias"]))

    def heads(x: str, name: str, order: Sequence[int]) -> str:
        shape = graph.constant([0, 0, config.num_attention_heads, config.hidden_size // config.num_attention_heads])
        return graph.add("Transpose", graph.add("Reshape", dense(x, name), shape), perm=order)

    def gelu(x: str) -> str:
        share = graph.add("Erf", graph.add("Mul", x, graph.constant(0.5**0.5)))
        return graph.add("Mul", graph.add("Mul", x, graph.constant(0.5)), graph.add("Add", share, graph.constant(1.0)))

    table = {name: graph.constant(weights[f"bert.embeddings.{name}_embeddings.weight"]) for name in _TABLES}
    zero, length = graph.constant([0]), graph.add("Shape", "input_ids", start=1, end=2)
    x = graph.add("Add", *(graph.add("Gather", table[name], ids) for name, ids in _TABLES.items() if ids))
    x = norm(
        graph.add("Add", x, graph.add("Slice", table["position"], zero, length, zero)), "bert.embeddings.LayerNorm"
    )
    mask = graph.add("Unsqueeze", graph.add("Cast", "attention_mask", to=1), graph.constant([1, 2]))
    mask = graph.add("Mul", graph.add("Sub", mask, graph.constant(1.0)), graph.constant(1e9))
    for layer in (f"bert.encoder.layer.{number}" for number in range(config.num_hidden_layers)):
        query, key, value = (
            heads(x, f"{layer}.attention.self.{name}", order)
            for name, order in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3)))
        )
        scale = graph.constant((config.num_attention_heads / config.hidden_size) ** 0.5)
        scores = graph.add("Add", graph.add("Mul", graph.add("MatMul", query, key), scale), mask)
        read = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), value)
        read = graph.add("Reshape", graph.add("Transpose", read, perm=(0, 2, 1, 3)), graph.constant([0, 0, -1]))
        x = norm(
            graph.add("Add", x, dense(read, f"{layer}.attention.output.dense")), f"{layer}.attention.output.LayerNorm"
        )
        inner = gelu(dense(x, f"{layer}.intermediate.dense"))
        x = norm(graph.add("Add", x, dense(inner, f"{layer}.output.dense")), f"{layer}.output.LayerNorm")
    first = graph.add("Gather", x, graph.constant(0), axis=1)
    output = dense(graph.add("Tanh", dense(first, "bert.pooler.dense")), "classifier")
    return graph.model(("input_ids", "token_type_ids", "attention_mask"), output, width=config.num_labels)


_TABLES = {"word": "input_ids", "token_type": "token_type_ids", "position": ""}
"""Tables of embeddings, with the input whose values are looked up."""


class _Graph:
    """Graph of an ONNX model with 64-bit integers as inputs."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []

    def constant(self, value: Any) -> str:
        """Add a constant of 32-bit floats or 64-bit integers, and return its name."""
        array = np.asarray(value)
        kind, array = (7, array.astype("<i8")) if array.dtype.kind == "i" else (1, array.astype("<f4"))
        name = f"constant{len(self._constants)}"
        shape = b"".join(field(1, size) for size in array.shape)
        self._constants.append(shape + field(2, kind) + field(8, name) + field(9, array.tobytes()))
        return name

    def add(self, kind: str, *inputs: str, **attributes: float | Sequence[int]) -> str:
        """Add a node with one output, and return the name of the output."""
        name = f"node{len(self._nodes)}"
        parts = [field(5, field(1, key) + _attribute(value)) for key, value in attributes.items()]
        self._nodes.append(_node(kind, inputs, name) + b"".join(parts))
        return name

    def model(self, inputs: Sequence[str], output: str, *, width: int) -> bytes:
        """Return the model; its output has a row for each text."""
        self._nodes.append(_node("Identity", [output], "logits"))
        graph = b"".join(field(1, node) for node in self._nodes) + field(2, "graph")
        graph += b"".join(field(5, constant) for constant in self._constants)
        graph += b"".join(field(11, _value(name, 7, 2)) for name in inputs) + field(12, _value("logits", 1, 2, width))
        return field(1, 8) + field(7, graph) + field(8, field(2, 17))


def _attribute(value: float | Sequence[int]) -> bytes:
    if isinstance(value, float):
        return _varint(2 << 3 | 5) + struct.pack("<f", value) + field(20, 1)
    if isinstance(value, int):
        return field(3, value) + field(20, 2)
    return b"".join(field(8, each) for each in value) + field(20, 7)


def write_tokenizer(folder: Path, words: Sequence[str], *, length: int) -> None:
    """Write the files of a tokenizer; the first four words are [PAD], [UNK], [CLS] and [SEP]."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.save(str(folder / "tokenizer.json"))
    settings = {"model_max_length": length, "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"pad_token_id": 0}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": "[PAD]", "unk_token": "[UNK]"}))


def field(number: int, value: int | bytes | str) -> bytes:
    """Return a field of a protocol buffer."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    value &= 2**64 - 1  # negative numbers are written as unsigned ones
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _node(kind: str, inputs: Sequence[str], output: str) -> bytes:
    return b"".join(field(1, name) for name in inputs) + field(2, output) + field(4, kind)


def _model(rows: Rows, nodes: Sequence[bytes], output: str, dimensions: int, *, width: int | None = None) -> bytes:
    """Return a model with a table of rows; `width` is the last dimension of the output if it is known."""
    table = b"".join(field(1, size) for size in rows.shape) + field(2, 1) + field(8, "rows")
    table += field(9, struct.pack(f"<{rows.size}f", *rows.ravel()))
    graph = b"".join(field(1, node) for node in nodes) + field(2, "lookup") + field(5, table)
    graph += field(11, _value("input_ids", 7, 2)) + field(11, _value("attention_mask", 7, 2))
    graph += field(12, _value(output, 1, dimensions, width))
    return field(1, 8) + field(7, graph) + field(8, field(2, 13))


def _value(name: str, element: int, dimensions: int, width: int | None = None) -> bytes:
    """Return a tensor of a graph, whose dimensions have names, except the last one if its width is known."""
    shape = [field(2, f"d{at}") for at in range(dimensions)]
    if width is not None:
        shape[-1] = field(1, width)
    return field(1, name) + field(2, field(1, field(1, element) + field(2, b"".join(field(1, size) for size in shape))))
