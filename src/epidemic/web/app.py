"""The server: a few addresses that only show.

What may be seen is what the catalogue has found; no address names a path. All reading and all making of pages happens in one thread, one after
the other, so that nothing needs a lock and the server answers meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from epidemic.core.errors import EpidemicError, plain
from epidemic.report.page import page
from epidemic.report.results import read_results
from epidemic.web import pages
from epidemic.web.clusters import WatchedCluster
from epidemic.web.picture import cluster_page
from epidemic.web.view import LivePage
from epidemic.web.watch import Catalogue, WatchedRun

# -- The guard before the live page: who may see it, and what a page may do ------------------------------------------


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
    """Refuses unauthorised requests before anything else happens.

    Only GET and HEAD are allowed. With a token, only requests that have it: in the address once, then in a cookie. Without one, only requests that name this
    machine: another name belongs to a foreign page whose address was made to point here (DNS rebinding).
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
    """Add the security headers to every response."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            known = {name.lower() for name, _ in message["headers"]}
            more = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in known]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return with_headers


EVERY = 1.0
"""Seconds between two updates, while a page is open."""
MOST_CLIENTS = 64
"""Pages that may be open at once."""
MOST_VIEWS = 2 * MOST_CLIENTS
"""Most cached pages."""
BREATH = 15.0
"""Seconds of silence after which a word is sent, so that a lost connection is noticed."""

T = TypeVar("T")


class _Kept(msgspec.Struct, frozen=True):
    """A page that was made, at which look, and from what."""

    look: int
    stamp: object
    view: LivePage | None


class Live:
    """The state that is shown, kept up to date while a page is open."""

    def __init__(self, catalogue: Catalogue, *, insecure: bool = False, every: float = EVERY) -> None:
        self.catalogue, self.every = catalogue, every
        self.clients = 0
        self._insecure = insecure
        self._clusters: dict[str, WatchedCluster] = {}
        self._watched: dict[str, float] = {}  # clusters being watched, and when they were last requested
        self._views: dict[tuple[str, str], _Kept] = {}
        self._looked, self._looks = -1e9, 0  # when, and how often
        self._thread = ThreadPoolExecutor(1, "looking")
        self._news = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def in_turn(self, work: Callable[[], T]) -> T:
        """Do something in the thread that reads."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def view(self, kind: str, key: str) -> LivePage | None:
        """The current page at an address; None if it does not exist. Runs in the thread that reads.

        All visitors share it: it is rebuilt only if something in it has changed.
        """
        if time.monotonic() - self._looked > self.every / 2:
            self._look()
        if kind == "cluster" and key in self._clusters:
            self._watched[key] = time.monotonic()
        kept = self._views.get((kind, key))
        if kept is not None and kept.look == self._looks:
            return kept.view
        stamp = self._stamp(kind, key)
        view = kept.view if kept is not None and kept.stamp == stamp else self._made(kind, key)
        while len(self._views) >= MOST_VIEWS:
            self._views.pop(next(iter(self._views)))
        self._views[kind, key] = _Kept(self._looks, stamp, view)
        return view

    def _stamp(self, kind: str, key: str) -> object:
        """Changes when what a page is made from does."""
        if kind == "cluster":
            return self._looks
        stamps = tuple((run.key, run.stamp) for run in self.runs(kind, key))
        return stamps if kind != "index" else (stamps, self._cluster_counts(), list(self.catalogue.notes))

    def _made(self, kind: str, key: str) -> LivePage | None:
        """Build a page; invalid files may prevent it, but must not end the server."""
        try:
            return self._make(kind, key)
        except Exception as problem:
            return LivePage(
                "cannot be shown - epidemic", [(None, f"<h1>This cannot be shown</h1><p>{escape(_wrong(problem))}</p>")]
            )

    def _make(self, kind: str, key: str) -> LivePage | None:
        runs = self.runs(kind, key)
        if kind == "index":
            return pages.index(self.catalogue, self._cluster_counts())
        if kind == "cluster":
            cluster = self._clusters.get(key)
            return None if cluster is None else cluster_page(cluster)
        if not runs:
            return None
        return pages.run_page(self.catalogue, runs[0]) if kind == "run" else pages.group_page(self.catalogue, runs[0].group, runs)  # fmt: skip

    def runs(self, kind: str, key: str) -> list[WatchedRun]:
        """Return the runs that a page shows, by the page's kind and key."""
        if kind == "index":
            return list(self.catalogue.runs.values())
        if kind == "run":
            run = self.catalogue.run(key)
            return [] if run is None else [run]
        group = self.catalogue.group(key) if kind == "group" else None
        return [] if group is None else self.catalogue.groups[group]

    def report(self, kind: str, key: str) -> str | None:
        """The report of a run or of several, as `epidemic report` makes it."""
        runs = self.runs(kind, key)
        seeds = [seed.path for run in runs for seed in run.known if seed.records and not seed.problem]
        if not seeds:
            return None
        title = runs[0].name if kind == "run" else self.catalogue.title(runs[0].group)
        return page(read_results(*seeds), title)

    def _look(self) -> None:
        """Read what is new; problems with single files are reported, and the rest is read."""
        try:
            self.catalogue.look()
        except Exception as problem:
            self.catalogue.notes.append(_wrong(problem))
        self._looked = time.monotonic()
        self._looks += 1
        known = {folders.key: folders for folders in self.catalogue.clusters.values()}
        for key in [key for key in self._clusters if key not in known]:
            self._close(self._clusters.pop(key))
        for key, folders in known.items():
            kept = self._clusters.get(key)
            if kept is None or (kept.asker is None) != (folders.asker is None):
                kept = self._clusters[key] = WatchedCluster(folders, insecure=self._insecure)
            try:
                kept.look(ask=time.monotonic() - self._watched.get(key, -1e9) < 3 * BREATH)
            except Exception as problem:
                self.catalogue.notes.append(f"{folders.title}: {_wrong(problem)}")

    def _cluster_counts(self) -> list[tuple[str, str, dict[str, int]]]:
        found = []
        for key, cluster in self._clusters.items():
            states: dict[str, int] = {}
            for member in cluster.members:
                states[member.state] = states.get(member.state, 0) + 1
            found.append((key, cluster.folders.title, states))
        return found

    # -- pushing ------------------------------------------------------------------------------------------------------

    async def events(self, kind: str, key: str, have: str) -> AsyncIterator[str]:
        """What changes on a page from now on; what its visitor has already is not sent again."""
        self.clients += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_looking())
        try:
            shown: LivePage | None = None
            silent = time.monotonic()
            yield ": hello\n\n"
            while True:
                view = await self.in_turn(lambda: self.view(kind, key))
                if view is None:
                    view = LivePage(
                        "gone - epidemic",
                        [(None, "<h1>It no longer exists</h1><p><a href='/'>Overview</a></p>")],
                    )
                changed = [] if shown is None and view.digest == have else view.since(shown)
                if changed or (shown is not None and shown.title != view.title):
                    yield f"id: {view.digest}\nevent: change\ndata: {_json({'title': view.title, 'parts': changed})}\n\n"
                    silent = time.monotonic()
                elif time.monotonic() - silent > BREATH:
                    yield ": still here\n\n"
                    silent = time.monotonic()
                shown = view
                async with self._news:
                    await self._news.wait()
        finally:
            self.clients -= 1

    async def _keep_looking(self) -> None:
        """One look for all, as long as there is anybody."""
        while self.clients:
            await self.in_turn(self._look)
            async with self._news:
                self._news.notify_all()
            await asyncio.sleep(self.every)

    def close(self) -> None:
        """Stop walking directories and asking nodes; called when the server ends."""
        if self._task is not None:
            self._task.cancel()
        for cluster in self._clusters.values():
            self._close(cluster)
        self._thread.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _close(cluster: WatchedCluster) -> None:
        if cluster.asker is not None:
            cluster.asker.close()


