"""`polybus tap`: each thing that happens on the bus, as a line."""

from __future__ import annotations

import base64
import sys
import time
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from polybus.cli.options import WrongUse
from polybus.cli.output import one_line, print_json, printable, say
from polybus.client.admin import AdminClient
from polybus.server.taps import KINDS, NotAllowed, read_kinds

STYLES: Final = {
    "accepted": "cyan",
    "dispatched": "blue",
    "partial": "green",
    "replied": "bold green",
    "published": "magenta",
    "log": "magenta",
    "subscribed": "magenta",
    "unsubscribed": "magenta",
    "worker_up": "green",
    "offered": "green",
    "retried": "yellow",
    "requeued": "yellow",
    "claimed": "blue",
    "scheduled": "cyan",
    "unscheduled": "cyan",
    "schedule_ran": "cyan",
    "schedule_late": "yellow",
    "schedule_skipped": "yellow",
    "schedule_moved": "yellow",
    "schedule_odd": "red",
    "store_sick": "bold red",
    "store_well": "green",
    "expired": "yellow",
    "cancelled": "yellow",
    "node_late": "yellow",
    "late": "yellow",
    "worker_down": "red",
    "node_down": "red",
    "rejected": "bold red",
    "refused": "bold red",
    "failed": "bold red",
    "invalid": "bold red",
    "denied": "bold red",
    "answer_lost": "bold red",
}


def chosen(texts: list[str]) -> str:
    """What several `--what` ask for, as the broker takes it."""
    text = ",".join(texts)
    try:
        kinds = read_kinds(text)
    except NotAllowed as error:
        raise WrongUse(f"--what {text}: {error}") from None
    if texts and not kinds:
        raise WrongUse(f"--what names nothing; it takes one or more of {', '.join(KINDS)}")
    return ",".join(kind for kind in KINDS if kind in kinds)


def watch(endpoint: str, service: str, what: str, bodies: bool, count: int, as_json: bool) -> None:
    """Print until `count` were printed (0: for ever)."""
    console = Console(soft_wrap=True, highlight=False)
    seen = 0
    with AdminClient(endpoint) as admin:
        records = admin.tap(service, what, bodies)
        for record in records:
            if not record:
                say(f"tapping {endpoint}; Ctrl-C ends it")
                continue
            if as_json:
                print_json(record)
            else:
                console.print(line(record))
                sys.stdout.flush()
            seen += 1
            if seen == count:
                break
        records.close()  # type: ignore[attr-defined]


def line(record: dict[str, Any]) -> Text:
    """One observation for people."""
    at = record["at"]
    clock = time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d}"
    text = Text(clock, style="dim")
    text.append(f" {record['what']:<12}", STYLES.get(record["what"], ""))
    if record["service"]:
        text.append(f" {printable(record['service'])}", "bold")
    for role, sign in (("client", "from"), ("worker", "to")):
        if record[role]:
            dialect = record[f"{role}_dialect"]
            text.append(f" {sign} {printable(record[role])}" + (f" ({dialect})" if dialect else ""))
    if record["token"]:
        text.append(f" {record['token']}", "dim")
    if record["attempt"] > 1:
        text.append(f" attempt {record['attempt']}", "yellow")
    if record.get("age_s"):
        text.append(f" {record['age_s'] * 1000:.1f} ms", "dim")
    why = ": ".join(printable(record[key]) for key in ("reason", "detail") if record[key])
    if why:
        text.append(f" {why}", "red")
    if record["bytes"]:
        text.append(f" {record['bytes']} B", "dim")
    for body in record.get("body_base64", ()):
        text.append(f" {one_line(base64.b64decode(body))}", "italic")
    if record.get("missed_before"):
        text.append(f" ({record['missed_before']} before this were missed)", "bold yellow")
    return text
