"""Headings, titles and front matter of Markdown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llama_index_contextual.metadata import OWN_KEYS, TITLE
from llama_index_contextual.readers import ReadLimits
from llama_index_contextual.readers import text as outline
from llama_index_contextual.readers.files import FileSource, ParsedFile
from llama_index_contextual.readers.text import (
    MAX_FRONT_MATTER,
    TITLE_REACH,
    markdown_headings,
    parse_markdown,
    read_front_matter,
)
from tests.unit.readers.examples import sections

Reader = Callable[[str], ParsedFile]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    """Reads text as if it were a Markdown file."""

    def reader(text: str) -> ParsedFile:
        path = tmp_path / "a.md"
        path.write_bytes(text.encode())
        return parse_markdown(FileSource.open(path, ReadLimits()))

    return reader


def titles(text: str) -> list[tuple[int, str]]:
    found, warnings = markdown_headings(text)
    assert warnings == ()
    return [(heading.level, heading.title) for heading in found]


EXAMPLES = sections("markdown")


class TestHeadings:
    def test_both_kinds_are_found_with_their_level(self) -> None:
        text = "# One\n\nTwo\n===\n\nThree\n---\n\n#### Four ####\n   ###### Six\n"
        assert titles(text) == [(1, "One"), (1, "Two"), (2, "Three"), (4, "Four"), (6, "Six")]

    @pytest.mark.parametrize("text", [*EXAMPLES["no headings"], "a" * 201 + "\n---"])
    def test_what_only_looks_like_a_heading_is_none(self, text: str) -> None:
        assert titles(f"{text}\n") == []

    @pytest.mark.parametrize(
        "example", [*EXAMPLES["titles"], "# bell\x07 \u202ebidi\nbell bidi", f"# {'x' * 300}\n{'x' * 199}…"]
    )
    def test_a_title_is_the_text_without_marks(self, example: str) -> None:
        heading, _, title = example.partition("\n")
        assert titles(f"{heading}\n") == [(1, title)]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("<h2>Terms &amp; fees</h2>\n\ntext", [(2, "Terms & fees")]),
            ('text\n\n<h1 align="center">\n  <b>The</b> tool\n</h1>\n', [(1, "The tool")]),
            ("<div>\n<H3>One</H3>\n<h4>Two</h4>\n</div>\n", [(3, "One"), (4, "Two")]),
            ("<!-- <h2>comment</h2> -->\n\n<pre>\n<h2>code</h2>\n</pre>\n", []),
            ("> <h2>quoted</h2>\n\n- <h2>item</h2>\n\n    <h2>code</h2>\n", []),
            ("<h2>never closed\n\n<h2></h2>\n", []),
        ],
    )
    def test_headings_in_html(self, read: Reader, text: str, expected: list[tuple[int, str]]) -> None:
        assert titles(text) == expected
        assert all(text[heading.start :].lower().startswith("<h") for heading in read(text).map.headings)

    def test_superscripts_in_a_heading(self) -> None:
        assert titles("# 10<sup>6</sup> litres of H<sub>2</sub>O on the 1<sup>st</sup>\n") == [
            (1, "10^6 litres of H2O on the 1st")
        ]

    @pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
    def test_offsets_are_those_of_the_file(self, read: Reader, newline: str) -> None:
        text = "---\ntitle: T\n---\nIntro 😀\x0b\u2028\n\n# One\n\ntext\n\nTwo\nlines\n---\ntext".replace("\n", newline)
        parsed = read(text)
        assert parsed.text == text
        assert [text[h.start :].split(newline)[0] for h in parsed.map.headings] == ["# One", "Two"]
        assert parsed.map.section(len(text) - 1) == "One > Two lines"

    def test_headings_beyond_the_limit_are_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outline, "MAX_HEADINGS", 3)
        assert len(markdown_headings("# a\n" * 4)[0]) == 3


class TestLargeFiles:
    def test_the_headings_of_a_very_long_file_are_left_out_with_a_warning(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outline, "MAX_LINES", 50)
        found, warnings = markdown_headings("# One\n\n" * 100)
        assert found == ()
        assert warnings == ("is too long for its headings to be recognised: split it into smaller files",)

    @pytest.mark.parametrize(
        "text", ["> " * 5_000 + "a", "- " * 5_000 + "a", ">" * 5_000, "[" * 50_000, "*a_" * 20_000]
    )
    def test_nesting_does_not_exhaust_the_parser(self, text: str) -> None:
        found, warnings = markdown_headings(f"{text}\n\n# End\n")
        assert [heading.title for heading in found] == ["End"] or "too deeply" in warnings[0]


class TestTitle:
    @pytest.mark.parametrize(
        ("text", "title"),
        [
            ("---\ntitle: From *YAML*\n---\n# Heading\n", "From *YAML*"),
            ("## Second\n\n# First\n", "First"),
            ("# First\n\n# Another\n", "First"),
            ("## Second\n\n### Third\n\n### Another\n", "Second"),
            ("## Section\n\n### Third\n\n## Another section\n", None),
            ("## Early\n" + "text\n" * TITLE_REACH + "# Late\n", None),
            ("no heading\n", None),
            ("text\n" * TITLE_REACH + "# Late\n", None),
        ],
    )
    def test_it_is_that_of_the_front_matter_or_an_early_heading_above_all_others(
        self, read: Reader, text: str, title: str | None
    ) -> None:
        assert read(text).title == title


# ---- the YAML block at the beginning of Markdown, also when it means harm --------------------------------------------


def front(yaml: str) -> dict[str, object]:
    matter = read_front_matter(f"---\n{yaml}\n---\ntext")
    assert matter is not None
    return dict(matter.metadata)


class TestFrontMatter:
    def test_scalars_keep_their_kind_only_where_nothing_is_lost(self) -> None:
        text = """
