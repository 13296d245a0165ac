"""How well the text of PDFs agrees with another program's, `pdftotext` of poppler-utils.

Words are runs of letters and digits, NFKC and in lower case. A word is on the right page when the oracle has it there
as well (multisets, so order does not matter); it is not found when its letters do not occur in a row on our page,
however they are cut (poppler writes the line of "the 15th day", its "th" raised, as "15t h"); letters are lost when
they are not on our page at all. A boundary counts where both have the same letters in a row and cut them differently: a
space is in a word when the whole word occurs at least three times in the oracle's documents and a part does not; words
are glued when the oracle writes two, and our one occurs less often than three times.
"""

from __future__ import annotations

import re
import subprocess
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate, pairwise
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
        not_found: Words whose letters are not in a row on the page.
        lost: Letters of the oracle's page that are not on ours.
        spaces_in_words: Known words that we cut.
        glued: Words that we do not separate.
    """

    words: int
    on_page: float
    not_found: int
    lost: int
    spaces_in_words: int
    glued: int

    def __str__(self) -> str:
        return (
            f"{self.on_page:7.3f} % of {self.words:,} words on the right page, {self.not_found} not found, "
            f"{self.lost} letters lost, {self.spaces_in_words} spaces in words, {self.glued} glued"
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
    total = hits = not_found = lost = 0
    for name, pages in reference.items():
        for mine, page in zip(ours[name], pages, strict=True):
            have, want = words(mine), Counter(words(page))
            missing = want - Counter(have)
            joined = "".join(have)
            total += want.total()
            hits += want.total() - missing.total()
            not_found += sum(count for word, count in missing.items() if word not in joined)
            lost += (Counter("".join(want.elements())) - Counter(joined)).total()
    cut, glued = _boundaries(ours, in_drawing_order)
    return Agreement(total, 100 * hits / total, not_found, lost, cut, glued)


def lost(ours: Sequence[str], reference: Sequence[str]) -> tuple[int, int]:
    """Return how many words of the reference have their letters nowhere in a row on our page, and how many it has."""
    gone = total = 0
    for mine, page in zip(ours, reference, strict=True):
        have, want = words(mine), Counter(words(page))
        joined = "".join(have)
        total += want.total()
        gone += sum(count for word, count in (want - Counter(have)).items() if word not in joined)
    return gone, total


def boundaries(ours: Pages, reference: Pages) -> tuple[int, int, float]:
    """Return how many words are torn and glued, and the share of common words in another order, in per cent.

    Args:
        ours: The pages to judge.
        reference: The pages in the order of drawing.
    """
    in_order = common = 0
    for name, pages in reference.items():
        for mine, page in zip(ours[name], pages, strict=True):
            we, they = words(mine), words(page)
            matcher = SequenceMatcher(None, we, they, autojunk=False)
            in_order += len(we) if we == they else sum(block.size for block in matcher.get_matching_blocks())
            common += (Counter(we) & Counter(they)).total()
    cut, glued = _boundaries(ours, reference)
    return cut, glued, 100 * (1 - in_order / (common or 1))


def _boundaries(ours: Pages, reference: Pages) -> tuple[int, int]:
    known = Counter(word for pages in reference.values() for page in pages for word in words(page))
    cut = glued = 0
    for name, pages in reference.items():
        for mine, page in zip(ours[name], pages, strict=True):
            for we, they in _same_letters(words(mine), words(page)):
                for word, parts in _parts(they, we):
                    is_mistake = known[word] >= _KNOWN > min(known[part] for part in parts)
                    cut += (len(parts) - 1) * is_mistake
                glued += sum(len(parts) - 1 for word, parts in _parts(we, they) if known[word] < _KNOWN)
    return cut, glued


def _same_letters(ours: list[str], theirs: list[str]) -> Iterable[tuple[list[str], list[str]]]:
    """Yield stretches of words that differ in their boundaries only."""
    if ours == theirs:
        return
    for tag, a, b, c, d in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if tag == "replace" and "".join(ours[a:b]) == "".join(theirs[c:d]):
            yield ours[a:b], theirs[c:d]


def _parts(whole: list[str], cut: list[str]) -> Iterable[tuple[str, list[str]]]:
    """Yield each word of the one and the parts in which the other cuts it."""
    ends = list(accumulate(map(len, cut)))
    letters, at = "".join(cut), 0
    for word in whole:
        bounds = [at, *(end for end in ends if at < end < at + len(word)), at + len(word)]
        yield word, [letters[a:b] for a, b in pairwise(bounds)]
        at += len(word)


def share_of_words(ours: Mapping[str, str], source: Mapping[str, str]) -> float:
    """Return how many words of the source, as they are written, are in our text of the same file, in per cent."""
    total = hits = 0
    for name, text in source.items():
        want = Counter(text.split())
        hits += (want & Counter(ours[name].split())).total()
        total += want.total()
    return 100 * hits / total


def found(ours: Pages, clauses: Sequence[tuple[str, str]]) -> tuple[int, list[tuple[str, str]]]:
    """Return how many clauses (file name, text) are in the text, and the others.

    A clause is found when its letters and digits occur in a row: white space, hyphens and signs are not compared.
    """
    texts = {name: letters("\n".join(pages)) for name, pages in ours.items()}
    missing = [(name, clause) for name, clause in clauses if letters(clause) not in texts[name]]
    return len(clauses) - len(missing), missing
