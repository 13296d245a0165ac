"""Render Markdown as HTML that is safe to display, and highlight the blocks of a passage and the words of a query."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, MutableMapping, Sequence
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from markupsafe import Markup, escape

from llama_index_contextual.index.analysis import Analyzer, match_spans
from llama_index_contextual.readers.text import read_front_matter
from llama_index_contextual.ui.marks import Span, align

IN_PASSAGE = "in-passage"
"""CSS class of the blocks that contain the passage."""

SPOTLIGHT = "spotlight"
"""CSS class of the sentence or row that answers the question."""

_PIECES = frozenset({"text", "code_inline", "fence", "code_block"})
_SIGNS = re.compile(r"[^\w\s]{0,4}")
_MARKED_BLOCKS = frozenset({"paragraph_open", "heading_open", "fence", "code_block", "tr_open", "hr"})
_TAGS = frozenset(
    {"a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "mark", "ol", "p", "pre"}
    | {"s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"}
)
_ATTRIBUTES: dict[str, set[str]] = {"*": set(), "a": {"href"}, "ol": {"start"}}
_MARKABLE = ("p", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "tr", "hr", "span")
_MAX_NESTING = 60
"""Maximum nesting depth of lists and quotations; content that is nested more deeply is omitted."""
_FIRST_BLOCK = re.compile(rf'<\w+(?= class="{IN_PASSAGE}")')
_FIRST_MARK = re.compile(rf'<\w+(?= class="{SPOTLIGHT}")')
_WEB = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)


def render_markdown(
    text: str, passage: Span = (0, 0), sentence: Span = (0, 0), *, mark_words: Callable[[str], Markup] = escape
) -> Markup:
    """Return Markdown as HTML.

    HTML in the text is shown as text. Images are replaced by their descriptions, and nothing is loaded. Only links to
    web and email addresses are kept.

    Args:
        text: The Markdown.
        passage: Start and end of the passage in the text; the blocks that contain it get the `IN_PASSAGE` class, and
            the first of them gets the id "passage", unless `sentence` is given.
        sentence: Start and end of the sentence or row to highlight with `<mark>` elements of class `SPOTLIGHT`, the
            first of which gets the id "passage".
        mark_words: Function, such as `highlight`, that returns part of the passage's text as HTML.

    Example:
        >>> render_markdown("# Rent\\n\\nIt is *due* monthly. <script>", (8, 15))
        Markup('<h1>Rent</h1>\\n<p id="passage" class="in-passage">It is <em>due</em> monthly. &lt;script&gt;</p>\\n')
    """
    front = read_front_matter(text)
    start = front.end if front is not None else 0
    body = text[start:]
    head = Markup("<pre>{}</pre>\n").format(text[:start].strip()) if start else Markup("")
    options = {"html": False, "maxNesting": _MAX_NESTING}
    parser = MarkdownIt("commonmark", options, renderer_cls=_Renderer).enable(["table", "strikethrough"])
    tokens = parser.parse(body)
    _mark_blocks(tokens, *_lines(body, passage[0] - start, passage[1] - start))
    _mark_sentence(tokens, body, sentence[0] - start, sentence[1] - start)
    html = _safe_html(parser.renderer.render(tokens, parser.options, {"mark_words": mark_words}))
    return head + with_anchor(html)


def _lines(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the zero-based indexes of a passage's first line and of the line after its last line."""
    if end <= max(start, 0):
        return 0, 0
    breaks = [match.end() for match in re.finditer(r"\r\n?|\n", text)]
    passage = text[max(start, 0) : end]
    begin = max(start, 0) + len(passage) - len(passage.lstrip())
    finish = max(start, 0) + len(passage.rstrip())
    return bisect_right(breaks, begin), bisect_right(breaks, max(finish - 1, begin)) + 1


def _mark_blocks(tokens: Sequence[Token], first: int, last: int) -> None:
    """Give the `IN_PASSAGE` class to the blocks between two lines.

    Inline tokens between these lines get the `in_passage` flag, so that words in them can be highlighted. The
    `is_bare` flag marks text in tight lists, which has no HTML element of its own.
    """
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.map is None or token.map[0] >= last or token.map[1] <= first:
            continue
        if token.type in _MARKED_BLOCKS and not token.hidden:
            token.attrSet("class", IN_PASSAGE)
        elif token.type == "inline":
            token.meta["in_passage"] = True
            token.meta["is_bare"] = before is not None and before.hidden


def _mark_sentence(tokens: Sequence[Token], text: str, start: int, end: int) -> None:
    """Record, for each piece of text, which part of it belongs to a sentence or row of the Markdown source.

    Markdown tokens have no character offsets, so their text is aligned with the source lines.
    """
    first, last = _lines(text, start, end)
    pieces, lines = [], set()
    for token in tokens:
        if token.map and token.map[0] < last and token.map[1] > first:
            pieces += (of_token := [piece for piece in token.children or [token] if piece.type in _PIECES])
            lines |= set(token.map) if of_token else set()
    if not pieces:
        return
    breaks = [0, *(match.end() for match in re.finditer(r"\r\n?|\n", text)), len(text)]
    begin, finish = breaks[min(lines)], breaks[min(max(lines), len(breaks) - 1)]
    places = align("".join(piece.content for piece in pieces), text[begin:finish])
    offsets = [place for place in places[max(0, start - begin) : end - begin] if place is not None]
    at = 0
    for piece in pieces:
        if offsets and at <= max(offsets) and min(offsets) < at + len(piece.content):
            span = max(min(offsets) - at, 0), min(max(offsets) + 1 - at, len(piece.content))
            piece.meta["sentence"] = _with_punctuation(piece.content, *span)
        at += len(piece.content)


