"""Tiny models in ONNX format with a tokenizer that has one token for each word, for fastembed."""

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
