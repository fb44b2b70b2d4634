"""Who may use the monitor: checked here for every request, before any page sees it.

- **Host** must be an address of this server, so that no web page reaches it through a name of its own (DNS rebinding).
- **Token**: the URL that the query prints has it once. The answer sets a cookie (HttpOnly, SameSite=Strict) and the page takes the token
  out of the address. Everything under ``/api/`` needs the cookie, or the header ``Authorization: Bearer TOKEN``. Only the page itself and
  its scripts, which say nothing about any query, are given to everybody.
- **Writing** (any method but GET and HEAD) needs JSON as content type, which no HTML form can send, and an ``Origin`` that is this server.
- Answers carry a Content-Security-Policy without inline script or style, forbid frames, and are not cached.

The cookie's name has the port, because browsers do not keep the cookies of ports apart.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.dashboard import answers
from headrace.errors import QueryError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
OPEN = ("/", "/static/")
"""Paths that need no token. The page itself and its scripts say nothing about queries."""


def token_of(file: str) -> str:
    """The token that a file has; without a file, a new one. Raises QueryError if it is not secret, or easily guessed."""
    if not file:
        return secrets.token_urlsafe(24)
    where = f"option 'headrace.uiTokenFile', {file}"
    try:
        text, mode = Path(file).read_text().strip(), Path(file).stat().st_mode
    except (OSError, ValueError) as wrong:
        raise QueryError(where=where, wanted="a file that can be read", found=str(wrong)) from None
    if mode & 0o077:
        wanted = "a file that only its owner can read"
        raise QueryError(where=where, wanted=wanted, found=f"mode {mode & 0o777:o}", hint=f"chmod 600 {file}")
    if not re.fullmatch(r"[A-Za-z0-9_-]{16,200}", text):
        wanted, hint = "one token of 16 to 200 letters, digits, - or _", "Python's secrets.token_urlsafe(24) makes one"
        raise QueryError(where=where, wanted=wanted, found=f"{len(text)} characters", hint=hint)
    return text


@dataclass
class Guarded:
    """Lets only allowed requests through to an application."""

    app: ASGIApp
    token: str
    host: str
    port: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # The monitor has no websockets.
            return
        headers, path = Headers(scope=scope), scope["path"]
        offered = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        entered = path == "/" and self._is_token(offered)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    found[name] = value
                found.setdefault("Cache-Control", "no-store")
                if entered:
                    found.append("Set-Cookie", f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict")
            await send(message)

        refusal = self._refusal(scope["method"], path, headers)
        if refusal is not None:
            status, error = refusal
            await answers.refused(error, status)(scope, receive, sent)
            return
        await self.app(scope, receive, sent)

    @property
    def cookie(self) -> str:
        """The name of the cookie."""
        return f"headrace-{self.port}"

    def _refusal(self, method: str, path: str, headers: Headers) -> tuple[int, QueryError] | None:
        """The status and the error if a request is refused."""
        host = headers.get("host", "")
        if not self._is_own(host):
            return 421, QueryError(where="monitor", wanted=f"a request to {self.host}:{self.port}", found=f"one to {host[:100]!r}")
        if path != "/" and not path.startswith(OPEN[1]) and not self._is_let_in(headers):
            hint = "open the URL that the query printed, or query.ui"
            return 401, QueryError(where="monitor", wanted="the monitor's token", found="none, or another one", hint=hint)
        if method in ("GET", "HEAD"):
            return None
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != answers.JSON:
            return 415, QueryError(where="monitor", wanted=f"the content type {answers.JSON}", found=repr(kind[:100]))
        origin = headers.get("origin")
        bearer = "authorization" in headers
        if (origin is None and not bearer) or (origin is not None and not self._is_own_origin(origin, host)):
            return 403, QueryError(where="monitor", wanted="a request of the monitor's own page", found=f"the origin {str(origin)[:100]!r}")
        return None

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    def _is_let_in(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(given.strip()):
            return True
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        return self.cookie in cookies and self._is_token(cookies[self.cookie].value)

    def _is_own(self, host: str) -> bool:
        """True if a Host header names this server: by the address that it listens on, or if that is any, by one that cannot be rebound."""
        try:
            parts = urlsplit(f"//{host}")
            name, port = (parts.hostname or "").lower(), parts.port or 80
        except ValueError:
            return False
        if port != self.port:
            return False
        if name in ("127.0.0.1", "localhost", "::1", self.host.lower()):
            return True
        if self.host not in ("0.0.0.0", "::"):
            return False
        return _is_address(name) or name in (socket.gethostname().lower(), socket.getfqdn().lower())

    def _is_own_origin(self, origin: str, host: str) -> bool:
        """True if a page of this server sent the request: scheme, name and port are those that the request went to."""
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
