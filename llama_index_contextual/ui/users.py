"""Users of a server: names, rights and forced filters, identified by tokens, and limits on what they use.

A tokens file contains one entry per user, with the SHA-256 of the user's token instead of the token itself. It is read
again when it changes, so that a user can be removed while the server runs.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from llama_index_contextual._utils.files import open_file
from llama_index_contextual._utils.redaction import get_logger
from llama_index_contextual._utils.text import parse_json
from llama_index_contextual.errors import ConfigurationError, ContextualError, InputError
from llama_index_contextual.index import files
from llama_index_contextual.index.project_file import check_name
from llama_index_contextual.search.filters import to_filters

logger = get_logger(__name__)

Right = Literal["search", "ask", "add"]
"""What a user may do: search and read documents, ask an LLM, add and remove own documents."""

RIGHTS: tuple[Right, ...] = get_args(Right)

REQUESTS_PER_MINUTE = 120
"""Default limit for the requests of one user to the API."""

ANSWERS_OF_USER = 8
"""Maximum number of answers that are written for a user at the same time."""

MAX_ANSWERS = 64
"""Maximum number of answers that are written at the same time."""

_MAX_FILE = 1_000_000
_READABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IRWXO


class User(BaseModel):
    """A user of a server.

    Attributes:
        name: Name for the log of changes, and of the user's folder of added files; "" if all users share one token.
        sha256: SHA-256 of the token in hexadecimal.
        rights: What the user may do.
        filters: Conditions on metadata that decide which documents the user may see; see `Project.only`. Documents that
            the user adds get these values as metadata.
        requests_per_minute: Maximum number of requests to the API in a minute.
        dollars_per_hour: Maximum cost of answers and added documents in an hour at list prices, or None.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)] = "0" * 64
    rights: frozenset[Right] = frozenset(("search", "ask"))
    filters: Mapping[str, Any] = Field(default_factory=dict)
    requests_per_minute: Annotated[int, Field(ge=1)] = REQUESTS_PER_MINUTE
    dollars_per_hour: Annotated[float, Field(gt=0)] | None = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return check_name(name) if name else name

    @model_validator(mode="after")
    def _check_filters(self) -> User:
        if self.filters:
            to_filters(self.filters, keep_blank=True)
            if "add" in self.rights and not all(
                isinstance(value, str | int | float) for value in self.filters.values()
            ):
                raise ValueError("a user with filters can add documents only if each filter is one value")
        return self


OWNER = User(name="", rights=frozenset(RIGHTS))
"""The user of a server without a tokens file."""


class TokensFile:
    """The users in a tokens file.

    Args:
        path: The file.

    Raises:
        ConfigurationError: The file cannot be read, is readable or writable for others, or is invalid.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp, self._users = self._read()

    def user_of(self, token: str) -> User | None:
        """Return the user with this token, or None. All tokens are compared, each in constant time."""
        digest, result = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest(), None
        for user in self.users:
            if hmac.compare_digest(digest, user.sha256):
                result = user
        return result

    @property
    def users(self) -> tuple[User, ...]:
        """The users; the file is read again if it has changed. If it has become invalid, there are none."""
        try:
            stamp = _stamp(os.stat(self._path))
        except OSError:
            stamp = None
        if stamp is None or stamp != self._stamp:
            try:
                self._stamp, self._users = self._read()
            except ConfigurationError as error:
                if self._users or stamp != self._stamp:
                    logger.error("All tokens are refused until the tokens file is corrected: %s", error)
                self._stamp, self._users = stamp, ()
        return self._users

    def _read(self) -> tuple[tuple[int, ...] | None, tuple[User, ...]]:
        try:
            with open_file(self._path) as file:
                status = os.fstat(file.fileno())
                content = parse_json(file.read(_MAX_FILE + 1))
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"{self._path} cannot be read as a tokens file ({getattr(error, 'strerror', None) or error}): create"
                f" it with `llama-index-contextual token NAME --file {self._path}`.",
                setting="tokens",
            ) from error
        if os.name != "nt" and status.st_mode & _READABLE_BY_OTHERS:
            raise ConfigurationError(
                f"{self._path} can be read or changed by other users of this machine: run `chmod 600 {self._path}`.",
                setting="tokens",
            )
        return _stamp(status), _parsed(self._path, content)


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: tuple[User, ...]


def _parsed(path: Path, content: Any) -> tuple[User, ...]:
    try:
        users = _Content.model_validate(content).tokens
    except (ValidationError, InputError) as error:
        raise ConfigurationError(f"{path} is not a valid tokens file: {_problem(error)}.", setting="tokens") from error
    names = [user.name.casefold() for user in users]
    if len(set(names)) < len(names) or "" in names:
        raise ConfigurationError(f"{path}: each token needs a name of its own.", setting="tokens")
    return users


def new_user(name: str, *, rights: Sequence[str] | None = None, **options: Any) -> User:
    """Return a user; the options are the attributes of `User`.

    Raises:
        ConfigurationError: An option is invalid.
    """
    if not name:
        raise ConfigurationError("The user of a token needs a name.")
    try:
        return User.model_validate({"name": name, **({"rights": rights} if rights else {}), **options})
    except (ValidationError, InputError) as error:
        raise ConfigurationError(f"The token is invalid: {_problem(error)}.") from error


def _problem(error: ValidationError | InputError) -> str:
    if isinstance(error, InputError):
        return str(error).rstrip(".")
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")


def add_token(path: Path, user: User) -> str:
    """Add a user to a tokens file, or replace the user with this name, and return the new token.

    The file, which only its owner can read, is created if it does not exist.

    Args:
        path: The file.
        user: The user; `sha256` is ignored.

    Raises:
        ConfigurationError: The file exists and is invalid.
    """
    token = secrets.token_urlsafe(32)
    user = user.model_copy(update={"sha256": hashlib.sha256(token.encode()).hexdigest()})
    others = TokensFile(path).users if os.path.lexists(path) else ()
    users = (*(other for other in others if other.name.casefold() != user.name.casefold()), user)
    content = _Content(tokens=users).model_dump_json(indent=1, exclude_defaults=True).encode()

    def fill(file: IO[bytes]) -> None:
        if hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), 0o600)
        file.write(content + b"\n")

    files.replace_with(path, fill)
    return token


# ---- limits ----------------------------------------------------------------------------------------------------------


class RefusedError(ContextualError):
    """A request that a server refuses.

    Attributes:
        status: HTTP status.
        code: Code for programs, or None.
        retry_after: Number of seconds after which the request may succeed, or None.
    """

    def __init__(self, status: int, message: str, *, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after


class Window:
    """Amounts that each key has used within a period.

    Args:
        seconds: Length of the period.
        clock: Function that returns the time in seconds.

    Example:
        >>> window = Window(60, clock=lambda: 0.0)
        >>> window.add("ada", 2), window.wait("ada", 1, limit=2), window.wait("ada", 1, limit=3)
        (None, 60.0, 0.0)
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._used: dict[str, deque[tuple[float, float]]] = {}

    def add(self, key: str, amount: float = 1) -> None:
        """Count an amount."""
        self._used.setdefault(key, deque()).append((self._clock(), amount))

    def wait(self, key: str, amount: float, *, limit: float) -> float:
        """Return the number of seconds until another amount is within the limit; 0 if it is now.

        An amount that exceeds the limit by itself has to wait for a whole period.
        """
        now, used = self._clock(), self._used.get(key, deque())
        while used and used[0][0] <= now - self._seconds:
            used.popleft()
        if not used:
            self._used.pop(key, None)
        excess = sum(one for _, one in used) + amount - limit
        if excess <= 0:
            return 0.0
        for at, one in used:
            excess -= one
            if excess <= 0:
                return at + self._seconds - now
        return self._seconds


