"""Clients of dialects whose answers do not say what they answer: one request at a time.

Further requests wait here and go out in order.  A request that was given up leaves its answer behind, and so
does one that may have been sent twice around a reconnect: the next answer on that socket could be anybody's.
Such a socket is spent; the session asks for a new one, under a new identity, before it sends anything more.
"""

from __future__ import annotations

from abc import abstractmethod

from polybus.client.sessions.mdr import no_options
from polybus.client.sessions.port import ClientSession, Message, Options
from polybus.wire.context import NO_CONTEXT, Context
from polybus.wire.frames import Frame, refuse


class QueuedClient(ClientSession):
    capacity = 1
    has_ids = False

    def __init__(self) -> None:
        super().__init__()
        self._id = b""
        self._service = b""
        self._frames: Message | None = None
        self._waiting: dict[bytes, tuple[bytes, Message]] = {}
        self._spent = False

    @abstractmethod
    def write(self, service: bytes, body: list[Frame]) -> Message:
        """The frames of a request."""

    def request(
        self,
        request_id: bytes,
        service: bytes,
        body: list[Frame],
        ttl_s: float | None = None,
        options: Options | None = None,
        wants_reply: bool = True,
        context: Context = NO_CONTEXT,
    ) -> list[Message]:
        if options is not None:
            no_options(options, self.dialect)
        self._waiting[request_id] = (service, self.write(service, body))
        return self.release()

    def release(self) -> list[Message]:
        if self._frames is not None or self._spent or not self._waiting:
            return []
        self._id = next(iter(self._waiting))
        self._service, self._frames = self._waiting.pop(self._id)
        return [self._frames]

    def cancel(self, request_id: bytes) -> list[Message]:
        if self._frames is not None and request_id == self._id:
            self._frames = None
            self._spent = True
        else:
            self._waiting.pop(request_id, None)
        return []

    def resend(self) -> list[Message]:
        return [] if self._frames is None else [self._frames]

    @property
    def wants_restart(self) -> bool:
        return self._spent

    def restarted(self, now: float) -> None:
        self._spent = False

    def answered(self, service: bytes | None, final: bool) -> bytes:
        """The id of the request that an answer belongs to; raises if nothing was asked."""
        if self._frames is None or (service is not None and service != self._service):
            raise refuse("unknown_request", "an answer to nothing that was asked")
        if final:
            self._frames = None
        return self._id
