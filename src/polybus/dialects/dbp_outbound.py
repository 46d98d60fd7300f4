"""The ear for services that we dialled: what comes back from their own addresses.

They answer with `o_O`.  The original implementation also answers what it cannot handle, with a command that
begins with "Error", or with no command and such a text; either is a failure of the call.  So is anything
that cannot be read: the service has one call at a time, and nothing else will come for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.model import Address
from polybus.dialects.port import Message, Voice
from polybus.errors import RemoteProtocolError
from polybus.wire import dbp as wire
from polybus.wire.dbp_info import read_error
from polybus.wire.frames import EMPTY, Frame, refuse

ERROR: Final = b"Error"
# An error is a sentence.
MAX_ERROR_BYTES: Final = 1024


class OutboundEar:
    """Handed every message of the outbound link."""

    def __init__(self, bus: Bus, leave: Callable[[Address, str, float], None]) -> None:
        self._bus = bus
        self._leave = leave

    def receive(self, link: int, frames: Message, now: float) -> None:
        address = (link, bytes(frames[0]))
        if address in self._bus.catalog.lines:
            self._answered(address, frames, now)
            return
        # The service sees an empty frame before our command, and keeps it.
        at = 2 if len(frames) > 2 and not len(frames[1]) else 1
        try:
            self._hear(address, frames, at, now)
        except RemoteProtocolError as error:
            self._bus.handle(events.Invalid(address, "dbp", error.reason, str(error)), now)
            worker = self._bus.workers.get(address)
            if worker is not None and worker.inflight:
                detail = f"the service answered what cannot be read: {error}"
                self._bus.handle(events.Failure(address, b"", detail, []), now)

    def _answered(self, address: Address, frames: Message, now: float) -> None:
        """Whatever it says, it is there; unless it says that it is not the one we look for."""
        if wire.DISCONNECT not in frames[1:3]:
            self._bus.handle(events.Answered(address), now)

    def _hear(self, address: Address, frames: Message, at: int, now: float) -> None:
        bus = self._bus
        text = _error_text(frames, at)
        if text:
            bus.handle(events.Failure(address, b"", text, [text.encode()]), now)
            return
        message = wire.read_as_node(frames, at)
        match message:
            case wire.Answer(body):
                error = read_error(body)
                if error is None:
                    bus.handle(events.Result(address, b"", body), now)
                else:
                    bus.handle(events.Failure(address, b"", error, [error.encode()]), now)
            case wire.Pong() | wire.Heartbeat() | wire.Acknowledge():
                bus.handle(events.Heard(address, SILENT), now)
            case wire.Disconnect():
                self._leave(address, "it disconnected", now)
            case _:
                word = type(message).__name__
                raise refuse("unexpected", f"{word} from a service that was called at its own address")


# To somebody we no longer have a connection with there is nothing to say.
SILENT: Final = Voice()


def _error_text(frames: Message, at: int) -> str:
    command: Frame = frames[at] if len(frames) > at else EMPTY
    if not len(command) and len(frames) == at + 3:
        command = frames[at + 2]
    if type(command) is bytes and command.startswith(ERROR):
        return command[:MAX_ERROR_BYTES].decode("utf-8", "replace")
    return ""
