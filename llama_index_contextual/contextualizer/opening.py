"""Select the opening lines that identify a document.

Many documents begin with lines that do not identify them, such as a table of contents, a copyright notice, the rows of
a table, or the boxes and captions of a form. Notices are recognised by typical words, and the other lines by their
shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from llama_index_contextual.readers.tables import are_pages_of_contents

OPENING_CHARACTERS = 400
MAX_BETWEEN = 2  # maximum number of other lines between two entries, such as the second line of a title
MAX_NOTICE_WORDS = 30  # maximum number of words in a line with a copyright notice
MIN_FIELDS = 2  # minimum number of lines with boxes, and of lines with captions, on the cover of a form

_WORD = re.compile(r"\w")
_COMMENT = re.compile(r"/?\*|//|#(?!\w)|--|;|%")
_COPYRIGHT = re.compile(r"(?i)©|\bcopyright\b|\(c\) ?(?:19|20)\d\d|\ball rights reserved\b|\bSPDX-License")
# With some fonts in PDF files, the boxes of a form are extracted as the letters ý and þ and the sign ¨.
_BOX = re.compile(r"[☐☑☒🗹🗷]|(?<!\S)[ýþ¨](?!\S)|(?<!\S)(?<![-*+] )\[[ xX]\](?!\S)")
_CAPTION = re.compile(r"(?:\([^()]{3,}\)\s*)+")
_ENTRY = re.compile(r"[\W\d_]*[^\W\d_].*[\s._…·]([1-9]\d{0,2})")
_CONTENTS = re.compile(
    r"(?i)\W*+(?:(?:table of )?contents|index|inhalt(?:sverzeichnis)?|sommaire|table des matières|índice|section)?"
    r"\W*+(?:pages?|seite|página)?\W*+"
)


def opening_of(texts: Iterable[str], title: str = "") -> str:
    """Return up to 400 characters from the beginning of a document, without lines that do not identify it.

    The cover of a form is left out if the document has a title. The rows of Markdown tables are left out unless the
    texts contain nothing else: repeated in each passage, they make all of them match the questions about the table.

    Args:
        texts: The first chunks of the document; a chunk is read only if all lines of the previous chunks are left out.
        title: Title of the document, or an empty string.

    Example:
        >>> opening_of(["© ACME\\nPump manual\\nContents\\nUse 1\\nOil 2\\nCare 4\\nFaults 7\\nParts 9\\nThe pump …"])
        'Pump manual The pump …'
    """
    table = ""
    for text in texts:
        lines = [line for line in map(str.strip, text.splitlines()) if line]
        fields = {at for at, line in enumerate(lines) if _CAPTION.fullmatch(line) or _BOX.search(line)}
        is_form = _is_form([lines[at] for at in fields])
        if is_form and title:
            return ""
        left_out = {*_contents(lines), *_notices(lines), *(fields if is_form else ())}
        remaining = [line for at, line in enumerate(lines) if at not in left_out]
        if text_lines := [line for line in remaining if not line.startswith("|")]:
            return _cut(" ".join(" ".join(text_lines).split()))
        table = table or " ".join(" ".join(remaining).split())
    return _cut(table)


def _cut(text: str) -> str:
    if len(text) <= OPENING_CHARACTERS:
        return text
    end = text.rfind(" ", OPENING_CHARACTERS - 40, OPENING_CHARACTERS)  # some scripts have no spaces
    return text[: OPENING_CHARACTERS if end < 0 else end] + " …"


def _is_form(fields: Sequence[str]) -> bool:
    """Return whether there are enough lines with boxes or captions for the cover of a form."""
    captions = sum(_CAPTION.fullmatch(line) is not None for line in fields)
    return min(captions, len(fields) - captions) >= MIN_FIELDS


def _notices(lines: Sequence[str]) -> Iterator[int]:
    """Yield the indexes of lines that belong to copyright notices.

    In source code, the rest of the comment that contains a notice is included.
    """
    in_comment = False
    for at, line in enumerate(lines):
        words, is_notice = len(line.split()), _COPYRIGHT.search(line) is not None
        in_comment = _COMMENT.match(line) is not None and (in_comment or is_notice)
        if in_comment or (is_notice and words <= MAX_NOTICE_WORDS):
            yield from (at - 1, at) if at and not _WORD.search(lines[at - 1]) else (at,)  # include the line with /*


def _contents(lines: Sequence[str]) -> Iterator[int]:
    """Yield the indexes of lines that belong to tables of contents, including their headings."""
    groups: list[list[int]] = []
    for at, line in enumerate(lines):
        if not _ENTRY.fullmatch(line):
            continue
        if groups and at - groups[-1][-1] <= MAX_BETWEEN + 1:
            groups[-1].append(at)
        else:
            groups.append([at])
    for group in groups:
        if are_pages_of_contents([int(match[1]) for at in group if (match := _ENTRY.fullmatch(lines[at]))]):
            first = group[0]
            while first and _CONTENTS.fullmatch(lines[first - 1]):
                first -= 1
            yield from range(first, group[-1] + 1)
