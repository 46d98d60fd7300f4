"""The one connection of a worker to its broker, whose work outlives the conversations.

With eMQP nothing is given up when the broker is lost.  What is held stays held; answers that are ready wait;
those that were sent shortly before the break are kept, because nobody knows whether they arrived.  The next
conversation begins with the list of all of these under the same identity, and the answers go out after the
broker's ACK.  What the broker does not want from us any more it cancels.

In the other dialects a lost conversation is the end of what it brought: the broker gives it to somebody else,
so it is dropped here if it has not begun, and its answer is dropped if it has.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from polybus.client.base import new_identity
from polybus.client.handlers import Request
from polybus.client.hub import Hub
from polybus.client.sessions.emqp import EmqpWorker
from polybus.client.sessions.port import Cancelled, WorkerEvent
from polybus.runtime.running import write_error
from polybus.wire import emqp as wire
from polybus.wire.emqp_inform import MAX_HOLDING

# Answers sent this long before the broker was last heard may not have arrived, or not have reached its disk.
UNSURE_S: Final = 1.0
# So many of them are kept; what falls off may run twice if the broker dies at that moment.
UNSURE_COUNT: Final = 10_000
# Larger answers are not kept.
UNSURE_BYTES: Final = 64 * 1024

# Dialects that carry a failure as text of their own instead of an error object.
_TEXT_FAILURES: Final = frozenset({"ebus", "dbp"})


class Connection(Hub):
    """The hub of a worker whose processes go on while the broker is away."""

    def __init__(
        self,
        queues: Mapping[str, int | None],
        address: str | None,
        dialect: str,
        credit: int,
        fds: Sequence[int],
        tag: str | None = None,
    ) -> None:
        self._name: Final = new_identity()
        # Answers that wait for a conversation, by token; and whether they are results, not failures.
        self._parked: dict[Any, tuple[list[Any], bool]] = {}
        # The answers of this turn; the same three things.
        self._ready: list[tuple[Any, list[Any], bool]] = []
        self._unsure: deque[tuple[float, Any, list[Any]]] = deque(maxlen=UNSURE_COUNT)
        # Requests that nobody wants any more, and those whose answer nobody would hear.
        self.unwanted: list[Request] = []
        self.lost: list[Request] = []
        weights = {name: weight for name, weight in queues.items() if weight is not None}
        keeps = dialect == "emqp"
        super().__init__(
            list(queues),
            address,
            dialect,
            credit,
            weights,
            fds,
            holding=self._tokens if keeps else None,
            # Whether somebody traces is known to the children only; eMQP says it in INFORM what it takes.
            takes_context=not keeps,
            tag=tag,
        )
        session = self.sessions[0]
        self.emqp: Final = session if isinstance(session, EmqpWorker) else None

    def _tokens(self) -> list[bytes]:
        # What JSON cannot carry is no id of a polybus broker, and would mean nothing to another one.
        return [token for token in (*self._held[0], *self._parked) if token.isascii()][:MAX_HOLDING]

    def _identity(self) -> bytes:
        # The broker knows a worker again that comes back with what it held.
        return self._name if self.emqp is not None else super()._identity()

    @property
    def is_up(self) -> bool:
        """Whether answers can be sent; if not, they wait."""
        if self.emqp is None:
            return True
        return self.emqp.ready and self._again_at[0] is None and not self.lines.is_cut(0)

    @property
    def knows_us(self) -> bool:
        """Whether the broker is a polybus one, which takes back what has not begun."""
        return self.emqp is not None and self.emqp.version > 0 and self.is_up

    @property
    def has_parked(self) -> bool:
        """Whether answers wait for the broker."""
        return bool(self._parked) or (bool(self._ready) and not self.is_up)

    # -- steps ----------------------------------------------------------------------------------

    def step(self, timeout_s: float) -> bool:
        heard = super().step(timeout_s)
        if self._parked and self.is_up:
            self._send_parked()
        return heard

    def reopen(self) -> None:
        """Begin anew: what was to be sent could not be."""
        for at in range(len(self.sessions)):
            self._end(at, time.monotonic())

    def _send_parked(self) -> None:
        parked, self._parked = self._parked, {}
        self._ready = [(token, body, final) for token, (body, final) in parked.items()] + self._ready
        self.flush()

    def flush(self) -> None:
        if self._ready:
            self._write_answers(0)
        super().flush()

    def close(self) -> None:
        # Before the goodbye, after which nobody would hear them.
        self.flush()
        super().close()

    def _other(self, at: int, event: WorkerEvent, now: float) -> None:
        if isinstance(event, Cancelled):
            if self._parked.pop(event.token, None) is not None and self.emqp is not None:
                self.emqp.forget(event.token)
            request = self._held[at].get(event.token)
            if request is not None:
                request.cancelled = True
                self.unwanted.append(request)
            return
        super()._other(at, event, now)

    def _end(self, at: int, now: float) -> None:
        if self._again_at[at] is not None:
            return
        if self.emqp is None:
            self.lost += self._held[at].values()
            super()._end(at, now)
            return
        # The base class gives up what is held; here it stays.
        held = self._held[at]
        self._held[at] = {}
        super()._end(at, now)
        self._held[at] = held
        since = self.emqp.heard_at - UNSURE_S
        unsure = {token: (body, True) for sent_at, token, body in self._unsure if sent_at >= since}
        # What was about to be sent has certainly not arrived, failures included.
        unsent = {token: (body, final) for token, body, final in self._ready}
        self._parked = {**unsure, **unsent, **self._parked}
        self._unsure.clear()
        self._ready.clear()

    # -- slots ----------------------------------------------------------------------------------

    def offer(self, queues: Mapping[str, int | None]) -> bool:
        """Serve other queues from now on, in a new conversation; False if that takes a new worker."""
        if self.emqp is None:
            return False
        weighted = [(10 if weight is None else weight, name.encode()) for name, weight in queues.items()]
        self.emqp.queues = tuple(wire.Queue(weight, name) for weight, name in weighted)
        self._end(0, time.monotonic())
        return True

    def grant(self, slots: int, load: int) -> None:
        """Ask for as much as brings what we hold, and what is promised to us, to so many slots."""
        session = self.emqp
        if session is None or not self.is_up:
            return
        more = slots - load - session.granted
        if self._ready:
            self._write_answers(max(0, more))
            more = slots - load - session.granted
        if more > 0:
            self.outbox += [(0, message) for message in session.grant(more)]

    def leave(self) -> None:
        """Take nothing more."""
        if self.emqp is not None:
            self.outbox += [(0, message) for message in self.emqp.leave()]

    def give_back(self, request: Request) -> bool:
        """Let somebody else have what has not begun; False if the broker has no word for it."""
        if self.emqp is None or not self.knows_us:
            return False
        messages = self.emqp.give_back(request.token)
        self.outbox += [(0, message) for message in messages]
        self._held[0].pop(request.token, None)
        return True

    # -- answers --------------------------------------------------------------------------------

    def reply(self, request: Request, body: list[Any]) -> None:
        if self.emqp is not None and len(body) > 1:
            self.refuse(request, "bad_result", f"the answer has {len(body)} frames and eMQP carries one")
        else:
            self._answer(request, body, True)

    def _answer(self, request: Request, body: list[Any], is_result: bool) -> None:
        if self.emqp is None:
            super().reply(request, body)
            return
        token = request.token
        if self._held[0].pop(token, None) is not None:
            self._ready.append((token, body, is_result))

    def _write_answers(self, slots: int) -> None:
        """Send what is ready. The first answers give back so many slots, if the broker knows how."""
        session = self.emqp
        assert session is not None
        ready, self._ready = self._ready, []
        if not self.is_up:
            self._parked.update((token, (body, final)) for token, body, final in ready)
            return
        if not session.joins:
            slots = 0
        messages = session.done((token, body) for token, body, _ in ready[:slots])
        for token, body, _ in ready[slots:]:
            messages += session.reply(token, body)
        self.outbox += [(0, message) for message in messages]
        now = time.monotonic()
        for token, body, is_result in ready:
            # A failure that came twice would count for the next attempt; a lost one is found out anyway.
            if is_result and (not body or len(body[0]) <= UNSURE_BYTES):
                self._unsure.append((now, token, body))

    def part(self, request: Request, body: list[Any]) -> None:
        # While the broker is away nobody hears of progress; the result will say it all.
        if self.is_up:
            super().part(request, body)

    def refuse(self, request: Request, code: str, detail: str) -> None:
        """There will be no answer, and why."""
        if self.dialect in _TEXT_FAILURES:
            self.fail(request, f"{code}: {detail}", False)
        else:
            self._answer(request, [write_error(code, detail)], False)

    def fail_with(self, request: Request, body: bytes) -> None:
        """The error object of a job that raised."""
        if self.dialect in _TEXT_FAILURES:
            error = msgspec.json.decode(body)
            self.fail(request, f"{error['error']}: {error['detail']}", error["error"] == "rejected")
        else:
            self._answer(request, [body], False)
