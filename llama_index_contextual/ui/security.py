"""Access control: checks for every request, headers for every response, and the login page.

`Guard` wraps the whole application. Without a token, the server responds only on the loopback interface, and everyone
on this machine may read the documents. If there is a token, or a file of tokens, a client sends its token in the
Authorization header, or logs in once and keeps a cookie that is derived from the token. In all cases, web pages from
other origins cannot read anything.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llama_index_contextual._utils.redaction import get_logger
from llama_index_contextual.ui.uploads import form_fields
from llama_index_contextual.ui.users import OWNER, RefusedError, Right, TokensFile, User
from llama_index_contextual.ui.views import page

logger = get_logger(__name__)

LOGIN = "/login"
STATIC = "/static/"

POLICY = (
    "default-src 'none'; img-src 'self' data:; style-src 'self'; script-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_READING = ("GET", "HEAD")
_MAX_BODY = 4_096
_COOKIE_DAYS = 30

FREE_GUESSES = 10
"""Number of wrong tokens in quick succession that are answered without delay."""

LONGEST_PAUSE = 30.0
"""Maximum delay of the response to a wrong token, in seconds."""

LOG_SECONDS = 60.0
"""Minimum number of seconds between two log messages about wrong tokens."""


class WrongTokens:
    """Log of wrong tokens that delays the responses to requests with a wrong token, but not to other requests.

    Each wrong token adds a second to the delay for later wrong tokens, and each second that passes subtracts one.

    Args:
        clock: Function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent, self._updated = 0.0, clock()
        self._unlogged, self._logged = 0, float("-inf")

    def add(self, client: str) -> float:
        """Count and log a wrong token, and return the number of seconds to wait before the request is refused.

        Args:
            client: Address of the client.
        """
        now = self._clock()
        self._recent = max(0.0, self._recent - (now - self._updated)) + 1
        self._updated = now
        self._unlogged += 1
        if now - self._logged >= LOG_SECONDS:
            logger.warning("Wrong tokens: %s, the last one from %s", f"{self._unlogged:,}", client)
            self._unlogged, self._logged = 0, now
        return min(max(0.0, self._recent - FREE_GUESSES), LONGEST_PAUSE)