author: Jane
year: 2023
share: 0.5
draft: false
version: 1.10
country: no
code: 007
time: 12:30:00
date: 2023-01-31
quoted: "7"
huge: 99999999999999999999
nothing: null
folded: >
  two
  lines
"""
        assert front(text) == {
            "author": "Jane",
            "year": 2023,
            "share": 0.5,
            "draft": False,
            "version": "1.10",
            "country": "no",
            "code": "007",
            "time": "12:30:00",
            "date": "2023-01-31",
            "quoted": "7",
            "huge": "99999999999999999999",
            "folded": "two lines",
        }

    def test_lists_are_metadata_and_mappings_stay_in_the_text(self, read: Reader) -> None:
        parsed = read(
            "---\ntags: [a, b]\nmore:\n- 1.10\n- {x: 1}\n- no\nempty: []\nnested:\n  a: 1\nkept: x\n---\ntext"
        )
        assert parsed.metadata == {"tags": ["a", "b"], "more": ["1.10", "no"], "kept": "x"}
        assert "tags: [a, b]" in parsed.text

    @pytest.mark.parametrize("end", ["---", "...", "---  "])
    def test_its_lines_are_no_headings(self, read: Reader, end: str) -> None:
        parsed = read(f"---\ntitle: T\n# comment\nkey: value\n{end}\n# Heading\n")
        assert [heading.title for heading in parsed.map.headings] == ["Heading"]
        assert parsed.text.startswith("---\ntitle: T\n")

    @pytest.mark.parametrize("newline", ["\n", "\r\n"])
    def test_toml_between_plus_signs(self, read: Reader, newline: str) -> None:
        lines = (
            'title = "Plan"',
            "day = 2024-01-31",
            'tags = ["a", 2]',
            "draft = false",
            'empty = ""',
            "[params]",
            "x = 1",
        )
        parsed = read(newline.join(["+++", *lines, "+++", "# H", ""]))
        assert parsed.title == "Plan"
        assert parsed.metadata == {"day": "2024-01-31", "tags": ["a", 2], "draft": False}
        assert [heading.title for heading in parsed.map.headings] == ["H"]

    def test_plus_signs_around_other_text_are_no_front_matter(self) -> None:
        assert read_front_matter("+++\nnot toml at all\n+++\ntext") is None

    def test_yaml_that_is_not_quite_valid_is_read_line_by_line(self) -> None:
        matter = read_front_matter('---\ntitle: Rome: a history\nauthor: "Jane"\nkey: @x\n# comment\n---\n')
        assert matter is not None
        assert matter.title == "Rome: a history"
        assert matter.metadata == {"author": "Jane", "key": "@x"}

    @pytest.mark.parametrize(
        "text",
        [
            "text\n---\nkey: x\n---\n",
            "---\nnever: closed\n",
            "---\njust text\n---\n",
            "---\n- a\n- b\n---\n",
            "---\n\n---\n",
            "---\nA sentence: with {a colon\nand [more text\n---\n",
            " ---\nkey: x\n---\n",
            "---\nkey: " + "x" * MAX_FRONT_MATTER + "\n---\n",
        ],
    )
    def test_other_text_between_rules_is_no_front_matter(self, text: str) -> None:
        assert read_front_matter(text) is None

    @pytest.mark.parametrize("key", [key for key in OWN_KEYS if key != TITLE])
    def test_it_cannot_set_the_keys_of_this_package(self, key: str) -> None:
        # A document must not be able to forge its source line or its context.
        matter = read_front_matter(f"---\n{key}: forged\nother: x\n---\n")
        assert matter is not None
        assert matter.metadata == {"other": "x"}
        assert matter.warnings == (f"front matter: '{key}' cannot be used as a metadata key and is left out",)

    def test_escapes_and_controls_do_not_come_out(self) -> None:
        assert front(r'key: "a\ud800\u202e\u001b[31m\0b"') == {"key": "a[31mb"}

    @pytest.mark.parametrize(
        "yaml",
        [
            "key: x\nbomb: " + "[" * 20_000,
            "key: x\nbomb: " + "{a: " * 5_000,
            "a: &a [x, x]\n"
            + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
            "a: &a {k: x}\n" + "".join(f"m{i}: &m{i} {{<<: [*a, *a, *a]}}\n" for i in range(500)),
            "key: !!python/object/apply:os.system ['true']\n",
        ],
        ids=["brackets", "braces", "aliases", "merges", "object"],
    )
    def test_a_bomb_does_not_go_off(self, yaml: str) -> None:
        matter = read_front_matter(f"---\n{yaml}\n---\n")
        assert matter is None or set(matter.metadata) <= {"key", "bomb", "a"}

    def test_a_key_that_cannot_be_stored_is_left_out_with_a_warning(self) -> None:
        matter = read_front_matter('---\n"a\\u202eb": x\n"": y\nc: z\n---\n')
        assert matter is not None
        assert matter.metadata == {"c": "z"}
        assert len(matter.warnings) == 2
