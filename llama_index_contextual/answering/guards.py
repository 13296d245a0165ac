"""Guards that mask personal data and sanitise Markdown before an answer is shown.

Masking replaces each character with exactly one character, so that offsets stay valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from html import unescape
from typing import TYPE_CHECKING, Any, Literal, get_args

from llama_index_contextual.errors import ConfigurationError, Remedy

if TYPE_CHECKING:
    from markdown_it.token import Token


# ---- Personal data ---------------------------------------------------------------------------------------------------

PersonalData = Literal["email", "iban", "card", "ssn", "phone"]

KINDS: tuple[PersonalData, ...] = get_args(PersonalData)
MASK = "•"

# Match only from the beginning of a name: matching from every letter takes quadratic time in a long word without "@".
_EMAIL = re.compile(r"(?<![\w.!#$%&'*+/=?^`{|}~-])[\w.!#$%&'*+/=?^`{|}~-]++@[\w-]+(?:\.[\w-]+)+")
_CARD = re.compile(r"(?<![\w.,])\d(?:[ -]?\d){12,18}(?![\w])")
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)")
_SSN = re.compile(r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])")


def mask_personal_data(text: str, *, kinds: Collection[PersonalData] = KINDS, region: str = "US") -> str:
    """Mask the personal data in a text.

    Letters and digits become "•"; other characters are kept, so that the text keeps its length and layout.

    Args:
        text: The text to mask.
        kinds: Kinds of data to mask: email addresses; phone numbers; payment card numbers with a valid check digit
            (Luhn); IBANs with valid check digits (ISO 13616); US social security numbers.
        region: ISO 3166 code of the country to assume for phone numbers without a country code.

    Raises:
        ConfigurationError: `kinds` contains phone numbers, but the package needed to find them is not installed.

    Example:
        >>> mask_personal_data("Write to ann@example.org, not to 4111 1111 1111 1112.")
        'Write to •••@•••••••.•••, not to 4111 1111 1111 1112.'
    """
    for kind in KINDS:
        pieces, at = [], 0
        for start, end in _spans(kind, text, region) if kind in kinds else ():
            pieces += [text[at:start], re.sub(r"\w", MASK, text[start:end])]
            at = end
        text = "".join((*pieces, text[at:]))
    return text


def _is_card(text: str) -> bool:
    """Return whether the check digit of a card number is valid (Luhn, ISO/IEC 7812-1)."""
    digits = [int(sign) for sign in text if sign.isdigit()]
    luhn_digits = [digit if at % 2 == 0 else 2 * digit - 9 * (digit > 4) for at, digit in enumerate(reversed(digits))]
    return len(set(digits)) > 1 and sum(luhn_digits) % 10 == 0


def _is_iban(text: str) -> bool:
    """Return whether the check digits of an IBAN are valid (ISO 7064, MOD 97-10)."""
    plain = text.replace(" ", "")
    return 15 <= len(plain) <= 34 and int("".join(str(int(sign, 36)) for sign in plain[4:] + plain[:4])) % 97 == 1


_PATTERNS: Mapping[PersonalData, tuple[re.Pattern[str], Callable[[str], bool]]] = {
    "email": (_EMAIL, bool),
    "iban": (_IBAN, _is_iban),
    "card": (_CARD, _is_card),
    "ssn": (_SSN, bool),
}


def _spans(kind: PersonalData, text: str, region: str) -> list[tuple[int, int]]:
    if kind != "phone":
        pattern, is_valid = _PATTERNS[kind]
        return [match.span() for match in pattern.finditer(text) if is_valid(match[0])]
    try:
        from phonenumbers import PhoneNumberMatcher
    except ImportError as error:
        raise ConfigurationError(
            "Masking phone numbers needs another package: pip install 'llama-index-contextual[answering]'",
            setting="kinds",
            remedy=Remedy("or remove 'phone' from `kinds`", "or ask without --guard"),
        ) from error
    return [(match.start, match.end) for match in PhoneNumberMatcher(text, region)]


# ---- Markdown --------------------------------------------------------------------------------------------------------

SCHEMES = frozenset({"http", "https", "mailto", "tel"})
"""Permitted URL schemes for links; links within the document are also permitted."""

_LONGEST_SPAN = 2_000  # characters of a code span
# A fence without indentation cannot belong to a list, and a code span on one line cannot extend into another block.
_CODE = re.compile(
    r"^(?P<fence>`{3,}+(?=[^`\n]*$)|~{3,}+)[^\n]*\n.*?(?:^ {0,3}(?P=fence)[`~]*[ \t]*$|\Z)"
    rf"|(?<![\\`])(?P<ticks>`++)[^\n]{{1,{_LONGEST_SPAN}}}?(?<!`)(?P=ticks)(?!`)",
    re.MULTILINE | re.DOTALL,
)
_TAG_START = re.compile(r"<(?=[A-Za-z/!?])(?!(?:https?://|mailto:)[^<>\s]*>)")
_PLACE = r"(?P<place><[^<>\n]*+>|(?:[^()\s]++|\((?:[^()\s]++|\([^()\s]*+\))*+\))*+)"
_LINK = re.compile(rf"!?\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\(\s*+{_PLACE}[^()]*+\)")
_OPEN_LINK = re.compile(r"(\]\(\s*<?)([^\s<>)]*)")
_DEFINITION = re.compile(r"^([ ]{0,3}\[[^\]\n]+\]:[ \t]*+(?:\n[ \t]*+)?)(<[^<>\n]*>|\S+)[^\n]*$", re.MULTILINE)
_MAX_ENCODINGS = 5  # how often a character reference in a link may be encoded
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def sanitise(text: str) -> str:
    """Escape HTML in a Markdown text and remove links to scripts or data.

    Code is left unchanged because Markdown renderers display it literally.

    Example:
        >>> sanitise('> 1 < 2 & **so** <script>bad()</script> `<b>` [here](javascript:bad(1))')
        '> 1 < 2 & **so** &lt;script>bad()&lt;/script> `<b>` here'
    """
    result, at = "", 0
    for code in _CODE.finditer(text):
        result += _escape(text[at : code.start()]) + code[0]
        at = code.end()
    result += _escape(text[at:])
    if _is_harmless(result):
        return result
    # The patterns mistook other text for code or a link, so escape everything.
    return text.replace("<", "&lt;").replace("](", "] (").replace("]:", "] :")


def _escape(text: str) -> str:
    text = _LINK.sub(lambda link: link[0] if is_safe(link["place"]) else link["text"], text)
    text = _OPEN_LINK.sub(lambda link: link[0] if is_safe(link[2]) else f"{link[1]}#", text)
    text = _DEFINITION.sub(lambda link: link[0] if is_safe(link[2]) else "", text)
    return _TAG_START.sub("&lt;", text)


def _is_harmless(text: str) -> bool:
    """Return whether a Markdown parser finds no HTML and no unsafe links in a text."""
    tokens, targets = _parse(text)  # also checks unused link definitions, because a later paragraph may refer to them
    targets += [str(token.attrs.get(name, "")) for token in tokens for name in ("href", "src")]
    return all(map(is_safe, targets)) and not any(token.type in ("html_block", "html_inline") for token in tokens)


def _parse(text: str) -> tuple[list[Token], list[str]]:
    """Return the block and inline tokens of a Markdown text, and the targets of its link definitions."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": True})
    parser.validateLink = lambda url: True  # type: ignore[method-assign]  # otherwise unsafe links are not parsed
    environment: dict[str, Any] = {}
    blocks = parser.parse(text, environment)
    tokens = [token for block in blocks for token in (block, *(block.children or ()))]
    return tokens, [str(definition["href"]) for definition in environment.get("references", {}).values()]


