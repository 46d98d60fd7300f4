"""A call that got no answer: its request is taken back, and a person is told why nobody answered.

Most dialects have no word for giving a request up.  The broker's admin socket has: it is looked for where it
may be, and taken only if it says itself that it belongs to the broker that was called.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from polybus.cli.find import PORT_OF, admin_place, endpoints_in, from_here, refusal
from polybus.cli.output import printable
from polybus.cli.rows import Row
from polybus.client.admin import AdminClient
from polybus.client.discovery import DATA_DIR, DEFAULT_DATA_DIR
from polybus.client.places import TCP, from_there
from polybus.errors import PolybusError

# Somebody waits for our last words, but what a busy broker is not told stays with it for minutes. One more
# Ctrl-C ends the waiting.
ASK_S: Final = 5.0
# For a host that does not even answer to a connection.
CONNECT_S: Final = 1.0
# So many names fit into a sentence.
NAMED: Final = 8
# Where eMQP takes what nobody serves, unless the settings of the broker name another queue.
DEFAULT_QUEUE: Final = "default"


class Asked:
    """Whom a call asked, and as whom."""

    def __init__(self, endpoint: str, dialect: str, identity: bytes, data_dir: Path | None) -> None:
        self._endpoint = endpoint
        self._dialect = dialect
        self._identity = identity
        self._data_dir = data_dir

    def unanswered(self, service: str, timeout_s: float) -> str:
        """Take the request back; what there is to say about it."""
        head = f"{service!r} gave no answer within {timeout_s:g} s"
        why = f"{head}; 'polybus services' shows who serves it, --timeout waits longer"
        admin = self._find_admin()
        if admin is None:
            return why if self._has_cancelled else f"{why}. {_stays('its admin socket was not found')}"
        with contextlib.closing(admin):
            try:
                why = f"{head}: {who_serves(service, admin.ask('services'), self._dialect)}"
                return f"{why}. {self._withdraw(admin)}"
            except PolybusError as error:
                return f"{why}. {_stays(str(error))}"

    def interrupted(self) -> None:
        """Take the request back; whoever interrupts does not want to hear about it."""
        admin = None if self._has_cancelled else self._find_admin()
        if admin is not None:
            with contextlib.closing(admin), contextlib.suppress(PolybusError):
                self._withdraw(admin)

    def refused(self, service: str, detail: str) -> str:
        """The detail of a refusal; if the worker of another queue said it, after how it got there."""
        admin = self._find_admin() if self._dialect == "emqp" and service != DEFAULT_QUEUE else None
        if admin is None:
            return detail
        with contextlib.closing(admin):
            try:
                served = served_in(admin.ask("services"))
            except PolybusError:
                return detail
        if service in served or DEFAULT_QUEUE not in served:
            return detail
        return (
            f"nobody serves {service!r}, so it went to the queue {DEFAULT_QUEUE!r}, as eMQP has it, where a "
            f"worker said: {detail.rstrip('.')}. {choice(service, served)}"
        )

    @property
    def _has_cancelled(self) -> bool:
        """EBUS has a word for it, which the client has said already."""
        return self._dialect == "ebus"

    def _withdraw(self, admin: AdminClient) -> str:
        if self._has_cancelled:
            return "The request is cancelled"
        done = admin.ask("cancel", client=self._identity.decode())
        if done["kept"]:
            token = done["kept"][0]
            return f"The request is a guaranteed job and goes on: 'polybus jobs show {token}' shows it"
        return "The request is cancelled" if done["cancelled"] else "The broker has no request of it any more"

    # -- whom to tell ---------------------------------------------------------------------------

    def _find_admin(self) -> AdminClient | None:
        until = time.monotonic() + ASK_S
        for place in dict.fromkeys(self._places()):
            # One place that is silent does not take all the time of the others.
            left_s = max(CONNECT_S, until - time.monotonic())
            if not place or refusal(place, left_s, CONNECT_S):
                continue
            admin = AdminClient(place, ASK_S)
            with contextlib.suppress(PolybusError):
                if self._is_ours(admin.ask("status")["endpoints"].get(PORT_OF[self._dialect, "client"], "")):
                    return admin
            admin.close()
        return None

    def _places(self) -> Iterator[str]:
        for folder in (self._data_dir, Path(os.environ.get(DATA_DIR) or DEFAULT_DATA_DIR)):
            if folder is not None:
                with contextlib.suppress(PolybusError):
                    yield endpoints_in(folder).get("admin.port", "")
        for host in (None, _host(self._endpoint)):
            with contextlib.suppress(PolybusError):
                yield admin_place(host, None)

    def _is_ours(self, bound: str) -> bool:
        called = self._endpoint.replace("//localhost:", "//127.0.0.1:")
        return bool(bound) and called in (from_here(bound), from_there(bound, _host(called) or ""))


def who_serves(service: str, rows: list[Row], dialect: str) -> str:
    """Why there may be no answer, from the list of services."""
    served = served_in(rows)
    row = served.get(service)
    silent = next((each["silent_workers"] for each in rows if each["service"] == service), 0)
    if row is None and silent:
        who = "its worker is silent" if silent == 1 else f"its {silent} workers are silent"
        return f"{who}, and may only be busy ('polybus workers'); --timeout waits longer"
    if row is None:
        taken = served.get(DEFAULT_QUEUE) if dialect == "emqp" else None
        if taken is not None:
            return (
                f"nobody serves it, so it went to the queue {DEFAULT_QUEUE!r}, as eMQP has it: "
                f"{_workload(taken, 'that')}. {choice(service, served)}"
            )
        return f"nobody serves it. {choice(service, served)}"
    if not row["workers"]:
        return f"it is served by way of {' › '.join(map(printable, row['via']))}; --timeout waits longer"
    return f"{_workload(row)}; --timeout waits longer"


def served_in(rows: list[Row]) -> dict[str, Row]:
    """The services that somebody serves, here or behind a bridge."""
    return {row["service"]: row for row in rows if row["workers"] or row["via"]}


def choice(service: str, served: Mapping[str, Row]) -> str:
    """What can be called instead."""
    if not served:
        return "Nothing else is served either: start a worker"
    names = sorted(served)
    near = get_close_matches(service, names, 1)
    mean = f"Did you mean {printable(near[0])!r}? " if near else ""
    shown = ", ".join(printable(name) for name in names[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{mean}Served are {shown}{more} ('polybus services')"


def _workload(row: Row, what: str = "it") -> str:
    workers, running, waiting = row["workers"], row["in_flight"], row["queued"]
    who = "1 worker serves" if workers == 1 else f"{workers} workers serve"
    runs = "1 request runs" if running == 1 else f"{running} requests run"
    waits = "1 waits" if waiting == 1 else f"{waiting} wait"
    return f"{who} {what}; {runs} and {waits}, this one included"


def _stays(why: str) -> str:
    return f"The request stays with the broker until it expires: {why}"


def _host(endpoint: str) -> str | None:
    return endpoint.removeprefix(TCP).rpartition(":")[0] if endpoint.startswith(TCP) else None


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end what is inside as Ctrl-C does: with a chance to tidy up, and its own status."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
