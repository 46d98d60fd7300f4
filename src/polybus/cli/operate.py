"""The commands that look into a running broker and act on it, through its admin socket."""

from __future__ import annotations

from typing import Annotated

import typer

from polybus.cli.options import Admin, DataDir, Json, examples
from polybus.cli.rows import NOTHING, Cell, Row, ask, field, percent, show, span

STATUS_EXAMPLES = examples("polybus status", "polybus status --json")


def status(admin: Admin = None, data_dir: DataDir = None, json_: Json = False) -> None:
    """Show how the broker is: its state, its store, what it holds, and what happened since it started."""
    from polybus.cli.output import print_json
    from polybus.cli.status import show as show_status

    answer: Row = ask(admin, data_dir, "status")
    if json_:
        print_json(answer)
    else:
        show_status(answer)


SERVICES_EXAMPLES = examples("polybus services", "polybus services --json")


def services(admin: Admin = None, data_dir: DataDir = None, json_: Json = False) -> None:
    """List the services that are offered or asked for, with their workers and what waits for them."""
    columns: dict[str, Cell] = {
        "service": field("service"),
        "state": service_state,
        ">workers": field("workers"),
        "dialects": lambda row: ", ".join(row["dialects"]),
        "via": lambda row: " › ".join(row["via"]) or NOTHING,
        ">up": span("up_s"),
        ">load": percent("load"),
        ">queued": field("queued"),
        ">in flight": field("in_flight"),
        ">done/s": field("rate_per_s"),
        ">answered": field("answered"),
        ">failed": field("failed"),
    }
    nothing = "No services yet: nobody offers or asks for one. 'polybus demo --stay' starts some."
    show(ask(admin, data_dir, "services"), json_, columns, nothing)


def service_state(row: Row) -> str:
    """Whether somebody serves it; and how many workers are silent, which may still answer what they have."""
    silent, state = row["silent_workers"], row["state"]
    if not silent:
        return str(state)
    return f"silent: {silent}" if state == "silent" else f"{state}, silent: {silent}"


WORKERS_EXAMPLES = examples("polybus workers", "polybus workers --data-dir var")


def workers(admin: Admin = None, data_dir: DataDir = None, json_: Json = False) -> None:
    """List the workers: dialect, services, what they hold, and when they were last heard of.

    A silent worker counts as disconnected because nothing was heard from it for too long, but it holds
    requests that it may still answer: 'unanswered' says how many. It gets no others until it is heard again.
    """
    columns: dict[str, Cell] = {
        "worker": field("worker"),
        "dialect": field("dialect"),
        "services": lambda row: ", ".join(row["services"]) or row["role"],
        "state": worker_state,
        ">load": percent("load"),
        ">free slots": field("free_slots"),
        ">in flight": field("in_flight"),
        ">unanswered": field("unanswered"),
        ">done": field("done"),
        ">up": span("up_s"),
        ">silent": span("silent_s"),
        ">missed": field("missed_beats"),
    }
    show(ask(admin, data_dir, "workers"), json_, columns, "No workers are connected.")


def worker_state(row: Row) -> str:
    from polybus.cli.output import moment

    if row["silent_since"] is not None:
        return f"silent since {moment(row['silent_since'])}"
    return "late" if row["late"] else str(row["state"])


QUEUES_EXAMPLES = examples("polybus queues", "polybus queues --requests")


