"""Files and pages at URLs: list them, recognise changes, and download them to scratch files.

An `http://` or `https://` URL names one file or page, which is read with httpx. The files at all other URLs are read
with the fsspec driver of their protocol, such as s3fs. Credentials and other settings come from fsspec's configuration
(environment variables and `conf.json`); a URL that contains a password is refused, because URLs are stored.

A file is known to be absent only if its server says so. Every other failure is a `RemoteError`, after which documents
are kept.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import unquote

import tenacity
import xxhash

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
    printable,
    size_reason,
    suffix_reason,
)
from llama_index_contextual.readers.urls import (
    BLOCK,
    WEB,
    Entry,
    RemoteError,
    checked_url,
    described,
    fingerprint_of,
    safe_name,
    split_url,
    watch_secrets,
)

_PARALLEL = 8  # downloads at a time
_PACKAGES = {"webdav4": "webdav4[fsspec]"}

Fetched = tuple[str, str]
"""Fingerprint of a file at a URL, and the xxh3 hash of the bytes that were downloaded with this fingerprint."""

RETRYING = tenacity.Retrying(
    stop=tenacity.stop_after_attempt(4),
    wait=tenacity.wait_random_exponential(multiplier=0.5, max=8),
    retry=tenacity.retry_if_exception(lambda error: isinstance(error, RemoteError) and error.is_transient),
    reraise=True,
)
"""Policy for requests to a source: four attempts within about ten seconds."""


class Driver(Protocol):
    """Access to the files of a protocol. All methods raise FileNotFoundError or RemoteError."""

    def entries(self, url: str) -> list[Entry]:
        """Return the file at a URL, or all files below it."""

    def entry(self, url: str) -> Entry:
        """Return the file at a URL."""

    def read(self, url: str, write: Callable[[bytes], None]) -> str:
        """Download a file and return the fingerprint of these bytes, or "" if it may belong to others."""

    def close(self) -> None:
        """Close the connections."""


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
            watch_secrets(options)
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
                f"{protocol}:// cannot be opened ({described(error)}): check its settings in fsspec's configuration,"
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
            while block := file.read(BLOCK):
                total += len(block)
                write(block)
        if before.size is not None and total != before.size:
            raise RemoteError(f"cannot be read completely ({total:,} of {before.size:,} bytes)")
        return before.fingerprint if self.entry(url).fingerprint == before.fingerprint else ""

    def close(self) -> None:
        """Do nothing: the driver of the protocol closes its connections."""

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
            raise RemoteError(f"cannot be accessed ({described(error)})", is_transient=False) from None
        except Exception as error:  # noqa: BLE001 (each driver raises errors of its own, also of other libraries)
            raise RemoteError(f"cannot be reached ({described(error)})") from None


def _hidden_or_deep(names: Sequence[str]) -> str | None:
    if names[-1].startswith("."):
        return "is hidden: name it directly to read it"
    if len(names) > MAX_DEPTH:
        return f"lies {MAX_DEPTH} folders deep: name it directly to read the files in it"
    return None


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
            driver.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _driver(self, url: str) -> Driver:
        protocol = url.partition("://")[0]
        protocol = WEB[0] if protocol in WEB else protocol
        if protocol not in self._drivers:
            if protocol in WEB:
                from llama_index_contextual.readers.web import WebDriver  # imports httpx, which takes a while

                self._drivers[protocol] = WebDriver(allow_private=self._allow_private)
            else:
                self._drivers[protocol] = FsspecDriver(protocol)
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
            return False
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
