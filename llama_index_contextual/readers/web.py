"""Files and pages of web servers, which are read with httpx.

Servers at internal addresses are not asked unless this is allowed: a page could otherwise send requests to services of
the local network. The addresses are checked before each request, after each redirect, and on the connection.
"""

from __future__ import annotations

import contextlib
import ipaddress
import mimetypes
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.files import SUFFIXES, printable
from llama_index_contextual.readers.urls import (
    BLOCK,
    Entry,
    RemoteError,
    described,
    fingerprint_of,
    safe_name,
    watch_secrets,
)

MAX_PAGE_BYTES = 20_000_000
"""Maximum size of a web page, in bytes."""

_MAX_REDIRECTS = 5
_TEMPORARY = frozenset({408, 425, 429, *range(500, 600)})
_SILENCE = 30.0  # seconds without a byte after which a web server is given up


class WebDriver:
    """Driver for files and pages of web servers.

    Args:
        allow_private: Whether servers at loopback, private and other internal addresses may be asked.
    """

    def __init__(self, *, allow_private: bool) -> None:
        import fsspec.config

        options = {**fsspec.config.conf.get("http", {}), **fsspec.config.conf.get("https", {})}
        watch_secrets(options)
        client = options.get("client_kwargs", {})
        auth = client.get("auth")
        self._headers = {**client.get("headers", {}), **options.get("headers", {})}
        self._auth = tuple(auth) if isinstance(auth, list) else auth
        self._allow_private = allow_private
        self._client = httpx.Client(timeout=_SILENCE, headers={"Accept-Encoding": "identity"})

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def entries(self, url: str) -> list[Entry]:
        """Return the file or page at a URL."""
        return [self.entry(url)]

    def entry(self, url: str) -> Entry:
        """Return the file or page at a URL."""
        with self._response(url) as response:
            return _page(url, response)

    def read(self, url: str, write: Callable[[bytes], None]) -> str:
        """Download a file or page; the fingerprint comes from the same response."""
        with self._response(url) as response:
            page = _page(url, response)
            total, most = 0, MAX_PAGE_BYTES if Path(page.name).suffix.lower() in (".html", ".htm") else None
            try:
                for block in response.iter_bytes(BLOCK):
                    total += len(block)
                    if most is not None and total > most:
                        raise ReadError(printable(url), f"is a page of more than {most:,} bytes: save it as a file")
                    write(block)
            except (httpx.HTTPError, httpx.StreamError) as error:
                raise RemoteError(f"cannot be read completely ({described(error)})") from None
            return page.fingerprint

    @contextlib.contextmanager
    def _response(self, url: str) -> Iterator[httpx.Response]:
        """Yield the response of a server, after redirects; each server on the way is checked."""
        host, target = urlsplit(url).hostname, httpx.URL(url)
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                is_proxied = self._require_public(target)
                is_first = target.host == host  # others do not receive the configured credentials
                request = self._client.build_request("GET", target, headers=self._headers if is_first else None)
                response = self._client.send(request, stream=True, auth=self._auth if is_first else None)
                with contextlib.closing(response):
                    if not is_proxied:
                        self._require_public_peer(response)
                    if response.next_request is not None:
                        target = response.next_request.url
                        continue
                    if response.status_code in (404, 410):
                        raise FileNotFoundError(url)
                    if response.status_code != 200:
                        is_transient = response.status_code in _TEMPORARY
                        answer = f"{response.status_code} {response.reason_phrase}".strip()
                        raise RemoteError(f"is refused by its server ({answer})", is_transient=is_transient)
                    yield response
                    return
            raise RemoteError(f"is redirected more than {_MAX_REDIRECTS} times", is_transient=False)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise RemoteError(f"cannot be reached ({described(error)})") from None

    def _require_public(self, url: httpx.URL) -> bool:
        """Check the addresses of a server before it is asked, and return whether a proxy is asked instead."""
        proxies = urllib.request.getproxies()
        is_proxied = bool(proxies.get(url.scheme) or proxies.get("all")) and not urllib.request.proxy_bypass(url.host)
        try:
            found = socket.getaddrinfo(url.host, url.port or url.scheme, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            if is_proxied:
                return True
            raise RemoteError(f"cannot be reached (the host {url.host!r} is unknown)") from error
        for address in found:
            self._require_public_address(str(address[4][0]))
        return is_proxied

    def _require_public_peer(self, response: httpx.Response) -> None:
        """Check the address that was connected to: the name may have had another one when it was checked."""
        stream = response.extensions.get("network_stream")
        peer = None if stream is None else stream.get_extra_info("server_addr")
        if peer is not None:
            self._require_public_address(str(peer[0]))

    def _require_public_address(self, address: str) -> None:
        if not self._allow_private and not is_public(address):
            raise RemoteError(
                f"is at the internal address {address}, which is not asked: if it can be trusted, set"
                f" allow_private_addresses=true in the settings of the project",
                is_transient=False,
            )


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the public internet.

    Example:
        >>> [is_public(one) for one in ("93.184.215.14", "10.0.0.1", "::ffff:127.0.0.1", "169.254.169.254")]
        [True, False, False, False]
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = (
            ip.ipv4_mapped or ip.sixtofour or (ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if _is_nat64(ip) else None)
        )
        ip = inner or ip
    return ip.is_global and not ip.is_multicast


def _is_nat64(ip: ipaddress.IPv6Address) -> bool:
    return int(ip) >> 32 == int(ipaddress.IPv6Address("64:ff9b::")) >> 32


def _page(url: str, response: httpx.Response) -> Entry:
    """Return the entry of a file or page; its type follows from its name, else from the header of the response."""
    parts, headers = urlsplit(url), response.headers
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    name = unquote(parts.path).rstrip("/").rpartition("/")[2] or parts.hostname or ""
    stem, suffix = (name[: -len(Path(name).suffix)] or name, Path(name).suffix) if Path(name).suffix else (name, "")
    if not parts.path.strip("/") or suffix.lower() not in SUFFIXES:
        stem, suffix = name, ".html" if kind in ("text/html", "application/xhtml+xml") else _suffix_of(kind)
    if parts.query:
        stem = f"{stem} ({unquote(parts.query)})"
    size = headers.get("Content-Length", "")
    info = {**{name: headers.get(name) for name in ("ETag", "Content-MD5", "Last-Modified")}, "size": size}
    has_type = bool(suffix) or "." in name
    problem = None if has_type else f"has the type {kind or 'unknown'} and is not read: save it as PDF, HTML or text"
    return Entry(
        url,
        (),
        safe_name(f"{stem}{suffix}"),
        size=int(size) if size.isascii() and size.isdigit() else None,
        fingerprint=fingerprint_of(info),
        problem=problem,
    )


def _suffix_of(kind: str) -> str:
    """Return the extension of files of a media type, or "" if such files are not read."""
    if kind == "text/plain":
        return ".txt"
    if kind == "text/markdown":
        return ".md"
    return next((suffix for suffix in mimetypes.guess_all_extensions(kind) if suffix in SUFFIXES), "")
