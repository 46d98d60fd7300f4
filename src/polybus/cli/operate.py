"""The commands that look into a running broker and act on it, through its admin socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from polybus.cli.options import Admin, DataDir, Json, examples

Row = dict[str, Any]


def _ask(admin: str | None, data_dir: Any, do: str, **question: Any) -> Any:
    from polybus.cli.find import admin_endpoint
    from polybus.client.admin import AdminClient

    with AdminClient(admin_endpoint(admin, data_dir)) as client:
        return client.ask(do, **question)


def _show(rows: list[Row], as_json: bool, columns: dict[str, Callable[[Row], object]], nothing: str) -> None:
    from polybus.cli.output import print_json, print_table, say

    if as_json:
        print_json(rows)
    elif rows:
        print_table(list(columns), ([cell(row) for cell in columns.values()] for row in rows))
    else:
        say(nothing)


def _field(name: str) -> Callable[[Row], object]:
    return lambda row: row[name]


def _span(name: str) -> Callable[[Row], object]:
    from polybus.cli.output import span

    return lambda row: span(row[name])


SERVICES_EXAMPLES = examples("polybus services", "polybus services --json")


def services(admin: Admin = None, data_dir: DataDir = None, json_: Json = False) -> None:
    """List the services that are offered or asked for, with their workers and what waits for them."""
    columns: dict[str, Callable[[Row], object]] = {
        "service": _field("service"),
        ">workers": _field("workers"),
        "dialects": lambda row: ", ".join(row["dialects"]),
        ">free slots": _field("free_slots"),
        ">queued": _field("queued"),
        ">oldest": _span("oldest_queued_s"),
        ">in flight": _field("in_flight"),
        ">accepted": _field("accepted"),
        ">answered": _field("answered"),
        ">failed": _field("failed"),
    }
    nothing = "No services yet: nobody offers or asks for one. 'polybus demo --stay' starts some."
    _show(_ask(admin, data_dir, "services"), json_, columns, nothing)


WORKERS_EXAMPLES = examples("polybus workers", "polybus workers --data-dir var")


def workers(admin: Admin = None, data_dir: DataDir = None, json_: Json = False) -> None:
    """List the workers: dialect, services, what they hold, and when they were last heard of."""
    columns: dict[str, Callable[[Row], object]] = {
        "worker": _field("worker"),
        "dialect": _field("dialect"),
        "services": lambda row: ", ".join(row["services"]) or row["role"],
        "state": _field("state"),
        ">free slots": _field("free_slots"),
        ">in flight": _field("in_flight"),
        ">done": _field("done"),
        ">up": _span("up_s"),
        ">silent": _span("silent_s"),
    }
    _show(_ask(admin, data_dir, "workers"), json_, columns, "No workers are connected.")


QUEUES_EXAMPLES = examples("polybus queues", "polybus queues --requests")


def queues(
    requests: Annotated[
        bool, typer.Option("--requests", help="List the unanswered requests one by one.")
    ] = False,
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Show what waits for a worker or for its answer, per service or request by request."""
    if requests:
        columns: dict[str, Callable[[Row], object]] = {
            "token": _field("token"),
            "request id": _field("request_id"),
            "service": _field("service"),
            "client": _field("client"),
            "dialect": _field("dialect"),
            "state": _field("state"),
            "worker": lambda row: row["worker"] or "–",
            ">attempt": _field("attempt"),
            ">age": _span("age_s"),
            ">expires in": _span("expires_in_s"),
            ">bytes": _field("bytes"),
        }
        _show(_ask(admin, data_dir, "requests"), json_, columns, "Every request is answered.")
        return
    names = ("service", "queued", "oldest_queued_s", "in_flight", "workers", "free_slots")
    rows = [{name: row[name] for name in names} for row in _ask(admin, data_dir, "services")]
    columns = {
        "service": _field("service"),
        ">queued": _field("queued"),
        ">oldest": _span("oldest_queued_s"),
        ">in flight": _field("in_flight"),
        ">workers": _field("workers"),
        ">free slots": _field("free_slots"),
    }
    _show(rows, json_, columns, "No queues: nobody offers or asks for a service yet.")


NODES_EXAMPLES = examples("polybus nodes", "polybus nodes --json")


def nodes(admin: Admin = None, data_dir: DataDir = None, json_: Json = False) -> None:
    """List the nodes that registered in the catalog (DBP), and whether they still beat."""
    columns: dict[str, Callable[[Row], object]] = {
        "node": _field("node"),
        "state": _field("state"),
        ">beats every": _span("heartbeat_s"),
        ">up": _span("up_s"),
        ">silent": _span("silent_s"),
        ">missed": _field("missed_beats"),
    }
    _show(_ask(admin, data_dir, "nodes"), json_, columns, "No nodes are registered.")


TAP_EXAMPLES = examples(
    "polybus tap", "polybus tap --service hello --bodies", "polybus tap --what failed --count 1 --json"
)


def tap(
    service: Annotated[str, typer.Option("--service", help="Only this service or topic.")] = "",
    what: Annotated[
        str, typer.Option("--what", help="Only this: accepted, dispatched, replied, failed, published, …")
    ] = "",
    bodies: Annotated[bool, typer.Option("--bodies", help="Show the bodies, too (up to 1 KiB).")] = False,
    count: Annotated[
        int, typer.Option("--count", min=0, help="Stop after so many; 0 goes on until Ctrl-C.")
    ] = 0,
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Watch what happens on the bus, live, one line each."""
    from polybus.cli.find import admin_endpoint
    from polybus.cli.tap import watch

    watch(admin_endpoint(admin, data_dir), service, what, bodies, count, json_)


CANCEL_EXAMPLES = examples("polybus queues --requests", "polybus cancel 5f3a9c01-17")


def cancel(
    request: Annotated[str, typer.Argument(metavar="ID", help="The request's token, or its client's id.")],
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Cancel an unanswered request; its client is told. 'polybus queues --requests' lists them."""
    from polybus.cli.output import print_json

    answer = _ask(admin, data_dir, "cancel", request=request)
    if json_:
        print_json(answer)
    else:
        print("cancelled", answer["cancelled"])


DRAIN_EXAMPLES = examples("polybus drain", "polybus drain --data-dir var")


def drain(admin: Admin = None, data_dir: DataDir = None, json_: Json = False) -> None:
    """Let the broker finish what is unanswered and stop. It takes no new requests from now on."""
    from polybus.cli.output import print_json

    answer = _ask(admin, data_dir, "drain")
    if json_:
        print_json(answer)
    elif answer["requests"]:
        print(f"draining: {answer['requests']} requests are unanswered")
    else:
        print("drained: the broker stops")
