"""Questions about the live bus, and orders to it: what the admin socket answers, as it answers."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from polybus.web.answers import answer, problem, raw
from polybus.web.state import state_of

# Answered within this, the broker is ready.
READY_S: Final = 10.0
# Questions without conditions.
PLAIN: Final = (
    "status",
    "services",
    "workers",
    "nodes",
    "requests",
    "bridges",
    "subscribers",
    "schedules",
    "monitor",
    "log_nodes",
)


async def plain(request: Request) -> Response:
    return raw(await state_of(request).live.ask(request.url.path.rpartition("/")[2]))


async def healthz(request: Request) -> Response:
    return answer({"alive": True})


async def readyz(request: Request) -> Response:
    live = state_of(request).live
    if live.silent_s > 1.0:
        await live.refresh("status")
    if live.is_up and live.silent_s < READY_S:
        return answer({"ready": True})
    return problem(503, live.health.error or "the broker is away", live.health.next or "ask again")


ROUTES: Final[list[BaseRoute]] = [
    Route("/healthz", healthz),
    Route("/readyz", readyz),
    *(Route(f"/api/{do}", plain) for do in PLAIN),
]
