"""Markdown becomes HTML in which nothing of the document is active, with the passage marked."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.ui.markdown import IN_PASSAGE, SPOTLIGHT, highlight, mark, render_markdown
from tests.support.source import ROOT

ALLOWED = {
    "a": {"href", "rel"},
    "ol": {"start"},
    **{tag: {"class", "id"} for tag in ("p", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "tr", "hr", "span")},
}
MANUAL = """---
title: Manual
---
# Pump

Intro with `code` and **bold** words.

- vent the casing
- read the gauge
  1. twice

| part | bar |
|------|----:|
| inlet | 3 |
| outlet | 7 |

```python
pump = "on"
```

> Quoted text.
"""
HOSTILE = [
    *json.loads((ROOT / "tests" / "data" / "injection.json").read_text(encoding="utf-8")),
    "[x](/p/other/)",
    "[x](//evil.example/)",
    "[x](file:///etc/passwd)",
    "[x][1]\n\n[1]: javascript:alert(1)",
    "</div></main><form action=http://evil.example><input>",
    '<p class="in-passage" id="passage" style="color:red">x</p>',
    "| a |\n|:-:|\n| <b onclick=x> |",
    "```html onclick=alert(1)\n<script>\n```",
    '# x {#id .class onclick="x"}',
    "\0<script>",
    "<http://a.example/?a=1&b=<script>>",
]


class Elements(HTMLParser):
    """Collects elements with their attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def require_harmless(page: str) -> None:
    elements = Elements(page).found
    for tag, attributes in elements:
        assert re.fullmatch(
            "a|blockquote|br|code|em|h[1-6]|hr|li|mark|ol|p|pre|s|span|strong|table|tbody|td|th|thead|tr|ul", tag
        )
        assert set(attributes) <= ALLOWED.get(tag, set()), (tag, attributes)
        assert attributes.get("class", IN_PASSAGE) == IN_PASSAGE
        assert attributes.get("id", "passage") == "passage"
        if "href" in attributes:
            assert re.match(r"(?i)https?://|mailto:", attributes["href"] or "")
            assert attributes["rel"] == "noopener noreferrer nofollow"
    assert sum("id" in attributes for _, attributes in elements) <= 1


def marked(page: str) -> list[str]:
    """Return the texts of the marked elements that contain no other element of the passage."""
    pattern = rf'<(\w+)(?: id="passage")? class="{IN_PASSAGE}">(.*?)</\1>'
    return [" ".join(Elements(match[1]).text.split()) for match in re.findall(pattern, page, re.DOTALL)]


def render(text: str, start: str, end: str) -> str:
    """Return a text in which the passage begins and ends with these words."""
    return str(render_markdown(text, (text.index(start), text.index(end) + len(end))))


@pytest.mark.parametrize(
    ("start", "end", "blocks"),
    [
        ("# Pump", "# Pump", ["Pump"]),
        ("code", "bold", ["Intro with code and bold words."]),
        ("vent", "read", ["vent the casing", "read the gauge"]),
        ("twice", "twice", ["twice"]),
        ("| inlet", "3 |", ["inlet 3"]),
        ("| inlet", "7 |", ["inlet 3", "outlet 7"]),
        ('pump = "on"', '"on"', ['pump = "on"']),
        ("Quoted", "text.", ["Quoted text."]),
        ("bold", "vent", ["Intro with code and bold words.", "vent the casing"]),
    ],
)
def test_the_blocks_of_the_passage_are_marked(start: str, end: str, blocks: list[str]) -> None:
    page = render(MANUAL, start, end)
    assert marked(page) == blocks
    assert page.count('id="passage"') == 1
    require_harmless(page)


def test_without_a_passage_nothing_is_marked() -> None:
    page = render_markdown(MANUAL)
    assert IN_PASSAGE not in page
    assert "<table>" in page
    assert "<h1>Pump</h1>" in page


def test_lines_are_counted_as_markdown_counts_them() -> None:
    text = "one\r\n\r\ntwo\rthree\u2028four\x0cfive\n\nsix\n\nseven"
    assert marked(render(text, "six", "six")) == ["six"]


