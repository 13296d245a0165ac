"""The table of models: the prefixes of model cards, found by name and by path."""

from __future__ import annotations

import pytest

from llama_index_contextual.embeddings.known import known_model

SEARCH = "Represent this sentence for searching relevant passages: "


INSTRUCT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
NOMIC = ("search_query: ", "search_document: ")
PREFIXES = {
    "intfloat/e5-base-v2": ("query: ", "passage: "),
    "intfloat/multilingual-e5-small": ("query: ", "passage: "),
    "intfloat/multilingual-e5-large-instruct": (f"{INSTRUCT} ", ""),
    "BAAI/bge-small-en-v1.5": (SEARCH, ""),
    "BAAI/bge-large-zh-v1.5": ("为这个句子生成表示以用于检索相关文章：", ""),
    "nomic-ai/nomic-embed-text-v1.5": NOMIC,
    "nomic-ai/nomic-embed-text-v2-moe": NOMIC,
    "nomic-ai/modernbert-embed-base": NOMIC,
    "snowflake/snowflake-arctic-embed-xs": (SEARCH, ""),
    "Snowflake/snowflake-arctic-embed-m-v1.5": (SEARCH, ""),
    "Snowflake/snowflake-arctic-embed-l-v2.0": ("query: ", ""),
    "mixedbread-ai/mxbai-embed-large-v1": (SEARCH, ""),
    "mixedbread-ai/deepset-mxbai-embed-de-large-v1": ("query: ", "passage: "),
    "WhereIsAI/UAE-Large-V1": (SEARCH, ""),
    "google/embeddinggemma-300m": ("task: search result | query: ", "title: none | text: "),
    "Qwen/Qwen3-Embedding-0.6B": (INSTRUCT, ""),
    "/models/models--BAAI--bge-base-en-v1.5/snapshots/a5beb1e": (SEARCH, ""),
    r"C:\models\e5-small": ("query: ", "passage: "),
}


@pytest.mark.parametrize("name", PREFIXES)
def test_a_known_model_has_the_prefixes_of_its_model_card(name: str) -> None:
    known = known_model(name)
    assert known is not None
    assert (known.query, known.passage) == PREFIXES[name]


@pytest.mark.parametrize(
    "name",
    [
        *("thenlper/gte-base", "Alibaba-NLP/gte-modernbert-base", "Alibaba-NLP/gte-multilingual-base", "BAAI/bge-m3"),
        *("sentence-transformers/all-MiniLM-L6-v2", "sentence-transformers/all-mpnet-base-v2", "some/other"),
        *("jinaai/jina-embeddings-v2-base-en", "jinaai/jina-embeddings-v3", "ibm-granite/granite-embedding-125m"),
        *("BAAI/bge-large-zh-noinstruct", "openai:text-embedding-3-small", "somebody/abge-base", "base5-large"),
    ],
)
def test_a_model_that_needs_no_prefix_has_none(name: str) -> None:
    known = known_model(name)
    assert known is None or (known.query, known.passage) == ("", "")


LIMITS = {
    **dict.fromkeys(["CohereEmbedding:embed-english-v3.0", "BedrockEmbedding:cohere.embed-multilingual-v3"], 512),
    "ollama:all-minilm": 256,
    "ollama:mxbai-embed-large:latest": 512,
    "ollama:nomic-embed-text": 2048,
    **dict.fromkeys(["CohereEmbedding:embed-v4.0", "ollama:snowflake-arctic-embed2", "ollama:qwen3-embedding"]),
    "openai:text-embedding-3-small": None,
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_table_knows_what_models_behind_an_api_read(name: str) -> None:
    known = known_model(name)
    assert (known.max_tokens if known else None) == LIMITS[name]


def test_models_that_fastembed_says_need_prefixes_have_them() -> None:
    fastembed = pytest.importorskip("fastembed", reason="needs the extra fastembed")
    # It calls jina-clip a model that needs none in other words, and the documents' model of Stella has a short name.
    needs = [
        model["model"]
        for model in fastembed.TextEmbedding.list_supported_models()
        if "queries/documents: necessary" in model["description"] or "queries/documents: `" in model["description"]
    ]
    assert needs
    assert [name for name in needs if not (known_model(name) and known_model(name).query)] == []
