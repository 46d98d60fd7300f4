"""The supervisor: one connection to the broker, a pool of processes, and what comes between them.

One thread, one loop: whatever comes from the broker, from children or as a signal wakes it.  It never waits
for any of them, so heartbeats go out whatever the jobs do.

On SIGTERM or SIGINT it takes no more, gives back what has not begun, lets the rest finish within `grace_s`
and goes; a second signal ends it at once, and the broker gives what was running to somebody else.  SIGHUP
replaces the children one by one.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Any, Final

from polybus.client.discovery import Finder
from polybus.errors import ConfigError, ConnectionLost, PolybusError
from polybus.runtime import staffing
from polybus.runtime.answering import Answering
from polybus.runtime.connection import Connection
from polybus.runtime.nursery import Nursery
from polybus.runtime.pipe import Facts
from polybus.runtime.pool import HORIZON_S, STALE_S, Pool
from polybus.runtime.relay import Relay
from polybus.runtime.seat import Seat
from polybus.runtime.settings import Settings, address_beside
from polybus.runtime.watching import LOOK_EVERY_S, Watcher

# What a wait status says of a child that was killed; for those whose end nobody could see.
KILLED: Final = int(signal.SIGKILL)
# A fork server that lives shorter than this did not stay alive. One may have been killed from outside;
# so many in a row are a fault that another one would meet as well.
SHORT_LIFE_S: Final = 0.5
SHORT_LIVES: Final = 3


class Phase(Enum):
    RUNNING = "running"
    DRAINING = "draining"  # takes nothing more, finishes what it has
    ENDING = "ending"  # all is answered; the children are going


class Supervisor(Answering):
    """Runs until it is told to stop. `log` gets sentences for people, `announce` the facts when all is up."""

    def __init__(
        self, settings: Settings, log: Callable[[str], None], announce: Callable[[dict[str, Any]], None]
    ) -> None:
        super().__init__(log)
        self._settings: Final = settings
        self._announce: Final = announce
        self._selector: Final = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._relay: Final = Relay() if settings.prefix else None
        self._nursery = self._new_nursery()
        self._short_lives = 0
        self._pool: Final = Pool(
            settings.rules,
            self._nursery,
            self,
            self._watch_pipe,
            self._output,
        )
        self._facts: Facts | None = None
        self._fault = ""
        self._phase = Phase.RUNNING
        self._signals: list[int] = []
        self._hangups = 0
        self._woken = False
        self._end_at = inf
        self._watcher: Final = Watcher() if settings.watch else None
        self._watch_at = inf
        self._was_up = self._announced = False

    def _new_nursery(self) -> Nursery:
        nursery = Nursery(self._settings.app, self._settings.max_memory, self._settings.watch)
        self._selector.register(nursery, selectors.EVENT_READ, nursery)
        self._nursery_at = time.monotonic()
        return nursery

    def _output(self, key: int) -> list[int]:
        return [] if self._relay is None else self._relay.add(key)

    def _watch_pipe(self, pipe: socket.socket, seat: Seat | None) -> None:
        known = pipe in self._selector.get_map()
        if seat is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if seat.unsent else 0)
            (self._selector.modify if known else self._selector.register)(pipe, events, seat)
        elif known:
            self._selector.unregister(pipe)

    # -- the loop -------------------------------------------------------------------------------

    def run(self) -> int:
        """The exit status: 0, or 130 after Ctrl-C."""
        before = signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        handlers = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGTERM, self._on_stop),
                (signal.SIGINT, self._on_stop),
                (signal.SIGHUP, self._on_hangup),
            )
        }
        threshold = gc.get_threshold()
        try:
            self._find_out()
            # What is there now stays, and a job leaves nothing behind that only the collector finds: it runs
            # rarely.
            gc.freeze()
            gc.set_threshold(50_000, 20, 50)
            while self._turn():
                pass
        finally:
            self._close()
            gc.set_threshold(*threshold)
            gc.unfreeze()
            signal.set_wakeup_fd(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return 128 + signal.SIGINT if self._signals[:1] == [signal.SIGINT] else 0

    def _on_stop(self, number: int, *_: object) -> None:
        self._signals.append(number)
        self._woken = True

    def _on_hangup(self, *_: object) -> None:
        self._hangups += 1
        self._woken = True

    def _find_out(self) -> None:
        """Wait until a child has found out what the application offers."""
        while self._facts is None and not self._signals:
            now = time.monotonic()
            self._pool.turn(now)
            if self._fault:
                raise ConfigError(self._fault)
            self._selected(now, max(0.0, min(self._pool.deadline - now, 1.0)))
        if self._facts is not None:
            self._connect(self._facts)

    def _connect(self, facts: Facts) -> None:
        settings, rules = self._settings, self._settings.rules
        address = settings.broker or address_beside(facts.address, settings.dialect)
        fds = (self._selector.fileno(), self._wake_r)
        credit = rules.processes * rules.prefetch
        # A worker may be started before its broker: then it waits at the usual place.
        endpoint, why = Finder().endpoint_or_usual(settings.dialect, "worker", address)
        if why:
            self._log(f"{why}. Waiting for one at {endpoint}")
        # The application may speak another dialect than its worker, and then has no tag for it.
        tag = settings.tag or (facts.worker_tag if settings.dialect == "mdr" else None)
        self._link = Connection(self._queues(facts), endpoint, settings.dialect, credit, fds, tag)
        self._link.open(time.monotonic())
        what = f"{facts.jobs} jobs and {facts.services} services in {settings.app}"
        self._log(f"{what}; looking for the broker at {self._link.endpoint}")

    def _queues(self, facts: Facts) -> dict[str, int | None]:
        chosen = self._settings.queues
        if not chosen:
            return facts.queues
        return {name: facts.queues.get(name) if weight is None else weight for name, weight in chosen.items()}

    def _turn(self) -> bool:
        """Whatever has come in, and whatever is due; False when all is done."""
        link, pool = self._link, self._pool
        if link is None:
            return False
        due = min(link.deadline, pool.deadline, self._watch_at, self._end_at, self._stale_at(link))
        try:
            link.step(max(0.0, due - time.monotonic()))
        except ConnectionLost as error:
            self._log(str(error))
            link.reopen()
        now = time.monotonic()
        self._selected(now, 0.0)
        self._heed_signals(link, now)
        # In this order: what came in may be unwanted already.
        self._take_in(pool, link, now)
        self._look_at_link(link, now)
        pool.turn(now)
        if self._phase is Phase.RUNNING:
            self._go_on(link, now)
        elif not self._wind_up(link, now):
            return False
        link.flush()
        return True

    def _selected(self, now: float, timeout_s: float) -> None:
        for key, ready in self._selector.select(timeout_s):
            if not isinstance(key.data, Seat):
                self._hear_nursery(now)
                continue
            if ready & selectors.EVENT_WRITE:
                self._pool.writable(key.data)
            if ready & selectors.EVENT_READ:
                self._pool.readable(key.data, now)

    def _hear_nursery(self, now: float) -> None:
        pool = self._pool
        born, ended, alive = self._nursery.reports()
        for key, pid in born:
            pool.born(key, pid, now)
        for pid, status in ended:
            pool.buried(pid, status, now)
        if not alive:
            self._lost_nursery(now)

    def _lost_nursery(self, now: float) -> None:
        pool = self._pool
        self._short_lives = self._short_lives + 1 if now - self._nursery_at < SHORT_LIFE_S else 0
        if self._facts is None or self._short_lives == SHORT_LIVES:
            raise PolybusError("the process that starts the others does not stay alive; see above for why")
        self._log("the process that starts the others is gone, and they with it; starting anew")
        self._selector.unregister(self._nursery)
        self._nursery.close()
        for seat in list(pool.seats.values()):
            staffing.bury(pool, seat, KILLED, now)
        self._nursery = pool.nest = self._new_nursery()

    # -- the broker -----------------------------------------------------------------------------

    def _look_at_link(self, link: Connection, now: float) -> None:
        if link.denied is not None:
            raise ConfigError(f"the broker does not take this worker: {'; '.join(link.denied)}")
        if link.is_up != self._was_up:
            self._was_up = link.is_up
            self._tell_link(link)
        if link.leaving and self._phase is Phase.RUNNING:
            self._drain(link, now, "the broker asks this worker to leave")
        self._heed_the_unwanted(self._pool, link, now)

    def _tell_link(self, link: Connection) -> None:
        if not link.is_up:
            self._log(f"the broker at {link.endpoint} is away: jobs go on, their answers wait for it")
        elif self._announced:
            self._log(f"the broker at {link.endpoint} is back")
        else:
            self._announced = True
            assert self._facts is not None
            queues = self._queues(self._facts)
            self._announce(
                {"queues": queues, "endpoint": link.endpoint, "processes": self._settings.rules.processes}
            )

    def _go_on(self, link: Connection, now: float) -> None:
        """What is done as long as nobody wants us to stop."""
        pool = self._pool
        if now >= self._stale_at(link):
            for task in pool.take_waiting(now - STALE_S):
                self._give_back(link, task)
            # They came too fast: ask for less until jobs are quick again.
            pool.mean_s = max(pool.mean_s or 0.0, HORIZON_S)
        if now >= self._watch_at:
            self._look_at_files(now)
        link.grant(pool.slots, pool.load)

    def _stale_at(self, link: Connection) -> float:
        """When what waits here has waited so long that others should have it."""
        queue = self._pool.queue
        return next(iter(queue)).arrived_at + STALE_S if queue and link.knows_us else inf

    # -- the end --------------------------------------------------------------------------------

    def _heed_signals(self, link: Connection, now: float) -> None:
        if not self._woken:
            return
        self._woken = False
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_r, 4096)
        if self._hangups:
            self._hangups = 0
            self._log("replacing all processes, one after the other")
            self._pool.replace_all(now)
        if self._signals and self._phase is Phase.RUNNING:
            self._drain(link, now, "stopping")
        if len(self._signals) > 1 and not self._abandoning:
            self._log("stopping at once")
            self._abandon()

    def _drain(self, link: Connection, now: float, why: str) -> None:
        pool = self._pool
        self._phase = Phase.DRAINING
        self._end_at = now + self._settings.grace_s
        # EventMQ's own router forgets what we do not answer: there, what has come in is run to the end.
        if link.knows_us or link.emqp is None or not link.is_up:
            pool.pause(now)
        link.leave()
        running = sum(bool(seat.handed) for seat in pool.seats.values())
        self._log(
            f"{why}: {running} running jobs have {self._settings.grace_s:g} s; a second signal stops at once"
        )

    def _wind_up(self, link: Connection, now: float) -> bool:
        """One more step towards the end; False when it is reached."""
        pool = self._pool
        if pool.paused:
            for task in pool.take_waiting():
                self._give_back(link, task)
        if self._phase is Phase.DRAINING and now >= self._end_at and not self._abandoning:
            self._log(f"{pool.load} jobs did not end in time; they are killed, and run again elsewhere")
            self._abandon()
        if self._phase is Phase.DRAINING and not pool.load and not link.has_parked:
            self._phase = Phase.ENDING
            self._end_at = now + staffing.END_S
            pool.retire_all(now)
        if self._abandoning:
            return False
        return self._phase is Phase.DRAINING or (bool(pool.seats) and now < self._end_at)

    def _abandon(self) -> None:
        self._abandoning = True
        self._pool.kill_all()

    def _close(self) -> None:
        """Say goodbye, which gives the broker back what is not answered, and leave nothing behind."""
        if self._link is not None:
            with contextlib.suppress(ConnectionLost):
                self._link.close()
        self._nursery.close()
        for seat in self._pool.seats.values():
            seat.close()
        if self._relay is not None:
            self._relay.close()
        self._selector.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    # -- what the pool tells --------------------------------------------------------------------

    def came_up(self, facts: Facts) -> None:
        before, self._facts = self._facts, facts
        self.loaded(facts.files)
        if before is None or self._link is None or self._queues(before) == self._queues(facts):
            return
        if self._link.offer(self._queues(facts)):
            self._log(f"the queues are now {', '.join(self._queues(facts))}")
        else:
            self._log("the application has other services than before; restart this worker to offer them")

    def loaded(self, files: list[str]) -> None:
        if self._watcher is not None:
            self._watcher.add(files)
            if self._watch_at == inf:
                self._watch_at = time.monotonic() + LOOK_EVERY_S

    def _look_at_files(self, now: float) -> None:
        assert self._watcher is not None
        self._watch_at = now + LOOK_EVERY_S
        changed = self._watcher.changed()
        if changed:
            self._log(f"{', '.join(map(os.path.basename, changed))} changed: replacing all processes")
            self._pool.replace_all(now)

    def could_not_start(self, why: str, retry_s: float) -> None:
        if self._facts is None:
            self._fault = why
        else:
            self._log(f"a process could not be started; the next try is in {retry_s:g} s: {why}")

    def note(self, text: str) -> None:
        self._log(text)
