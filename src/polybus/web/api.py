"""Questions about the live bus, and orders to it: what the admin socket answers, as it answers.

Which address asks what is a table (`QUESTIONS`, `ORDERS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from polybus.client.admin import QuestionRefused
from polybus.core.tables import NO_STORE
from polybus.web.answers import HELP, Refused, answer, problem, raw
from polybus.web.asking import TIMEOUT_S
from polybus.web.lag import pipeline_of
from polybus.web.metrics import render
from polybus.web.reading import Reader, number, read_body, read_query, seconds
from polybus.web.state import state_of

# Answered within this, the broker is ready.
READY_S: Final = 10.0
# A look that is younger than this is new enough.
FRESH_S: Final = 1.0
# Orders that may mean a hundred thousand jobs, each of them written to disk before the answer comes.
PATIENCE_S: Final = {"job_retry": 120.0, "dead_drop": 120.0}


class Question(Struct, frozen=True):
    """What is asked at an address. A name in it, as {job}, is a field of the question."""

    path: str
    do: str
    # Parameters of the query: how each is read, and what the field is called, if not the same.
    query: Mapping[str, Reader] = {}
    renamed: Mapping[str, str] = {}
    always: Mapping[str, Any] = {}


class Order(Struct, frozen=True):
    method: str
    path: str
    do: str
    # Fields that the body may have; None if it is whatever the broker takes.
    fields: frozenset[str] | None = frozenset()


LIST: Final[dict[str, Reader]] = {"service": str, "limit": number}
QUESTIONS: Final = (
    *(
        Question(f"/api/{do}", do)
        for do in (
            *("status", "services", "workers", "nodes", "requests", "bridges", "subscribers", "schedules"),
            *("monitor", "log_nodes"),
        )
    ),
    Question("/api/jobs", "jobs", {"state": str, **LIST}),
    Question("/api/jobs/{job:path}", "job"),
    Question("/api/dead", "dead", {**LIST, "after": str}),
    Question("/api/dead/{job:path}", "job"),
    Question("/api/schedules/{key:path}/runs", "schedule_runs", {"limit": number}),
    Question(
        "/api/last",
        "last",
        {"prefix": str, "limit": number},
        renamed={"prefix": "topic"},
        always={"topic": "", "prefix": True},
    ),
    Question("/api/last/{topic:path}", "last"),
    Question(
        "/api/logs",
        "logs",
        {"level": str, "node": str, "since": seconds, "limit": number, "after": number, "life": str},
    ),
)
LETTERS: Final = frozenset({"jobs", "all"})
ORDERS: Final = (
    Order("POST", "/api/jobs/{job:path}/cancel", "job_cancel"),
    Order("POST", "/api/dead/retry", "job_retry", LETTERS),
    Order("POST", "/api/dead/drop", "dead_drop", LETTERS),
    Order("POST", "/api/requests/{request:path}/cancel", "cancel"),
    Order("POST", "/api/schedules", "schedule_add", None),
    Order("DELETE", "/api/schedules/{key:path}", "schedule_rm"),
)


# -- what the broker refuses ----------------------------------------------------------------------


def refusal(text: str, names_one: bool) -> Refused:
    """What the broker said, with the status that fits."""
    if text.startswith("the question is wrong"):
        return Refused(400, text, "change the question as it says")
    # What the broker advises stands behind a semicolon.
    error, _, next_ = text.rpartition("; ")
    if text == NO_STORE:
        return Refused(409, error, next_)
    # Whoever names one thing is mostly told that it is not there, or not any more.
    return Refused(404 if names_one else 400, error or text, next_ if error else HELP)


# -- routes ---------------------------------------------------------------------------------------


def question_route(asked: Question) -> Route:
    async def ask(request: Request) -> Response:
        question = {**asked.always, **request.path_params}
        for name, value in read_query(request.query_params.multi_items(), asked.query).items():
            question[asked.renamed.get(name, name)] = value
        try:
            return raw(await state_of(request).live.ask(asked.do, **question))
        except QuestionRefused as error:
            raise refusal(str(error), bool(request.path_params)) from None

    return Route(asked.path, ask)


def order_route(order: Order) -> Route:
    async def carry_out(request: Request) -> Response:
        body = await read_body(request)
        unknown = body.keys() - order.fields if order.fields is not None else body.keys() & {"do"}
        if unknown:
            known = ", ".join(sorted(order.fields or ())) or "nothing"
            raise Refused(400, f"the body has {sorted(unknown)[0]!r}", f"it takes {known}")
        timeout_s = PATIENCE_S.get(order.do, TIMEOUT_S)
        try:
            done = await state_of(request).live.order(order.do, timeout_s, **{**body, **request.path_params})
        except QuestionRefused as error:
            raise refusal(str(error), bool(request.path_params)) from None
        return raw(done)

    return Route(order.path, carry_out, methods=[order.method])


QUEUE_FIELDS: Final = (
    *("service", "depth", "oldest_s", "rate_per_s", "running", "waiting", "limits", "workers", "free_slots"),
)


async def queues(request: Request) -> Response:
    """What `polybus queues --json` prints: of services, what is about their queues."""
    read_query(request.query_params.multi_items(), {})
    rows = msgspec.json.decode(
        await state_of(request).live.ask("services"), type=list[dict[str, msgspec.Raw]]
    )
    return answer([{name: row[name] for name in QUEUE_FIELDS} for row in rows])


async def healthz(request: Request) -> Response:
    return answer({"alive": True})


async def readyz(request: Request) -> Response:
    live = state_of(request).live
    if live.silent_s > FRESH_S:
        await live.refresh("status")
    if live.is_up and live.silent_s < READY_S:
        return answer({"ready": True})
    return problem(503, live.health.error or "the broker is away", live.health.next or "ask again")


async def metrics(request: Request) -> Response:
    """For Prometheus. A broker that is away is a metric, too, and no failure of ours."""
    state = state_of(request)
    await state.live.refresh("status", "top")
    text, kind = render(state.live, pipeline_of(state.history))
    return Response(text, 200, {"cache-control": "no-store"}, kind)


# Those with more in their addresses first: {job:path} would take the rest, too.
ROUTES: Final[list[BaseRoute]] = [
    Route("/healthz", healthz),
    Route("/readyz", readyz),
    Route("/metrics", metrics),
    Route("/api/queues", queues),
    *map(order_route, ORDERS),
    *map(question_route, sorted(QUESTIONS, key=lambda asked: "{" in asked.path)),
]
