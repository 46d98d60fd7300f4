"""A broker: its links, its core, and the one loop that joins them.

    pump.recv_many → ear → dialect → core → actions → voice → pump.send_many

One thread owns all of it.  A turn takes what the sockets have, at most `BATCH` messages from each,
lets it happen, and sends everything that follows from it in one go; the clock is read once a turn.
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import sys
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, Final

import zmq

from polybus.config import Settings
from polybus.core import actions as act
from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.dispatching import note_starts
from polybus.core.last_values import note_all
from polybus.core.lifecycle import BusState
from polybus.dialects.ebus import FAREWELL
from polybus.errors import ConfigError
from polybus.server import dialled
from polybus.server.admin import AdminEar
from polybus.server.admin_jobs import JobDesk
from polybus.server.admin_topics import TopicDesk
from polybus.server.assembly import Assembly, open_links
from polybus.server.beacon import Beacon
from polybus.server.data_dir import DataDir
from polybus.server.datagrams import SETTING, Datagrams
from polybus.server.draining import draining
from polybus.server.effects import Message, Outbox, Receive
from polybus.server.journaling import Journaling
from polybus.server.keeping import Keeping
from polybus.server.pump import open_pump
from polybus.server.watchers import Watchers
from polybus.telemetry.logs import log
from polybus.wire.context import asks_again

# Messages taken from one socket in one turn: enough to spread the cost, few enough to stay quick.
BATCH: Final = 256
# The time that what is still in the pipes has at the end.
LINGER_MS: Final = 500
# What the names of links to other brokers begin with.
_BRIDGE: Final = "bridge."
# How often listeners that no longer ask are let go.
TAP_CHECK_S: Final = 1.0
# More tracebacks than this tell nothing new and would fill the disk.
REPORTED_ERRORS: Final = 20


class Broker:
    """One broker. `open()` binds everything, `run()` works until it is drained or stopped."""

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._wall = wall
        self.bus = Bus(secrets.token_hex(4).encode() + b"-", settings.limits)
        self.internal_errors = 0
        self._stop_at: float | None = None
        self._drain_asked = False
        self._is_drained = False
        # Plain requests that had no answer when we ended, and jobs that are left to the next start.
        self.unanswered = self.kept = 0
        self._reload: Callable[[], Settings] | None = None
        self._reload_asked = False
        self._started_at = clock()

    # -- life -------------------------------------------------------------------------------------

    def open(self) -> dict[str, str]:
        """Bind every link and say where: name of the port setting → endpoint."""
        # Nobody else pays for the import; and if something is missing, nothing is open yet.
        self._spans = open_spans(self.settings) if self.settings.telemetry.traces else None
        folder = Path(self.settings.broker.data_dir)
        self._data_dir = DataDir(folder)
        try:
            self._keeping = Keeping(self.bus, self.settings, folder, self._wake)
        except BaseException:
            self._data_dir.release()
            raise
        raise_file_limit()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(self.settings.broker.io_threads)
        self._context.set(zmq.MAX_SOCKETS, 65_536)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        try:
            self._assembly: Assembly = open_links(
                self._context, self.bus, self.settings, self._wall, self._obey_disconnect
            )
            links = self._assembly.links
            self._dialled = self._assembly.dialled
            self._datagrams = Datagrams(self.bus, self.settings, self._wall)
            fds = [self._wake_read, self._dialled.fileno(), *self._datagrams.fds]
            self._pump = open_pump([link.socket for link in links], fds, self.settings.broker.pump or None)
        except ConfigError:
            with contextlib.suppress(AttributeError):
                self._dialled.close()
                self._datagrams.close()
            self._context.destroy(linger=0)
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._keeping.abandon()
            self._data_dir.release()
            raise
        self._outbox = Outbox(self.bus, self._pump)
        self._subscribers = self._assembly.subscribers
        self._subscribers.delivery.pump = self._pump
        self._outbox.handlers.update(self._subscribers.handlers)
        if self._assembly.served_by_libzmq:
            self._outbox.subscribers = self._assembly.served_by_libzmq
            self._outbox.on_full_subscriber = self._send_to_those_who_keep_up
            self._outbox.handlers[act.Fanout] = self._fan_out_to_all
        self._bridges = self._assembly.bridges
        self._bridges.attach(self._outbox, self._pump)
        self._outbox.handlers[act.Drained] = lambda action: self._end_soon()
        # The core has let go of it already; only listeners want to know, and they are told by Observed.
        self._outbox.handlers[act.Forget] = lambda action: None
        self._outbox.handlers.update(self._datagrams.handlers)
        if self._datagrams.port:
            self._assembly.agreed["udp"] = self._datagrams.port
        self.bus.catalog.broadcasts = self._datagrams.broadcast_port > 0
        self._outbox.dialled = self._dialled
        self._outbox.handlers[act.Dial] = lambda action: self._dialled.dial(action, self._clock())
        self._outbox.handlers[act.HangUp] = self._dialled.hang_up
        self._jobs = JobDesk(self.bus, self._outbox, self._clock, self._keeping.ask)
        topics = TopicDesk(self.bus, self.subscribers)
        commands = {**self._jobs.commands, **topics.commands, "bridges": self._bridges.views}
        self._admin = AdminEar(
            self.bus,
            self._outbox,
            self._wall,
            self.facts,
            self.ask_to_drain,
            commands,
            tap=self.settings.monitor.tap,
        )
        self._watchers = Watchers(self.bus, self._outbox, self._admin, self.facts)
        if self._assembly.admin is not None:
            self._assembly.admin.ear = self._admin
        self._ears = [link.ear for link in links]
        self.bus.wall_offset = self._wall() - self._clock()
        names = {link.number: link.name for link in links} | {dialled.NUMBER: dialled.NAME}
        self._keeping.begin(names, self._assembly.voices, self._clock(), self._assembly.revive)
        # Brokers that are joined have names that differ: their journals may come together in one table.
        name = self.settings.bridge.name or self.settings.broker.name
        self._journaling = Journaling(self.bus, self.settings.journal, name, folder)
        self._journaling.begin(names, self._clock())
        if self._spans is not None:
            self._spans.listen(self.bus)
        self._beacon = Beacon(self.settings.beacon, self.endpoints.get("dbp.port", ""), clock=self._clock)
        if self._datagrams.broadcast_port and not self._beacon.why_not:
            self._datagrams.addresses = self._beacon.addresses
            self._assembly.agreed["broadcast"] = self._datagrams.broadcast_port
        self._data_dir.tell(self.endpoints)
        return self.endpoints

    @property
    def endpoints(self) -> dict[str, str]:
        bound = {link.name: link.endpoint for link in self._assembly.links if link.endpoint}
        return {**bound, SETTING: self._datagrams.endpoint} if self._datagrams.endpoint else bound

    def facts(self) -> dict[str, Any]:
        """What the server knows beside the core."""
        return {
            "broker": self.settings.broker.name,
            "pid": os.getpid(),
            "pump": self._pump.kind,
            "up_s": round(self._clock() - self._started_at, 3),
            "drain_s": self.settings.broker.drain_s,
            "endpoints": self.endpoints,
            **self._subscribers.facts(),
            **self._outbox.pending.facts(),
            "dead_letters_dropped": self._jobs.dropped,
            **self._beacon.facts(),
            **self._bridges.facts(),
            **self._datagrams.facts(),
            **self._journaling.facts(),
            **({} if self._spans is None else self._spans.facts()),
            "internal_errors": self.internal_errors,
        }

    def subscribers(self) -> list[dict[str, Any]]:
        """All subscribers that the broker serves itself, those that missed most first."""
        return self._subscribers.views(self._clock())

    def run(self) -> None:
        """Work until drained or stopped. Then everything is closed."""
        # What is there now stays: the collector need not look at it again, and runs rarely.
        gc.collect()
        gc.freeze()
        gc.set_threshold(200_000, 50, 100)
        try:
            self._loop()
        finally:
            self._close()

    def ask_to_drain(self) -> None:
        """Take no new requests, finish what is there, then stop. Safe in signal handlers and threads."""
        self._drain_asked = True
        self._wake()

    def _obey_disconnect(self) -> None:
        """A DISCONNECT of eMQP does what SIGTERM does. The dialect has begun to drain already."""
        if self._stop_at is None and not self._drain_asked:
            unanswered = self.bus.request_count
            is_drained = self.bus.state is BusState.DRAINED
            state = draining(is_drained, unanswered, self.settings.broker.drain_s)
            log(f"told to drain by a DISCONNECT over eMQP; {state}", unanswered=unanswered)
        self.ask_to_drain()

    def ask_to_reload(self, load: Callable[[], Settings]) -> None:
        """Read the settings again. Safe in signal handlers and threads."""
        self._reload = load
        self._reload_asked = True
        self._wake()

    def stop(self) -> None:
        """Stop at once: what is unanswered stays so. Safe in signal handlers and threads."""
        self._stop_at = 0.0
        self._wake()

    # -- the loop ---------------------------------------------------------------------------------

    def _loop(self) -> None:
        bus, outbox, clock = self.bus, self._outbox, self._clock
        subscribers, beacon, bridges = self._subscribers, self._beacon, self._bridges
        journaling, pending, connections = self._journaling, outbox.pending, self._dialled
        recv_many = self._pump.recv_many
        # The last ones are the pipe that wakes us, the connections that we dialled, and datagrams.
        others: list[Receive] = [self._woken, connections.receive, self._datagrams.receive]
        receive: list[Receive] = [*(ear.receive for ear in self._ears), *others]
        look_again: list[tuple[int, Message]] = [(len(self._ears) + 1, [])]
        tick = events.Tick()
        tapped_at = now = clock()
        tick_at = wake_at = 0.0
        while self._stop_at is None or now < self._stop_at:
            batch = recv_many(max(0, int((wake_at - now) * 1000) + 1), BATCH)
            now = clock()
            outbox.hear(batch, receive, now, self._survive)
            if now >= tick_at:
                # The time of day may be set while we run; a tick's delay is soon enough.
                bus.wall_offset = self._wall() - now
                bus.handle(tick, now)
                tick_at = inf
                if now - tapped_at > TAP_CHECK_S:
                    tapped_at = now
                    self._admin.expire(now)
                    self._watchers.tick(now)
                    pending.lost.tick(bus.limits, now)
                    self._jobs.keep_at_most(self.settings.jobs.dead_letters)
            if now >= bridges.next_at:
                bridges.tick(now)
            if now >= connections.next_at:
                outbox.hear(look_again, receive, now, self._survive)
            subscribers.resume(now)
            pending.resume(now)
            outbox.settle(now)
            subscribers.flush(now)
            if bus.lines:
                self._keeping.hand_over(now)
                # Without a store everything counts as written at once.
                outbox.settle(now)
            if now >= beacon.next_at:
                beacon.shine()
            journaling.flush(now)
            # What is due soon may become due sooner, but what happens meanwhile must not put it off.
            tick_at = min(tick_at, bus.next_at(now))
            if self._is_drained and not pending:
                break
            wake_at = min(tick_at, subscribers.next_at, pending.next_at, beacon.next_at, bridges.next_at)
            wake_at = min(wake_at, connections.next_at)

    def _survive(self, link: int, frames: Message) -> None:
        """An exception that should not have been: told with all there is to know, and counted."""
        self.internal_errors += 1
        if self.internal_errors <= REPORTED_ERRORS:
            shown = [bytes(frame)[:64] for frame in frames[:16]]
            name = self._assembly.links[link].name if link < len(self._assembly.links) else "wake"
            text = f"internal error at a message on {name}: {shown!r}"
            log(text, "error", error=sys.exception(), link=name)

    def _woken(self, link: int, frames: Message, now: float) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        self._keeping.collect(now)
        if self._drain_asked:
            self._drain_asked = False
            self._beacon.end()
            if self._stop_at is None:
                self._stop_at = now + self.settings.broker.drain_s
            self.bus.handle(events.Drain(), now)
            if self.bus.state is BusState.DRAINED:
                self._end_soon()
        if self._reload_asked and self._reload is not None:
            self._reload_asked = False
            self._apply(self._reload())

    def _apply(self, settings: Settings) -> None:
        """Take over what may change while running; the rest needs a restart."""
        self.bus.change_limits(settings.limits)
        self._keeping.apply(settings)
        self._admin.taps.allow(settings.monitor.tap)
        self.settings = settings

    def _end_soon(self) -> None:
        """Everything is answered: leave as soon as the answers are on their way, also those that wait."""
        self._is_drained = True

    def _wake(self) -> None:
        # A full pipe wakes the loop anyway; before `open` and after the end there is none.
        with contextlib.suppress(OSError, AttributeError):
            os.write(self._wake_write, b"!")

    # -- carrying out -----------------------------------------------------------------------------

    def _fan_out_to_all(self, action: act.Fanout) -> None:
        self._subscribers.fan_out(action)
        self._outbox.fan_out(action)

    def _send_to_those_who_keep_up(self, link: int, message: Message) -> None:
        """A subscriber has just become full: that is counted, its copy is dropped, the others get theirs.
        Until it has room again libzmq passes it over without a word, so it may miss more than was counted."""
        self._subscribers.delivery.dropped += 1
        socket = self._assembly.links[link].socket
        socket.set(zmq.XPUB_NODROP, 0)
        self._pump.send_many([(link, message)])
        socket.set(zmq.XPUB_NODROP, 1)

    def _refuse_the_rest(self, now: float) -> None:
        """Tell clients that their requests have no answer. Those of the library ask the next broker; a
        neighbour gives what it sent here to another one when the bridge ends."""
        bus = self.bus
        names = {link.number: link.name for link in self._assembly.links}
        plain = [request for request in bus.requests.values() if not request.durable]
        told = [
            request.token
            for request in plain
            if not asks_again(request.client.address[1])
            and not names.get(request.client.address[0], _BRIDGE).startswith(_BRIDGE)
        ]
        self.unanswered, self.kept = len(plain), bus.request_count - len(plain)
        bus.handle(events.EndUnanswered(tuple(told)), now)

    def _close(self) -> None:
        """Say goodbye to everyone who waits for us, then close."""
        now = self._clock()
        bus = self.bus
        # The silent ones, too: who is only busy reads it when its handler is done. (They are forgotten with
        # their requests.)
        workers = [*bus.workers.values(), *bus.silent.values(), *bus.resting.values()]
        self._refuse_the_rest(now)
        self._beacon.end()
        self._subscribers.say("ebus", *FAREWELL)
        names = {link.number: link.name for link in self._assembly.links}
        for number, publication in self._assembly.served_by_libzmq:
            if names[number] == "ebus.subscribe":
                self.bus.actions.append(act.Say((number, b""), publication(*FAREWELL)))
        for worker in workers:
            self.bus.actions.append(act.Dismiss(worker.address, worker.voice, "shutdown"))
        self._outbox.settle(now)
        self._outbox.pending.lost.write(self.bus.limits, now)
        unread = self._outbox.pending.messages
        if unread:
            log(
                f"{unread} answers are lost: their clients did not read them in time",
                "warning",
                unread=unread,
            )
        self._subscribers.flush(now)
        note_all(self.bus)
        note_starts(self.bus)
        left = self._keeping.close(now)
        if left:
            log(f"{left} notes could not be written to {self.settings.broker.data_dir}", "error")
        # Behind the answers that waited for the disk: after a goodbye nobody reads on.
        self.bus.actions += self._assembly.goodbyes()
        self._outbox.settle(now)
        if self._spans is not None:
            self._spans.close()
        missing = self._journaling.close(now)
        if missing:
            where = "'polybus journal verify' shows where"
            log(
                f"{missing} records are missing in the journal of this run; {where}", "error", missing=missing
            )
        self._datagrams.close()
        self._dialled.close(linger_ms=LINGER_MS)
        self._data_dir.release()
        for link in self._assembly.links:
            # A moment for answers and farewells that are still in the pipes.
            link.socket.close(linger=LINGER_MS)
        self._pump.close()
        self._context.term()
        os.close(self._wake_read)
        # A signal may still come, and the number may be somebody else's by then.
        closing, self._wake_write = self._wake_write, -1
        os.close(closing)


def open_spans(settings: Settings) -> Any:
    from polybus.server.tracing import Spans

    return Spans.configured(settings.bridge.name or settings.broker.name)


def raise_file_limit() -> None:
    """Each connection is a file: allow as many as the system lets us."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
