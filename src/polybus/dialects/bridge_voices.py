"""How another broker is spoken to.

A `Peer` is one end of a link, and its voice as a worker: it gets requests.  A `Caller` is the same broker as
a client, with the hops of its request: whoever passes that request on finds them there.
"""

from __future__ import annotations

from math import inf
from typing import Final

from polybus.core.actions import ELSEWHERE, Answer, Beat, Dismiss, Refuse, Stop, Stream
from polybus.core.bridging import Advertise, Bridging
from polybus.core.lifecycle import ABSENT
from polybus.core.model import Address, Reason, Request, Worker
from polybus.dialects.context import options_for_ours
from polybus.dialects.port import Message, Voice
from polybus.errors import LocalProtocolError
from polybus.wire import bridge as wire
from polybus.wire.bridge_messages import Advert, Path
from polybus.wire.bridge_messages import Request as Call

# Ways by which requests of one peer come: each is a caller that is made once.
CALLERS_KEPT: Final = 1000


class Peer(Voice):
    """A broker at the other end of a link; `identity` is None if we dialled it."""

    dialect = "bridge"

    def __init__(self, bridging: Bridging, link: int, identity: bytes | None, endpoint: str = "") -> None:
        self._bridging = bridging
        self.link = link
        self.identity = identity
        self.endpoint = endpoint
        # What the one that dialled calls the link.
        self.label = endpoint
        self.lead: Message = [] if identity is None else [identity]
        self.name = ""
        self.instance = ""
        self.worker: Worker | None = None
        # Why there is no link: the last word that was said about it.
        self.trouble = ""
        self.denied = ""
        # What the requests that it has are called there, by token, and the other way round.
        self._sent: dict[bytes, bytes] = {}
        self._tokens: dict[bytes, bytes] = {}
        self._callers: dict[Path, Caller] = {}
        self._told = False
        # Topics whose current value it has to get.
        self.pending: dict[bytes, None] = {}
        self.published = self.received = self.dropped = 0

    @property
    def is_up(self) -> bool:
        return self.worker is not None and self.worker.state not in ABSENT

    @property
    def address(self) -> Address:
        """Where it is as a worker and a client: the same after it was connected anew."""
        return (self.link, self.name.encode())

    def begin(self) -> None:
        """A new conversation: nothing of the last one counts."""
        self.worker = None
        self._sent.clear()
        self._tokens.clear()
        self.pending.clear()
        self._told = False

    def caller(self, hops: Path) -> Caller:
        caller = self._callers.get(hops)
        if caller is None:
            if len(self._callers) >= CALLERS_KEPT:
                self._callers.clear()
            caller = self._callers[hops] = Caller(self, hops)
        return caller

    # -- as a worker --------------------------------------------------------------------------------

    def deliver(self, worker: Worker, request: Request) -> Message:
        hops: Path = getattr(request.voice, "hops", ())
        if hops:
            neighbour = self._bridging.routes.neighbours.get(self.name)
            path = neighbour.heard.get(request.service.name, ()) if neighbour is not None else ()
            if self.name in hops or not set(hops).isdisjoint(path):
                raise LocalProtocolError(f"{ELSEWHERE}it came from where it would have to go")
        left_s = request.expires_at - request.dispatched_at
        options = options_for_ours(request)
        request_id = _name_of(request, hops)
        self._sent[request.token] = request_id
        self._tokens[request_id] = request.token
        call = Call(
            request_id,
            request.service.name,
            (*hops, self._bridging.name),
            request.body,
            None if left_s == inf else min(max(int(left_s * 1000), 1), wire.MAX_MS),
            options.timeout_s,
            options.other,
        )
        return [*self.lead, *wire.write_request(call)]

    def token_of(self, request_id: bytes, is_last: bool = True) -> bytes | None:
        """Which request an answer is for; None if that was another attempt of it."""
        token = self._tokens.pop(request_id, None) if is_last else self._tokens.get(request_id)
        if token is None or self._sent.get(token) != request_id:
            return None
        if is_last:
            del self._sent[token]
        return token

    def stop(self, action: Stop) -> Message | None:
        request_id = self._sent.get(action.token)
        return None if request_id is None else [*self.lead, *wire.write_cancel(request_id)]

    def beat(self, action: Beat) -> Message:
        return [*self.lead, *wire.write_beat()]

    def dismiss(self, action: Dismiss) -> Message:
        return [*self.lead, *wire.write_bye(action.reason)]

    def advertise(self, action: Advertise) -> list[Message]:
        """In pieces; the first one of a link says that it is all there is."""
        offers, withdrawn = list(action.offers.items()), action.withdrawn
        messages = []
        for first in range(0, max(len(offers), len(withdrawn)), wire.ADVERT_SERVICES):
            last = first + wire.ADVERT_SERVICES
            advert = Advert(dict(offers[first:last]), tuple(withdrawn[first:last]), not self._told)
            self._told = True
            messages.append([*self.lead, *wire.write_advert(advert)])
        return messages

    # -- as a client --------------------------------------------------------------------------------

    def give_back(self, request_id: bytes, service: bytes, detail: str) -> Message:
        """It strikes the service from its list; if we can still reach it, it is told so again."""
        self._bridging.retell(self.name, service)
        return [*self.lead, *wire.write_return(request_id, detail)]


class Caller(Voice):
    """A broker that asks, for somebody who is so many hops away."""

    dialect = "bridge"

    def __init__(self, peer: Peer, hops: Path) -> None:
        self._peer = peer
        self.hops = hops

    def _is_there(self, client: Address) -> bool:
        return self._peer.is_up and client == self._peer.address

    def stream(self, action: Stream) -> Message | None:
        if not self._is_there(action.client):
            return None
        return [*self._peer.lead, *wire.write_partial(action.request_id, action.body)]

    def answer(self, action: Answer) -> Message | None:
        if not self._is_there(action.client):
            return None
        return [*self._peer.lead, *wire.write_reply(action.request_id, action.body)]

    def refuse(self, action: Refuse) -> Message | None:
        if not self._is_there(action.client):
            return None
        peer = self._peer
        if action.reason is Reason.DRAINING or action.detail.startswith(ELSEWHERE):
            return peer.give_back(action.request_id, action.service, action.detail.removeprefix(ELSEWHERE))
        words = (action.request_id, str(action.reason), action.detail, action.body)
        return [*peer.lead, *wire.write_refused(*words)]


def _name_of(request: Request, hops: Path) -> bytes:
    """What a request is called from its first broker to its last: the same if it is sent again because a link
    was lost, so that it runs once, and another one if it is tried again because it failed."""
    if not hops:
        return b"%b/%d" % (request.token, request.failures)
    return b"%b~%d" % (request.request_id, request.failures) if request.failures else request.request_id
