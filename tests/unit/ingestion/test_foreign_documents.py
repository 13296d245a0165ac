"""Documents of LlamaIndex's own readers: which of them are Markdown."""

from __future__ import annotations

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.metadata import HEADINGS
from llama_index_contextual.readers.documents import with_headings

MARKDOWN = "# Apples\n\nText about apples.\n\n## Pears\n\nText about pears.\n"


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("a.md", MARKDOWN, 2),
        ("a.MARKDOWN", "# One", 1),
        ("a.md", "---\ntitle: '# x'\n---\n# One", 1),
        ("scan.pdf", "# One\n\nMarkdown of a parser", 1),
        ("slides.pptx", MARKDOWN, 2),
        ("", MARKDOWN, 2),
        ("", "# one line with a mark\n\ntext", 0),
        ("a.py", "# comment\n\nimport this\n\n# comment", 0),
        ("a.txt", MARKDOWN, 0),
        ("a.md", "no headings", 0),
    ],
)
def test_which_texts_are_markdown(name: str, text: str, count: int) -> None:
    document = Document(text=text, metadata={"file_name": name} if name else {})
    found = with_headings(document)
    assert found.metadata.get(HEADINGS, "").count("[") == (count + 1 if count else 0)
    assert HEADINGS not in document.metadata
    assert found.text == text
