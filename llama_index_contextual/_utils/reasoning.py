"""Separate the answer in a model's reply from its reasoning and from control tokens.

Many local models write their reasoning into the text of a reply, in tags such as `<think>`, in brackets or in the
channels of their chat template, and many servers pass it on. `without_reasoning` returns the answer in a complete
reply, and `ReasoningFilter` does so while the reply is streamed.

Reasoning stands at the beginning of a reply or of a sentence, or between a pair of marks. Marks that an answer only
mentions are kept: in code, in quotation marks, or between words like any other word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, cast

# ---- Marks -----------------------------------------------------------------------------------------------------------

_STEM = (
    r"think|thought|reason|reflect|reflexion|scratch|analy[sz]|ponder|deliberat|monolog|rationale|cogitat|introspect"
    r"|chain[_-]?of|inner_|ruminat|contemplat|brainstorm|(?<![a-z])(?:cot|plan(?:ning)?)(?![a-z])|思考|思维|推理"
)
_NAME = rf"[^\s<>＜＞/|｜&;=@.\"'`()\[\]▷]{{0,40}}(?:{_STEM})[^\s<>＜＞/|｜&;=@.\"'`()\[\]▷]{{0,40}}"
_OPEN, _CLOSE = r"(?:[<＜]|&lt;)", r"(?:[>＞]|&gt;)"
# All repetitions are bounded, so that the time is linear in the length of a text.
_MARK = re.compile(
    rf"{_OPEN}\s{{0,3}}(?P<slash>/?)\s{{0,3}}(?P<tag>{_NAME})(?:\s[^<>＜＞]{{0,200}}?)?(?P<empty>/?){_CLOSE}"
    rf"|{_OPEN}(?P<details>details\s[^<>]{{0,100}}?(?:{_STEM})[^<>]{{0,100}}|/details){_CLOSE}"
    r"|[<＜](?:[|｜](?P<control>[^<>＜＞|｜\s]{1,60})[|｜]?|(?P<suffixed>/?[^\W\d]\w{0,40})[|｜])[>＞]"
    r"|<(?P<special>/?s|[be]os|pad|(?:start|end)_of_(?:turn|utterance|text)|unused9[45])>"
    r"|<(?P<wrapper>/?(?:(?:final[_-]?)?(?:answer|response|reply|output|solution|result)|final|ans|content))>"
    r"|\[(?P<bracket>/?(?:(?:begin|start|end|stop)[ _](?:of[ _])?)?"
    r"(?:think(?:ing)?|thoughts?|reason(?:ing)?|reflection|scratch_?pad)|/?inst)\]"
    rf"|◁(?P<triangle>/?{_NAME})▷"
    r"|(?P<glued>assistant(?:final|analysis|commentary)|(?-i:analysis(?=[A-Z])))",
    re.IGNORECASE,
)
_GLUED = ("assistantfinal", "assistantanalysis", "assistantcommentary", "analysis")  # marks without special tokens
_LONGEST_GLUED = max(map(len, _GLUED))
_LOOK_AHEAD = 2  # characters after a mark that show whether it is only mentioned
_BEGINNING_OF_MARK = re.compile(
    r"(?:[<＜◁][^<>＜＞▷◁]{0,320}|&(?:l(?:t(?:;[^<>&]{0,320}(?:&(?:g(?:t)?)?)?)?)?)?|\[/?[a-z_ ]{0,24})\Z",
    re.IGNORECASE,
)
_LONGEST = 340


def _cut(word: str) -> str:
    """Return a regular expression for the beginnings of a word that have at least two letters."""
    return word[:2] + "".join(f"(?:{letter}" for letter in word[2:]) + ")?" * len(word[2:])


_CUT_NAMES = "|".join(map(_cut, ("thinking", "thought", "reasoning", "reflection", "scratchpad", "analysis")))
_CUT_MARK = re.compile(rf"[<＜][|｜]\S{{0,60}}\Z|[<＜◁\[]\s{{0,3}}/?(?:{_CUT_NAMES})\b[^<>]{{0,200}}\Z", re.IGNORECASE)
_ANY_CUT_MARK = re.compile(r"[<＜◁&][^<>]{0,320}\Z")

_Kind = Literal[
    "open",  # begins reasoning
    "close",  # ends reasoning
    "header",  # begins the header of a message
    "header_end",
    "assistant",  # begins a message of the assistant
    "final",  # begins the answer, after text that is not part of it
    "other",  # begins a message of somebody else, such as a call of a tool
    "end",  # ends a message
    "wrapper",  # begins or ends the answer
    "blank",  # has no meaning
    "unknown",
]
# Names of control tokens; the first pattern that is found in a name applies.
_CONTROLS: Mapping[_Kind, re.Pattern[str]] = {
    kind: re.compile(pattern, re.IGNORECASE)
    for kind, pattern in cast(
        "dict[_Kind, str]",
        {
            "close": rf"^(?:/|end|stop|close).*(?:{_STEM})|(?:{_STEM})\w{{0,20}}(?:end|stop|close|suffix)$",
            "open": _STEM,
            "header_end": r"^(?:end_header_id|end_of_role|message|content)$",
            "header": r"^(?:start|begin|im_start|unused94|start_header_id|start_of_(?:turn|role)|channel|turn)$",
            "blank": r"^(?:(?:begin|start)_?of_?(?:text|sentence|sequence)|bos|pad|unk|s$|/?inst|constrain)",
            "other": r"tool|function|call|^(?:user|system|human|observation|developer|ipython)",
            "wrapper": r"response|answer|solution|output|result|box|reply|summary|conclusion|^(?:/|start_|end_)text$",
            "end": r"^(?:/?s|im_end|unused95|eo[a-z](?:_id)?|end|return"
            r"|end_?of_?(?:text|turn|sentence|utterance|message).*)$",
            "assistant": r"^(?:assistant|model|bot|chatbot)(?:_token)?$",
            "final": r"^final$",
        },
    ).items()
}
_OTHER_ROLE = re.compile(r"\b(?:commentary|user|system|human|developer|tool|function|observation|to=)", re.IGNORECASE)
_FINAL_ROLE = re.compile(r"\b(?:final|answer|response)\b", re.IGNORECASE)
_REASONING_ROLE = re.compile(_STEM, re.IGNORECASE)
_NAMED_ROLE = re.compile(r"\s*(?:assistant|model|user|system|tool|analysis|commentary|final|thought)?", re.IGNORECASE)
_LONGEST_ROLE = 60

# Reasoning at the beginning of a reply that has no marks: the channels of Granite are sentences, and some models write
# a code block or an element to unfold.
_OPENING = re.compile(
    r"\A\s*(?:"
    r"here(?:['’]s| is) my (?:thought|thinking|reasoning)[^\n:]{0,40}:"
    r".*?(?:^\W{0,4}here(?:['’]s| is) my (?:final )?(?:response|answer)[^\n:]{0,20}:\s*|\Z)"
    r"|(?P<fence>```|~~~)(?:think(?:ing)?|thoughts?|reasoning)[ \t]*\n.*?(?:^(?P=fence)\s*|\Z)"
    r"|<details[^<>]{0,100}>\s{0,3}<summary>[^<>]{0,40}(?:thinking|thought|reasoning)[^<>]{0,40}</summary>"
    r".*?(?:</details>\s*|\Z))",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)


class _Mark(NamedTuple):
    kind: _Kind
    family: str  # the group of `_MARK` that matched
    text: str


def _mark_of(match: re.Match[str]) -> _Mark:
    """Classify a mark."""
    kind: _Kind
    if match["tag"] is not None:
        return _Mark("blank" if match["empty"] else "close" if match["slash"] else "open", "tag", match[0])
    family = str(match.lastgroup)
    name = match[family].lower().replace("▁", "_")
    if family == "wrapper":
        kind = "wrapper"
    elif family == "glued":
        kind = "final" if name.endswith("final") else "other" if name.endswith("commentary") else "open"
    elif family in ("details", "triangle") or (family == "bracket" and not name.endswith("inst")):
        kind = "close" if name.startswith(("/", "end", "stop")) else "open"
    elif family == "suffixed" and name in ("turn", "channel"):  # Gemma's `<|turn>` begins and `<turn|>` ends a message
        kind = "end"
    else:
        kind = next((kind for kind, pattern in _CONTROLS.items() if pattern.search(name)), "unknown")
    return _Mark(kind, family, match[0])


# ---- Streams whose beginning looks like reasoning --------------------------------------------------------------------

OPENING_CHARACTERS = 200
"""Number of characters that show whether a reply begins with reasoning although it does not begin with a mark."""

_DELIBERATION = re.compile(
    r"\A\W*(?:(?:okay|ok|al(?:l )?right|hmm+|hm|wait|well|so|now|let(?:['’]?s)?|first(?:ly)?|thinking|thoughts?"
    r"|reasoning|analysis|analyzing|step|user|we|to answer|looking at"
    r"|here(?:['’]s| is) my (?:thought|thinking|reasoning)"
    r"|i(?! could not| cannot| can['’]t| am sorry| do not| don['’]t| apologi[sz]e|['’]m sorry))\b"
    r"|嗯|好的|首先|用户|让我)"
    r"|\b(?:the user|let me|let['’]s|(?:i|we) (?:need|should|must|have) to|the question (?:is|asks|wants|here)|hmm"
    r"|(?:asked|asks|asking|wants?) (?:me|us|to know)|der (?:be)?nutzer|l['’]utilisateur|el usuario)\b",
    re.IGNORECASE,
)


# ---- Filter ----------------------------------------------------------------------------------------------------------

_SENTENCE_END = frozenset(".!?:;…。！？：；)]}»”\"'*_>")
_QUOTES, _CLOSING_QUOTES = frozenset("`'\"“„«‘("), frozenset("`'\"”“»’)")
_PUNCTUATION = frozenset(".,;:!?)")
_BULLETS = frozenset("-*+|>•")
_DEPTHS: Mapping[_Kind, int] = {"open": 1, "close": -1}


def without_reasoning(reply: str, *, is_cut: bool = False) -> str:
    """Return the answer in a reply; it is empty if the reply consists of reasoning only.

    Args:
        reply: The reply.
        is_cut: Whether the reply is incomplete, as in `ReasoningFilter.flush`.

    Example:
        >>> without_reasoning("<think>Source 1 or 2?</think>\\n\\nThree days."), without_reasoning("<think>Source 1 or")
        ('Three days.', '')
        >>> without_reasoning("The tag `<think>` begins the reasoning.")
        'The tag `<think>` begins the reasoning.'
    """
    if _MARK.search(reply) is None and _OPENING.match(reply) is None and _BEGINNING_OF_MARK.search(reply) is None:
        return reply
    stream = ReasoningFilter(opening=math.inf)
    return "".join([*stream.feed(reply), *stream.flush(is_cut=is_cut)])


def looks_like_reasoning(text: str) -> bool:
    """Return whether a text without marks begins like reasoning.

    Example:
        >>> looks_like_reasoning("Okay, the user wants a context."), looks_like_reasoning("The notice period.")
        (True, False)
    """
    opening = text[:OPENING_CHARACTERS]
    return _DELIBERATION.search(opening) is not None or _OPENING.match(opening) is not None


class ReasoningFilter:
    """Filter that removes reasoning and control tokens from a streamed reply.

    Some servers omit the mark that begins the reasoning, because it is part of their prompt. The opening of a reply is
    therefore kept back until it is long enough and does not look like reasoning, or until a mark ends the reasoning.
    Then answer text is returned at once. An opening that looks like reasoning is kept back until the end of the reply.

    Args:
        opening: Number of characters to keep back; 0 if the reply cannot begin with unmarked reasoning.

    Attributes:
        has_reasoning: Whether reasoning has been removed so far.
        has_shown_reasoning: Whether the text returned so far begins with reasoning, whose mark has come too late.

    Example:
        >>> stream = ReasoningFilter(opening=0)
        >>> [stream.feed(piece) for piece in ("<thi", "nk>Hm.</think>Three ", "days.")], stream.flush()
        ([[], ['Three '], ['days.']], [])
    """

    def __init__(self, *, opening: float = OPENING_CHARACTERS) -> None:
        self.has_reasoning = self.has_shown_reasoning = False
        self._opening = opening
        self._state: Literal["answer", "reasoning", "header", "ignored"] = "answer"
        self._rest = ""  # text that may be the beginning of a mark
        self._pieces: list[str] = []  # answer text that has not been returned yet
        self._answer = _Layout()
        self._has_wrapper = False
        self._mentions = 0  # of marks that begin reasoning, without those of marks that end it
        self._dropped: list[str] = []
        self._header = ""
        self._reasoning = _Reasoning("")

    def feed(self, piece: str) -> list[str]:
        """Add a piece of the reply and return the pieces of the answer that can be shown, which may be none."""
        self._read(self._rest + piece)
        if self._state == "answer" and 0 < self._opening <= self._answer.length:
            self._opening = math.inf if looks_like_reasoning("".join(self._pieces)) else 0
        return self._take()

    def flush(self, *, is_cut: bool = False) -> list[str]:
        """Return the rest of the answer at the end of the reply.

        Args:
            is_cut: Whether the reply is incomplete. Otherwise, if one mark of nested reasoning is missing at the end,
                the text after the last mark is the answer.
        """
        self._read(self._rest, is_end=True)
        if self._state == "header":
            self._end_header()
        if self._state == "reasoning":
            self._end_reasoning(is_cut=is_cut)
        if not self._answer.has_text and not is_cut:
            self._pieces = self._dropped
        if self._is_keeping_back:
            opening = "".join(self._pieces)
            answer = _OPENING.sub("", opening, count=1)
            if answer != opening:
                self._pieces, self.has_reasoning = [answer] if answer else [], True
        self._opening = 0
        return self._take()

    @property
    def _is_keeping_back(self) -> bool:
        return self._opening > 0

    def _take(self) -> list[str]:
        if self._is_keeping_back:
            return []
        pieces, self._pieces = self._pieces, []
        return pieces

    # ---- Text between marks ------------------------------------------------------------------------------------------

    def _read(self, text: str, *, is_end: bool = False) -> None:
        """Process a text, except what may be the beginning of a mark at its end."""
        at = 0
        while (match := _MARK.search(text, at)) is not None:
            if not is_end and match.end() + _LOOK_AHEAD > len(text):
                break
            self._add(text[at : match.start()])
            self._apply(_mark_of(match), text[match.end() : match.end() + _LOOK_AHEAD])
            at = match.end()
        end = _end_before_mark(text, at) if match is None else match.start()
        if is_end and not self._is_cut_mark(text[end:]):
            end = len(text)
        self._add(text[at:end])
        self._rest = "" if is_end else text[end:]

    def _is_cut_mark(self, text: str) -> bool:
        """Return whether the end of a reply is a mark that was cut off."""
        is_closing = self._has_wrapper and text.startswith("</")
        is_cut = is_closing or _CUT_MARK.match(text) or (not self._answer.has_text and _ANY_CUT_MARK.match(text))
        return bool(is_cut) and not self._answer.is_code

    def _add(self, text: str) -> None:
        if self._state == "answer":
            if piece := self._answer.add(text):
                self._pieces.append(piece)
        elif self._state == "reasoning":
            self._reasoning.add(text)
        elif self._state == "header":
            line, separator, below = text.partition("\n")
            self._header += line
            if separator or len(self._header) > _LONGEST_ROLE:
                self._end_header()
                self._add(below)

    # ---- Marks -------------------------------------------------------------------------------------------------------

    def _apply(self, mark: _Mark, after: str) -> None:
        """Process a mark that is followed by the characters in `after`."""
        if self._state == "answer":
            if self._is_content(mark, after):
                self._mentions = max(0, self._mentions + _DEPTHS.get(mark.kind, 0))
                self._add(mark.text)
            else:
                self._apply_to_answer(mark)
                self._answer.is_after_mark = True
        elif self._state == "reasoning":
            self._apply_to_reasoning(mark, after)
        elif mark.kind == "header":
            self._header, self._state = "", "header"
        elif self._state == "header":
            if mark.kind != "blank":  # such as the format of the answer
                self._end_header()
            if mark.kind not in ("blank", "header_end"):
                self._apply(mark, after)
        elif mark.kind == "final":
            self._begin_final()
        elif mark.kind == "assistant" and not self._answer.has_text:
            self._state = "answer"

    def _apply_to_answer(self, mark: _Mark) -> None:
        kind, has_text = mark.kind, self._answer.has_text
        if kind == "open" or (kind == "unknown" and not has_text):
            self._begin_reasoning(mark)
        elif kind == "close":
            self._drop_opening()
        elif kind == "final":
            self._begin_final()
        elif kind == "header":
            self._state = "header"
        elif kind == "other" or (kind in ("end", "assistant") and has_text):
            self._state = "ignored"
        elif kind == "wrapper":
            self._has_wrapper = True

    def _apply_to_reasoning(self, mark: _Mark, after: str) -> None:
        kind, reasoning = mark.kind, self._reasoning
        if reasoning.last == "`" == after[:1]:
            self._add(mark.text)
        elif kind in ("header", "assistant", "final", "other", "end"):
            self._end_reasoning()
            if kind != "end":
                self._apply(mark, after)
            elif self._answer.has_text:
                self._state = "ignored"
        elif kind == "open":
            self._add(mark.text)
            reasoning.depth += 1
        elif kind == "wrapper" and mark.family != "wrapper":
            self._close_reasoning()
            self._has_wrapper = True
        elif kind == "wrapper":
            reasoning.tail = reasoning.tail if "/" in mark.text else []
        elif reasoning.is_closed_by(mark):
            reasoning.depth -= 1
            reasoning.tail = []
            if not reasoning.depth:
                self._close_reasoning()
        else:
            self._add(mark.text)

    def _is_content(self, mark: _Mark, after: str) -> bool:
        """Return whether a mark is a part of the answer's text."""
        answer = self._answer
        if answer.is_code or (mark.family == "details" and mark.kind == "close"):
            return True
        if mark.family == "wrapper" and answer.has_text:
            return not (self._has_wrapper and "/" in mark.text)
        if mark.family == "special" and answer.has_text:  # also a tag of HTML
            return bool(after.strip())
        if mark.text == "analysis":
            return answer.has_text
        character = after[:1]
        if answer.last in _QUOTES:
            return character in _CLOSING_QUOTES
        if mark.kind == "close" and self._mentions and answer.last not in ("\n", ""):
            return character != "\n"
        if answer.is_after_bullet and (character == ":" or after == " |"):
            return True
        if not (answer.is_after_word or answer.is_after_bullet):
            return False
        if character in _PUNCTUATION or (mark.kind == "header" and answer.is_after_word):
            return True
        is_between_words = len(after) == _LOOK_AHEAD and after[0] == " " and (after[1].islower() or after[1].isdigit())
        return is_between_words and mark.kind != "close"

    def _begin_reasoning(self, mark: _Mark) -> None:
        # The token alone is dropped if an unknown control token does not begin reasoning.
        text = "" if mark.kind == "unknown" else mark.text
        is_certain = mark.kind == "open" and self._answer.is_at_sentence_start
        self._state, self._reasoning = "reasoning", _Reasoning(mark.family, None if is_certain else text)

    def _close_reasoning(self) -> None:
        self.has_reasoning = self.has_reasoning or self._reasoning.has_text
        self._state = "answer"

    def _end_reasoning(self, *, is_cut: bool = False) -> None:
        """End reasoning that was not closed, and keep the text after a mark that may have closed it."""
        text = None if is_cut else self._reasoning.text_to_keep()
        self.has_reasoning = self.has_reasoning or text is None
        self._state = "answer"
        self._add(text or "")

    def _drop_opening(self) -> None:
        """Remove the text before a mark that ends reasoning without a mark at its beginning."""
        if not self._is_keeping_back:
            self.has_shown_reasoning = self.has_shown_reasoning or self._answer.has_text
        else:
            if self.has_reasoning:  # a mark too many may follow the answer
                self._dropped = self._pieces
            self.has_reasoning = self.has_reasoning or self._answer.has_text
            self._pieces, self._answer = [], _Layout()

    def _begin_final(self) -> None:
        self._drop_opening()
        self._state = "answer"

    def _end_header(self) -> None:
        """Begin the message with the role or the channel in the header."""
        header, self._header = self._header, ""
        match = _NAMED_ROLE.match(header)
        end = match.end() if match is not None and len(header) > _LONGEST_ROLE else len(header)
        role, below = header[:end], header[end:]
        if _REASONING_ROLE.search(role):
            self._state, self._reasoning = "reasoning", _Reasoning("header")
        elif _FINAL_ROLE.search(role):
            self._begin_final()
        else:
            self._state = "ignored" if self._answer.has_text or _OTHER_ROLE.search(role) else "answer"
        self._add(below)


