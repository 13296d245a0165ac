"""What of a model's words is the answer, and when it can be shown."""

from __future__ import annotations

import re

from llama_index_contextual.answering.guards import Guards, is_closed
from llama_index_contextual.answering.prompts import ANSWER_MARK

_MARK = re.compile(rf"^[ \t#>*_]*{ANSWER_MARK}[*_]*\s*", re.MULTILINE)
# What is indented may belong to the list before the blank line.
_BLANK = re.compile(r"\n[ \t]*\n+(?=\S)")


def split_reasoning(text: str, style: str) -> tuple[str | None, str]:
    """Return the reasoning, if the style asks for one, and the answer, which begins on a line of its own.

    Example:
        >>> split_reasoning("Source 1 tells so.\\nAnswer: Yes.", "chain_of_thought")
        ('Source 1 tells so.', 'Yes.')
    """
    mark = _MARK.search(text) if style == "chain_of_thought" else None
    if mark is None:
        return None, text.strip()
    return text[: mark.start()].strip(), text[mark.end() :].strip()


class Reveal:
    """Lets the answer through as it streams: no reasoning, and with guards only whole blocks, cleaned.

    A link may stand on two lines, but not in two paragraphs; code may have blank lines, and is shown when it ends.

    Args:
        style: Of the answer.
        guards: What every block passes; None lets everything through at once.
    """

    def __init__(self, style: str, guards: Guards | None = None) -> None:
        self._reasoning: str | None = "" if style == "chain_of_thought" else None
        self._guards = guards
        self._open = ""
        self._seen = 0
        self._shown = ""

    def feed(self, piece: str) -> str:
        """Return what can be shown now; it may be empty."""
        if self._reasoning is not None:
            self._reasoning += piece
            mark = _MARK.search(self._reasoning)
            piece = "" if mark is None else self._reasoning[mark.end() :]
            if not piece:
                return ""
            self._reasoning = None
        if self._guards is None:
            return piece
        self._open += piece
        shown = ""
        while (blank := _BLANK.search(self._open, self._seen)) is not None:
            shown += self._block(self._guards, blank)
        return shown

    def _block(self, guards: Guards, blank: re.Match[str]) -> str:
        """Return what stands before a blank line with that line, or nothing where one goes on in the other.

        A block that begins without white space behind one that is closed means what it means alone.
        """
        block = guards.clean(self._open[: blank.start()]) + blank[0]
        if guards.sanitise and not (is_closed(block) and block.lstrip() == block):
            self._seen = blank.end()
            return ""
        self._open, self._seen = self._open[blank.end() :], 0
        self._shown += block
        return block

    def rest(self) -> str:
        """Return what was held back: a last block, or words that never came to an answer."""
        held = (self._reasoning or "") + self._open
        return self._guards.clean(held, behind=self._shown) if self._guards else held
