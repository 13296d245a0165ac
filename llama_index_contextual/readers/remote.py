"""Files and pages at URLs: list them, recognise changes, and download them to scratch files.

An `http://` or `https://` URL names one file or page, which is read with httpx. The files at all other URLs are read
with the fsspec driver of their protocol, such as s3fs. Credentials and other settings come from fsspec's configuration
(environment variables and `conf.json`); a URL that contains a password is refused, because URLs are stored.

A file is known to be absent only if its server says so. Every other failure is a `RemoteError`, after which documents
are kept.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import mimetypes
import re
import socket
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx
import tenacity
import xxhash

from llama_index_contextual._utils.redaction import scrub, watch
from llama_index_contextual.errors import ConfigurationError, InputError, ReadError
from llama_index_contextual.index import files
from llama_index_contextual.readers.files import (
    MAX_DEPTH,
    SUFFIXES,
    FileRef,
    ReadLimits,
    SkippedFile,
    accepts_name,
    is_clutter,
    one_line,
    printable,
    size_reason,
    suffix_reason,
)

MAX_PAGE_BYTES = 20_000_000
"""Maximum size of a web page, in bytes."""

WEB = ("http", "https")
_LOCAL = ("file", "local")
_BLOCK = 1 << 20
_MAX_REDIRECTS = 5
_MAX_URL = 4_000
_PARALLEL = 8  # downloads at a time
_SILENCE = 30.0  # seconds without a byte after which a web server is given up
_SECRET_PART = re.compile(r"(?i)token|secret|passw|pwd|api[-_]?key|signature|credential")
_SECRET_NAMES = frozenset({"sig", "sas", "key", "auth", "authorization"})
_UNSAFE_ON_WINDOWS = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
_RESERVED_ON_WINDOWS = re.compile(r"(?i)(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?")
_TAGS = ("ETag", "etag", "e_tag", "VersionId", "version_id", "generation", "md5Hash", "content_md5", "Content-MD5")
_TIMES = ("LastModified", "last_modified", "Last-Modified", "modified", "mtime", "updated")
_TEMPORARY = frozenset({408, 425, 429, *range(500, 600)})
_PACKAGES = {"webdav4": "webdav4[fsspec]"}

Fetched = tuple[str, str]
"""Fingerprint of a file at a URL, and the xxh3 hash of the bytes that were downloaded with this fingerprint."""


class RemoteError(OSError):
    """A source cannot be reached, or refuses a request; its files may still exist.

    Attributes:
        reason: The reason, without credentials, as the end of a sentence about the URL.
        is_transient: Whether the same request may succeed a little later.
    """

    def __init__(self, reason: str, *, is_transient: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.is_transient = reason, is_transient


RETRYING = tenacity.Retrying(
    stop=tenacity.stop_after_attempt(4),
    wait=tenacity.wait_random_exponential(multiplier=0.5, max=8),
    retry=tenacity.retry_if_exception(lambda error: isinstance(error, RemoteError) and error.is_transient),
    reraise=True,
)
"""Policy for requests to a source: four attempts within about ten seconds."""


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


def _watch_secrets(options: Mapping[str, Any]) -> None:
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


class Driver(Protocol):
    """Access to the files of a protocol. All methods raise FileNotFoundError or RemoteError."""

    def entries(self, url: str) -> list[Entry]:
        """Return the file at a URL, or all files below it."""

    def entry(self, url: str) -> Entry:
        """Return the file at a URL."""

    def read(self, url: str, write: Callable[[bytes], None]) -> str:
        """Download a file and return the fingerprint of these bytes, or "" if it may belong to others."""


# ---- web pages -------------------------------------------------------------------------------------------------------


class WebDriver:
    """Driver for files and pages of web servers.

    Args:
        allow_private: Whether servers at loopback, private and other internal addresses may be asked.
    """

    def __init__(self, *, allow_private: bool) -> None:
        import fsspec.config

        options = {**fsspec.config.conf.get("http", {}), **fsspec.config.conf.get("https", {})}
        _watch_secrets(options)
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
                for block in response.iter_bytes(_BLOCK):
                    total += len(block)
                    if most is not None and total > most:
                        raise ReadError(printable(url), f"is a page of more than {most:,} bytes: save it as a file")
                    write(block)
            except (httpx.HTTPError, httpx.StreamError) as error:
                raise RemoteError(f"cannot be read completely ({_described(error)})") from None
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
            raise RemoteError(f"cannot be reached ({_described(error)})") from None

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


# ---- fsspec ----------------------------------------------------------------------------------------------------------


class FsspecDriver:
    """Driver for the files of an fsspec protocol.

    Args:
        protocol: Name of the protocol, such as "s3".

    Raises:
        ConfigurationError: The package of the driver is missing, the protocol is unknown, or a setting is missing.
    """

    def __init__(self, protocol: str) -> None:
        import fsspec
        import fsspec.config

        self._protocol = protocol
        try:
            options = dict(fsspec.config.conf.get(protocol, {}))
            _watch_secrets(options)
            if isinstance(options.get("auth"), list):  # JSON has no tuples, which httpx requires
                options["auth"] = tuple(options["auth"])
            kind = fsspec.get_filesystem_class(protocol)
            self._fs = kind(**options, skip_instance_cache=True)
        except ImportError as error:
            missing = getattr(error.__cause__ or error, "name", None) or protocol
            package = _PACKAGES.get(missing.partition(".")[0], missing.partition(".")[0])
            raise ConfigurationError(
                f'{protocol}:// needs the fsspec driver of this protocol: pip install "{package}"'
            ) from error
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{protocol}:// cannot be opened ({_described(error)}): check its settings in fsspec's configuration,"
                f" such as the environment variable FSSPEC_{protocol.upper()}"
                f"{'_BASE_URL' if protocol == 'webdav' else ''}, and the spelling of the protocol."
            ) from None

    def entries(self, url: str) -> list[Entry]:
        """Return the file at a URL, or all files below it; a folder that cannot be listed is an error."""
        with self._asking():
            self._fs.invalidate_cache()
            root = str(self._fs._strip_protocol(url))
            if root.strip("/") and (info := self._fs.info(root))["type"] != "directory":
                return [self._entry(url, (), info)]
            return list(self._below(url, root, ()))

    def _below(self, url: str, folder: str, above: tuple[str, ...]) -> Iterator[Entry]:
        prefix = folder.strip("/")
        for info in sorted(self._fs.ls(folder, detail=True), key=lambda info: str(info["name"])):
            path = str(info["name"]).strip("/")
            if path == prefix:  # the marker of an empty folder in an object store
                continue
            if prefix and not path.startswith(f"{prefix}/"):
                raise RemoteError(f"is listed in a form that is not understood ({printable(path)!r} in {prefix!r})")
            name = path[len(prefix) :].strip("/")
            names = (*above, name)
            if is_clutter(name):
                continue
            if problem := _hidden_or_deep(names):
                yield Entry(f"{url}/{'/'.join(names)}", names, name, problem=problem)
            elif info["type"] == "directory":
                yield from self._below(url, str(info["name"]), names)
            else:
                yield self._entry(f"{url}/{'/'.join(names)}", names, info)

    def entry(self, url: str) -> Entry:
        """Return the file at a URL."""
        with self._asking():
            self._fs.invalidate_cache()
            info = self._fs.info(str(self._fs._strip_protocol(url)))
            if info["type"] == "directory":
                raise FileNotFoundError(url)
            return self._entry(url, (), info)

    def _entry(self, url: str, names: tuple[str, ...], info: Mapping[str, Any]) -> Entry:
        fingerprint = fingerprint_of(info)
        if not fingerprint:
            with contextlib.suppress(NotImplementedError):
                changed = self._fs.modified(info["name"])
                fingerprint = fingerprint_of({"size": info.get("size"), "modified": changed})
        name = str(info["name"]).rstrip("/").rpartition("/")[2]
        return Entry(url, names, safe_name(name), info.get("size"), fingerprint)

    def read(self, url: str, write: Callable[[bytes], None]) -> str:
        """Download a file; if its fingerprint changes meanwhile, it is not known to which bytes it belongs."""
        before = self.entry(url)
        total = 0
        with self._asking(), self._fs.open(str(self._fs._strip_protocol(url)), "rb") as file:
            while block := file.read(_BLOCK):
                total += len(block)
                write(block)
        if before.size is not None and total != before.size:
            raise RemoteError(f"cannot be read completely ({total:,} of {before.size:,} bytes)")
        return before.fingerprint if self.entry(url).fingerprint == before.fingerprint else ""

    def write(self, path: Path, url: str) -> None:
        """Upload a file."""
        with self._asking():
            self._fs.put_file(str(path), str(self._fs._strip_protocol(url)))

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Convert the errors of a driver to RemoteError, except for files that do not exist."""
        try:
            yield
        except (FileNotFoundError, RemoteError, ReadError, ConfigurationError):
            raise
        except ImportError as error:
            raise ConfigurationError(f'{self._protocol}:// needs a package: pip install "{error.name}"') from error
        except PermissionError as error:
            raise RemoteError(f"cannot be accessed ({_described(error)})", is_transient=False) from None
        except Exception as error:  # noqa: BLE001 (each driver raises errors of its own, also of other libraries)
            raise RemoteError(f"cannot be reached ({_described(error)})") from None


