"""The languages that embedding models know."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from llama_index_contextual.config import LOCAL

MULTILINGUAL = "fastembed:sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
"""Small embedding model for about fifty languages, suggested where a model knows only English."""

_ONE_LANGUAGE = {
    "english": (
        r"e5-(?:small|base|large)-v2|bge-(?:small|base|large)-en|all-minilm|all-mpnet|gte-(?:small|base|large)|gte-modern"
        r"|nomic-embed-text-v1|nomic-embed-text$|modernbert-embed|mxbai-embed-large|UAE-Large|stella[_-]en"
        r"|arctic-embed(?!2|-[a-z]+-v2)|embed-english|jina-embeddings-v2-(?:small|base)-en"
    ),
    "chinese": r"bge-(?:small|base|large)-zh",
}
_LEAST_SHARE = 0.1  # of the chunks; a few documents, or a few errors of recognition, are not reported


@functools.lru_cache(maxsize=256)
def knows_language(model: str, language: str) -> bool:
    """Return whether an embedding model knows a language; a model that is not known to be for one language does.

    Example:
        >>> [knows_language("local", language) for language in ("english", "german", "")]
        [True, False, True]
        >>> knows_language("huggingface:intfloat/multilingual-e5-small", "german")
        True
    """
    if not language or language == "none":
        return True
    if model == LOCAL:
        return language == "english"
    if "multilingual" in model.lower():
        return True
    for known, names in _ONE_LANGUAGE.items():
        if re.search(rf"(?<![a-z\d])(?:{names})", model, re.IGNORECASE):
            return language == known
    return True


def unknown_languages(model: str | None, chunks: Mapping[str, int]) -> str | None:
    """Return a message if a considerable part of the chunks is in languages that an embedding model does not know.

    Args:
        model: Name of the model; None if nothing is embedded.
        chunks: Number of chunks in each language.

    Example:
        >>> print(unknown_languages("local", {"german": 90, "english": 10}))
        The embedding model 'local' does not know German (90 of 100 chunks)
    """
    unknown = [language for language in chunks if model is not None and not knows_language(model, language)]
    count, total = sum(chunks[language] for language in unknown), sum(chunks.values())
    if not count or count < _LEAST_SHARE * total:
        return None
    names = " and ".join(filter(None, (", ".join(map(str.capitalize, unknown[:-1])), unknown[-1].capitalize())))
    return f"The embedding model {model!r} does not know {names} ({count:,} of {total:,} chunks)"
