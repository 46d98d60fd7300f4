"""A bus with workers in several dialects, clients that ask all the time, and something of everything."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
from deltalake import write_deltalake

from polybus import Client, LogHandler, Options, PolybusError, Request, Worker
from polybus.client.admin import AdminClient
from polybus.spark.schema import CALLS, DEAD_LETTERS, SERVICE_METRICS, TRACES, Table
from support.commands import polybus
from support.job_broker import JobBroker
from support.patience import patient
from support.waiting import until

# It must never become markup: then it would set window.hacked.
HOSTILE: Final = "<img src=x onerror=window.hacked=1>"
WORKERS: Final = {
    "echo.ebus": ("ebus", "ebus.backend"),
    "echo.emqp": ("emqp", "emqp.workers"),
    "echo.mdp1": ("mdp1", "majordomo.workers"),
    "echo.mdp2": ("mdp2", "majordomo.workers"),
    "echo.mdr": ("mdr", "majordomo.workers"),
    "echo.dbp": ("dbp", "dbp.port"),
    HOSTILE: ("ebus", "ebus.backend"),
}
CLIENTS: Final = {"ebus": "ebus.frontend", "emqp": "emqp.clients", "mdr": "majordomo.clients"}
SETTINGS: Final[dict[str, object]] = {"broker.name": "scene", "jobs.backoff_s": 0.05}
SCHEDULES: Final = ("hourly", HOSTILE)


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = JobBroker(folder, SETTINGS)
        self.admin_endpoint = self.broker.endpoints["admin.port"]
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._workers: list[Worker] = []
        # While it is set, what is sent to "broken" fails.
        self.broken = threading.Event()
        self.broken.set()

    # -- who takes part -------------------------------------------------------------------------

    def _aside(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments)
        thread.start()
        self._threads.append(thread)

    def _serve(self, service: str, dialect: str, port: str, handler: Callable[[Request], bytes]) -> None:
        worker = Worker({service: handler}, self.broker.endpoints[port], dialect, credit=4)
        self._workers.append(worker)
        self._aside(worker.run)

    def _broken(self, request: Request) -> bytes:
        if self.broken.is_set():
            raise ConnectionError("the other side is down")
        return b"mended"

    def client(self, dialect: str, name: str) -> Client:
        places = {}
        if dialect in ("ebus", "emqp"):
            places = {"publish_address": self.broker.endpoints[f"{dialect}.publish"]}
        return Client(self.broker.endpoints[CLIENTS[dialect]], dialect, identity=name.encode(), **places)

    def _ask(self, dialect: str) -> None:
        with self.client(dialect, f"asker-{dialect}") as client:
            while not self._over.wait(0.05):
                for service in WORKERS:
                    with contextlib.suppress(PolybusError):
                        client.call(service, b"hello", 5.0)

    def _publish(self) -> None:
        log = LogHandler(self.broker.endpoints["ebus.publish"], "probe", "ebus")
        with self.client("ebus", "publisher") as client:
            while not self._over.wait(0.2):
                client.publish("price/gold", b'{"eur": 1842.5}')
                client.publish(HOSTILE, HOSTILE.encode())
                client.publish("raw/bytes", bytes(range(64)))
                log.handle(logging.LogRecord("probe", logging.WARNING, "", 0, HOSTILE, (), None))
        log.close()

    def job(self, service: str, body: bytes, retries: int = 0) -> str:
        """Send a guaranteed job, and give its token."""
        before = {row["token"] for row in self.ask("jobs", limit=1000)}
        with self.client("emqp", f"jobs-{service}") as client:
            options = Options(guarantee=True, retries=retries)
            client.submit(service, body, options=options, wants_reply=False).result(patient(10))
        if service == "broken":
            return ""
        jobs = until(
            lambda: [r for r in self.ask("jobs", service=service) if r["token"] not in before], "a job"
        )
        return str(jobs[-1]["token"])

    def dead_letter(self) -> str:
        """Have a job given up; its token."""
        before = {row["token"] for row in self.ask("dead")}
        self.job("broken", HOSTILE.encode(), retries=1)
        return str(
            until(lambda: [r for r in self.ask("dead") if r["token"] not in before], "a dead letter")[-1][
                "token"
            ]
        )

    # -- questions ------------------------------------------------------------------------------

    def ask(self, do: str, **question: Any) -> Any:
        with AdminClient(self.admin_endpoint) as admin:
            return admin.ask(do, **question)

    def says(self, *command: str) -> Any:
        """What `polybus COMMAND --json` prints of the broker."""
        return self.local(*command, "--admin", self.admin_endpoint)

    def local(self, *command: str) -> Any:
        """What `polybus COMMAND --json` prints."""
        done = polybus(*command, "--json", cwd=self.folder)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return lines[0] if len(lines) == 1 and isinstance(lines[0], dict | list) else lines

    # -- beginning and end ----------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            for service, (dialect, port) in WORKERS.items():
                self._serve(service, dialect, port, lambda request: b"answer to " + bytes(request.body))
            self._serve("broken", "mdr", "majordomo.workers", self._broken)
            until(lambda: self.broker.has_workers(*WORKERS, "broken"), "all workers")
            for dialect in CLIENTS:
                self._aside(self._ask, dialect)
            self._aside(self._publish)
            for key in SCHEDULES:
                self.ask("schedule_add", key=key, queue="echo.mdr", message="tick", every_s=3600.0)
            self.job("nobody", b'{"for": "later"}')
            self.dead_letter()
            write_tables(self.folder / "data" / "tables")
            until(lambda: self.ask("status")["replied"] > 50, "traffic")
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        self._over.set()
        for worker in self._workers:
            worker.stop()
        for thread in self._threads:
            thread.join(patient(30))
        self.broker.kill()

    def __exit__(self, *_: object) -> None:
        self.close()


# -- tables ---------------------------------------------------------------------------------------


def write_tables(place: Path) -> None:
    """Delta tables as the pipeline leaves them: an hour of two services, and who called them."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    windows = [now - timedelta(seconds=10 * number) for number in range(1, 181)]
    _write(
        place,
        SERVICE_METRICS,
        [_window(at, service, 1 + n % 7) for at in windows for n, service in enumerate(WORKERS)],
    )
    calls = [
        _filled(
            CALLS,
            {
                "client": client,
                "client_dialect": dialect,
                "service": service,
                "requests": 100 * (n + 1),
                "errors": n * 5,
                "service_us": 250_000 * (n + 1),
                "date": f"{now:%Y-%m-%d}",
                "first_at": now,
                "last_at": now,
            },
        )
        for n, (client, dialect, service) in enumerate(
            [
                ("web", "mdr", "echo.ebus"),
                ("web", "mdr", "echo.dbp"),
                ("till", "ebus", "echo.mdp1"),
                (HOSTILE, "emqp", HOSTILE),
            ]
        )
    ]
    _write(place, CALLS, calls)
    traces = [
        _filled(
            TRACES,
            {"token": "t-1", "service": "echo.ebus", "outcome": "replied", "attempts": 1, "finished_at": now},
        )
    ]
    _write(place, TRACES, traces)
    _write(place, DEAD_LETTERS, [])


def _window(at: datetime, service: str, slow: int) -> dict[str, Any]:
    counts = [
        {"us": 2_000 * slow, "count": 90},
        {"us": 9_000 * slow, "count": 9},
        {"us": 40_000 * slow, "count": 1},
    ]
    waits = [{"us": 100, "count": 100}]
    values = {
        "service": service,
        "window_start": at,
        "requests": 100,
        "replied": 98,
        "failed": 2,
        "expired": 0,
        "cancelled": 0,
        "rate": 10.0,
        "error_rate": 0.02,
        "service_buckets": counts,
        "wait_buckets": waits,
        "date": f"{at:%Y-%m-%d}",
    }
    return _filled(SERVICE_METRICS, values)


def _filled(table: Table, values: dict[str, Any]) -> dict[str, Any]:
    """A row with something in each column."""
    empty = {field.name: 0 if pa.types.is_integer(field.type) else None for field in table.schema}
    return {**empty, "broker": "scene", **values}


def _write(place: Path, table: Table, rows: list[dict[str, Any]]) -> None:
    write_deltalake(str(place / table.name), pa.Table.from_pylist(rows, table.schema))