def is_closed(text: str) -> bool:
    """Return whether text added after a blank line would start a paragraph instead of continuing a code block.

    Example:
        >>> is_closed("It stops.\\n\\n```\\nstop()\\n```"), is_closed("It stops.\\n\\n```\\nstop()")
        (True, False)
    """
    tokens, _ = _parse(f"{text}\n\nnext")
    return [token.type for token in tokens[-4:]] == ["paragraph_open", "inline", "text", "paragraph_close"]


def is_safe(target: str) -> bool:
    """Return whether a link target is a web address, an email address, a phone number, or a place within the document.

    Example:
        >>> [is_safe(target) for target in ("https://a.org", "#part", "java&#115;cript:x", "data:text/html,x")]
        [True, True, False, False]
    """
    plain = target.strip("<>")
    for _ in range(_MAX_ENCODINGS):
        if (unescaped := unescape(plain).replace("\\", "")) == plain:
            break
        plain = unescaped
    else:
        return False
    scheme = _SCHEME.match("".join(sign for sign in plain if sign.isprintable() and not sign.isspace()))
    return scheme is None or scheme[1].lower() in SCHEMES


# ---- Guards ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Guards:
    """Guards applied to every answer before it is shown, checked or cached.

    Attributes:
        sanitise: Whether to escape HTML and remove unsafe links.
        mask: Kinds of personal data to mask; empty for none.
        region: Country to assume for phone numbers without a country code.
    """

    sanitise: bool = True
    mask: Collection[PersonalData] = KINDS
    region: str = "US"

    def clean(self, text: str) -> str:
        """Mask and sanitise an answer, or complete blocks of an answer."""
        return self.hide(sanitise(text) if self.sanitise else text)

    def hide(self, text: str) -> str:
        """Mask the personal data in a text, without changing its length."""
        return mask_personal_data(text, kinds=self.mask, region=self.region)


def guards_of(option: Guards | bool | None) -> Guards | None:
    """Return the guards selected by an option, or None to leave answers unchanged.

    Args:
        option: The guards, True for all guards, or False for no guards. With None, HTML is escaped and unsafe links are
            removed, but nothing is masked.

    Raises:
        ConfigurationError: The option has an invalid type.
    """
    if not isinstance(option, Guards | bool | None):
        raise ConfigurationError(f"guards={option!r} is invalid: pass True, False or a Guards.", setting="guards")
    if isinstance(option, bool):
        return Guards() if option else None
    return option or Guards(mask=())
