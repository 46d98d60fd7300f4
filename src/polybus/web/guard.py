"""Who may do what: decided before any route is looked for, from the request's head alone.

- The Host must be a name of ours.  A page of another site whose name was made to point here (DNS rebinding)
  would otherwise be one of our own to the browser.
- What changes something must come from our own pages, as far as the browser says where it comes from
  (Origin), and needs the token, in a header that no other site can set.
- Reading is free on loopback.  Reached from elsewhere, it needs the token, too.  An EventSource cannot set a
  header, so for reading the token may also be in the query.
- There are no cookies: nothing is sent along by a browser on its own.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from starlette.datastructures import Headers, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polybus.web.answers import problem

READING: Final = frozenset({"GET", "HEAD"})
# The pages themselves, which hold nothing, and what load balancers and process managers ask.
PRIVATE: Final = ("/api", "/metrics")
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
TOKEN_PLACE: Final = (
    "the token is in the line that 'polybus web' printed when it started, or in its --token-file"
)
_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([\w.-]+))(?::\d{1,5})?", re.ASCII)


class Refusal(Struct, frozen=True):
    status: int
    error: str
    next: str


class Guard:
    """The rules, for one address that is listened on."""

    def __init__(self, token: str, host: str, more_hosts: Iterable[str] = ()) -> None:
        self._token = token.encode()
        names = {host_name(host), *map(host_name, more_hosts)}
        #: Whoever reaches it from elsewhere has to show the token to read, too.
        self.is_private: Final = not all(map(is_loopback, names))
        # Any port: a proxy may listen on another than we do.
        self._names = names | set(LOOPBACK_NAMES) if is_loopback(host) else names
        # Bound to every address of the machine. No number is a name that somebody else could point here.
        self._any_number = is_any(host)

    def refuse(
        self, method: str, path: str, headers: Mapping[str, str], query_token: str | None = None
    ) -> Refusal | None:
        """Why this may not be done; None if it may."""
        host = headers.get("host", "").lower()
        if not self._knows(host):
            return Refusal(
                403, f"this dashboard is not called {host!r}", "add --allow-host NAME to 'polybus web'"
            )
        if not path.startswith(PRIVATE):
            return None
        is_reading = method in READING
        if not self._is_from_here(host, headers):
            return Refusal(
                403, "the request comes from a page of another site", "use the dashboard's own pages"
            )
        if is_reading and not self.is_private:
            return None
        given = _bearer(headers.get("authorization", ""))
        if given is None and is_reading:
            given = query_token
        if given is None:
            what = "reading from another machine" if is_reading else "an action"
            return Refusal(
                401, f"{what} needs the token", f"send 'Authorization: Bearer TOKEN'; {TOKEN_PLACE}"
            )
        if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._token):
            return Refusal(401, "the token is wrong", TOKEN_PLACE)
        return None

    def _knows(self, host: str) -> bool:
        name = host_name(host)
        return name in self._names or (self._any_number and (is_number(name) or name == "localhost"))

    def _is_from_here(self, host: str, headers: Mapping[str, str]) -> bool:
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] != host:
            return False
        return headers.get("sec-fetch-site", "none") in ("none", "same-origin")


class GuardMiddleware:
    """Asks the guard, and adds the headers that every answer has."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        query = QueryParams(scope["query_string"])
        refusal = self._guard.refuse(scope["method"], scope["path"], Headers(scope=scope), query.get("token"))
        if refusal is None:
            await self._app(scope, receive, guarded)
            return
        answer = problem(refusal.status, refusal.error, refusal.next)
        if refusal.status == 401:
            answer.headers["www-authenticate"] = 'Bearer realm="polybus"'
        await answer(scope, receive, guarded)


def _bearer(value: str) -> str | None:
    scheme, _, token = value.partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def host_name(host: str) -> str:
    """The name or number in a Host header or an option, without port and brackets; empty if it is neither."""
    if is_number(host):
        return host.lower()
    found = _HOST.fullmatch(host.lower())
    return found[1] or found[2] if found else ""


def is_number(host: str) -> bool:
    return _number(host) is not None


def is_loopback(host: str) -> bool:
    number = _number(host)
    return host.lower() == "localhost" if number is None else number.is_loopback


def is_any(host: str) -> bool:
    number = _number(host)
    return number is not None and number.is_unspecified


def _number(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