def _end_before_mark(text: str, start: int) -> int:
    """Return the offset from which the end of a text may be the beginning of a mark, or the length of the text."""
    start = max(start, len(text) - _LONGEST)
    match = _BEGINNING_OF_MARK.search(text, start)
    end = len(text) if match is None else match.start()
    for size in range(min(len(text) - start, _LONGEST_GLUED), 0, -1):
        if any(word.startswith(text[-size:].lower()) for word in _GLUED):
            return min(end, len(text) - size)
    return end


class _Reasoning:
    """Reasoning that is being read.

    Args:
        family: Family of the mark at its beginning.
        mark: Text to keep in front if the reasoning is never closed; None if it is reasoning in any case.

    Attributes:
        depth: Number of marks that have not been closed.
        last: The last character.
        has_text: Whether the reasoning contains more than white space.
        tail: Text since the last mark that may have closed the reasoning, or None.
    """

    def __init__(self, family: str, mark: str | None = None) -> None:
        self.depth = 1
        self.last = ""
        self.has_text = False
        self.tail: list[str] | None = None
        self._family = family
        self._whole = None if mark is None else [mark]

    def add(self, text: str) -> None:
        """Add text, and remember it if it may turn out to be a part of the answer."""
        self.last = text[-1:] or self.last
        self.has_text = self.has_text or bool(text.strip())
        for texts in (self._whole, self.tail):
            if texts is not None:
                texts.append(text)

    def is_closed_by(self, mark: _Mark) -> bool:
        """Return whether a mark may close this reasoning."""
        if mark.kind == "unknown":
            return self._family in ("control", "suffixed")
        return mark.kind == "close" and (mark.family == "details") == (self._family == "details")

    def text_to_keep(self) -> str | None:
        """Return the text that is not reasoning after all, or None."""
        if self.tail is not None:
            return "".join(self.tail)
        return "".join(self._whole) if self._whole is not None and self.has_text else None


