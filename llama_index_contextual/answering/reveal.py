"""What of a model's words is the answer, and when it can be shown."""

from __future__ import annotations

from llama_index_contextual.answering.guards import Guards
from llama_index_contextual.answering.prompts import ANSWER_MARK


def split_reasoning(text: str, style: str) -> tuple[str | None, str]:
    """Return the reasoning, if the style asks for one, and the answer.

    Example:
        >>> split_reasoning("Source 1 tells so. Answer: Yes.", "chain_of_thought")
        ('Source 1 tells so.', 'Yes.')
    """
    if style != "chain_of_thought" or ANSWER_MARK not in text:
        return None, text.strip()
    reasoning, _, answer = text.partition(ANSWER_MARK)
    return reasoning.strip("* \n"), answer.strip("* \n")


class Reveal:
    """Lets the answer through as it streams: no reasoning, and with guards only whole paragraphs, cleaned.

    A link may stand on two lines, but not in two paragraphs.

    Args:
        style: Of the answer.
        guards: What every paragraph passes; None lets everything through at once.
    """

    def __init__(self, style: str, guards: Guards | None = None) -> None:
        self._reasoning: str | None = "" if style == "chain_of_thought" else None
        self._guards = guards
        self._open = ""

    def feed(self, piece: str) -> str:
        """Return what can be shown now; it may be empty."""
        if self._reasoning is not None:
            self._reasoning += piece
            _, mark, piece = self._reasoning.partition(ANSWER_MARK)
            piece = piece.lstrip("* \n")
            if not mark or not piece:
                return ""
            self._reasoning = None
        if self._guards is None:
            return piece
        whole, end, self._open = (self._open + piece).rpartition("\n\n")
        return self._guards.clean(whole) + end if end else ""

    def rest(self) -> str:
        """Return what was held back: a last paragraph, or words that never came to an answer."""
        held = (self._reasoning or "") + self._open
        return self._guards.clean(held) if self._guards else held
