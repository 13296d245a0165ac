"""The table of models: the prefixes of model cards, found by name and by path."""

from __future__ import annotations

import pytest

from llama_index_contextual.embeddings.windows import known_model

SEARCH = "Represent this sentence for searching relevant passages: "


INSTRUCT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
PREFIXES = {
    ("query: ", "passage: "): r"""intfloat/e5-base-v2 intfloat/multilingual-e5-small C:\models\e5-small
        mixedbread-ai/deepset-mxbai-embed-de-large-v1""",
    ("query: ", ""): "Snowflake/snowflake-arctic-embed-l-v2.0",
    (f"{INSTRUCT} ", ""): "intfloat/multilingual-e5-large-instruct",
    (INSTRUCT, ""): "Qwen/Qwen3-Embedding-0.6B",
    (SEARCH, ""): """BAAI/bge-small-en-v1.5 /models/models--BAAI--bge-base-en-v1.5/snapshots/a5beb1e
        snowflake/snowflake-arctic-embed-xs Snowflake/snowflake-arctic-embed-m-v1.5
        mixedbread-ai/mxbai-embed-large-v1 WhereIsAI/UAE-Large-V1""",
    ("为这个句子生成表示以用于检索相关文章：", ""): "BAAI/bge-large-zh-v1.5",
    ("search_query: ", "search_document: "): """nomic-ai/nomic-embed-text-v1.5 nomic-ai/nomic-embed-text-v2-moe
        nomic-ai/modernbert-embed-base""",
    ("task: search result | query: ", "title: none | text: "): "google/embeddinggemma-300m",
}


@pytest.mark.parametrize(
    ("name", "prefixes"), [(name, prefixes) for prefixes, names in PREFIXES.items() for name in names.split()]
)
def test_a_known_model_has_the_prefixes_of_its_model_card(name: str, prefixes: tuple[str, str]) -> None:
    known = known_model(name)
    assert known is not None
    assert (known.query, known.passage) == prefixes


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