@dataclass
class Spent:
    """Price of an answer.

    Attributes:
        dollars: The price at list prices, as far as it is known.
    """

    dollars: float = 0.0


class Limits:
    """Limits for the requests and answers of the users of a server."""

    def __init__(self) -> None:
        self._requests, self._dollars = Window(60), Window(3600)
        self._running: Counter[str] = Counter()

    def count_request(self, user: User) -> None:
        """Count a request of a user.

        Raises:
            RefusedError: The user has sent too many requests in the last minute.
        """
        if wait := self._requests.wait(user.name, 1, limit=user.requests_per_minute):
            message = f"More than {user.requests_per_minute:,} requests in a minute: wait {wait:.0f} seconds."
            raise RefusedError(429, message, code="rate_limit_exceeded", retry_after=wait)
        self._requests.add(user.name)

    def charge(self, user: User, dollars: float) -> None:
        """Count the price of documents that a user adds.

        Raises:
            RefusedError: The user would spend too much in an hour.
        """
        limit = user.dollars_per_hour
        if limit is not None and (wait := self._dollars.wait(user.name, dollars, limit=limit)):
            message = f"The price of ${dollars:,.4f} exceeds what this user may still spend in this hour."
            raise RefusedError(429, message, code="insufficient_quota", retry_after=wait)
        self._dollars.add(user.name, dollars)

    @contextmanager
    def answering(self, user: User, *, has_price: bool = True) -> Iterator[Spent]:
        """Count an answer that is written within the block, and the price that the block enters.

        Args:
            user: The user.
            has_price: Whether the answer may have a price.

        Raises:
            RefusedError: Too many answers are being written, or the user has spent too much in the last hour.
        """
        limit, spent = user.dollars_per_hour if has_price else None, Spent()
        if limit is not None and (wait := self._dollars.wait(user.name, 0, limit=limit * (1 - 1e-9))):
            message = f"The limit of ${limit:,.2f} for answers in an hour is reached."
            raise RefusedError(429, message, code="insufficient_quota", retry_after=wait)
        if self._running[user.name] >= ANSWERS_OF_USER:
            message = f"{ANSWERS_OF_USER} answers are being written for this user: wait for one of them."
            raise RefusedError(429, message, code="rate_limit_exceeded", retry_after=5.0)
        if self._running.total() >= MAX_ANSWERS:
            raise RefusedError(503, "The server is busy: try again in a few seconds.", code="busy", retry_after=5.0)
        self._running[user.name] += 1
        try:
            yield spent
        finally:
            self._running[user.name] -= 1
            self._dollars.add(user.name, spent.dollars)
