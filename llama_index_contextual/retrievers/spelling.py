"""What a word that no text holds may have been meant to be: pure functions."""

from __future__ import annotations

import re
from string import ascii_lowercase

LONGEST = 24
"""Letters of a word that may be misspelt, at most: longer ones are seldom words, and have thousands of neighbours."""

_ORDINARY = re.compile(rf"[A-Za-z][a-z]{{4,{LONGEST - 1}}}")


def may_be_misspelt(token: str) -> bool:
    """Return whether a token is an ordinary word of 5 to 24 letters: names of parts and acronyms are exact.

    Shorter words have too many others beside them.

    Example:
        >>> [may_be_misspelt(token) for token in ("agrement", "Agrement", "TS-999", "NASA", "getUser", "mean")]
        [True, True, False, False, False, False]
    """
    return _ORDINARY.fullmatch(token) is not None


def one_slip_away(word: str) -> set[str]:
    """Return the spellings from which one slip makes a word: a letter left out, added, replaced, or two swapped.

    Four of five misspelt words are such (Damerau, "A technique for computer detection and correction of spelling
    errors", CACM 1964). The first letter is seldom wrong, and counts as right.

    Example:
        >>> {"their", "tier", "thief"} <= one_slip_away("thier"), "hier" in one_slip_away("thier")
        (True, False)
    """
    first, rest = word[:1], word[1:]
    cuts = [(rest[:at], rest[at:]) for at in range(len(rest) + 1)]
    found = {head + tail[1:] for head, tail in cuts if tail}
    found.update(head + tail[1] + tail[0] + tail[2:] for head, tail in cuts if len(tail) > 1)
    found.update(head + letter + tail[1:] for head, tail in cuts if tail for letter in ascii_lowercase)
    found.update(head + letter + tail for head, tail in cuts for letter in ascii_lowercase)
    return {first + changed for changed in found - {rest}}
