"""How well the text of PDFs agrees with another program's, `pdftotext` of poppler-utils.

Words are runs of letters and digits, NFKC and in lower case. A word is on the right page when the oracle has it there
as well (multisets, so order does not matter); it is lost when its letters do not occur on our page at all, however
they are cut. A boundary counts where both have the same letters in a row and cut them differently: a space within a
word of the oracle that occurs at least three times in all documents is a space in a word, and two words of the oracle
that we write as one, which occurs less often than three times, are glued. (Where poppler itself puts a space after
every letter of a spaced-out heading, or none between its words, the boundary is nobody's mistake but counts.)
"""

from __future__ import annotations

import re
import subprocess
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

Pages = Mapping[str, Sequence[str]]  # file name -> text of each page

_WORD = re.compile(r"\w+")
_KNOWN = 3


@dataclass(frozen=True)
class Agreement:
    """How a reading agrees with the oracle.

    Attributes:
        words: Words of the oracle.
        on_page: Share of them on the right page, in per cent.
        lost: Words whose letters are not on the page.
        spaces_in_words: Known words that we cut.
        glued: Words that we do not separate.
    """

    words: int
    on_page: float
    lost: int
    spaces_in_words: int
    glued: int

    def __str__(self) -> str:
        return (
            f"{self.on_page:7.3f} % of {self.words:,} words on the right page, {self.lost} lost, "
            f"{self.spaces_in_words} spaces in words, {self.glued} glued"
        )


def poppler(paths: Iterable[Path], *options: str) -> Pages:
    """Return what pdftotext reads."""
    return {path.name: _pdftotext(path, *options) for path in paths}


def _pdftotext(path: Path, *options: str) -> list[str]:
    command = ["pdftotext", *options, "-enc", "UTF-8", str(path), "-"]
    return subprocess.run(command, capture_output=True, check=True, encoding="utf-8").stdout.split("\f")[:-1]


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).replace("\u00ad", "").lower())


def letters(text: str) -> str:
    """Return the text without white space, hyphens and other signs."""
    return "".join(words(text))


def agreement(ours: Pages, reference: Pages, in_drawing_order: Pages) -> Agreement:
    """Compare a reading with the oracle's, and its word boundaries with the oracle's in the order of drawing."""
    total = hits = lost = 0
    for name, pages in reference.items():
        for mine, page in zip(ours[name], pages, strict=True):
            have, want = words(mine), Counter(words(page))
            missing = want - Counter(have)
            joined = "".join(have)
            total += want.total()
            hits += want.total() - missing.total()
            lost += sum(count for word, count in missing.items() if word not in joined)
    cut, glued = _boundaries(ours, in_drawing_order)
    return Agreement(total, 100 * hits / total, lost, cut, glued)


def _boundaries(ours: Pages, reference: Pages) -> tuple[int, int]:
    known = Counter(word for pages in reference.values() for page in pages for word in words(page))
    cut = glued = 0
    for name, pages in reference.items():
        for mine, page in zip(ours[name], pages, strict=True):
            for we, they in _same_letters(words(mine), words(page)):
                cut += sum(count for word, count in _inner(they, we) if known[word] >= _KNOWN)
                glued += sum(count for word, count in _inner(we, they) if known[word] < _KNOWN)
    return cut, glued


def _same_letters(ours: list[str], theirs: list[str]) -> Iterable[tuple[list[str], list[str]]]:
    """Yield stretches of words that differ in their boundaries only."""
    if ours == theirs:
        return
    for tag, a, b, c, d in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if tag == "replace" and "".join(ours[a:b]) == "".join(theirs[c:d]):
            yield ours[a:b], theirs[c:d]


def _inner(whole: list[str], cut: list[str]) -> Iterable[tuple[str, int]]:
    """Yield each word of the one and how many boundaries of the other lie within it."""
    ends, at = set(), 0
    for word in cut:
        at += len(word)
        ends.add(at)
    at = 0
    for word in whole:
        yield word, sum(at < end < at + len(word) for end in ends)
        at += len(word)


def found(ours: Pages, clauses: Sequence[tuple[str, str]]) -> tuple[int, list[tuple[str, str]]]:
    """Return how many clauses (file name, text) are in the text, and the others.

    A clause is found when its letters and digits occur in a row: white space, hyphens and signs are not compared.
    """
    texts = {name: letters("\n".join(pages)) for name, pages in ours.items()}
    missing = [(name, clause) for name, clause in clauses if letters(clause) not in texts[name]]
    return len(clauses) - len(missing), missing
