"""Guards: no active HTML, no personal data, unchanged offsets."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from llama_index_contextual.answering.guards import Guards, PersonalData, is_safe, mask_personal_data, sanitise
from llama_index_contextual.answering.query_engine import GroundedQueryEngine
from llama_index_contextual.answering.streaming import StreamFilter
from llama_index_contextual.errors import ConfigurationError
from tests.integration.retrievers.corpus import FixedRetriever, hits
from tests.support.models import ScriptedLLM

MARKDOWN = """\
# Title & more

> A quote: 1 < 2 and 3 > 2, “so” it's [Source 1].

- *one* and **two**, `x < y & z`, ~~old~~
1. [here](https://example.org/a_(b)?c=1&d=2 "title") and <https://example.org>, ![plan](plan.png)

| a | b |
|---|---|
| 1 | 2\xa0% |

```html
<script>shown(1)</script>
```

[ref]: https://example.org
"""


# ---- HTML and links --------------------------------------------------------------------------------------------------


def test_harmless_markdown_is_unchanged() -> None:
    assert sanitise(MARKDOWN) == MARKDOWN


def test_a_tag_in_code_is_unchanged() -> None:
    text = "Use `<b>` for bold, not\n\n~~~\n<p>\n~~~"
    assert sanitise(text) == text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a<script>alert(1)</script>b", "a&lt;script>alert(1)&lt;/script>b"),
        ('<img src=x onerror="alert(1)">text', '&lt;img src=x onerror="alert(1)">text'),
        ("a <!-- hidden --> b", "a &lt;!-- hidden --> b"),
        ("[x](javascript:alert(1))", "x"),
        ("[x](JaVaScRiPt:alert(1))", "x"),
        ("[x](java&#115;cript:alert(1))", "x"),
        ("[x](java\\script:alert(1))", "x"),
        ("![x](data:image/svg+xml;base64,AAAA)", "x"),
        ("[x](vbscript:a 'title')", "x"),
        ("[a [b] c](javascript:x)", "a [b] c"),
        ("[x](javascript:alert(1", "[x](#"),
        ("[x]: javascript:alert(1)\nnext", "\nnext"),
        ("<javascript:alert(1)>", "&lt;javascript:alert(1)>"),
        # What only looks like code:
        ("`a\n<script>alert(1)</script>\nb`", "`a\n&lt;script>alert(1)&lt;/script>\nb`"),
        ("\\`<script>alert(1)</script>\\`", "\\`&lt;script>alert(1)&lt;/script>\\`"),
        ("- a\n\n  ```\n<script>\n", "- a\n\n  ```\n&lt;script>\n"),
        ("``` `x`\n<script>\n", "``` `x`\n&lt;script>\n"),
    ],
)
def test_html_is_text_and_unsafe_links_are_removed(text: str, clean: str) -> None:
    assert sanitise(text) == clean


_PIECES = (
    *("<script>alert(1)</script>", "<img src=x onerror=a>", "<div>", "<pre>", "</pre>", '<b title="', '">', "<", "</"),
    *("-->", "<!--", "<?", "?>", "<![CDATA[", "]]>", "<javascript:a>", "javascript:a", "&#106;avascript:a", "data:x"),
    *("`", "``", "```", "~~~", "\n", "\n\n", "> ", "- ", "1. ", "  ", "    ", "'", '"', "\\", "a", "&lt;"),
    *("[x](", ")", "![", "](", "]", "[", "[r]: ", "\ue000"),
)


def assert_harmless(clean: str) -> None:
    """Render a text with a parser that allows everything."""
    renderer = MarkdownIt("commonmark", {"html": True})
    renderer.validateLink = lambda url: True  # type: ignore[method-assign]
    rendered = renderer.render(clean)
    assert not re.search(r"<script|<img src=x on|(?:href|src)=\"\s*(?:javascript|data):", rendered, re.IGNORECASE)


# ---- streaming -------------------------------------------------------------------------------------------------------


def streamed(text: str, size: int = 1, *, mask: Sequence[PersonalData] = ()) -> list[str]:
    """Return the pieces that a reader gets of a streamed answer."""
    stream_filter = StreamFilter("instruction", Guards(mask=mask))
    parts = [stream_filter.feed(text[at : at + size]) for at in range(0, len(text), size)]
    return [part for part in (*parts, stream_filter.flush()) if part]


@pytest.mark.parametrize(
    "text",
    [
        "[x](`data:x<pre>)a<script>alert(1)</script>`",
        "`<script>alert(1)</script>`<![CDATA[a]]>``",
        "<<?>javascript:a--></`",
        "<<<?<div>data:x> ```[x](",
        "Here:\n\n```\nfoo\n\n```\n<script>alert(1)</script>\n```\n",
        "~~~\na\n\n~~~\n<script>alert(1)</script>\n~~~\n",
        "<x>```\n\n```\n<script>alert(1)</script>\n```\n",
        "- a\n\n      <img src=x onerror=a>\n\nend",
        "See [x].\n\n> [x]: javascript:a\n\nend",
        "See [x].\n\n- [x]:\n  javascript:a\n\nend",
        "<pre>\n\n`<script>alert(1)</script>`\n\n</pre>",
        "<!--\n\n`-->` <script>alert(1)</script>\n\nend",
    ],
)
def test_rendered_attacks_contain_nothing_active_whole_or_streamed(text: str) -> None:
    assert_harmless(sanitise(text))
    assert_harmless("".join(streamed(text)))


@given(st.lists(st.sampled_from((*_PIECES, "\n\n", "[r]", "\n```\n", "\n<x>")), max_size=16).map("".join))
def test_any_rendered_text_contains_nothing_active_whole_or_streamed(text: str) -> None:
    assert_harmless(sanitise(text))
    assert_harmless("".join(streamed(text)))


def test_blocks_are_masked_and_released_when_they_are_complete() -> None:
    text = "One.\n\n```sh\nstop\n\nstart\n```\n\n- a\n\n  b\n\nLast [1]."
    blocks = ["One.\n\n", "```sh\nstop\n\nstart\n```\n\n", "- a\n\n  b\n\n", "Last [1]."]
    assert streamed(text, mask=["ssn"]) == blocks
    assert "".join(streamed(text, size=7)) == "".join(streamed(text, size=10**6)) == text


def test_plain_text_and_citations_are_released_before_their_paragraph_ends() -> None:
    stream_filter = StreamFilter("instruction", Guards(mask=()))
    pieces = ["It runs dry [Source 1]. See ", "[the ", "manual](https://a.org) and\n\n[Source 2](javascript:a)"]
    shown = ["It runs dry [Source 1]. See ", "", "[the manual](https://a.org) and\n\n"]
    assert [stream_filter.feed(piece) for piece in pieces] == shown
    assert stream_filter.flush() == "Source 2"


def test_safe_link_targets() -> None:
    safe = ("https://a", "mailto:a@b.org", "tel:+1", "#a", "/a/b", "a.md", "", "?q=a:b")
    unsafe = ("javascript:a", "data:a", "file:///etc", "blob:x", "&#x6A;avascript:a")
    assert [place for place in (*safe, *unsafe) if is_safe(place)] == list(safe)


# ---- personal data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ann.smith+x@mail.example.org", "email"),
        ("+49 30 901820", "phone"),
        ("(650) 253-0000", "phone"),
        ("4111 1111 1111 1111", "card"),
        ("4111-1111-1111-1111", "card"),
        ("378282246310005", "card"),
        ("DE89 3704 0044 0532 0130 00", "iban"),
        ("GB82WEST12345698765432", "iban"),
        ("123-45-6789", "ssn"),
    ],
)
def test_masking_keeps_the_length(text: str, kind: str) -> None:
    around = f"Write to {text}, please."
    masked = mask_personal_data(around)
    assert mask_personal_data(around, kinds=[kind]) == masked  # type: ignore[list-item]
    assert len(masked) == len(around)
    assert masked.startswith("Write to ")
    assert masked.endswith(", please.")
    assert not any(sign.isalnum() for sign in masked[9:-9])


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",  # a wrong check digit
        "0000 0000 0000 0000",
        "DE88 3704 0044 0532 0130 00",
        "000-12-3456",
        "666-12-3456",
        "987-65-4321",
        "12-3456",
        "Error TS-999 of 3 March 2021 cost 1,250.50 dollars on page 17.",
        "name@host",
    ],
)
def test_text_that_only_resembles_personal_data_is_unchanged(text: str) -> None:
    assert mask_personal_data(text) == text


def test_only_the_requested_kinds_are_masked() -> None:
    text = "a@b.org 123-45-6789"
    assert mask_personal_data(text, kinds=["ssn"]) == "a@b.org •••-••-••••"


@given(st.text(max_size=80))
def test_masking_any_text_keeps_its_length_and_is_idempotent(text: str) -> None:
    masked = mask_personal_data(text)
    assert len(masked) == len(text)
    assert mask_personal_data(masked) == masked


def test_a_missing_package_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "phonenumbers", None)
    with pytest.raises(ConfigurationError, match=r"llama-index-contextual\[answering\]"):
        mask_personal_data("text")


# ---- in an engine ----------------------------------------------------------------------------------------------------


def engine(answer: str, **options: object) -> GroundedQueryEngine:
    nodes = hits(a=1.0)
    nodes[0].node.set_content("Call Ann at ann@example.org about the dry pump.")  # type: ignore[attr-defined]
    chosen: Any = {"guards": True, **options}
    return GroundedQueryEngine(FixedRetriever(nodes), ScriptedLLM(default=answer), **chosen)


def test_a_guarded_answer_is_clean_and_its_quotations_are_still_found() -> None:
    response = engine("“Call Ann at ann@example.org about” it<script> [Source 1].").query("Whom?")
    assert str(response) == "“Call Ann at •••@•••••••.••• about” it&lt;script> [Source 1]."
    assert response.citations.quotations[0].status == "verified"  # type: ignore[union-attr]
    assert "ann@example.org" not in str(response.to_dict()["citations"])  # type: ignore[union-attr]


def test_a_guarded_stream_is_released_by_paragraphs_and_clean() -> None:
    stream = engine("Ask ann@example.org\n\nnow [x](\njavascript:y)", streaming=True).query("Whom?")
    assert list(stream.response_gen) == ["Ask •••@•••••••.•••", "\n\nnow x"]  # type: ignore[union-attr]


ATTACK = "Dry <script>[so](javascript:a). Ask ann@example.org."


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("option", "shown"),
    [
        (None, "Dry &lt;script>so. Ask ann@example.org."),
        (True, "Dry &lt;script>so. Ask •••@•••••••.•••."),
        (False, ATTACK),
    ],
    ids=["default", "on", "off"],
)
def test_html_is_text_by_default_and_masking_is_a_choice(option: bool | None, shown: str, streaming: bool) -> None:
    response: Any = engine(ATTACK, guards=option, streaming=streaming).query("Whom?")
    if streaming:
        assert "".join(response.response_gen) == shown
        response = response.get_response()
    assert str(response) == shown
