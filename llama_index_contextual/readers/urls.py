"""URLs of files and pages: how they are checked and shown, and the properties of the files at them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from llama_index_contextual._utils.redaction import scrub, watch
from llama_index_contextual.errors import InputError
from llama_index_contextual.readers.files import one_line, printable

WEB = ("http", "https")
BLOCK = 1 << 20
"""Number of bytes that are read at a time."""
_LOCAL = ("file", "local")
_MAX_URL = 4_000
_SECRET_PART = re.compile(r"(?i)token|secret|passw|pwd|api[-_]?key|signature|credential")
_SECRET_NAMES = frozenset({"sig", "sas", "key", "auth", "authorization"})
_UNSAFE_ON_WINDOWS = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
_RESERVED_ON_WINDOWS = re.compile(r"(?i)(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?")
_TAGS = ("ETag", "etag", "e_tag", "VersionId", "version_id", "generation", "md5Hash", "content_md5", "Content-MD5")
_TIMES = ("LastModified", "last_modified", "Last-Modified", "modified", "mtime", "updated")


class RemoteError(OSError):
    """A source cannot be reached, or refuses a request; its files may still exist.

    Attributes:
        reason: The reason, without credentials, as the end of a sentence about the URL.
        is_transient: Whether the same request may succeed a little later.
    """

    def __init__(self, reason: str, *, is_transient: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.is_transient = reason, is_transient


# ---- URLs ------------------------------------------------------------------------------------------------------------


def checked_url(url: str) -> str:
    """Return a URL in the form in which it is stored: without a fragment or a final slash.

    Raises:
        InputError: The URL contains a password or a key, names a local file, or is not a URL.

    Example:
        >>> checked_url("S3://reports/2024/"), checked_url("https://Example.org#top")
        ('s3://reports/2024', 'https://example.org/')
    """
    if len(url) > _MAX_URL:
        raise InputError(f"A URL has {len(url):,} characters: use one of at most {_MAX_URL:,}.")
    protocol, _, rest = url.partition("://")
    protocol = protocol.lower()
    shown = printable(without_secrets(url))
    if not url.isprintable():
        raise InputError(f"The URL {shown} contains a control character or an invisible character: remove it.")
    if protocol in _LOCAL or "::" in url.partition("?")[0].partition("[")[0]:
        problem = "names a local file: pass its path" if protocol in _LOCAL else "combines protocols: name one of them"
        raise InputError(f"The URL {shown} {problem}.")
    secret = "a name or password before the @" if "@" in rest.partition("/")[0] else None
    if protocol in WEB:
        names = (name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True))
        secret = secret or next((f"the key {name!r}" for name in names if _is_secret(name)), None)
    if secret is not None:
        raise InputError(
            f"The URL {shown} contains {secret}, which would be stored with the document: remove it, and put it into"
            f" fsspec's configuration, for example the environment variable FSSPEC_{protocol.upper()} or"
            f" ~/.config/fsspec/conf.json."
        )
    if protocol not in WEB:
        return f"{protocol}://{rest.rstrip('/')}"
    parts = urlsplit(url)
    if not parts.hostname:
        raise InputError(f"The URL {shown} has no host: write https://HOST/PATH.")
    return parts._replace(scheme=protocol, netloc=parts.netloc.lower(), path=parts.path or "/", fragment="").geturl()


def _is_secret(name: str) -> bool:
    """Return whether a key in the query of a URL may stand for a secret."""
    return name.lower() in _SECRET_NAMES or _SECRET_PART.search(name) is not None


def without_secrets(text: str) -> str:
    """Return a text without the keys in use, and without names, passwords and queries in URLs.

    Example:
        >>> without_secrets("GET https://me:pw@example.org/a?sig=1 failed")
        'GET https://…@example.org/a?… failed'
    """
    return re.sub(r"\S+", lambda match: "://".join(_masked(match[0].split("://"))), scrub(text))


def _masked(parts: Sequence[str]) -> Iterator[str]:
    """Yield the parts of a word that are separated by "://", without what may be secret."""
    yield parts[0]
    for part in parts[1:]:
        address, question, _ = part.partition("?")
        host, slash, path = address.partition("/")
        _, at, name = host.rpartition("@")
        yield f"{'…@' if at else ''}{name}{slash}{path}{'?…' if question else ''}"


def watch_secrets(options: Mapping[str, Any]) -> None:
    """Keep the credentials in the options of a driver out of messages and logs."""
    auth = options.get("auth")
    password = auth[-1] if isinstance(auth, list | tuple) and auth else auth
    watch({"options": options, "password": password, "secret token": options.get("token")})


def safe_name(name: str) -> str:
    """Return a name that is also a valid file name on Windows.

    Example:
        >>> safe_name("a:b?.md"), safe_name("con.txt"), safe_name("end.")
        ('a_b_.md', '_con.txt', 'end_')
    """
    name = printable(_UNSAFE_ON_WINDOWS.sub("_", name)).replace("\\", "_")
    name = f"{name[:-1]}_" if name.endswith((".", " ")) else name
    return f"_{name}" if not name or _RESERVED_ON_WINDOWS.fullmatch(name) else name


def fingerprint_of(info: Mapping[str, Any]) -> str:
    """Return a text that changes with the content of a file, or "" if its source provides none.

    Args:
        info: Properties of the file, as fsspec's drivers name them, or the headers of a response.

    Example:
        >>> fingerprint_of({"ETag": '"abc"', "size": 3}), fingerprint_of({"size": 3, "mtime": 5})
        ('"abc"', '[3, "5"]')
        >>> fingerprint_of({"ETag": 'W/"abc"', "size": 3}), fingerprint_of({"size": 3})
        ('', '')
    """
    tag = next((str(info[name]) for name in _TAGS if info.get(name)), "")
    if tag and not tag.startswith("W/"):  # files with the same weak tag may have different bytes
        return tag
    changed = next((str(info[name]) for name in _TIMES if info.get(name)), "")
    return json.dumps([info.get("size"), *filter(None, [changed, tag])]) if changed else ""


@dataclass(frozen=True)
class Entry:
    """A file at a URL.

    Attributes:
        url: The URL.
        names: The path of the file below the URL that was searched; empty if it is this URL.
        name: Name of the file, with an extension.
        size: Size in bytes, or None if the source does not say.
        fingerprint: See `fingerprint_of`.
        problem: Reason why the file is not read, or None.
    """

    url: str
    names: tuple[str, ...]
    name: str
    size: int | None = None
    fingerprint: str = ""
    problem: str | None = None


def described(error: BaseException) -> str:
    """Return the kind of an error and the beginning of its message, without credentials."""
    return f"{type(error).__name__}: {one_line(without_secrets(str(error)[:2_000]))}".rstrip(": ")


def split_url(url: str) -> tuple[str, list[str]]:
    """Split a URL into the folder to search and the components of its glob; a web address has no glob.

    Example:
        >>> split_url("s3://reports/2024/**/*.pdf"), split_url("https://example.org/a*b")
        (('s3://reports/2024', ['**', '*.pdf']), ('https://example.org/a*b', []))
    """
    protocol, _, rest = url.partition("://")
    parts = rest.split("/")
    fixed = next((at for at, part in enumerate(parts) if set(part) & set("*?[")), len(parts))
    if protocol in WEB or fixed == len(parts):
        return url, []
    return f"{protocol}://{'/'.join(parts[:fixed])}", parts[fixed:]