class _Layout:
    """The end of the answer so far, as far as it determines the meaning of the next mark.

    Attributes:
        length: Number of characters.
        has_text: Whether the answer contains more than white space.
        last: The last character.
        is_after_mark: Whether the next text follows a mark.
    """

    def __init__(self) -> None:
        self.length = 0
        self.has_text = self.is_after_mark = False
        self.last = self._before_last = ""
        self._last_sign = ""
        self._line = ""  # its first characters
        self._backticks = 0
        self._is_fenced = False

    def add(self, text: str) -> str:
        """Add text to the answer, without the white space that a mark leaves behind, and return what was added."""
        if not self.has_text:
            text = text.lstrip()
        elif self.is_after_mark and self.last in " \t":
            text = text.lstrip(" \t")
        if not text:
            return ""
        first, *lines = text.split("\n")
        self._extend(first)
        for line in lines:
            self._is_fenced ^= self._line.startswith(("```", "~~~"))
            self._line, self._backticks = "", 0
            self._extend(line)
        self._before_last, self.last = (self.last + text)[-2:-1], text[-1]
        self._last_sign = text.rstrip()[-1:] or self._last_sign
        self.has_text, self.is_after_mark = True, False
        self.length += len(text)
        return text

    def _extend(self, part: str) -> None:
        self._line = (self._line + part).lstrip()[:3]
        self._backticks += part.count("`")

    @property
    def is_code(self) -> bool:
        """Whether the answer ends within a code span or a code block."""
        return self._is_fenced or self._backticks % 2 == 1 or self._line == "~~~"

    @property
    def is_after_word(self) -> bool:
        """Whether the answer ends with a word and a space."""
        return self.last == " " and (self._before_last.isalnum() or self._before_last in ",;")

    @property
    def is_after_bullet(self) -> bool:
        """Whether the line so far is the mark of a list item, a quotation or a row of a table, and a space."""
        return self.last == " " and self._line.strip() in _BULLETS

    @property
    def is_at_sentence_start(self) -> bool:
        """Whether a sentence may begin at the end of the answer."""
        return not self.has_text or not self._line or self.is_after_mark or self._last_sign in _SENTENCE_END