def test_words_are_marked_in_the_passage_only() -> None:
    analyzer = Analyzer("english")

    def words(text: str) -> Markup:
        return highlight(text, ["pump"], analyzer)

    text = "A pump.\n\nTwo *pumps* & `pump`.\n\n    pump code"
    page = render_markdown(text, (9, len(text)), mark_words=words)
    assert page.count("<mark>") == 3
    assert "<p>A pump.</p>" in page
    assert "<em><mark>pumps</mark></em> &amp;" in page


SOURCE = """# Tariff

It is *due* on the [first day](https://example.org/due) of `May`. It is due in June as well, as the town decided long
ago and wrote down. It is due on the first day of May only for houses.

- one
- two *three*

| Zone | Price |
|---|---|
| Upper Vale | 2.95 |
| Lower Vale | 2.95 |

    line of code
    pump = 3
"""


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("It is *due* on the [first day](https://example.org/due) of `May`.", "It is due on the first day of May"),
        ("It is due on the first day of May only for houses.", "It is due on the first day of May only for houses."),
        ("two *three*", "two three"),
        ("| Lower Vale | 2.95 |", "Lower Vale2.95"),
        ("pump = 3", "pump = 3"),
        ("# Tariff", "Tariff"),
    ],
)
def test_a_sentence_of_the_source_is_marked_in_what_it_becomes(sentence: str, expected: str) -> None:
    start = SOURCE.index(sentence)
    page = str(render_markdown(SOURCE, (0, len(SOURCE)), (start, start + len(sentence))))
    pieces = re.findall(rf'<mark (?:id="passage" )?class="{SPOTLIGHT}">(.*?)</mark>', page)
    assert html.unescape("".join(pieces)) == expected
    assert page.count('id="passage"') == 1
    assert page.index('id="passage"') == page.index("<mark ") + len("<mark ")


def test_an_image_is_replaced_by_its_description() -> None:
    page = render_markdown("See ![the *pump*](http://evil.example/p.png 'x') and ![](y.png).")
    assert "See [Image: the pump] and [Image]." in page
    assert "evil" not in page


def test_links_of_the_web_remain_and_others_become_text() -> None:
    page = render_markdown("[a](https://example.org/x?a=1&b=2) [b](mailto:a@example.org) [c](../other.md) [d](#part)")
    assert [attributes.get("href") for tag, attributes in Elements(page).found if tag == "a"] == [
        "https://example.org/x?a=1&b=2",
        "mailto:a@example.org",
        None,
        None,
    ]


def test_nothing_of_a_hostile_document_is_active() -> None:
    for text in HOSTILE:
        for passage in ((0, 0), (0, len(text))):
            require_harmless(str(render_markdown(text, passage)))
            require_harmless(str(render_markdown(f"- {text}\n", passage)))


def test_an_id_in_the_text_is_not_taken_for_the_passage() -> None:
    text = '`<p class="in-passage">` and <p class="in-passage">\n\nThe passage.'
    page = str(render_markdown(text, (text.index("The"), len(text))))
    assert re.findall(r'<p id="passage"[^>]*>([^<]*)', page) == ["The passage."]


_PIECES = (
    *("<", ">", '"', "'", "&", "[", "](", ")", "!", "`", "\n", "\n\n", "|", "-", "#", "*", "_", "\\", "x", " ", "    "),
    *("javascript:", "http://a.example", "onclick=", "<script", "<img src="),
)


@given(st.lists(st.sampled_from(_PIECES), max_size=40).map("".join) | st.text(max_size=300), st.data())
def test_nothing_of_any_document_is_active(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    require_harmless(str(render_markdown(text, (start, data.draw(st.integers(start, len(text)))))))


# ---- words of a query ------------------------------------------------------------------------------------------------


english = Analyzer("english", has_periods=True)
texts = st.text(st.sampled_from("abcst-. <>&'\"/\n1290é\u0301ﬁ\u200b契約"), max_size=60)


@given(text=texts, question=texts)
def test_without_its_marks_a_text_is_the_escaped_text(text: str, question: str) -> None:
    terms = set(english.terms(question))
    page = highlight(text, terms, english)
    assert re.sub("</?mark>", "", page) == mark(text, [])
    assert html.unescape(re.sub("</?mark>", "", page)) == text
    for marked in re.findall("<mark>(.*?)</mark>", page, re.DOTALL):
        assert terms.intersection(english.terms(html.unescape(marked)))
