"""Guards: mask personal data and sanitise Markdown before an answer is shown.

Masking replaces each character by exactly one other, so that offsets stay valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from html import unescape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, get_args

from llama_index_contextual.errors import ConfigurationError, Remedy

if TYPE_CHECKING:
    from markdown_it.token import Token


# ---- Personal data ---------------------------------------------------------------------------------------------------

PersonalData = Literal["email", "phone", "card", "iban", "ssn"]

KINDS: tuple[PersonalData, ...] = get_args(PersonalData)
MASK = "•"

# Match only from the beginning of a name: starting at every letter would take quadratic time in a long word without @.
_EMAIL = re.compile(r"(?<![\w.!#$%&'*+/=?^`{|}~-])[\w.!#$%&'*+/=?^`{|}~-]++@[\w-]+(?:\.[\w-]+)+")
_CARD = re.compile(r"(?<![\w.,])\d(?:[ -]?\d){12,18}(?![\w])")
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)")
_SSN = re.compile(r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])")


def mask_personal_data(
    text: str, *, kinds: Collection[PersonalData] = KINDS, region: str = "US"
) -> tuple[str, tuple[PersonalData, ...]]:
    """Mask the personal data in a text; return the result and the kinds of data found.

    Letters and digits become "•"; other characters are kept, so that the text keeps its length and layout.

    Args:
        text: The text to mask.
        kinds: The data to mask: e-mail addresses; phone numbers; payment cards with a valid check digit (Luhn); IBANs
            with valid check digits (ISO 13616); social security numbers of the United States.
        region: ISO 3166 code of the country to assume for phone numbers without a country code.

    Raises:
        ConfigurationError: `kinds` contains phone numbers, but the package that finds them is not installed.

    Example:
        >>> mask_personal_data("Write to ann@example.org, not to 4111 1111 1111 1112.")
        ('Write to •••@•••••••.•••, not to 4111 1111 1111 1112.', ('email',))
    """
    finders: dict[PersonalData, Callable[[str], Iterator[tuple[int, int]]]] = {
        "email": lambda text: _spans(_EMAIL, text),
        "iban": lambda text: _spans(_IBAN, text, _is_iban),
        "card": lambda text: _spans(_CARD, text, _is_card),
        "ssn": lambda text: _spans(_SSN, text),
        "phone": lambda text: _phones(text, region),
    }
    present: list[PersonalData] = []
    for kind, find in finders.items():
        for start, end in list(find(text)) if kind in kinds else ():
            text = text[:start] + re.sub(r"\w", MASK, text[start:end]) + text[end:]
            present.append(kind)
    return text, tuple(dict.fromkeys(present))


def _spans(
    pattern: re.Pattern[str], text: str, is_valid: Callable[[str], bool] | None = None
) -> Iterator[tuple[int, int]]:
    for match in pattern.finditer(text):
        if is_valid is None or is_valid(match[0]):
            yield match.span()


def _is_card(text: str) -> bool:
    """Return whether the check digit is valid (Luhn, ISO/IEC 7812-1)."""
    digits = [int(sign) for sign in text if sign.isdigit()]
    doubled = [digit if at % 2 == 0 else 2 * digit - 9 * (digit > 4) for at, digit in enumerate(reversed(digits))]
    return len(set(digits)) > 1 and sum(doubled) % 10 == 0


def _is_iban(text: str) -> bool:
    """Return whether the check digits are valid (ISO 7064, MOD 97-10)."""
    plain = text.replace(" ", "")
    return 15 <= len(plain) <= 34 and int("".join(str(int(sign, 36)) for sign in plain[4:] + plain[:4])) % 97 == 1


def _phones(text: str, region: str) -> Iterator[tuple[int, int]]:
    try:
        from phonenumbers import PhoneNumberMatcher
    except ImportError as error:
        raise ConfigurationError(
            "Masking phone numbers needs another package: pip install 'llama-index-contextual[answering]'",
            setting="kinds",
            remedy=Remedy("or remove 'phone' from `kinds`", "or ask without --guard"),
        ) from error
    for match in PhoneNumberMatcher(text, region):
        yield match.start, match.end


# ---- Markdown --------------------------------------------------------------------------------------------------------

SCHEMES = frozenset({"http", "https", "mailto", "tel"})
"""The schemes that a link may have; links within the document are allowed too."""

_TAGS = frozenset(
    {"a", "b", "blockquote", "br", "code", "del", "em", "hr", "i", "kbd", "li", "ol", "p", "pre", "s", "strong", "sub"}
    | {"sup", "table", "tbody", "td", "th", "thead", "tr", "u", "ul"}
)
_HIDDEN = {"<": "\ue000", ">": "\ue001", "&": "\ue002", "\xa0": "\ue003"}
_MARKUP = {hidden: sign for sign, hidden in _HIDDEN.items()}
_CODE_MARK = "\ue004"
# A fence without indentation is never part of a list, and a span on one line is never part of another block.
_CODE = re.compile(
    r"^(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})[^\n]*\n.*?(?:^ {0,3}(?P=fence)[`~]*[ \t]*$|\Z)"
    r"|(?<![\\`])(?P<ticks>`+)(?!`)[^\n]+?(?<!`)(?P=ticks)(?!`)",
    re.MULTILINE | re.DOTALL,
)
_TAG_START = re.compile(r"<[A-Za-z/!?]")
_ATTRIBUTE = r"\s+(?:href|hreflang|title|lang|align|char|charoff|colspan|rowspan|headers|scope|start|cite|datetime)"
_PLAIN_TAG = re.compile(rf"</?([A-Za-z0-9]+)(?:{_ATTRIBUTE}=\"[^\"<>]*\")*\s*/?>")
_HREF = re.compile(r"(?:href|cite)=\"([^\"]*)\"")
_AUTOLINK = re.compile(r"<((?:https?://|mailto:)[^<>\s]*)>", re.IGNORECASE)
_TAG = re.compile(r"<(?=[A-Za-z/!?])[^<>]*>?")
_PLACE = r"(?P<place><[^<>\n]*>|(?:[^()\s]|\((?:[^()\s]|\([^()\s]*\))*\))*)"
_LINK = re.compile(rf"!?\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\(\s*{_PLACE}[^()]*\)")
_OPEN_LINK = re.compile(r"(\]\(\s*<?)([^\s<>)]*)")
_DEFINITION = re.compile(r"^([ ]{0,3}\[[^\]\n]+\]:[ \t]*\n?[ \t]*)(<[^<>\n]*>|\S+)[^\n]*$", re.MULTILINE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def sanitise(text: str, *, behind: str = "") -> str:
    """Return Markdown without active HTML and without links to scripts or data; formatting is kept.

    HTML for formatting is kept; scripts, styles, frames, forms and event handlers are removed. Code is left unchanged
    because Markdown renderers display it literally, unless harmful HTML before it could hide the delimiters of the
    code.

    Args:
        text: The Markdown.
        behind: The preceding text, which has already been shown.

    Raises:
        ConfigurationError: The package that sanitises HTML is not installed.

    Example:
        >>> sanitise('> 1 < 2 & **so** <b onclick="x()">on</b><script>bad()</script> [here](javascript:bad(1))')
        '> 1 < 2 & **so** <b>on</b> here'
    """
    text = text.translate({ord(hidden): None for hidden in (*_MARKUP, _CODE_MARK)})
    for attempt in (_clean_around_code, _clean_html, _clean_html, _escape):
        text = attempt(text)
        if _is_harmless(behind + text):
            break
    return text


def _clean_around_code(text: str) -> str:
    marked, codes, at = "", [], 0
    for code in _CODE.finditer(text):
        if not _is_plain(_AUTOLINK.sub("", text[at : code.start()])):
            break
        marked += text[at : code.start()] + _CODE_MARK
        codes.append(code[0])
        at = code.end()
    before, *rest = _clean_html(marked + text[at:]).split(_CODE_MARK)
    if len(rest) != len(codes):  # some code was inside HTML that was removed
        return text
    return before + "".join(code + after for code, after in zip(codes, rest, strict=True))


def _escape(text: str) -> str:
    """Escape all HTML and links, as a last resort if cleaning keeps producing new markup."""
    return text.replace("<", "&lt;").replace("](", "] (").replace("]:", "] :")


def _is_harmless(text: str) -> bool:
    """Return whether a Markdown parser finds neither active HTML nor unsafe links in a text."""
    if "<" not in text and "](" not in text and "]:" not in text:
        return True
    tokens, definitions = _parse(text)
    for token in tokens:
        if token.type in ("html_block", "html_inline") and not _is_plain(token.content):
            return False
        if not all(is_safe(str(token.attrs.get(name, ""))) for name in ("href", "src")):
            return False
    # Unused definitions count too: a later paragraph may refer to them.
    return all(is_safe(target) for target in definitions)


def _parse(text: str) -> tuple[list[Token], list[str]]:
    """Return the block and inline tokens of Markdown, and the targets of its link definitions."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": True})
    parser.validateLink = lambda url: True  # type: ignore[method-assign]  # otherwise unsafe links are not parsed
    environment: dict[str, Any] = {}
    blocks = parser.parse(text, environment)
    tokens = [token for block in blocks for token in (block, *(block.children or ()))]
    return tokens, [str(definition["href"]) for definition in environment.get("references", {}).values()]