def queues(
    requests: Annotated[
        bool, typer.Option("--requests", help="List the unanswered requests one by one.")
    ] = False,
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Show what waits for a worker, runs, or waits for its next attempt, queue by queue.

    'done/s' is counted over the last seconds; 'limits' are those of [queues."name"] in the settings.
    A request whose worker went silent is queued for others; until one of them answers, that worker still may.
    """
    if requests:
        columns: dict[str, Cell] = {
            "token": field("token"),
            "request id": field("request_id"),
            "service": field("service"),
            "client": field("client"),
            "dialect": field("dialect"),
            "state": field("state"),
            "worker": holders,
            ">attempt": field("attempt"),
            ">age": span("age_s"),
            ">expires in": span("expires_in_s"),
            ">bytes": field("bytes"),
        }
        show(ask(admin, data_dir, "requests"), json_, columns, "Every request is answered.")
        return
    names = (
        "service",
        "depth",
        "oldest_s",
        "rate_per_s",
        "running",
        "waiting",
        "limits",
        "workers",
        "free_slots",
    )
    rows = [{name: row[name] for name in names} for row in ask(admin, data_dir, "services")]
    columns = {
        "queue": field("service"),
        ">depth": field("depth"),
        ">oldest": span("oldest_s"),
        ">done/s": field("rate_per_s"),
        ">running": field("running"),
        ">waiting": field("waiting"),
        "limits": limits,
        ">workers": field("workers"),
        ">free slots": field("free_slots"),
    }
    show(rows, json_, columns, "No queues: nobody offers or asks for a service yet.")


def holders(row: Row) -> str:
    """Who has a request: the worker that it is with, and silent ones that may still answer it."""
    names = [row["worker"]] if row["worker"] else []
    return ", ".join([*names, *(f"{name} (silent)" for name in row["silent_workers"])]) or NOTHING


def limits(row: Row) -> str:
    """What the settings of the queue allow, in words."""
    found = row["limits"]
    words = []
    if found["concurrency"]:
        words.append(f"{found['concurrency']} at once")
    if found["rate_per_s"]:
        words.append(f"{found['rate_per_s']:g}/s")
    return ", ".join(words) or NOTHING


NODES_EXAMPLES = examples("polybus nodes", "polybus nodes --json")


def nodes(admin: Admin = None, data_dir: DataDir = None, json_: Json = False) -> None:
    """List the nodes that registered in the catalog (DBP), and whether they still beat."""
    columns: dict[str, Cell] = {
        "node": field("node"),
        "state": field("state"),
        "address": field("address"),
        ">load": percent("load"),
        ">done": field("done"),
        ">beats every": span("heartbeat_s"),
        ">up": span("up_s"),
        ">silent": span("silent_s"),
        ">missed": field("missed_beats"),
    }
    show(ask(admin, data_dir, "nodes"), json_, columns, "No nodes are registered.")


TAP_EXAMPLES = examples(
    "polybus tap",
    "polybus tap --service hello --bodies",
    "polybus tap --what failed --what expired --count 1 --json",
)


def tap(
    service: Annotated[str, typer.Option("--service", help="Only this service or topic.")] = "",
    what: Annotated[
        list[str] | None,
        typer.Option(
            "--what",
            metavar="KIND",
            help="Only this: accepted, dispatched, replied, failed, published, …; several with commas or "
            "with several --what. A wrong one is answered with the list of all.",
        ),
    ] = None,
    bodies: Annotated[
        bool, typer.Option("--bodies", help="Show the bodies, too (up to 1 KiB), if monitor.tap allows it.")
    ] = False,
    count: Annotated[
        int, typer.Option("--count", min=0, help="Stop after so many; 0 goes on until Ctrl-C.")
    ] = 0,
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Watch what happens on the bus, live, one line each."""
    from polybus.cli.find import admin_endpoint
    from polybus.cli.tap import chosen, watch

    kinds = chosen(what or [])
    watch(admin_endpoint(admin, data_dir), service, kinds, bodies, count, json_)


CANCEL_EXAMPLES = examples("polybus queues --requests", "polybus cancel 5f3a9c01-17")


def cancel(
    request: Annotated[str, typer.Argument(metavar="ID", help="The request's token, or its client's id.")],
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Cancel an unanswered request; its client is told. 'polybus queues --requests' lists them."""
    from polybus.cli.output import print_json

    answer = ask(admin, data_dir, "cancel", request=request)
    if json_:
        print_json(answer)
    else:
        print("cancelled", answer["cancelled"])


DRAIN_EXAMPLES = examples("polybus drain", "polybus drain --data-dir var")


def drain(admin: Admin = None, data_dir: DataDir = None, json_: Json = False) -> None:
    """Let the broker finish what is unanswered and stop. It takes no new requests from now on.

    What is still unanswered after broker.drain_s (10 s unless the settings say otherwise) is refused.
    """
    from polybus.cli.output import print_json
    from polybus.server.draining import draining

    answer = ask(admin, data_dir, "drain")
    if json_:
        print_json(answer)
    else:
        print(draining(answer["state"] == "drained", answer["requests"], answer["drain_s"]))
