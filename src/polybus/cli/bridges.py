"""The command about links to other brokers."""

from __future__ import annotations

from polybus.cli.options import Admin, DataDir, Json, examples
from polybus.cli.rows import NOTHING, Cell, Row, ask, field, show

BRIDGES_EXAMPLES = examples("polybus bridges", "polybus bridges --json")


def bridges(admin: Admin = None, data_dir: DataDir = None, json_: Json = False) -> None:
    """List the links to other brokers, and why there is none where one should be."""
    from polybus.cli.output import span

    def since(row: Row) -> object:
        return NOTHING if row["up_s"] is None else span(row["up_s"])

    columns: dict[str, Cell] = {
        "broker": field("broker"),
        "dialled at": field("endpoint"),
        "state": field("state"),
        ">up": since,
        ">in flight": field("in_flight"),
        ">services there": field("offers"),
        ">services told": field("told"),
        ">published": field("published"),
        ">received": field("received"),
        ">dropped": field("dropped"),
        "trouble": field("trouble"),
    }
    nothing = "No other broker is linked, and none is dialled: bridge.name and bridge.peers do that."
    show(ask(admin, data_dir, "bridges"), json_, columns, nothing)