class Session:
    """Token check: a client must send a token itself or a cookie derived from it.

    Args:
        token: Token of the owner, who has all rights, or None.
        users: File with the tokens of other users, or None.
    """

    def __init__(self, token: str | None, users: TokensFile | None = None) -> None:
        self._token = None if token is None else token.encode("utf-8", "surrogatepass")
        self._users = users
        # The tokens file contains hashes: whoever can read it must not be able to derive cookies from them.
        self._key = self._token or secrets.token_bytes(32)
        # Cookies do not depend on the port; two servers on this machine must not overwrite each other's cookies.
        self.cookie_name = f"workbench_{self._derived('name')[:12]}"
        self._wrong = WrongTokens()

    def _derived(self, purpose: str) -> str:
        return hmac.new(self._key, f"llama-index-contextual workbench {purpose}".encode(), hashlib.sha256).hexdigest()

    def _cookie_value(self, user: User) -> str:
        return self._derived("session" if user is OWNER else f"session of {user.name} {user.sha256}")

    def user_of(self, token: str) -> User | None:
        """Return the user with this token, or None; tokens are compared in constant time."""
        if self._token is not None and hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self._token):
            return OWNER
        return self._users.user_of(token) if self._users is not None and token else None

    async def refuse(self, request: Request) -> None:
        """Log a request with a wrong token. After many such requests, also wait, which slows down guessing."""
        await asyncio.sleep(self._wrong.add(request.client.host if request.client else "an unknown address"))

    def user(self, headers: Headers) -> User | None:
        """Return the user whose token or valid session cookie a request contains, or None."""
        if (user := self.user_of(_bearer(headers))) is not None:
            return user
        values = [value.encode("utf-8", "surrogatepass") for value in _cookies(headers, self.cookie_name)]
        owners = [] if self._token is None else [OWNER]
        known: list[User] = [*owners, *(self._users.users if values and self._users is not None else ())]
        for one in known:
            if any(hmac.compare_digest(value, self._cookie_value(one).encode()) for value in values):
                return one
        return None

    def redirect(self, request: Request, user: User, target: str) -> RedirectResponse:
        """Return a redirect to `target` that also sets the session cookie of a user."""
        response = RedirectResponse(target, status_code=303)
        response.set_cookie(
            self.cookie_name,
            self._cookie_value(user),
            max_age=_COOKIE_DAYS * 86_400,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response


def _bearer(headers: Headers) -> str:
    """Return the token in the Authorization header, or ""."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""


def _cookies(headers: Headers, name: str) -> list[str]:
    values = []
    for line in headers.getlist("cookie"):
        try:
            cookie = SimpleCookie(line)
        except CookieError:
            continue
        if name in cookie:
            values.append(cookie[name].value)
    return values


class Guard:
    """Middleware that refuses unauthorised requests and sets the headers of all responses.

    A request is refused if its host is unknown, it was sent by a page from another origin, or the token is missing.
    The user is in the scope of the request, as "user".

    Args:
        app: The application.
        hosts: Host names, without ports, that clients may use for the server.
        session: The token check; None allows everyone to read the documents.
        failed: Function that returns the response to a request that raised an unexpected error.
        refused: Function that returns the response to a request that is refused: its arguments are the HTTP status and
            the reason.
        right_of: Function that returns the right that a request needs.
        app_of: Function that returns the application for a user who may not see all documents.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Sequence[str],
        session: Session | None,
        failed: Callable[[Request], Response],
        refused: Callable[[int, str], Response] = lambda status, reason: PlainTextResponse(f"{reason}\n", status),
        right_of: Callable[[Request], Right | None] = lambda request: None,
        app_of: Callable[[User], ASGIApp] | None = None,
    ) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._session = session
        self._failed = failed
        self._refused = refused
        self._right_of = right_of
        self._app_of = app_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                if scope["path"].startswith(STATIC) and message["status"] in (200, 304):
                    headers["Cache-Control"] = "max-age=86400"  # the URL changes with the content
                for name, value in HEADERS.items():  # a view may set a stricter policy and its own caching
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope, receive)
        user = OWNER if self._session is None else self._session.user(request.headers)
        response = self._refusal(request) or await self._login_needed(request, user) or self._forbidden(request, user)
        scope["user"] = user
        app = self._app if user is None or not user.filters or self._app_of is None else self._app_of(user)
        try:
            await (response or app)(scope, receive, send_with_headers)
        except ClientDisconnect:
            return
        except Exception as error:
            logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
            if started:
                raise
            await self._failed(request)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if _without_port(host) not in self._hosts:
            return self._refused(
                421,
                "The name of this server in the request is not known here. Start the server with --allow-host NAME"
                " to reach it under another name.",
            )
        if _is_cross_origin(request, host):
            return self._refused(403, "Requests of other web pages are refused.")
        return None

    async def _login_needed(self, request: Request, user: User | None) -> Response | None:
        """Return None if a request is authorised. Otherwise, return a redirect to the login page or an error response.

        A request whose URL contains the token is redirected to the same URL without the token; the redirect also sets
        the session cookie.
        """
        session, path = self._session, request.url.path
        if session is None or path == LOGIN or path.startswith(STATIC):
            return None
        if request.method in _READING and (named := session.user_of(request.query_params.get("token", ""))):
            return session.redirect(request, named, _local(str(request.url.remove_query_params("token"))))
        if user is not None:
            return None
        if _bearer(request.headers) or request.query_params.get("token"):
            await session.refuse(request)
        if request.method in _READING and "text/html" in request.headers.get("accept", ""):
            target = _local(str(request.url.remove_query_params("token")))
            return RedirectResponse(f"{LOGIN}?{urlencode({'to': target})}", 303)
        response = self._refused(401, "A token is needed.")
        response.headers["WWW-Authenticate"] = "Bearer"
        return response

    def _forbidden(self, request: Request, user: User | None) -> Response | None:
        right = self._right_of(request)
        if user is None or right is None or right in user.rights:
            return None
        return self._refused(403, f"This token has no right to {right}: ask the person who runs this server.")


def _without_port(host: str) -> str:
    name, _, port = host.lower().rpartition(":")
    return name if name and port.isdigit() else host.lower()


def _is_cross_origin(request: Request, host: str) -> bool:
    """Return whether the request was sent by a page from another origin and does more than open a view."""
    headers = request.headers
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    is_navigation = (
        request.method in _READING
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
        and origin is None
    )
    if site not in (None, "same-origin", "none") and not is_navigation:
        return True
    if origin is None:
        return False
    return origin.lower().partition("://")[2] != host.lower()


def _local(target: str) -> str:
    """Return only the path and query of a URL, so that a redirect cannot lead to another server."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return "/"
    path = f"/{parts.path.lstrip('/')}".replace("\\", "%5C")
    return f"{path}?{parts.query}" if parts.query else path


# ---- login -----------------------------------------------------------------------------------------------------------


def routes() -> list[Route]:
    """Return the routes for the login page."""
    return [Route(LOGIN, _login, methods=["GET", "POST"])]


async def _login(request: Request) -> Response:
    session: Session | None = request.app.state.session
    target = _local(request.query_params.get("to", "/"))
    if session is None:
        return RedirectResponse("/", 303)
    if request.method != "POST":
        return page(request, "login.html", to=target, is_wrong=False)
    try:
        form = await form_fields(request, _MAX_BODY)
    except RefusedError as error:
        return page(request, "login.html", status_code=error.status, to=target, is_wrong=True)
    target = _local(form.get("to", ["/"])[0])
    if (user := session.user_of(form.get("token", [""])[0].strip())) is not None:
        return session.redirect(request, user, target)
    await session.refuse(request)
    return page(request, "login.html", status_code=403, to=target, is_wrong=True)
