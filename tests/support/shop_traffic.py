"""A shop on a bus of its own: services and clients in all dialects, jobs, topics, logs, and some trouble.

with Shop(folder, length_s=720) as shop:     # open at once, and closed at the end of the block
    shop.wait_out()                          # until its time is over

Over its time rendering invoices gets slow, payments fail for a while, mail is down, a worker comes and goes,
and somebody asks for a service that nobody offers.  What pictures of the report and the dashboard show has
happened here.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from polybus import Client, LogHandler, Options, PolybusError, Request, Worker
from support.job_broker import JobBroker

CLIENT_PORTS: Final = {
    "ebus": "ebus.frontend",
    "emqp": "emqp.clients",
    "mdp1": "majordomo.clients",
    "mdp2": "majordomo.clients",
    "mdr": "majordomo.clients",
    "dbp": "dbp.port",
}
WORKER_PORTS: Final = {
    "ebus": "ebus.backend",
    "emqp": "emqp.workers",
    "mdp1": "majordomo.workers",
    "mdp2": "majordomo.workers",
    "mdr": "majordomo.workers",
    "dbp": "dbp.port",
}
SETTINGS: Final[dict[str, object]] = {
    "broker.name": "shop",
    "broker.drain_s": 1.0,
    "jobs.backoff_s": 0.5,
    "limits.request_ttl_s": 20.0,
}
# Service: the dialect of its workers, how many, and how long a request takes, about.
SERVICES: Final = {
    "orders": ("mdr", 3, 0.012),
    "stock": ("ebus", 2, 0.004),
    "search": ("dbp", 2, 0.025),
    "payments": ("mdp1", 2, 0.045),
    "invoice.pdf": ("mdp2", 2, 0.18),
    "mail": ("emqp", 2, 0.07),
}
# Client: its dialect, and what it asks for, by weight.
CLIENTS: Final[dict[str, tuple[str, dict[str, float]]]] = {
    "web-1": ("mdr", {"search": 5, "stock": 5, "orders": 3, "payments": 1}),
    "web-2": ("mdr", {"search": 5, "stock": 5, "orders": 3, "payments": 1}),
    "app": ("ebus", {"search": 4, "orders": 2, "payments": 1}),
    "kiosk": ("mdp1", {"stock": 6, "orders": 2}),
    "partner": ("dbp", {"stock": 3, "orders": 1}),
    "backoffice": ("emqp", {"orders": 3, "invoice.pdf": 2, "fax": 0.1}),
    "nightly": ("mdp2", {"invoice.pdf": 1}),
}
TOPICS: Final = {"price/gold": 0.4, "price/silver": 0.7, "stock/low": 3.0, "weather/rome": 5.0}


class Shop:
    def __init__(self, folder: Path, length_s: float, settings: Mapping[str, object] | None = None) -> None:
        self.broker = JobBroker(folder, {**SETTINGS, **(settings or {})})
        self._length_s = length_s
        self._began = time.monotonic()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._workers: list[Worker] = []

    @property
    def phase(self) -> float:
        """How much of it is over, from 0 to 1."""
        return (time.monotonic() - self._began) / self._length_s

    def between(self, begin: float, end: float) -> bool:
        return begin <= self.phase < end

    def aside(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments)
        thread.start()
        self._threads.append(thread)

    # -- workers ------------------------------------------------------------------------------

    def handler(self, service: str) -> Callable[[Request], bytes]:
        usual_s = SERVICES[service][2]

        def serve(_: Request) -> bytes:
            takes_s = usual_s * random.lognormvariate(0, 0.45)
            if service == "invoice.pdf" and self.between(0.55, 0.75):
                takes_s *= 7
            self._over.wait(takes_s)
            if service == "payments" and self.between(0.3, 0.42) and random.random() < 0.35:
                raise ConnectionError("the bank does not answer")
            if service == "mail" and self.between(0.45, 0.6):
                raise TimeoutError("smtp.example is down")
            if random.random() < 0.002:
                raise ValueError("no such article")
            return b"x" * random.randrange(40, 900)

        return serve

    def worker(self, service: str) -> Worker:
        dialect = SERVICES[service][0]
        place = self.broker.endpoints[WORKER_PORTS[dialect]]
        return Worker({service: self.handler(service)}, place, dialect, credit=1)

    def open(self) -> None:
        for service, (_, count, _) in SERVICES.items():
            for _ in range(count):
                self._workers.append(self.worker(service))
                self.aside(self._workers[-1].run)

    def flap(self) -> None:
        """A worker with a loose cable."""
        while not self._over.wait(5):
            if not self.between(0.8, 0.88):
                continue
            worker = self.worker("payments")
            thread = threading.Thread(target=worker.run)
            thread.start()
            self._over.wait(2)
            worker.stop()
            thread.join(20)

    # -- clients ------------------------------------------------------------------------------

    def client(self, dialect: str, name: str) -> Client:
        places: dict[str, Any] = {}
        if dialect in ("ebus", "emqp"):
            places = {"publish_address": self.broker.endpoints[f"{dialect}.publish"]}
        endpoint = self.broker.endpoints[CLIENT_PORTS[dialect]]
        return Client(endpoint, dialect, timeout_s=15.0, identity=name.encode(), **places)

    def pause_s(self) -> float:
        """Between two questions of a client: there are busy and quiet minutes."""
        wave = 1.0 + 0.55 * math.sin(2 * math.pi * (2.2 * self.phase + 0.7))
        return random.expovariate(8.0 * wave)

    def ask(self, name: str) -> None:
        dialect, wants = CLIENTS[name]
        with self.client(dialect, name) as client:
            while not self._over.wait(self.pause_s()):
                (service,) = random.choices(list(wants), list(wants.values()))
                with contextlib.suppress(PolybusError):
                    client.call(service, b"q" * random.randrange(10, 300), 4.0 if service == "fax" else None)

    def send_mail(self) -> None:
        options = Options(guarantee=True, retries=1)
        with self.client("emqp", "orders") as client:
            while not self._over.wait(random.expovariate(2.0)):
                with contextlib.suppress(PolybusError):
                    client.submit("mail", b'{"to": "ada"}', options=options, wants_reply=False).result(10)

    def publish(self) -> None:
        due = dict.fromkeys(TOPICS, 0.0)
        with self.client("ebus", "prices") as client:
            while not self._over.wait(0.1):
                now = time.monotonic()
                for topic, every_s in TOPICS.items():
                    if now >= due[topic]:
                        due[topic] = now + random.expovariate(1 / every_s)
                        client.publish(topic, b"%.2f" % random.uniform(20, 2400))

    def log(self) -> None:
        handlers = {}
        for node in ("orders", "payments", "mail"):
            handlers[node] = LogHandler(self.broker.endpoints["ebus.publish"], node, "ebus")
        while not self._over.wait(random.expovariate(1.5)):
            node = random.choice(list(handlers))
            trouble = (node == "payments" and self.between(0.3, 0.42)) or (
                node == "mail" and self.between(0.45, 0.6)
            )
            level = logging.ERROR if trouble else random.choices((10, 20, 30), (4, 10, 1))[0]
            text = "no answer from outside" if trouble else "request served"
            handlers[node].handle(logging.LogRecord(node, level, "", 0, text, (), None))
        for handler in handlers.values():
            handler.close()

    # -- the whole ----------------------------------------------------------------------------

    def wait_out(self) -> None:
        """Until its time is over."""
        while self.phase < 1.0:
            self._over.wait(min(5.0, self._length_s))

    def close(self) -> None:
        self._over.set()
        for worker in self._workers:
            worker.stop()
        for thread in self._threads:
            thread.join(30)
        self.broker.kill()

    def __enter__(self) -> Self:
        self.open()
        for name in CLIENTS:
            self.aside(self.ask, name)
        for work in (self.send_mail, self.publish, self.log, self.flap):
            self.aside(work)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
