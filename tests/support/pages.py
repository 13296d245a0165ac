"""The pages of the documentation, and their code blocks with what says how a test treats them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

from tests.support.source import ROOT

DOCS = ROOT / "docs"


@dataclass(frozen=True)
class Block:
    """A fenced code block of a page.

    Attributes:
        page: Path of the page below `docs/`.
        line: Line of the first line of code.
        language: The first word after the fence.
        title: The title in quotes, shown above the block.
        text: The code.
        comments: Texts of the HTML comments between the block before and this one: "not run: REASON" if a test cannot
            run it, "exits with N" if the last command is expected to fail.
        follows: Whether only comments stand between the block before and this one: an output follows its command.
    """

    page: str
    line: int
    language: str
    title: str
    text: str
    comments: tuple[str, ...]
    follows: bool

    def __str__(self) -> str:
        return f"docs/{self.page}:{self.line}"

    def comment(self, prefix: str) -> str | None:
        """Return the rest of the comment that begins with a prefix, or None."""
        return next((text.removeprefix(prefix) for text in self.comments if text.startswith(prefix)), None)

    @property
    def needs_model(self) -> bool:
        """Whether the reader needs a key or a model of their own."""
        return self.title.startswith("Needs a")


def pages() -> list[str]:
    """Return all written pages, as paths below `docs/`; the generated ones are not among them."""
    return sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """Return the code blocks of a page in their order."""
    return tuple(_blocks(page, (DOCS / page).read_text(encoding="utf-8")))


def _blocks(page: str, text: str) -> Iterator[Block]:
    comments: list[str] = []
    follows = False
    for token in MarkdownIt().parse(text):
        if token.type == "fence":
            language, _, rest = token.info.partition(" ")
            title = re.search(r'title="([^"]+)"', rest)
            assert token.map is not None
            yield Block(
                page, token.map[0] + 2, language, title[1] if title else "", token.content, tuple(comments), follows
            )
            comments, follows = [], True
        elif token.type == "html_block":
            comments += [" ".join(comment.split()) for comment in re.findall(r"<!--(.*?)-->", token.content, re.DOTALL)]
        else:
            follows = False


@cache
def navigation() -> tuple[str, ...]:
    """Return the pages that the navigation of the site lists."""
    _, _, listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    return tuple(re.findall(r"^ .*?([\w./-]+\.md)$", listed, re.MULTILINE))


def links(page: Path) -> list[str]:
    """Return the targets of the links of a page that lead to files."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
