"""The asking side of the admin socket: one question, one answer, within a time.

    with AdminClient("tcp://127.0.0.1:5240") as admin:
        print(admin.ask("services"))

The frames are those of `polybus.server.admin`, without the identity that the ROUTER adds.  Answers carry
the number of their question, so one that comes too late is never taken for another's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import zmq

from polybus.errors import ConfigError, ConnectionLost, PolybusError
from polybus.wire.frames import EMPTY

TAG: Final = b"PBADM1"
# The broker answers within a turn of its loop; much longer means that it is not there.
TIMEOUT_S: Final = 5.0
# The broker forgets a tap that is not asked for again within 10 s.
RENEW_S: Final = 3.0
# A tapped broker that has not answered for this long is gone.
SILENT_S: Final = 10.0

TAP: Final = b"tap"
PING: Final = b"ping"


class QuestionRefused(PolybusError):
    """The broker answered a question with an error."""


class AdminClient:
    """Asks a broker about itself. Belongs to one thread."""

    def __init__(
        self, endpoint: str, timeout_s: float = TIMEOUT_S, context: zmq.Context[Any] | None = None
    ) -> None:
        self.endpoint: Final = endpoint
        self._timeout_s = timeout_s
        self._number = 0
        self._socket: zmq.Socket[bytes] = (context or zmq.Context.instance()).socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, 1)
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._socket.close(0)
            raise ConfigError(f"cannot connect to {endpoint}: {error}") from None

    def ask(self, do: str, **question: Any) -> Any:
        """What the broker says to `do`; raises `QuestionRefused` if it says no."""
        self._number += 1
        number = b"%d" % self._number
        self._send(number, {"do": do, **question})
        until = time.monotonic() + self._timeout_s
        while True:
            found = self._receive(until)
            if found is None:
                raise self._nobody(self._timeout_s)
            if found[0] == number:
                return found[1]

    def tap(self, service: str = "", what: str = "", bodies: bool = False) -> Iterator[dict[str, Any]]:
        """What happens on the bus, as it happens, until the iterator is closed.

        The first value is an empty one: the tap is open, and nothing is missed from here on.
        """
        question = {"do": "tap", "service": service, "what": what, "bodies": bodies}
        now = time.monotonic()
        renew_at, heard_at, is_open = now, now, False
        try:
            while True:
                now = time.monotonic()
                if now >= renew_at:
                    renew_at = now + RENEW_S
                    self._send(TAP, question)
                    # Answered after the tap was taken: the sign that it is open, and that the broker lives.
                    self._send(PING, {"do": "ping"})
                patience_s = SILENT_S if is_open else self._timeout_s
                if now - heard_at > patience_s:
                    raise self._nobody(patience_s)
                found = self._receive(min(renew_at, heard_at + patience_s))
                if found is None:
                    continue
                heard_at = time.monotonic()
                if found[0] == TAP:
                    yield found[1]
                elif found[0] == PING and not is_open:
                    is_open = True
                    yield {}
        finally:
            if not self._socket.closed:
                self._send(TAP, {"do": "tap", "stop": True})

    def close(self) -> None:
        # A moment for the word that a tap is over; the broker would find out by itself.
        self._socket.close(100)

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, number: bytes, question: dict[str, Any]) -> None:
        self._socket.send_multipart([EMPTY, TAG, number, msgspec.json.encode(question)])

    def _receive(self, until: float) -> tuple[bytes, Any] | None:
        """Number and content of the next answer; None if none came in time."""
        while True:
            left_ms = max(0, int((until - time.monotonic()) * 1000) + 1)
            if not self._socket.poll(left_ms, zmq.POLLIN):
                return None
            frames = self._socket.recv_multipart()
            if len(frames) != 4 or frames[1] != TAG:
                continue
            answer = msgspec.json.decode(frames[3], type=dict[str, Any])
            if "error" in answer:
                raise QuestionRefused(str(answer["error"]))
            return frames[2], answer.get("ok")

    def _nobody(self, waited_s: float) -> ConnectionLost:
        return ConnectionLost(f"no broker answered at {self.endpoint} within {waited_s:g} s")
