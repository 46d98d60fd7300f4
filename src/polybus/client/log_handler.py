"""Python's logging, sent to the bus: a handler that never holds up the program.

    logging.getLogger().addHandler(polybus.LogHandler(node="probe"))

A record becomes a publication of `log/<level>/<node>` in the thread that logs, and waits in a queue of
limited length; another thread, with a socket of its own, sends it.  While the broker is away the queue fills;
what has no room is dropped and counted, and when there is room again a record says how many.  At the end of
the program what waits is sent, but for no longer than `flush_s`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import zmq

from polybus.client.addresses import endpoint_for
from polybus.client.pubsub import check_topics, write_publication
from polybus.errors import ConfigError
from polybus.wire.frames import MAX_NAME_BYTES

# Records that wait while the broker is away or slow: some minutes of a program that is not mad.
QUEUE_RECORDS: Final = 10_000
# The same in bytes: a program must not lose its memory to its own log.
QUEUE_BYTES: Final = 16 * 1024 * 1024
FLUSH_S: Final = 2.0
GAVE_UP_S: Final = 1.0
# More of a message than this nobody reads; the broker would cut it as well.
MESSAGE_CHARS: Final = 8 * 1024
EXTRA_BYTES: Final = 4 * 1024
# What the socket holds beside our queue: what is in there is lost if the broker dies.
PIPE_RECORDS: Final = 1000
# How long the thread sleeps at most, how long when the pipe is full, and how often the other side must show
# that it is there.
NAP_MS: Final = 1000
FULL_MS: Final = 20
HEARTBEAT_MS: Final = 2000
SILENT_MS: Final = 6000
# Byte frames by which an XPUB socket is told that somebody wants all, or no longer.
WANTED: Final = 1

# What every record has; anything else was given as `extra`.
_PLAIN: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
_encode = msgspec.json.Encoder(enc_hook=repr).encode


def level_name(number: int) -> str:
    for least, name in ((50, "critical"), (40, "error"), (30, "warning"), (20, "info")):
        if number >= least:
            return name
    return "debug"


def default_node() -> str:
    """The program and its machine: `worker@host`."""
    return f"{Path(sys.argv[0] if sys.argv else '').stem or 'python'}@{socket.gethostname()}"


def clean_node(name: str) -> str:
    """A name that fits into a topic."""
    text = "".join(sign if sign.isprintable() else "?" for sign in name)
    room = MAX_NAME_BYTES - len("log/critical/")
    return text.encode(errors="replace")[:room].decode(errors="ignore") or "unknown"


class LogHandler(logging.Handler):
    """Sends log records to a broker. `address` is where it takes publications, as everywhere."""

    def __init__(
        self,
        address: str | None = None,
        node: str | None = None,
        dialect: Literal["ebus", "emqp"] = "ebus",
        level: int | str = logging.NOTSET,
        queue: int = QUEUE_RECORDS,
        flush_s: float = FLUSH_S,
    ) -> None:
        check_topics(dialect)
        if queue < 1:
            raise ConfigError(f"queue is {queue}; at least one record must have room")
        super().__init__(level)
        # Level, time and logger are fields of their own; without this `basicConfig` would repeat them.
        self.setFormatter(logging.Formatter("%(message)s"))
        self._endpoint = endpoint_for(dialect, "publish", address)
        self._dialect = dialect
        self.node: Final = clean_node(default_node() if node is None else node)
        self._most = queue
        self._flush_s = flush_s
        # All that were dropped since the start, and those that nobody has been told of yet.
        self.dropped = 0
        self._begin()

    def _begin(self) -> None:
        """Nothing waits, nobody sends. Also the state of a child process, whose parent sends its own."""
        self._pid = os.getpid()
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._waiting_bytes = 0
        self._untold = 0
        self._lock_queue = threading.Lock()
        self._sender: Sender | None = None
        self._is_closed = False
        self._gave_up_at = 0.0

    # -- the thread that logs ---------------------------------------------------------------------

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = level_name(record.levelno)
            self._put(f"log/{level}/{self.node}".encode(), self.body(record, level))
        except Exception:
            self.handleError(record)

    def body(self, record: logging.LogRecord, level: str) -> bytes:
        """A record as JSON, whatever is in it."""
        fields: dict[str, Any] = {
            "at": record.created,
            "level": level,
            "node": self.node,
            "logger": record.name,
            "message": _sound(self.format(record)[:MESSAGE_CHARS]),
        }
        extra = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if extra:
            fields["extra"] = _extra(extra)
        return _encode(fields)

    def _put(self, topic: bytes, body: bytes) -> None:
        if self._pid != os.getpid():
            self._begin()
        with self._lock_queue:
            if len(self._waiting) >= self._most or self._waiting_bytes + len(body) > QUEUE_BYTES:
                self.dropped += 1
                self._untold += 1
                return
            self._waiting.append((topic, body))
            self._waiting_bytes += len(body)
            if self._sender is None and not self._is_closed:
                self._sender = Sender(self, self._endpoint, self._dialect)
            sender = self._sender
        if sender is not None:
            sender.wake()

    def flush(self) -> None:
        """Wait until all is sent, at most `flush_s`."""
        sender = self._sender
        if sender is None or self._pid != os.getpid():
            return
        until = time.monotonic() + self._flush_s
        while (self._waiting or self._untold) and sender.is_alive:
            left_s = until - time.monotonic()
            if left_s <= 0:
                self._gave_up_at = time.monotonic()
                return
            sender.idle.wait(min(left_s, 0.05))

    def close(self) -> None:
        """Send what waits, at most `flush_s`, and end the thread."""
        until = time.monotonic() + self._flush_s
        if not self._gave_up_at or time.monotonic() - self._gave_up_at > GAVE_UP_S:
            self.flush()
        else:
            # At the end of a program both are called, and it has waited long enough.
            until = 0.0
        sender, self._sender, self._is_closed = self._sender, None, True
        if sender is not None and self._pid == os.getpid():
            sender.end(max(0.0, until - time.monotonic()))
        super().close()

    # -- the thread that sends --------------------------------------------------------------------

    def first(self) -> tuple[bytes, bytes] | None:
        """What is to be sent next; it stays until `sent`."""
        with self._lock_queue:
            if self._untold and len(self._waiting) <= self._most // 2:
                # In its place: after what waited then, before what comes now.
                note = self._note(self._untold)
                self._untold = 0
                self._waiting.append(note)
                self._waiting_bytes += len(note[1])
            return self._waiting[0] if self._waiting else None

    def _note(self, count: int) -> tuple[bytes, bytes]:
        fields = {
            "at": time.time(),
            "level": "warning",
            "node": self.node,
            "logger": "polybus.LogHandler",
            "message": f"{count} log records were dropped: the queue was full",
            "extra": {"dropped": count},
        }
        return f"log/warning/{self.node}".encode(), _encode(fields)

    def sent(self) -> None:
        with self._lock_queue:
            self._waiting_bytes -= len(self._waiting.popleft()[1])


class Sender:
    """The thread and its socket."""

    def __init__(self, queue: LogHandler, endpoint: str, dialect: str) -> None:
        self._queue = queue
        self._endpoint = endpoint
        self._dialect = dialect
        self._sent = 0
        # EBUS: whether the broker takes publications now; before, they would be thrown away.
        self._is_wanted = dialect != "ebus"
        self._linger_ms = 0
        self._must_end = False
        self.idle = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)
        self._thread = threading.Thread(target=self._run, name="polybus-logs", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wake(self) -> None:
        """There is something to do. Cheap while it is at it."""
        if self.idle.is_set() or self._must_end:
            self.idle.clear()
            # A full pipe wakes it anyway; a closed one has nobody to wake.
            with contextlib.suppress(OSError):
                os.write(self._wake_write, b"!")

    def end(self, within_s: float) -> None:
        self._linger_ms = int(within_s * 1000)
        self._must_end = True
        self.wake()
        self._thread.join(within_s + 1.0)
        # The number may soon be somebody else's.
        closing, self._wake_write = self._wake_write, -1
        os.close(closing)

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        channel: zmq.Socket[bytes] = context.socket(zmq.XPUB if self._dialect == "ebus" else zmq.DEALER)
        try:
            for option, value in (
                (zmq.SNDHWM, PIPE_RECORDS),
                (zmq.LINGER, 0),
                (zmq.IPV6, 1),
                (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
                (zmq.HEARTBEAT_TIMEOUT, SILENT_MS),
                (zmq.RECONNECT_IVL_MAX, 2000),
                # Nothing is put into a pipe that leads nowhere, and a lost broker wants nothing any more.
                (zmq.IMMEDIATE, 1),
            ):
                channel.setsockopt(option, value)
            if self._dialect == "ebus":
                channel.setsockopt(zmq.XPUB_NODROP, 1)
            channel.connect(self._endpoint)
            self._work(channel)
        except zmq.ZMQError as error:
            # There is no place to send to; whoever logs must not suffer for it, but may want to know.
            print(f"polybus: log records are not sent to {self._endpoint}: {error}", file=sys.stderr)
        finally:
            channel.close(self._linger_ms)
            context.term()
            os.close(self._wake_read)
            self.idle.set()

    def _work(self, channel: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_read, zmq.POLLIN)
        poller.register(channel, zmq.POLLIN)
        while True:
            is_blocked = self._send_all(channel)
            if self._must_end:
                return
            # A socket that publishes always says that it has room.
            is_ebus = self._dialect == "ebus"
            poller.modify(channel, zmq.POLLIN | (zmq.POLLOUT if is_blocked and not is_ebus else 0))
            poller.poll(FULL_MS if is_blocked and is_ebus and self._is_wanted else NAP_MS)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            while channel.poll(0, zmq.POLLIN):
                frames = channel.recv_multipart()
                if self._dialect == "ebus" and frames[0]:
                    self._is_wanted = frames[0][0] == WANTED

    def _send_all(self, channel: zmq.Socket[bytes]) -> bool:
        """Send what waits; True if something had to stay."""
        while self._is_wanted and not self._must_end:
            found = self._queue.first()
            if found is None:
                self.idle.set()
                # What came just before that did not wake us.
                if self._queue.first() is None:
                    return False
                self.idle.clear()
                continue
            self._sent += 1
            topic, body = found
            message = write_publication(self._dialect, b"log%d" % self._sent, topic, [body])
            try:
                channel.send_multipart([bytes(frame) for frame in message], zmq.NOBLOCK)
            except zmq.Again:
                return True
            self._queue.sent()
        return self._queue.first() is not None


def _sound(text: str) -> str:
    """Text that can be encoded: lone surrogates come from file names."""
    return text.encode(errors="backslashreplace").decode()


def _extra(extra: dict[str, Any]) -> Any:
    try:
        encoded = _encode(extra)
    except Exception:  # whatever the program put there, and whatever its repr does
        return {"unreadable": ", ".join(sorted(map(str, extra)))[:200]}
    if len(encoded) > EXTRA_BYTES:
        return {"too_large": ", ".join(sorted(map(str, extra)))[:200]}
    return msgspec.Raw(encoded)
