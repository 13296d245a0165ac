"""Find the language of a document, and the settings that determine it.

The language of prose is determined by its function words, such as "the" and "and", if most of them belong to one of the
languages with a list of them. Otherwise, py3langid determines it, a naive Bayes classifier of byte sequences; loading
its model takes about a second.

Source: Lui and Baldwin, "langid.py: An Off-the-shelf Language Identification Tool", ACL 2012.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import AUTO, LANGUAGES, ProjectConfig
from llama_index_contextual.index.analysis import DEFAULT_LANGUAGE, Analyzer, lists_by_word, normalise, tokens

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.index.manifest import DocumentRecord

SAMPLE = 400
"""Number of characters of each of the three samples, from the beginning, the middle and the end, that are classified.

They contain about 200 words together. More text takes longer and does not change the result."""

_LEAST_CHUNKS = 0.01  # share of the chunks
_LEAST_PROBABILITY = 0.5  # below it, 1 of 5 texts of five words is in another language
_LEAST_WORDS = 8  # number of function words that determine the language of prose
_LEAST_SHARE = 1 / 5  # share of these words among all words; in prose, it is about a third
_LARGEST_RIVAL = 1 / 2  # related languages, such as Danish and Norwegian, share most of their function words


def detect_language(text: str) -> str:
    """Return the English name of the language of a text in lower case, or "" if the text has too few words.

    Example:
        >>> detect_language("Die Kündigungsfrist beträgt vier Wochen zum Ende des Monats."), detect_language("TS-999")
        ('german', '')
    """
    words = [word.casefold() for word in tokens(text) if len(word) > 1]
    counts = Counter(chain.from_iterable(lists_by_word().get(word, ()) for word in words))
    if counts:
        (language, count), *others = counts.most_common(2)
        rival = max((number for _, number in others), default=0)
        if count >= max(_LEAST_WORDS, _LEAST_SHARE * len(words)) and rival <= _LARGEST_RIVAL * count:
            return language
    code, probability = _classifier()(normalise(text))
    return LANGUAGES[code] if probability >= _LEAST_PROBABILITY else ""


@functools.cache
def _classifier() -> Callable[[str], tuple[str, float]]:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]  # ships no types

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages(LANGUAGES)
    classify: Callable[[str], tuple[str, float]] = identifier.classify
    return classify


def language_of_texts(texts: Sequence[str]) -> str:
    """Return the language of consecutive texts, such as the chunks of a document, or "" if they have too few words."""
    if not texts:
        return ""
    first, middle, last = texts[0], texts[len(texts) // 2], texts[-1]
    if len(texts) == 1 and len(first) <= 3 * SAMPLE:
        return detect_language(first)
    at = max(0, (len(middle) - SAMPLE) // 2)
    return detect_language("\n".join([first[:SAMPLE], middle[at : at + SAMPLE], last[-SAMPLE:]]))


def language_of_document(doc_id: str, nodes: Sequence[BaseNode], config: ProjectConfig) -> str:
    """Return the language of a document, which is set for it, its folder or the project, or is found.

    Args:
        doc_id: Id of the document.
        nodes: Its chunks.
        config: Settings of the project.

    Returns:
        The name of the language, `none` for no stemming and no stop words, or "" if the language is unknown.
    """
    for place in sorted(config.languages, key=len, reverse=True):
        if doc_id == place or doc_id.startswith(f"{place.rstrip('/')}/"):
            return config.languages[place]
    if config.language != AUTO:
        return config.language
    return language_of_texts([node.get_content() for node in nodes])


def languages_of(records: Iterable[DocumentRecord]) -> dict[str, int]:
    """Return the number of chunks in each language, the most frequent language first."""
    counts: Counter[str] = Counter()
    for record in records:
        if record.chunks:
            counts[record.language] += record.chunks
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def describe_languages(chunks: Mapping[str, int]) -> str:
    """Return the languages of chunks as text.

    Example:
        >>> describe_languages({"german": 310, "english": 42, "": 3})
        'German (310 chunks), English (42 chunks), unknown (3 chunks)'
    """
    return ", ".join(
        f"{language.capitalize() or 'unknown'} ({pluralize(number, 'chunk')})" for language, number in chunks.items()
    )


def analyzer_of(languages: Iterable[str] | Mapping[str, int], *, contexts: Iterable[str] = ()) -> Analyzer:
    """Return the analyzer for an index of documents in the given languages, the most frequent language first.

    If numbers of chunks are given, a question is analysed in its own language and in those of at least 1 % of the
    chunks. Otherwise, a few documents whose language is not recognised correctly would slow down every search.

    Args:
        languages: Languages of the documents, perhaps with their numbers of chunks.
        contexts: Further languages, in which there are only lines of contexts.
    """
    chunks: Counter[str] = Counter()
    for language in languages:
        chunks[language or DEFAULT_LANGUAGE] += languages[language] if isinstance(languages, Mapping) else 1
    names, rare, is_certain = [*chunks], set[str](), True
    if isinstance(languages, Mapping):
        total = chunks.total()
        rare = {language for language in chunks if chunks[language] < _LEAST_CHUNKS * total}
        is_certain = languages.get("", 0) <= total / 2
    more = [language for language in dict.fromkeys(contexts) if language not in (names or [DEFAULT_LANGUAGE])]
    first = names[:1] or [DEFAULT_LANGUAGE]
    return Analyzer(
        *first, others=[*names[1:], *more], rare=rare, contexts=more, is_certain=is_certain, has_periods=True
    )


def foreign_language(question: str, analyzer: Analyzer) -> str:
    """Return the language of a question if it is not one of the frequent languages of the documents, otherwise "".

    The result is also "" if it is uncertain: the function words or the script of the question and the classifier must
    agree that the question is in another language, and the language of at least half of the chunks must be known.

    Example:
        >>> english = analyzer_of(["english"])
        >>> [foreign_language(text, english) for text in ("Wie lang ist die Frist?", "How long is it?", "TS-999?")]
        ['german', '', '']
    """
    if not analyzer.may_be_foreign(question):
        return ""
    language = detect_language(question)
    return "" if language in analyzer.frequent_languages else language


def in_main_language(config: ProjectConfig, records: Iterable[DocumentRecord]) -> ProjectConfig:
    """Return settings in which the language `auto` is replaced by `english` if all documents are in this language."""
    if config.language != AUTO:
        return config
    languages = {language or DEFAULT_LANGUAGE for language in languages_of(records)}
    others = sorted(languages - {DEFAULT_LANGUAGE})
    return config.model_copy(update={"language": others[0] if others else DEFAULT_LANGUAGE})
