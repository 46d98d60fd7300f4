"""What happens when the ledger's lines are on disk, or cannot be put there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from polybus.core import events
from polybus.core.actions import Accept, Answer, Refuse
from polybus.core.dispatching import release
from polybus.core.ledger import Forgotten, Ungrouped
from polybus.core.lifecycle import FAIL, TERMINAL, RequestState
from polybus.core.model import Address, Reason
from polybus.core.records import Request
from polybus.core.requests import end
from polybus.core.waiting import Waiter

if TYPE_CHECKING:
    from polybus.core.tables import Tables


# Looking a member up in its enumeration costs as much as a dictionary.
_ACCEPTED: Final = RequestState.ACCEPTED


def on_written(bus: Tables, event: events.Written, now: float) -> None:
    bus.written = event.number
    held = bus.held
    while held and held[0][0] <= event.number:
        _, request, action = held.popleft()
        if action is not None:
            bus.actions.append(action)
        if request is not None and request.state is _ACCEPTED:
            release(bus, request, now)
    if bus.shared_words:
        _forget_certain(bus)


def _forget_certain(bus: Tables) -> None:
    """Keep shared words of jobs alone that are not on disk yet."""
    for token in list(bus.shared_words):
        request = bus.patient.get(token)
        if request is None or request.state is not _ACCEPTED:
            del bus.shared_words[token]


def on_unwritten(bus: Tables, event: events.Unwritten, now: float) -> None:
    """What could not be written was not accepted: whoever waits for the word that it was is told that now."""
    detail = f"it could not be written down: {event.reason}"
    refused = set(event.tokens)
    shared = {id(word) for token in event.tokens for word in bus.shared_words.pop(token, ())}
    # Who was told; somebody may wait for a receipt and for an answer, and needs to hear it once. What was
    # withdrawn meanwhile has a last word already, which waits here, too.
    told: set[tuple[Address, bytes]] = set()
    unsaid: list[tuple[Request, Any]] = []
    held = list(bus.held)
    bus.held.clear()
    for entry in held:
        _, request, action = entry
        if request is None or (request.token not in refused and id(action) not in shared):
            bus.held.append(entry)
            if isinstance(action, Answer | Refuse) and action.request_id:
                told.add((action.client, action.request_id))
        elif action is not None and (request.client is bus.desk or request.state not in TERMINAL):
            unsaid.append((request, action))
    for request, action in unsaid:
        _say_no(bus, action, detail, told, request)
    for token in event.tokens:
        request = bus.patient.get(token)
        if request is not None:
            _unmake(bus, request, detail, told, now)


def _unmake(bus: Tables, request: Request, detail: str, told: set[tuple[Address, bytes]], now: float) -> None:
    # One that was dead before is dead again, which is written down as soon as that is possible.
    request.durable = bool(request.history)
    bus.counters.failed += 1
    end(bus, request, FAIL, Reason.STORE_UNAVAILABLE, detail, [], now)
    if request.durable:
        return
    if request.client is not bus.desk:
        if request.options.reply_requested:
            address, name = request.client.address, request.service.name
            _say_no(bus, Accept(address, request.voice, name, request.request_id), detail, told, request)
        return
    job_id = request.request_id
    if request.options.group:
        # All its members were refused with it.
        job_id = request.options.group
        group = bus.groups.pop(job_id, None)
        if group is not None:
            bus.lines.append(Ungrouped(job_id))
            # Some may have been withdrawn meanwhile.
            for client, word, token, _ in group.kept:
                del client.known[word.request_id]
                bus.lines.append(Forgotten((token,)))
    for waiter in bus.waiters.take(job_id):
        _say_no(bus, waiter, detail, told, request)


def _say_no(
    bus: Tables,
    to: Accept | Answer | Waiter,
    detail: str,
    told: set[tuple[Address, bytes]],
    request: Request,
) -> None:
    # Calls of our own services that have no id cannot be told apart, and each waits for a word.
    key = (to.client, to.request_id or (b"" if request.client is bus.desk else request.token))
    if key in told:
        return
    if key[1]:
        told.add(key)
    reason = Reason.STORE_UNAVAILABLE
    bus.actions.append(
        Refuse(to.client, to.voice, to.service, to.request_id, reason, detail, [], request.token)
    )


def on_store_health(bus: Tables, event: events.StoreHealth, now: float) -> None:
    bus.store_trouble = event.trouble
    bus.observe("store_sick" if event.trouble else "store_well", now, reason=event.trouble)
