"""The state machines of the bus, as data.

A request lives like this, whatever the dialect of its client or its worker:

    accepted ─ queue ─> queued ─ dispatch ─> dispatched ─ part ─> streaming
                          ^                     │  │                 │  │
                          └────── requeue ──────┘  │                 │  │
                          └────── requeue ─────────┼─────────────────┘  │
                                                   └── answer, fail, … ─┘  ─> a terminal state

The tables below own every transition; nobody assigns a state that did not come out of them.
`MOVE[state]` is the next state, and a pair that is not in the table is a bug of ours: it raises
`LocalProtocolError` before anything has changed.  `make diagrams` draws these tables into docs/.

Terminal states are final: what arrives for such a request is late, is counted, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, TypeVar

from polybus.errors import LocalProtocolError


class RequestState(IntEnum):
    ACCEPTED = 0  # known, on its way to a queue or a worker
    QUEUED = 1  # waits for a worker
    DISPATCHED = 2  # a worker has it
    STREAMING = 3  # a worker has it and has sent a part of the answer
    REPLIED = 4  # terminal: answered
    FAILED = 5  # terminal: a worker failed at it or refused it, or too many were lost with it
    EXPIRED = 6  # terminal: nobody answered in time
    CANCELLED = 7  # terminal: its client or an operator withdrew it
    WAITING = 8  # not yet: tried again later, sent with a delay, or left to our successor because we drain
    ORPHANED = 9  # a worker had it when the broker died; it may still answer or come back
    SUSPENDED = 10  # it has cost too many workers; it waits for those that only went silent and may answer


class WorkerState(IntEnum):
    SERVING = 0  # takes requests
    CONGESTED = 1  # its pipe was full; until it is heard again it gets one for each slot it gives back
    GONE = 2  # left, lost or sent away
    SILENT = 3  # counts as disconnected because nothing was heard from it, but may still answer what it has


class NodeState(IntEnum):
    ALIVE = 0  # its lease runs
    LATE = 1  # a heartbeat is overdue
    DOWN = 2  # the lease ran out, or the node left


class BusState(IntEnum):
    SERVING = 0
    DRAINING = 1  # takes no new requests, finishes what it has
    DRAINED = 2  # nothing is left


S = TypeVar("S", bound=IntEnum)


class Move(dict[S, S]):
    """Where one kind of event leads from each state that allows it."""

    def __init__(self, name: str, table: Mapping[S, S]) -> None:
        super().__init__(table)
        self.name: Final = name

    def __missing__(self, state: S) -> S:
        raise LocalProtocolError(f"no move {self.name!r} from state {state.name}")


_R = RequestState
QUEUE: Final = Move("queue", {_R.ACCEPTED: _R.QUEUED, _R.WAITING: _R.QUEUED, _R.ORPHANED: _R.QUEUED})
WAIT: Final = Move(
    "wait",
    {
        _R.ACCEPTED: _R.WAITING,
        _R.QUEUED: _R.WAITING,
        _R.WAITING: _R.WAITING,
        _R.DISPATCHED: _R.WAITING,
        _R.STREAMING: _R.WAITING,
    },
)
ORPHAN: Final = Move("orphan", {_R.ACCEPTED: _R.ORPHANED})
CLAIM: Final = Move(
    "claim",
    {
        _R.ORPHANED: _R.DISPATCHED,
        _R.QUEUED: _R.DISPATCHED,
        _R.WAITING: _R.DISPATCHED,
        _R.SUSPENDED: _R.DISPATCHED,
    },
)
SUSPEND: Final = Move("suspend", {_R.DISPATCHED: _R.SUSPENDED, _R.STREAMING: _R.SUSPENDED})
DISPATCH: Final = Move(
    "dispatch", {_R.ACCEPTED: _R.DISPATCHED, _R.QUEUED: _R.DISPATCHED, _R.WAITING: _R.DISPATCHED}
)
PART: Final = Move("part", {_R.DISPATCHED: _R.STREAMING, _R.STREAMING: _R.STREAMING})
REQUEUE: Final = Move("requeue", {_R.DISPATCHED: _R.QUEUED, _R.STREAMING: _R.QUEUED})
ANSWER: Final = Move("answer", {_R.DISPATCHED: _R.REPLIED, _R.STREAMING: _R.REPLIED})
FAIL: Final = Move(
    "fail",
    {
        _R.ACCEPTED: _R.FAILED,
        _R.DISPATCHED: _R.FAILED,
        _R.STREAMING: _R.FAILED,
        _R.SUSPENDED: _R.FAILED,
    },
)
EXPIRE: Final = Move(
    "expire",
    {
        _R.ACCEPTED: _R.EXPIRED,
        _R.WAITING: _R.EXPIRED,
        _R.ORPHANED: _R.EXPIRED,
        _R.SUSPENDED: _R.EXPIRED,
        _R.QUEUED: _R.EXPIRED,
        _R.DISPATCHED: _R.EXPIRED,
        _R.STREAMING: _R.EXPIRED,
    },
)
CANCEL: Final = Move(
    "cancel",
    {
        _R.ACCEPTED: _R.CANCELLED,
        _R.WAITING: _R.CANCELLED,
        _R.ORPHANED: _R.CANCELLED,
        _R.SUSPENDED: _R.CANCELLED,
        _R.QUEUED: _R.CANCELLED,
        _R.DISPATCHED: _R.CANCELLED,
        _R.STREAMING: _R.CANCELLED,
    },
)
REQUEST_MOVES: Final = (
    QUEUE,
    WAIT,
    ORPHAN,
    CLAIM,
    DISPATCH,
    PART,
    REQUEUE,
    SUSPEND,
    ANSWER,
    FAIL,
    EXPIRE,
    CANCEL,
)

_W = WorkerState
CONGEST: Final = Move("congest", {_W.SERVING: _W.CONGESTED, _W.CONGESTED: _W.CONGESTED})
HEAR: Final = Move("hear", {_W.SERVING: _W.SERVING, _W.CONGESTED: _W.SERVING})
LEAVE: Final = Move("leave", {_W.SERVING: _W.GONE, _W.CONGESTED: _W.GONE, _W.SILENT: _W.GONE})
LOSE: Final = Move("lose", {_W.SERVING: _W.SILENT, _W.CONGESTED: _W.SILENT})
RETURN: Final = Move("return", {_W.SILENT: _W.SERVING})
WORKER_MOVES: Final = (CONGEST, HEAR, LEAVE, LOSE, RETURN)

_N = NodeState
BEAT: Final = Move("beat", {_N.ALIVE: _N.ALIVE, _N.LATE: _N.ALIVE})
MISS: Final = Move("miss", {_N.ALIVE: _N.LATE, _N.LATE: _N.LATE})
LAPSE: Final = Move("lapse", {_N.ALIVE: _N.DOWN, _N.LATE: _N.DOWN})
NODE_MOVES: Final = (BEAT, MISS, LAPSE)

_B = BusState
DRAIN: Final = Move("drain", {_B.SERVING: _B.DRAINING, _B.DRAINING: _B.DRAINING, _B.DRAINED: _B.DRAINED})
RUN_DRY: Final = Move("run dry", {_B.DRAINING: _B.DRAINED})
BUS_MOVES: Final = (DRAIN, RUN_DRY)

# Workers that take no requests and are not in `bus.workers`.
ABSENT: Final = frozenset({_W.GONE, _W.SILENT})
TERMINAL: Final = frozenset({_R.REPLIED, _R.FAILED, _R.EXPIRED, _R.CANCELLED})
