"""Finds personal data in a text and hides it, character by character, so that every offset stays what it was."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Literal, get_args

from llama_index_contextual.errors import ConfigurationError

PersonalData = Literal["email", "phone", "card", "iban", "ssn"]

KINDS: tuple[PersonalData, ...] = get_args(PersonalData)
MASK = "•"

# From the beginning of a name only: tried from every letter, a long word without @ would take quadratic time.
_EMAIL = re.compile(r"(?<![\w.!#$%&'*+/=?^`{|}~-])[\w.!#$%&'*+/=?^`{|}~-]++@[\w-]+(?:\.[\w-]+)+")
_CARD = re.compile(r"(?<![\w.,])\d(?:[ -]?\d){12,18}(?![\w])")
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)")
_SSN = re.compile(r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])")


def mask_personal_data(
    text: str, *, kinds: Collection[PersonalData] = KINDS, region: str = "US"
) -> tuple[str, tuple[PersonalData, ...]]:
    """Return a text with its personal data hidden, and the kinds that it held.

    Letters and digits become "•"; what stands between them stays, so that the text keeps its length and form.

    Args:
        text: Any text.
        kinds: What to hide: e-mail addresses; phone numbers; payment cards with a right check digit (Luhn); IBANs with
            right check digits (ISO 13616); social security numbers of the United States.
        region: Country of phone numbers without a country code, as in ISO 3166.

    Raises:
        ConfigurationError: Phone numbers are to be hidden, and the package for it is not installed.

    Example:
        >>> mask_personal_data("Write to ann@example.org, not to 4111 1111 1111 1112.")
        ('Write to •••@•••••••.•••, not to 4111 1111 1111 1112.', ('email',))
    """
    finders: dict[PersonalData, Callable[[str], Iterator[tuple[int, int]]]] = {
        "email": lambda found: _spans(_EMAIL, found),
        "iban": lambda found: _spans(_IBAN, found, _is_iban),
        "card": lambda found: _spans(_CARD, found, _is_card),
        "ssn": lambda found: _spans(_SSN, found),
        "phone": lambda found: _phones(found, region),
    }
    held: list[PersonalData] = []
    for kind, find in finders.items():
        for start, end in list(find(text)) if kind in kinds else ():
            text = text[:start] + re.sub(r"\w", MASK, text[start:end]) + text[end:]
            held.append(kind)
    return text, tuple(dict.fromkeys(held))


def _spans(
    pattern: re.Pattern[str], text: str, is_valid: Callable[[str], bool] | None = None
) -> Iterator[tuple[int, int]]:
    for match in pattern.finditer(text):
        if is_valid is None or is_valid(match[0]):
            yield match.span()


def _is_card(written: str) -> bool:
    """Return whether the check digit is right (Luhn, ISO/IEC 7812-1)."""
    digits = [int(sign) for sign in written if sign.isdigit()]
    doubled = [digit if at % 2 == 0 else 2 * digit - 9 * (digit > 4) for at, digit in enumerate(reversed(digits))]
    return len(set(digits)) > 1 and sum(doubled) % 10 == 0


def _is_iban(written: str) -> bool:
    """Return whether the check digits are right (ISO 7064, MOD 97-10)."""
    plain = written.replace(" ", "")
    return 15 <= len(plain) <= 34 and int("".join(str(int(sign, 36)) for sign in plain[4:] + plain[:4])) % 97 == 1


def _phones(text: str, region: str) -> Iterator[tuple[int, int]]:
    try:
        from phonenumbers import PhoneNumberMatcher
    except ImportError as error:
        raise ConfigurationError(
            "Phone numbers cannot be found: pip install 'llama-index-contextual[answering]', or leave them out of"
            " `kinds`.",
            setting="kinds",
        ) from error
    for match in PhoneNumberMatcher(text, region):
        yield match.start, match.end