def _wrong(problem: Exception) -> str:
    return f"something cannot be shown: {plain(f'{type(problem).__name__}: {problem}')}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# -- addresses --------------------------------------------------------------------------------------------------------


def application(
    directories: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    cookie: str = "epidemic",
    insecure: bool = False,
    every: float = EVERY,
) -> Starlette:
    """The server for some directories. With a `token`, only requests that have it are answered; without, only those that name this machine."""
    live = Live(Catalogue(directories), insecure=insecure, every=every)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        live.close()

    async def show(request: Request) -> Response:
        kind, key = _asked(request)
        view = await live.in_turn(lambda: live.view(kind, key))
        if view is None:
            return _missing()
        return HTMLResponse(view.document(f"/events{request.url.path}"), headers=HEADERS)

    async def events(request: Request) -> Response:
        kind, key = _asked(request)
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return PlainTextResponse("these events are for the page of this server\n", 403, headers=HEADERS)
        if live.clients >= MOST_CLIENTS:
            return PlainTextResponse(f"{MOST_CLIENTS} pages are open already\n", 503, headers={**HEADERS, "retry-after": "5"})  # fmt: skip
        if await live.in_turn(lambda: live.view(kind, key)) is None:
            return _missing()
        if request.method == "HEAD":
            return Response(headers=HEADERS, media_type="text/event-stream")
        have = request.headers.get("last-event-id") or request.query_params.get("have", "")
        return StreamingResponse(live.events(kind, key, have), headers=HEADERS, media_type="text/event-stream")

    async def report(request: Request) -> Response:
        kind, key = _asked(request)
        try:
            text = await live.in_turn(lambda: live.report(kind, key))
        except Exception as problem:  # whatever is in untrusted files
            text = str(problem) if isinstance(problem, EpidemicError) else _wrong(problem)
            return PlainTextResponse(f"{plain(text, 500)}\n", 409, headers=HEADERS)
        if text is None:
            return _missing()
        style = re.search(r"<style>(.*?)</style>", text, re.S)
        digest = base64.b64encode(hashlib.sha256((style[1] if style else "").encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'sha256-{digest}'; style-src-attr 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
        return HTMLResponse(text, headers={**HEADERS, "content-security-policy": policy})

    sheet = "".join(_text(*where) for where in (("epidemic.report", "page.css"), ("epidemic.web", "live.css")))
    script = _text("epidemic.web", "live.js")
    routes: list[Route] = [
        Route("/", show),
        Route("/events/", events),
        Route("/live.css", lambda _: Response(sheet, media_type="text/css", headers=HEADERS)),
        Route("/live.js", lambda _: Response(script, media_type="text/javascript", headers=HEADERS)),
    ]
    for kind in ("run", "group", "cluster"):
        routes += [Route(f"/{kind}/{{key}}", show), Route(f"/events/{kind}/{{key}}", events)]
    routes += [Route(f"/report/{kind}/{{key}}", report) for kind in ("run", "group")]
    answers = {404: lambda *_: _missing(), 500: lambda *_: _failed()}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=answers)
    app.add_middleware(Guard, host=host, token=token, cookie=cookie)
    app.state.live = live
    return app


def _asked(request: Request) -> tuple[str, str]:
    """The kind of page and its key."""
    found = re.search(r"(run|group|cluster)/", request.url.path)
    return (found[1] if found else "index"), str(request.path_params.get("key", ""))


def _missing() -> Response:
    view = LivePage("not found - epidemic", [(None, '<h1>There is no such page</h1><p><a href="/">Overview</a></p>')])
    return HTMLResponse(view.document("/events/"), 404, headers=HEADERS)


def _failed() -> Response:
    return PlainTextResponse(
        "something went wrong here; the page may work when it is loaded again\n", 500, headers=HEADERS
    )


def _text(package: str, name: str) -> str:
    return (files(package) / name).read_text(encoding="utf-8")
