"""Table of embedding models: the prefixes they expect, and how many tokens they read.

A model that was trained with prefixes finds less without them. The prefixes here are those of the model cards at
https://huggingface.co, compared with the prompts of the benchmark MTEB
(https://github.com/embeddings-benchmark/mteb, `mteb/models/model_implementations`). They are used only for models whose
own configuration has no prompts.

Vectors of passages that begin with a prefix are stored in ledgers and versions: changing a passage prefix here requires
a rebuild of the projects that use it, so add models, but do not change them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownModel:
    """Properties of an embedding model.

    Attributes:
        names: Regular expression for its names, which may be part of a path.
        query: Prefix of a query.
        passage: Prefix of a passage.
        max_tokens: Number of tokens that it reads; None if it reads a chunk of any size that this package makes. It is
            used for models behind an API; others are asked.
    """

    names: str
    query: str = ""
    passage: str = ""
    max_tokens: int | None = None


_SEARCH = "Represent this sentence for searching relevant passages: "
_SEARCH_ZH = "为这个句子生成表示以用于检索相关文章："
_INSTRUCT = "Instruct: Given a web search query, retrieve relevant passages that answer the query"

# The first entry that matches applies. Models without an entry have no prefixes: GTE (gte-base, gte-modernbert-base,
# gte-multilingual-base), Jina v2, BGE-M3 and Granite are known to need none, Jina v3 selects its task by other means.
KNOWN_MODELS = (
    # intfloat/multilingual-e5-large-instruct
    KnownModel(r"e5-(?:small|base|large)-instruct", query=f"{_INSTRUCT}\nQuery: ", max_tokens=512),
    # intfloat/e5-base-v2, intfloat/multilingual-e5-small; "query: " and "passage: " also for texts in other languages
    KnownModel(r"e5-(?:small|base|large)", query="query: ", passage="passage: ", max_tokens=512),
    # BAAI/bge-base-en-v1.5, BAAI/bge-large-zh-v1.5
    KnownModel(r"bge-(?:small|base|large)-zh(?!-noinstruct)", query=_SEARCH_ZH, max_tokens=512),
    KnownModel(r"bge-(?:small|base|large)(?!-zh)", query=_SEARCH, max_tokens=512),
    # nomic-ai/nomic-embed-code
    KnownModel(r"nomic-embed-code", query="Represent this query for searching relevant code: "),
    # nomic-ai/nomic-embed-text-v2-moe, nomic-ai/modernbert-embed-base, nomic-ai/nomic-embed-text-v1.5 (of which Ollama
    # reads 2,048 tokens)
    KnownModel(r"nomic-embed-text-v2", query="search_query: ", passage="search_document: ", max_tokens=512),
    KnownModel(r"modernbert-embed", query="search_query: ", passage="search_document: "),
    KnownModel(r"nomic-embed-text", query="search_query: ", passage="search_document: ", max_tokens=2048),
    # Snowflake/snowflake-arctic-embed-l-v2.0 (snowflake-arctic-embed2 at Ollama)
    KnownModel(r"arctic-embed(?:2|-[a-z]+-v2)", query="query: "),
    # Snowflake/snowflake-arctic-embed-m-long, -m-v1.5, -s
    KnownModel(r"arctic-embed-m-long", query=_SEARCH, max_tokens=2048),
    KnownModel(r"arctic-embed", query=_SEARCH, max_tokens=512),
    # mixedbread-ai/deepset-mxbai-embed-de-large-v1, mixedbread-ai/mxbai-embed-large-v1, WhereIsAI/UAE-Large-V1
    KnownModel(r"mxbai-embed-de-large", query="query: ", passage="passage: ", max_tokens=512),
    KnownModel(r"mxbai-embed-large|UAE-Large", query=_SEARCH, max_tokens=512),
    # Qwen/Qwen3-Embedding-0.6B; without a space after "Query:"
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

_COMPILED = tuple((re.compile(rf"(?<![a-z\d])(?:{known.names})", re.IGNORECASE), known) for known in KNOWN_MODELS)


def known_model(name: str) -> KnownModel | None:
    """Return what is known about an embedding model, or None.

    Args:
        name: Name or path of the model, with or without a provider.

    Example:
        >>> known_model("huggingface:intfloat/e5-base-v2").passage
        'passage: '
    """
    return next((known for pattern, known in _COMPILED if pattern.search(name)), None)
