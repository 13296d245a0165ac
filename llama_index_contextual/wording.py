"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number of things in words.

    Args:
        number: How many there are.
        noun: What one of them is called; its plural ends with an "s".

    Example:
        >>> counted(1, "chunk"), counted(0, "chunk"), counted(1_234, "paid context")
        ('1 chunk', '0 chunks', '1,234 paid contexts')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