def is_closed(text: str) -> bool:
    """Return whether a Markdown text leaves no code or HTML block open after a following blank line.

    Example:
        >>> is_closed("It stops.\\n\\n```\\nstop()\\n```"), is_closed("It stops.\\n\\n```\\nstop()")
        (True, False)
    """
    if not any(sign in text for sign in ("<", "```", "~~~")):
        return True
    tokens, _ = _parse(f"{text}\n\nnext")
    return [token.type for token in tokens[-4:]] == ["paragraph_open", "inline", "text", "paragraph_close"]


def _is_plain(html: str) -> bool:
    rest = _PLAIN_TAG.sub(lambda tag: "" if tag[1].lower() in _TAGS and _has_safe_href(tag[0]) else tag[0], html)
    return _TAG_START.search(rest) is None


def _has_safe_href(tag: str) -> bool:
    return all(is_safe(unescape(target)) for target in _HREF.findall(tag))


def _clean_html(text: str) -> str:
    try:
        import nh3
    except ImportError as error:
        raise ConfigurationError(
            "Sanitising answers needs another package: pip install 'llama-index-contextual[answering]'",
            setting="sanitise",
            remedy=Remedy("or set sanitise=False", "or ask with --no-guard"),
        ) from error
    text = _AUTOLINK.sub(lambda link: _hide(link[0]), text)
    parts, at = [], 0
    for tag in _TAG.finditer(text):
        parts += [_hide(text[at : tag.start()]), tag[0]]
        at = tag.end()
    cleaned = nh3.clean("".join([*parts, _hide(text[at:])]), tags=set(_TAGS), url_schemes=set(SCHEMES), link_rel=None)
    return _clean_links("".join(_MARKUP.get(sign, sign) for sign in cleaned))


