"""Guaranteed requests: written down before anybody is told, told only when written down.

A guaranteed request is a request like any other, with three differences: it is placed in its queue when its
line is on disk, its answer leaves when its end is on disk, and what is known of it is there again after a
restart (`restore`).  In between the core goes on; nothing here waits.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from polybus.core import ledger
from polybus.core.actions import Accept, Answer, Refuse
from polybus.core.lifecycle import RequestState
from polybus.core.model import Address, Reason
from polybus.core.records import Client, Request
from polybus.core.replies import (
    KEPT_OVERHEAD_BYTES,
    body_size,
    keep,
    keep_refusal,
    new_outcome,
    release_client,
)
from polybus.core.rows import new_accepted, new_ended, pack_answer, pack_job, pack_new_job, pack_options
from polybus.core.tables import NO_STORE

if TYPE_CHECKING:
    from polybus.core.tables import Tables

# Outcomes are forgotten so many at a time: each costs a row on disk.
FORGOTTEN_AT_ONCE = 1000
# What a worker says about a failure is written down with every later step of the job: no whole logs.
DETAIL = 4096


# -- names that survive -----------------------------------------------------------------------


def peer_text(address: Address) -> str:
    """Who a worker is, for people who read the history of a job."""
    return _identity_text(address[1])


@lru_cache(maxsize=4096)
def _identity_text(identity: bytes) -> str:
    return identity.decode() if identity.isascii() and identity.decode().isprintable() else identity.hex()


def _voice_name(bus: Tables, voice: Any) -> str:
    if voice is None:
        return ""
    return next((name for name, known in bus.voices.items() if known is voice), "")


def entry_of(bus: Tables, request: Request, due_at: float = 0.0) -> ledger.JobEntry:
    """A request as it is written down."""
    link, identity = request.client.address
    expires_at = None if request.expires_at == inf else request.expires_at + bus.wall_offset
    # Without names: they cost as much again as the entry itself.
    return ledger.JobEntry(
        request.token,
        bus.link_names.get(link, ""),
        identity,
        request.request_id,
        _voice_name(bus, request.voice),
        request.service.name,
        plain_frames(request.body),
        request.options,
        request.accepted_at + bus.wall_offset,
        expires_at,
        due_at,
        request.attempt,
        peer_text(request.worker.address) if request.worker is not None else "",
        request.history,
    )


def plain_frames(body: list[Any]) -> list[bytes]:
    """A body as it is written down, without buffers of the pump."""
    if len(body) == 1 and type(body[0]) is bytes:
        return body
    return [bytes(frame) for frame in body]


def _row_of(bus: Tables, request: Request, due_at: float) -> bytes:
    """The same as `entry_of`, packed; without the detour for a request that has only just begun."""
    if (
        due_at
        or request.expires_at != inf
        or request.attempt
        or request.worker is not None
        or request.history
    ):
        return pack_job(entry_of(bus, request, due_at))
    link, identity = request.client.address
    return pack_new_job(
        request.token,
        bus.link_names.get(link, ""),
        identity,
        request.request_id,
        _voice_name(bus, request.voice) if request.voice is not None else "",
        request.service.name,
        plain_frames(request.body),
        pack_options(request.options),
        request.accepted_at + bus.wall_offset,
    )


def note_attempt(bus: Tables, request: Request, reason: Reason, detail: str, now: float) -> None:
    """Add to the history of a job. Plain calls have none."""
    if request.options.retries or request.durable:
        who = peer_text(request.worker.address) if request.worker is not None else ""
        said = detail if len(detail) <= DETAIL else detail[: DETAIL - 1] + "…"
        attempt = ledger.Attempt(request.attempt, bus.wall_at(now), who, str(reason), said)
        request.history = ledger.shortened((*request.history, attempt))


# -- written ----------------------------------------------------------------------------------


def after_written(bus: Tables, action: Any, request: Request | None = None) -> None:
    """Note an action that is to be done when everything noted so far is on disk; if it is a word about a
    request, it is another word should that not get there."""
    number = bus.batch if bus.lines else bus.batch - 1
    if number <= bus.written:
        bus.actions.append(action)
    else:
        bus.held.append((number, request, action))


def when_accepted(bus: Tables, action: Any, request: Request | None) -> None:
    """Note an action that may be done as soon as a request is certainly accepted."""
    if request is not None and request.durable and request.state is RequestState.ACCEPTED:
        after_written(bus, action, request)
    else:
        bus.actions.append(action)


def note_accepted(
    bus: Tables, request: Request, receipt: bool, due_at: float = 0.0, promised: bool = False
) -> None:
    """Write a request down; it goes on when that is done."""
    request.durable = True
    # What was tried before is known under its token already (`revival`).
    is_new = not request.attempt and not request.history
    bus.lines.append(new_accepted(request.token, _row_of(bus, request, due_at), promised, is_new))
    told = None
    if receipt:
        told = Accept(
            request.client.address, request.voice, request.service.name, request.request_id, request.token
        )
    bus.held.append((bus.batch, request, told))


# -- ended ------------------------------------------------------------------------------------


class GivenUp(Refuse, frozen=True):
    """What is kept of a job without a result: why, and what was tried. (After a restart only why: the
    attempts are in its dead letter then.)"""

    history: tuple[ledger.Attempt, ...] = ()
    # Whether it may only be told when it is on disk.
    durable: bool = True


def conclude(
    bus: Tables, request: Request, answer: Answer | None, refusal: Refuse | None, now: float
) -> None:
    """The end of a request that asked for something special: note it, keep it, tell whoever wants to know."""
    word: Answer | Refuse | None = answer if refusal is None else refusal
    assert word is not None
    if refusal is not None and _was_never_written(request, refusal.reason):
        _never_was(bus, request)
        return
    dead = None
    if refusal is not None and is_given_up(request, refusal.reason):
        if not bus.store_trouble or request.durable:
            entry = entry_of(bus, request)
            dead = ledger.DeadLetter(entry, bus.wall_at(now), str(refusal.reason), refusal.detail)
        bus.counters.dead += 1
    if request.durable and request.request_id and answer is not None:
        bus.lines.append(new_ended(request.token, _answer_row(bus, request, answer, now)))
    elif request.durable or dead is not None:
        outcome = None
        if request.durable and request.request_id:
            outcome = _outcome_of(bus, request.client, request.token, word, now)
        bus.lines.append(ledger.Ended(request.token, outcome, dead))
    _tell(bus, request, word)
    if not request.request_id:
        del request.client.known[request.token]
        release_client(bus, request.client)
    elif request.durable or request.client is bus.desk:
        if refusal is not None:
            facts = msgspec.structs.asdict(refusal)
            word = GivenUp(**facts, history=request.history, durable=request.durable)
        elif answer is not None and not request.durable:
            answer.kept_for = request.client
        request.client.known[request.request_id] = word
        group = bus.groups.get(request.options.group)
        if group is None:
            keep_outcome(bus, request.client, word, request.token, now)
        else:
            group.kept.append((request.client, word, request.token, now))
    elif answer is not None:
        keep(bus, request.client, answer, now)
    elif refusal is not None:
        keep_refusal(bus, request.client, refusal, now)
    if request.options.group:
        bus.member_ended(bus, request, now)


def is_given_up(request: Request, reason: Reason) -> bool:
    """Whether a request that ends so becomes a dead letter: jobs do, unless they were withdrawn."""
    is_job = request.durable or request.options.retries > 0
    return is_job and reason is not Reason.CANCELLED and not _was_never_written(request, reason)


def _was_never_written(request: Request, reason: Reason) -> bool:
    # Another broker that has the request may say the same of its own store.
    return reason is Reason.STORE_UNAVAILABLE and request.worker is None and not request.history


def _never_was(bus: Tables, request: Request) -> None:
    """A request that could not be written down: nothing is kept of it, so it may be sent again. Who has to be
    told is known to `written`."""
    client = request.client
    del client.known[request.key]
    if client is not bus.desk:
        release_client(bus, client)


def is_sure(word: Answer | Refuse) -> bool:
    """Whether an outcome that is kept may be told at once: nobody said that it would be on disk."""
    if isinstance(word, Answer):
        return word.kept_for is not None
    return not (isinstance(word, GivenUp) and word.durable)


def tell_again(bus: Tables, word: Accept | Answer | Refuse, about: Answer | Refuse) -> None:
    """Say something about an outcome that is kept to somebody who asks for it."""
    if is_sure(about):
        bus.actions.append(word)
    else:
        after_written(bus, word)


def _tell(bus: Tables, request: Request, word: Answer | Refuse) -> None:
    if request.client is bus.desk:
        if request.request_id in bus.waiters.by_job:
            tell_waiters(bus, request.request_id, word, request.durable)
    elif request.options.reply_requested:
        if request.durable:
            after_written(bus, word)
        else:
            bus.actions.append(word)


def tell_waiters(bus: Tables, job_id: bytes, word: Answer | Refuse, durable: bool) -> None:
    """Let everybody know who asked for the outcome of a job."""
    for waiter in bus.waiters.take(job_id):
        told = addressed(word, waiter.client, waiter.voice, waiter.service, waiter.request_id)
        if durable:
            after_written(bus, told)
        else:
            bus.actions.append(told)


def addressed(
    word: Answer | Refuse, client: Address, voice: Any, service: bytes, request_id: bytes
) -> Answer | Refuse:
    """The same outcome for somebody else."""
    if isinstance(word, Answer):
        return Answer(client, voice, service, request_id, word.body, word.token)
    return Refuse(client, voice, service, request_id, word.reason, word.detail, word.body, word.token)


def _outcome_of(
    bus: Tables, client: Client, token: bytes, word: Answer | Refuse, now: float
) -> ledger.Outcome:
    link, identity = client.address
    reason, detail = (str(word.reason), word.detail) if isinstance(word, Refuse) else ("", "")
    body = plain_frames(word.body)
    name, at = bus.link_names.get(link, ""), now + bus.wall_offset
    return ledger.Outcome(token, name, identity, word.request_id, word.service, at, reason, detail, body)


def _answer_row(bus: Tables, request: Request, answer: Answer, now: float) -> bytes:
    """The outcome of a request that was answered, packed."""
    link, identity = request.client.address
    name, at = bus.link_names.get(link, ""), now + bus.wall_offset
    body = plain_frames(answer.body)
    return pack_answer(request.token, name, identity, answer.request_id, answer.service, at, body)


def remember(bus: Tables, job_id: bytes, word: Answer | Refuse, guarantee: bool, now: float) -> None:
    """Keep the outcome of a job that is no request itself: a group."""
    token = b"group:" + job_id
    if guarantee:
        bus.lines.append(ledger.Ended(token, _outcome_of(bus, bus.desk, token, word, now)))
    elif isinstance(word, Answer):
        word.kept_for = bus.desk
    if isinstance(word, Refuse):
        word = GivenUp(**msgspec.structs.asdict(word), durable=guarantee)
    bus.desk.known[job_id] = word
    keep_outcome(bus, bus.desk, word, token, now)


def keep_outcome(bus: Tables, client: Client, word: Answer | Refuse, token: bytes, now: float) -> None:
    """Keep an outcome much longer than a plain answer: for its client, or for whoever knows the job's id."""
    size = body_size(word.body) + KEPT_OVERHEAD_BYTES
    outcomes = bus.outcomes
    outcomes.append(new_outcome(now, client, token, size, word))
    bus.outcomes_bytes += size
    if len(outcomes) > bus.max_outcomes + FORGOTTEN_AT_ONCE or bus.outcomes_bytes > bus.max_outcomes_bytes:
        forget_outcomes(bus, now)


def forget_outcomes(bus: Tables, now: float) -> None:
    """Let go of outcomes that are too old or too many, here and on disk."""
    tokens: list[bytes] = []
    outcomes = bus.outcomes
    oldest_at = now - bus.outcomes_age_s
    while outcomes:
        kept = outcomes[0]
        if (
            kept.at >= oldest_at
            and len(outcomes) <= bus.max_outcomes
            and bus.outcomes_bytes <= bus.max_outcomes_bytes
        ):
            break
        outcomes.popleft()
        bus.outcomes_bytes -= kept.size
        client = kept.client
        request_id = kept.word.request_id
        # If it was revived since, then this is not its outcome any more, here or on disk.
        if client.known.get(request_id) is kept.word:
            del client.known[request_id]
            tokens.append(kept.token)
            if client is not bus.desk:
                release_client(bus, client)
    if tokens and bus.store_trouble != NO_STORE:
        bus.lines.append(ledger.Forgotten(tuple(tokens)))
