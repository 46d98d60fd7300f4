"""Where a broker listens, as a table: a row for each dialect, a column for each role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS: Final = ("dialect", "clients", "workers", "publish", "subscribe")
# The port settings in the order of the columns; empty if the dialect has no such role.
ROWS: Final = (
    ("EBUS 1.0", "ebus.frontend", "ebus.backend", "ebus.publish", "ebus.subscribe"),
    ("eMQP/1.0", "emqp.clients", "emqp.workers", "emqp.publish", "emqp.subscribe"),
    ("MDP/0.1, MDP/0.2, MDR", "majordomo.clients", "majordomo.workers", "", ""),
    ("DBP", "dbp.port", "dbp.port", "", ""),
)
OTHERS: Final = {
    "admin.port": "admin socket",
    "emqp.admin": "eMQP admin",
    "dbp.udp": "DBP heartbeats, UDP",
}


def endpoints_table(endpoints: Mapping[str, str]) -> Table:
    """All endpoints; the host that they share stands in the title, so that it fits into 80 columns."""
    from rich import box
    from rich.table import Table

    host = common_host(endpoints)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left", title_style="bold")
    table.title = f"Where to connect: tcp://{host}: and this port" if host else "Where to connect"
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "dialect" else "right", overflow="fold")
    for name, *settings in ROWS:
        table.add_row(name, *(cell(endpoints.get(setting, ""), host) for setting in settings))
    others = [f"{text}: {cell(endpoints[name], host)}" for name, text in OTHERS.items() if name in endpoints]
    table.caption = "; ".join(others)
    table.caption_justify = "left"
    table.caption_style = ""
    return table


def cell(endpoint: str, host: str) -> str:
    """The port alone if the host is the common one."""
    place = endpoint.rpartition("://")[2]
    return place.removeprefix(f"{host}:") if endpoint else "–"


def common_host(endpoints: Mapping[str, str]) -> str:
    """The host that most endpoints have; empty if there is none."""
    hosts = Counter(
        endpoint.removeprefix("tcp://").rpartition(":")[0]
        for endpoint in endpoints.values()
        if endpoint.startswith("tcp://")
    )
    return hosts.most_common(1)[0][0] if hosts else ""