def _with_punctuation(text: str, start: int, end: int) -> tuple[int, int]:
    """Extend a span of a text to include the punctuation marks directly before and after it."""
    after, before = _SIGNS.match(text, end), _SIGNS.match(text[:start][::-1])
    return start - (before.end() if before else 0), after.end() if after else end


class _Renderer(RendererHTML):
    """Renderer that highlights words of the passage and replaces images with their descriptions."""

    def render(self, tokens: Sequence[Token], options: OptionsDict, env: MutableMapping[str, Any]) -> str:
        """Return blocks as HTML."""
        parts = []
        for at, token in enumerate(tokens):
            env["in_passage"] = bool(token.meta.get("in_passage"))
            if token.type == "inline":
                html = self.renderInline(token.children or [], options, env)
            elif token.type in self.rules:
                html = str(self.rules[token.type](tokens, at, options, env))
            else:
                html = self.renderToken(tokens, at, options, env)
            parts.append(f'<span class="{IN_PASSAGE}">{html}</span>' if token.meta.get("is_bare") else html)
        return "".join(parts)

    def text(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]) -> str:
        """Return a piece of text as HTML."""
        return self._marked(tokens[idx], env, is_marked=env["in_passage"])

    def code_inline(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]
    ) -> str:
        """Return inline code as HTML."""
        return f"<code>{self._marked(tokens[idx], env, is_marked=env['in_passage'])}</code>"

    def _marked(self, token: Token, env: MutableMapping[str, Any], *, is_marked: bool) -> str:
        mark_words = env["mark_words"] if is_marked else escape
        return str(mark_sentence(token.content, token.meta.get("sentence", (0, 0)), mark_words))

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]) -> str:
        """Return the description of an image."""
        words = self.renderInlineAsText(tokens[idx].children or [], options, env)
        return str(escape(f"[Image: {words}]" if words.strip() else "[Image]"))

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]) -> str:
        """Return a fenced code block as HTML."""
        return self.code_block(tokens, idx, options, env)

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]) -> str:
        """Return a code block as HTML."""
        token = tokens[idx]
        is_marked = token.attrGet("class") == IN_PASSAGE
        code = self._marked(token, env, is_marked=is_marked)
        mark = f' class="{IN_PASSAGE}"' if is_marked else ""
        return f"<pre{mark}><code>{code}</code></pre>\n"


def _safe_html(html: str) -> str:
    return nh3.clean(
        html,
        tags=set(_TAGS),
        clean_content_tags={"script", "style"},
        attributes=_ATTRIBUTES,
        allowed_classes={**{tag: {IN_PASSAGE} for tag in _MARKABLE}, "mark": {SPOTLIGHT}},
        attribute_filter=_web_address,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
        strip_comments=True,
    )


def with_anchor(html: str) -> Markup:
    """Give the id "passage" to the first element of the sentence or row in safe HTML, or of the passage without one."""
    first = _FIRST_MARK if _FIRST_MARK.search(html) else _FIRST_BLOCK
    return Markup(first.sub(lambda tag: f'{tag[0]} id="passage"', html, count=1))


def _web_address(_tag: str, attribute: str, value: str) -> str | None:
    return None if attribute == "href" and not _WEB.match(value) else value


# ---- Marks -----------------------------------------------------------------------------------------------------------


def mark_sentence(text: str, sentence: Span, mark_words: Callable[[str], Markup] = escape) -> Markup:
    """Return text as HTML, with a sentence in a `<mark>` element of class `SPOTLIGHT`.

    Args:
        text: The text; any markup in it is escaped.
        sentence: Start and end of the sentence; nothing is highlighted if the span is empty.
        mark_words: Function, such as `highlight`, that returns text as HTML.

    Example:
        >>> mark_sentence("Yes. It is <due>. No.", (5, 17))
        Markup('Yes. <mark class="spotlight">It is &lt;due&gt;.</mark> No.')
    """
    start, end = sentence
    if start >= end:
        return mark_words(text)
    before, middle, after = mark_words(text[:start]), mark_words(text[start:end]), mark_words(text[end:])
    return Markup('{}<mark class="{}">{}</mark>{}').format(before, SPOTLIGHT, middle, after)


def highlight(text: str, terms: Collection[str], analyzer: Analyzer) -> Markup:
    """Return the text as HTML, with each word that contains one of the given terms in a `<mark>` element.

    Args:
        text: The text; any markup in it is escaped.
        terms: Terms of the lexical index, such as the `matched_terms` of a hit.
        analyzer: The analyzer of the index.

    Example:
        >>> highlight("R&D: pumps", ["pump"], Analyzer("english"))
        Markup('R&amp;D: <mark>pumps</mark>')
    """
    return mark(text, match_spans(text, terms, analyzer))


def mark(text: str, spans: Iterable[tuple[int, int]]) -> Markup:
    """Return the text as HTML, with `<mark>` elements around the given spans.

    Args:
        text: The text; any markup in it is escaped.
        spans: Start and end of each span, in order and without overlap.
    """
    parts: list[str] = []
    at = 0
    for start, end in spans:
        parts += (escape(text[at:start]), "<mark>", escape(text[start:end]), "</mark>")
        at = end
    return Markup("".join([*parts, escape(text[at:])]))
