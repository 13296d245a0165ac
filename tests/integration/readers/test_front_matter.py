"""The YAML block at the beginning of Markdown, also when it means harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_index_contextual.metadata import OWN_KEYS, TITLE
from llama_index_contextual.readers.markdown import MAX_FRONT_MATTER, read_front_matter, read_markdown
from tests.support.trees import write


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

    def test_lists_and_mappings_stay_in_the_text(self, tmp_path: Path) -> None:
        parsed = read_markdown(write(tmp_path / "a.md", "---\ntags: [a, b]\nnested:\n  a: 1\nkept: x\n---\ntext"))
        assert parsed.metadata == {"kept": "x"}
        assert "tags: [a, b]" in parsed.text

    @pytest.mark.parametrize("end", ["---", "...", "---  "])
    def test_its_lines_are_no_headings(self, tmp_path: Path, end: str) -> None:
        parsed = read_markdown(write(tmp_path / "a.md", f"---\ntitle: T\n# comment\nkey: value\n{end}\n# Heading\n"))
        assert [heading.title for heading in parsed.map.headings] == ["Heading"]
        assert parsed.text.startswith("---\ntitle: T\n")

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
