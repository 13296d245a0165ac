"""Mark the words of a text that match a query, as HTML."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from markupsafe import Markup, escape

from llama_index_contextual.index.analysis import Analyzer, match_spans


def highlight(text: str, terms: Collection[str], analyzer: Analyzer) -> Markup:
    """Return a text as HTML, with each word that has one of the given terms in a `<mark>` element.

    Args:
        text: The text; its own markup is escaped.
        terms: Terms of the lexical index, such as the `matched_terms` of a hit.
        analyzer: The analyzer of the index.

    Example:
        >>> highlight("R&D: pumps", ["pump"], Analyzer("english"))
        Markup('R&amp;D: <mark>pumps</mark>')
    """
    return mark(text, match_spans(text, terms, analyzer))


def mark(text: str, spans: Iterable[tuple[int, int]]) -> Markup:
    """Return a text as HTML, with `<mark>` elements at the given places.

    Args:
        text: The text; its own markup is escaped.
        spans: Start and end of each place, in order and without overlap.
    """
    parts: list[Markup] = []
    at = 0
    for start, end in spans:
        parts += (escape(text[at:start]), Markup("<mark>{}</mark>").format(text[start:end]))
        at = end
    return Markup("").join([*parts, escape(text[at:])])