def _hide(text: str) -> str:
    """Replace markup with private-use characters, which the HTML parser ignores."""
    return "".join(_HIDDEN.get(sign, sign) for sign in text)


def _clean_links(text: str) -> str:
    text = _LINK.sub(lambda link: link[0] if is_safe(link["place"]) else link["text"], text)
    text = _OPEN_LINK.sub(lambda link: link[0] if is_safe(link[2]) else f"{link[1]}#", text)
    return _DEFINITION.sub(lambda link: link[0] if is_safe(link[2]) else "", text)


def is_safe(target: str) -> bool:
    """Return whether a link points to a web, mail or phone address or to a place within the document.

    Example:
        >>> [is_safe(target) for target in ("https://a.org", "#part", "java&#115;cript:x", "data:text/html,x")]
        [True, True, False, False]
    """
    plain = target.strip("<>")
    while (decoded := unescape(plain).replace("\\", "")) != plain:
        plain = decoded
    scheme = _SCHEME.match("".join(sign for sign in plain if sign.isprintable() and not sign.isspace()))
    return scheme is None or scheme[1].lower() in SCHEMES


# ---- Both ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Guards:
    """Guards that clean every answer before it is shown, checked and cached.

    Attributes:
        sanitise: Whether to remove harmful HTML and links.
        mask: Kinds of personal data to mask; empty for none.
        region: Country to assume for phone numbers without a country code.
    """

    sanitise: bool = True
    mask: Collection[PersonalData] = KINDS
    region: str = "US"

    def clean(self, text: str, *, behind: str = "") -> str:
        """Return a cleaned answer, or a cleaned part of one; `behind` is the part that has already been shown."""
        return self.hide(sanitise(text, behind=behind) if self.sanitise else text)

    def hide(self, text: str) -> str:
        """Mask the personal data in a text; its length stays the same."""
        return mask_personal_data(text, kinds=self.mask, region=self.region)[0]


def guards_of(option: Guards | bool | None) -> Guards | None:
    """Return the guards that an option selects, or None to leave answers unchanged.

    Args:
        option: The guards, True for all of them, or False for none. None removes harmful HTML and links if the package
            for this (extra `answering`) is installed, and masks nothing.

    Raises:
        ConfigurationError: The option has an invalid type.
    """
    if isinstance(option, Guards):
        return option
    if option is None:
        return None if find_spec("nh3") is None else Guards(mask=())
    if not isinstance(option, bool):
        raise ConfigurationError(f"guards={option!r} is invalid: pass True, False or a Guards.", setting="guards")
    return Guards() if option else None
