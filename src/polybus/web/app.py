"""The application: which address is answered by what."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from polybus.web import api, history, streams
from polybus.web.answers import ON_ERRORS
from polybus.web.asking import Desk
from polybus.web.guard import Guard, GuardMiddleware
from polybus.web.history import History
from polybus.web.live import Live
from polybus.web.state import State

ANY_METHOD: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
STATIC: Final = Path(__file__).with_name("static")


class Pages(StaticFiles):
    """The files of the pages. Browsers keep them, and ask each time whether they are still the same."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.setdefault("cache-control", "no-cache")
        return response


async def no_such(request: Request) -> Response:
    """What no address of the API answers, or not for this method."""
    routes: list[BaseRoute] = [*streams.ROUTES, *history.ROUTES, *api.ROUTES]
    partly = [route for route in routes if route.matches(request.scope)[0] is Match.PARTIAL]
    methods = {method for route in partly if isinstance(route, Route) for method in route.methods or ()}
    headers = {"allow": ", ".join(sorted(methods))} if methods else None
    raise HTTPException(405 if methods else 404, headers=headers)


def make_app(find: Callable[[], str], guard: Guard, tables: str, journals: Sequence[Path]) -> Starlette:
    """The dashboard; `find` says where the broker's admin socket is."""
    # With nosniff, a browser runs no script that is called by another name.
    mimetypes.add_type("text/javascript", ".js")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        desk = Desk(find)
        live = Live(desk)
        past = History(tables, journals)
        app.state.polybus = State(live, past)
        poller = asyncio.create_task(live.run())
        try:
            yield
        finally:
            poller.cancel()
            await asyncio.gather(poller, return_exceptions=True)
            await desk.close()
            past.close()

    return Starlette(
        routes=[
            # Before the questions, of which some take everything that begins as they do.
            *streams.ROUTES,
            *history.ROUTES,
            *api.ROUTES,
            Route("/api", no_such, methods=ANY_METHOD),
            Route("/api/{rest:path}", no_such, methods=ANY_METHOD),
            Mount("/", Pages(directory=STATIC, html=True)),
        ],
        middleware=[Middleware(GuardMiddleware, guard=guard)],
        exception_handlers=ON_ERRORS,
        lifespan=lifespan,
    )
