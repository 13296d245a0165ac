"""Access control for the servers in this package: tokens and permitted host names."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from llama_index_contextual.errors import ConfigurationError

LEAST_TOKEN = 16
"""Minimum length of an access token, in characters."""

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_WILDCARDS = ("0.0.0.0", "::", "")


def accepted_hosts(host: str, token: object | None, allowed_hosts: Sequence[str]) -> list[str]:
    """Return the host names, without ports, that clients may use to reach a server.

    Requests with any other name in the Host header must be refused. Otherwise, a malicious web page could reach the
    server through a domain name of its own (DNS rebinding).

    Args:
        host: Address to which the server will be bound.
        token: Token, or file of tokens, that clients have to send, or None.
        allowed_hosts: Additional names that clients use for the server, such as the name of a proxy.

    Raises:
        ConfigurationError: Other machines can reach `host` but there is no token, or `host` is a wildcard address and
            `allowed_hosts` is empty.
    """
    if not is_loopback(host) and token is None:
        raise ConfigurationError(
            f"{host!r} can be reached from other machines: set a token, or serve on 127.0.0.1.", setting="token"
        )
    is_any = host in _WILDCARDS
    if is_any and not allowed_hosts:
        raise ConfigurationError(
            f"{host!r} stands for all addresses of this machine: name the host that clients use, with allowed_hosts"
            f" (--allow-host).",
            setting="allowed_hosts",
        )
    hosts = [_bracketed(name) for name in (host, *allowed_hosts)]
    return list(dict.fromkeys([*_LOOPBACK, *hosts[is_any:]]))


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name


def server_address(host: str, port: int, allowed_hosts: Sequence[str]) -> str:
    """Return the URL of a server for its users, without a final slash.

    Example:
        >>> server_address("0.0.0.0", 8000, ["search.example"]), server_address("::1", 8000, [])
        ('http://search.example:8000', 'http://[::1]:8000')
    """
    return f"http://{_bracketed(next(iter(allowed_hosts), host) if host in _WILDCARDS else host)}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether an address or name refers only to this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def require_token(token: str) -> None:
    """Check that a token is long enough not to be guessed.

    Raises:
        ConfigurationError: The token is too short.
    """
    if len(token) < LEAST_TOKEN:
        raise ConfigurationError(
            f"The token has {len(token)} characters: use at least {LEAST_TOKEN}, for example the output of"
            f' `python -c "import secrets; print(secrets.token_urlsafe())"`.',
            setting="token",
        )
