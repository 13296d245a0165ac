"""Prefixes for embedding models, and windows for texts that are too long for a model.

A model that was trained with prefixes performs worse without them. `KNOWN_MODELS` contains the prefixes from the model
cards at https://huggingface.co, checked against the prompts of the MTEB benchmark
(https://github.com/embeddings-benchmark/mteb, `mteb/models/model_implementations`). The prefixes are used only for
models whose own configuration has no prompts. Ledgers and versions store vectors of prefixed passages, so a change to
a passage prefix requires a rebuild of all projects that use it. Add models, but do not change existing entries.

A text that is too long for a model is embedded in windows, whose vectors are averaged. Many models that run locally
read only 256 or 512 tokens and silently ignore the rest; a chunk with its context has about 900 tokens. Each window
overlaps the previous window, and begins with the chunk's context if at least half of the window is left for the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from numpy.typing import NDArray

from llama_index_contextual._utils.tokens import replace_surrogates, token_widths
from llama_index_contextual.embeddings.batching import unit_vectors

# ---- Known models ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownModel:
    """Properties of an embedding model.

    Attributes:
        names: Regular expression that matches the names of the model, which may be part of a path.
        query: Prefix of a query.
        passage: Prefix of a passage.
        max_tokens: Number of tokens that the model reads; None if it can read any chunk from this package. This value
            is used for models behind an API; for other models, the limit is read from the model itself.
    """

    names: str
    query: str = ""
    passage: str = ""
    max_tokens: int | None = None


_SEARCH = "Represent this sentence for searching relevant passages: "
_SEARCH_ZH = "为这个句子生成表示以用于检索相关文章："
_INSTRUCT = "Instruct: Given a web search query, retrieve relevant passages that answer the query"

# The first matching entry applies. Models without an entry have no prefixes: GTE (gte-base, gte-modernbert-base,
# gte-multilingual-base), Jina v2, BGE-M3 and Granite are known to need no prefixes, and Jina v3 selects its task in
# another way.
KNOWN_MODELS = (
    # intfloat/multilingual-e5-large-instruct
    KnownModel(r"e5-(?:small|base|large)-instruct", query=f"{_INSTRUCT}\nQuery: ", max_tokens=512),
    # intfloat/e5-base-v2, intfloat/multilingual-e5-small; the same prefixes are used for texts in other languages
    KnownModel(r"e5-(?:small|base|large)", query="query: ", passage="passage: ", max_tokens=512),
    # BAAI/bge-base-en-v1.5, BAAI/bge-large-zh-v1.5
    KnownModel(r"bge-(?:small|base|large)-zh(?!-noinstruct)", query=_SEARCH_ZH, max_tokens=512),
    KnownModel(r"bge-(?:small|base|large)(?!-zh)", query=_SEARCH, max_tokens=512),
    # nomic-ai/nomic-embed-code
    KnownModel(r"nomic-embed-code", query="Represent this query for searching relevant code: "),
    # nomic-ai/nomic-embed-text-v2-moe, nomic-ai/modernbert-embed-base, nomic-ai/nomic-embed-text-v1.5 (2,048 tokens in
    # Ollama)
    KnownModel(r"nomic-embed-text-v2", query="search_query: ", passage="search_document: ", max_tokens=512),
    KnownModel(r"modernbert-embed", query="search_query: ", passage="search_document: "),
    KnownModel(r"nomic-embed-text", query="search_query: ", passage="search_document: ", max_tokens=2048),
    # Snowflake/snowflake-arctic-embed-l-v2.0 (snowflake-arctic-embed2 in Ollama)
    KnownModel(r"arctic-embed(?:2|-[a-z]+-v2)", query="query: "),
    # Snowflake/snowflake-arctic-embed-m-long, -m-v1.5, -s
    KnownModel(r"arctic-embed-m-long", query=_SEARCH, max_tokens=2048),
    KnownModel(r"arctic-embed", query=_SEARCH, max_tokens=512),
    # mixedbread-ai/deepset-mxbai-embed-de-large-v1, mixedbread-ai/mxbai-embed-large-v1, WhereIsAI/UAE-Large-V1
    KnownModel(r"mxbai-embed-de-large", query="query: ", passage="passage: ", max_tokens=512),
    KnownModel(r"mxbai-embed-large|UAE-Large", query=_SEARCH, max_tokens=512),
    # Qwen/Qwen3-Embedding-0.6B; no space after "Query:"
    KnownModel(r"Qwen3-Embedding", query=f"{_INSTRUCT}\nQuery:"),
    # Alibaba-NLP/gte-Qwen2-1.5B-instruct, NovaSearch/stella_en_400M_v5
    KnownModel(r"gte-Qwen2", query=f"{_INSTRUCT}\nQuery: "),
    KnownModel(r"stella[_-]en", query=f"{_INSTRUCT}.\nQuery: ", max_tokens=512),
    # google/embeddinggemma-300m
    KnownModel(
        r"embeddinggemma", query="task: search result | query: ", passage="title: none | text: ", max_tokens=2048
    ),
    # thenlper/gte-base
    KnownModel(r"gte-(?:small|base|large)(?!-en-v1\.5)", max_tokens=512),
    # sentence-transformers/all-MiniLM-L6-v2, sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2
    KnownModel(r"all-minilm", max_tokens=256),
    KnownModel(r"paraphrase-multilingual", max_tokens=128),
    # https://docs.cohere.com/docs/cohere-embed: "Max Tokens (Context Length)" of Embed v3
    KnownModel(r"embed-(?:english|multilingual)(?:-light)?-v[23]", max_tokens=512),
)

_COMPILED = tuple((re.compile(rf"(?<![a-z\d])(?:{family.names})", re.IGNORECASE), family) for family in KNOWN_MODELS)


def known_model(name: str) -> KnownModel | None:
    """Return the known properties of an embedding model, or None.

    Args:
        name: Name or path of the model, with or without a provider.

    Example:
        >>> known_model("huggingface:intfloat/e5-base-v2").passage
        'passage: '
    """
    return next((family for pattern, family in _COMPILED if pattern.search(name)), None)


# ---- Windows ---------------------------------------------------------------------------------------------------------

Span = tuple[int, int]
TokenSpans = Callable[[str], Sequence[Span]]

OVERLAP = 8
"""Ratio of the length of a window to the length of its overlap with the next window."""

_MARGIN = 2  # A piece of a text may have one token more on its own than as part of the text.
_UNKNOWN_TOKENIZER = 0.7  # Ratio of o200k_base tokens to the model's tokens; smaller vocabularies split more words.


@dataclass(frozen=True)
class Window:
    """A part of a text to embed.

    Attributes:
        text: The part, preceded by the context if there is room for it.
        tokens: Number of tokens without the context, used as the weight of the window.
    """

    text: str
    tokens: int


@dataclass(frozen=True)
class WindowSplitter:
    """Split texts into windows that an embedding model reads completely.

    Attributes:
        limit: Number of tokens that the model reads.
        room: Maximum number of tokens in a window, which is lower than `limit` because the model adds its own tokens.
        spans: Function that returns the character span of each token in a text.
        overlap: Ratio of the length of a window to the length of its overlap with the next window.
    """

    limit: int
    room: int
    spans: TokenSpans
    overlap: int = OVERLAP

    def name(self, model: str) -> str:
        """Return the name under which averaged vectors from a model are stored in the ledger."""
        return f"{model} in windows of {self.limit} tokens"

    def split(self, text: str, context_end: int = 0) -> list[Window]:
        """Return the windows of a text. If the model can read the whole text, there is only one window.

        Args:
            text: The text.
            context_end: Length of the context at the beginning of the text.
        """
        if text.isascii() and len(text) <= self.room:  # a token has at least one byte
            return [Window(text, 1)]
        spans = [span for span in self.spans(text) if span[0] < span[1]]
        if len(spans) <= self.room:
            return [Window(text, len(spans))]
        context = sum(1 for start, _ in spans if start < context_end)
        room = self.room - context
        head, spans = (text[:context_end], spans[context:]) if 2 * room >= self.room else ("", spans)
        windows = []
        for first, last in self._even_parts(text, spans, room if head else self.room):
            part = text[spans[first][0] : spans[last - 1][1]].strip()
            if part:
                windows.append(Window(head + part, last - first))
        return windows or [Window(text, len(spans))]

    def _even_parts(self, text: str, spans: Sequence[Span], room: int) -> list[Span]:
        """Divide a text into overlapping parts of similar length, between words if possible.

        Return the range of token indices of each part. A part has at most `room` tokens.
        """
        overlap = room // self.overlap
        count = max(1, -(-(len(spans) - overlap) // (room - overlap)))
        size = min(room, -(-(len(spans) + (count - 1) * overlap) // count))
        starts = [round(at * (len(spans) - size) / (count - 1)) if count > 1 else 0 for at in range(count)]

        def begins_word(at: int) -> bool:
            start = spans[at][0]
            return text[start].isspace() or start == 0 or text[start - 1].isspace()

        parts = []
        for start in starts:
            end = start + size
            # Move each cut by at most half the overlap, so that nothing is lost between two parts.
            nearby = overlap // 2
            first = next((at for at in range(start, start + nearby) if begins_word(at)), start) if start else 0
            last = next((at for at in range(end, end - nearby, -1) if at == len(spans) or begins_word(at)), end)
            parts.append((first, last))
        return parts


def window_splitter(model: BaseEmbedding, name: str, window: int | Literal["auto"] | None) -> WindowSplitter | None:
    """Return the splitter for the texts of an embedding model, or None if windows are not needed or are disabled.

    For sentence-transformers and fastembed, the number of tokens that the model reads is taken from the model itself;
    for other models, it is taken from `KNOWN_MODELS`. If the model's tokenizer is not available, tokens are estimated,
    with a margin.

    Args:
        model: The embedding model.
        name: Name of the model, as in the settings.
        window: Number of tokens that the model reads; "auto" determines this number, and None disables windows.
    """
    if window is None:
        return None
    inner: Any = getattr(model, "_model", None)
    properties = known_model(name)
    limit = _own_limit(inner) or (properties.max_tokens if properties else None)
    if window != "auto":
        limit = min(window, limit or window)
    if not limit:
        return None
    tokenizer = _own_tokenizer(inner)
    if tokenizer is None:
        return WindowSplitter(limit, max(8, int(_UNKNOWN_TOKENIZER * limit)), _estimated_spans)
    prompt = getattr(model, "text_instruction", None) or ""
    prompt_tokens = tokenizer.num_special_tokens_to_add(False) + len(tokenizer.encode(prompt, add_special_tokens=False))
    return WindowSplitter(limit, max(8, limit - prompt_tokens - _MARGIN), _spans_by(tokenizer))


def _own_limit(inner: Any) -> int | None:
    """Return the number of tokens that a sentence-transformers or fastembed model reads, or None if it is unknown."""
    limit = getattr(inner, "max_seq_length", None)
    if limit is None and (tokenizer := _fastembed_tokenizer(inner)) is not None:
        limit = (tokenizer.truncation or {}).get("max_length")
    return limit if isinstance(limit, int) and limit > 0 else None


def _own_tokenizer(inner: Any) -> Any:
    """Return a copy of the model's tokenizer that does not truncate or pad texts.

    Return None if the tokenizer is not from the `tokenizers` package.
    """
    tokenizer = getattr(getattr(inner, "tokenizer", None), "backend_tokenizer", None) or _fastembed_tokenizer(inner)
    if tokenizer is None or not hasattr(tokenizer, "to_str"):
        return None
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _fastembed_tokenizer(inner: Any) -> Any:
    return getattr(getattr(inner, "model", None), "tokenizer", None)


def _spans_by(tokenizer: Any) -> TokenSpans:
    def spans(text: str) -> Sequence[Span]:
        offsets: Sequence[Span] = tokenizer.encode(replace_surrogates(text), add_special_tokens=False).offsets
        return offsets

    return spans


def _estimated_spans(text: str) -> Sequence[Span]:
    ends = np.cumsum(token_widths(replace_surrogates(text)), dtype=np.int64).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def average(windows: Sequence[Window], vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the normalised mean of the vectors of a text's windows, as a matrix with one row.

    Each window is weighted by its number of tokens.
    """
    if len(windows) == 1:  # return the vector unchanged
        return vectors
    weights = np.array([[window.tokens] for window in windows], dtype=np.float32)
    return unit_vectors((vectors * weights).sum(axis=0, keepdims=True))