def _hidden_or_deep(names: Sequence[str]) -> str | None:
    if names[-1].startswith("."):
        return "is hidden: name it directly to read it"
    if len(names) > MAX_DEPTH:
        return f"lies {MAX_DEPTH} folders deep: name it directly to read the files in it"
    return None


def _described(error: BaseException) -> str:
    """Return the kind of an error and the beginning of its message, without credentials."""
    return f"{type(error).__name__}: {one_line(without_secrets(str(error)[:2_000]))}".rstrip(": ")


# ---- the files of a run ----------------------------------------------------------------------------------------------


class RemoteFiles:
    """Files at the URLs of a run, with a scratch folder for their downloads. Use it as a context manager.

    It is thread-safe after the files have been found.

    Args:
        fetched: The files that earlier runs have downloaded, by URL.
        limits: Limits for each file; `max_seconds` also applies to its download.
        allow_private: Whether web servers at internal addresses may be asked.
        only_lists: Whether files are not downloaded if their fingerprints are known, as for a preview.

    Attributes:
        fetched: As above, with the downloads of this run.
    """

    def __init__(
        self,
        fetched: Mapping[str, Fetched] | None = None,
        *,
        limits: ReadLimits | None = None,
        allow_private: bool = False,
        only_lists: bool = False,
    ) -> None:
        self.fetched = dict(fetched or {})
        self._limits, self._allow_private, self._only_lists = limits or ReadLimits(), allow_private, only_lists
        self._drivers: dict[str, Driver] = {}
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        for driver in self._drivers.values():
            if isinstance(driver, WebDriver):
                driver.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _driver(self, url: str) -> Driver:
        protocol = url.partition("://")[0]
        protocol = WEB[0] if protocol in WEB else protocol
        if protocol not in self._drivers:
            is_web = protocol in WEB
            self._drivers[protocol] = WebDriver(allow_private=self._allow_private) if is_web else FsspecDriver(protocol)
        return self._drivers[protocol]

    def find(self, url: str) -> Iterator[FileRef | SkippedFile]:
        """Yield the files at a URL: one file or page, the files of a folder, or those that match a glob.

        Raises:
            ConfigurationError: The driver of the protocol cannot be used.
            InputError: The URL is invalid, or contains a password.
            FileNotFoundError: There is nothing at this URL.
            RemoteError: The source cannot be listed completely.
        """
        url = checked_url(url)
        root, pattern = split_url(url)
        entries = RETRYING.copy()(self._driver(root).entries, root)
        if pattern:
            entries = [entry for entry in entries if accepts_name(pattern, entry.names)]
            if not entries:
                yield SkippedFile(printable(url), "matches no file", absent=True)
        yield from (self._ref(root, entry) for entry in entries)

    def _ref(self, root: str, entry: Entry) -> FileRef | SkippedFile:
        shown, suffix = printable(entry.url), Path(entry.name).suffix.lower()
        reason = entry.problem or (suffix_reason(suffix) if suffix not in SUFFIXES else None)
        if reason := reason or size_reason(entry.size or 0, self._limits):
            return SkippedFile(shown, reason)
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="llama-index-contextual-")
        self._number += 1
        path = Path(self._scratch.name, str(self._number), entry.name[-100:])
        return FileRef(
            path,
            "",
            entry.size or 0,
            shown,
            ids=_ids_of(root, entry),
            url=entry.url,
            fingerprint=entry.fingerprint,
            fetch=self.fetch,
        )

    def digests(self, refs: Sequence[FileRef]) -> dict[FileRef, Callable[[], str]]:
        """Start to download files, and return for each a function that waits for it and returns its hash."""
        if not refs:
            return {}
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="download") as pool:
            return {ref: pool.submit(self._digest, ref).result for ref in refs}

    def _digest(self, ref: FileRef) -> str:
        """Return the xxh3 hash of a file, which is downloaded unless its fingerprint is known.

        Raises:
            ReadError: The file cannot be downloaded, or exceeds a limit.
        """
        fingerprint, digest = self.fetched.get(ref.url, ("", ""))
        if fingerprint and fingerprint == ref.fingerprint:
            return digest
        if self._only_lists and ref.fingerprint:
            return f"not read: {ref.url} {ref.fingerprint}"
        return self.fetch(ref)

    def fetch(self, ref: FileRef) -> str:
        """Download a file to its scratch path and return its xxh3 hash.

        Raises:
            ReadError: The file cannot be downloaded, or exceeds a limit.
        """
        try:
            return str(RETRYING.copy()(self._download, ref))
        except FileNotFoundError as error:
            raise ReadError(ref.shown, "does not exist any longer") from error
        except RemoteError as error:
            raise ReadError(ref.shown, error.reason) from error

    def _download(self, ref: FileRef) -> str:
        deadline, hasher, total = time.monotonic() + self._limits.max_seconds, xxhash.xxh3_128(), 0
        fingerprint = ""

        def fill(file: Any) -> None:
            nonlocal fingerprint

            def write(block: bytes) -> None:
                nonlocal total
                total += len(block)
                if reason := size_reason(total, self._limits):
                    raise ReadError(ref.shown, reason)
                if time.monotonic() > deadline:
                    seconds = f"{self._limits.max_seconds:g} seconds"
                    raise RemoteError(f"takes more than {seconds} to download", is_transient=False)
                hasher.update(block)
                file.write(block)

            fingerprint = self._driver(ref.url).read(ref.url, write)

        files.make_directory(ref.path.parent)
        files.write_with(ref.path, fill, sync=False)
        digest = hasher.hexdigest()
        self.fetched.pop(ref.url, None)
        if fingerprint:
            self.fetched[ref.url] = (fingerprint, digest)
        return digest

    def fingerprint(self, url: str) -> str:
        """Return the fingerprint of a file.

        Raises:
            FileNotFoundError: There is no file at this URL.
            RemoteError: The source cannot be reached.
        """
        return str(RETRYING.copy()(self._driver(url).entry, url).fingerprint)

    def download(self, url: str, path: Path) -> None:
        """Download a file of any type and size.

        Raises:
            FileNotFoundError: There is no file at this URL.
            RemoteError: The file cannot be downloaded.
        """
        RETRYING.copy()(files.write_with, path, lambda file: self._driver(url).read(url, file.write), sync=False)

    def upload(self, path: Path, url: str) -> None:
        """Upload a file.

        Raises:
            InputError: The URL is that of a web server.
            RemoteError: The file cannot be uploaded.
        """
        driver = self._driver(url)
        if not isinstance(driver, FsspecDriver):
            raise InputError(f"{printable(url)} cannot be written to: name a WebDAV or S3 URL, or a file.", value=url)
        RETRYING.copy()(driver.write, path, url)

    def is_gone(self, url: str) -> bool:
        """Return whether the source of a file says that it no longer exists; return False after any error."""
        try:
            RETRYING.copy()(self._driver(url).entry, url)
        except FileNotFoundError:
            return True
        except RemoteError:
            pass
        return False


def _ids_of(root: str, entry: Entry) -> tuple[str, ...]:
    """Return the candidate ids of a document, as for a file in a folder: the host or bucket is the topmost folder."""
    protocol, _, rest = root.partition("?")[0].partition("://")
    above = [safe_name(unquote(part) if protocol in WEB else part) for part in rest.split("/") if part] or [protocol]
    if not entry.names and len(above) > 1:
        above = above[:-1]
    names = [*above, *map(safe_name, entry.names[:-1]), entry.name]
    depth = len(entry.names) + 1 if entry.names else 1
    return tuple("/".join(names[-length:]) for length in range(depth, len(names) + 1))


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
