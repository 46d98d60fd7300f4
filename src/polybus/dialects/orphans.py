"""Answers to jobs that a worker got before the broker was restarted.

The broker does not know its workers yet then, and a worker that is busy does not know that the broker was
restarted: it answers on the connection that ZeroMQ made anew.  Such an answer counts
(`holders.accepted_before_restart`).  It does not make its sender a worker: that one still has to register.
"""

from __future__ import annotations

from polybus.core import events
from polybus.core.actions import UNKNOWN_WORKER
from polybus.core.bus import Bus
from polybus.core.holders import accepted_before_restart
from polybus.core.model import Address, Heartbeat
from polybus.dialects.port import Voice


def claim(bus: Bus, peer: Address, voice: Voice, token: bytes, heartbeat: Heartbeat, now: float) -> bool:
    """Register a peer that is no worker and answers such a job, for this one answer: without a slot, so that
    it is given nothing.  `release` follows when the answer was handled."""
    if peer in bus.workers or peer in bus.silent or peer in bus.resting or peer in bus.departed:
        # Known ones need not be registered to be heard.
        return False
    job = accepted_before_restart(bus, token)
    if job is None:
        return False
    offers = ((job.service.name, 0),)
    bus.handle(events.WorkerUp(peer, voice, offers, heartbeat, credit=0), now)
    return True


def release(bus: Bus, peer: Address, now: float) -> None:
    bus.handle(events.WorkerGone(peer, UNKNOWN_WORKER), now)


def answer(
    bus: Bus, event: events.Result | events.Failure, voice: Voice, heartbeat: Heartbeat, now: float
) -> None:
    """Handle an answer of a worker, or of a peer that is none (any more)."""
    claimed = claim(bus, event.worker, voice, event.token, heartbeat, now)
    try:
        bus.handle(event, now)
    finally:
        if claimed:
            release(bus, event.worker, now)
