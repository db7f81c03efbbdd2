"""The guard before the live page: who may see it, and what a page may do."""

from __future__ import annotations

import ipaddress
import re
import secrets
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; connect-src 'self'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a page may do. Charts set their colours in style attributes, which cannot load or run anything."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Refuses whoever is not meant before anything else happens.

    Nothing but GET and HEAD. With a token, only who brings it: in the address once, then in a cookie. Without one, only requests that name
    this machine: another name is that of a stranger's page whose address was made to point here (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, *, host: str, token: str | None, cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie
        self._names = {"localhost", host.strip("[]").lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refused request, or pass it on to the application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._refusal(request)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, _guarded(send))

    def _refusal(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this server only shows\n", 405, headers={**HEADERS, "allow": "GET, HEAD"})
        if self._token is None:
            if not self._is_here(request.headers.get("host", "")):
                return PlainTextResponse("this server answers to names of this machine only\n", 400, headers=HEADERS)
            return None
        given = request.query_params.get("token")
        if given is not None and secrets.compare_digest(given.encode(), self._token.encode()):
            rest = [(k, v) for k, v in request.query_params.multi_items() if k != "token"]
            answer = RedirectResponse(_local(request.url.path) + (f"?{urlencode(rest)}" if rest else ""), 303, headers=HEADERS)  # fmt: skip
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
            return answer
        kept = request.cookies.get(self._cookie, "")
        if given is None and secrets.compare_digest(kept.encode(), self._token.encode()):
            return None
        return PlainTextResponse(
            "open the address with the token that 'epidemic serve' printed\n", 401, headers=HEADERS
        )

    def _is_here(self, host: str) -> bool:
        name = re.sub(r":[0-9]*$", "", host).lower()
        bracketed = re.fullmatch(r"\[(.*)\]", name)
        try:
            if bracketed:  # around IPv6 addresses only
                return ipaddress.IPv6Address(bracketed[1]).is_loopback or bracketed[1] in self._names
            return name in self._names or ipaddress.IPv4Address(name).is_loopback
        except ValueError:
            return False


def _local(path: str) -> str:
    """A path of this server: two slashes at its beginning would name another one."""
    return "/" + path.lstrip("/\\")


def _guarded(send: Send) -> Send:
    """Whatever answers, the headers are there."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            known = {name.lower() for name, _ in message["headers"]}
            more = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in known]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return with_headers
