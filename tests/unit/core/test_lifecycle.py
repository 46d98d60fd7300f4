"""Every move from every state: what the table says, or an error before anything has changed."""

from __future__ import annotations

from enum import IntEnum

import pytest

from polybus.core import lifecycle as life
from polybus.core.lifecycle import BusState, Move, NodeState, RequestState, WorkerState
from polybus.errors import LocalProtocolError

R, W, N, B = RequestState, WorkerState, NodeState, BusState

# Written out once more, so that a change of a table is a change of a promise.
ALLOWED: dict[str, dict[IntEnum, IntEnum]] = {
    "queue": {R.ACCEPTED: R.QUEUED, R.WAITING: R.QUEUED, R.ORPHANED: R.QUEUED},
    "wait": {
        R.ACCEPTED: R.WAITING,
        R.QUEUED: R.WAITING,
        R.WAITING: R.WAITING,
        R.DISPATCHED: R.WAITING,
        R.STREAMING: R.WAITING,
    },
    "orphan": {R.ACCEPTED: R.ORPHANED},
    "claim": dict.fromkeys((R.ORPHANED, R.QUEUED, R.WAITING, R.SUSPENDED), R.DISPATCHED),
    "dispatch": {R.ACCEPTED: R.DISPATCHED, R.QUEUED: R.DISPATCHED, R.WAITING: R.DISPATCHED},
    "part": {R.DISPATCHED: R.STREAMING, R.STREAMING: R.STREAMING},
    "requeue": {R.DISPATCHED: R.QUEUED, R.STREAMING: R.QUEUED},
    "suspend": {R.DISPATCHED: R.SUSPENDED, R.STREAMING: R.SUSPENDED},
    "answer": {R.DISPATCHED: R.REPLIED, R.STREAMING: R.REPLIED},
    "fail": dict.fromkeys((R.ACCEPTED, R.DISPATCHED, R.STREAMING, R.SUSPENDED), R.FAILED),
    "expire": dict.fromkeys(
        (R.ACCEPTED, R.QUEUED, R.DISPATCHED, R.STREAMING, R.WAITING, R.ORPHANED, R.SUSPENDED), R.EXPIRED
    ),
    "cancel": dict.fromkeys(
        (R.ACCEPTED, R.QUEUED, R.DISPATCHED, R.STREAMING, R.WAITING, R.ORPHANED, R.SUSPENDED), R.CANCELLED
    ),
    "congest": {W.SERVING: W.CONGESTED, W.CONGESTED: W.CONGESTED},
    "hear": {W.SERVING: W.SERVING, W.CONGESTED: W.SERVING},
    "leave": {W.SERVING: W.GONE, W.CONGESTED: W.GONE, W.SILENT: W.GONE},
    "lose": {W.SERVING: W.SILENT, W.CONGESTED: W.SILENT},
    "return": {W.SILENT: W.SERVING},
    "beat": {N.ALIVE: N.ALIVE, N.LATE: N.ALIVE},
    "miss": {N.ALIVE: N.LATE, N.LATE: N.LATE},
    "lapse": {N.ALIVE: N.DOWN, N.LATE: N.DOWN},
    "drain": {B.SERVING: B.DRAINING, B.DRAINING: B.DRAINING, B.DRAINED: B.DRAINED},
    "run dry": {B.DRAINING: B.DRAINED},
}
MACHINES = {
    R: life.REQUEST_MOVES,
    W: life.WORKER_MOVES,
    N: life.NODE_MOVES,
    B: life.BUS_MOVES,
}
PAIRS = [
    pytest.param(move, state, id=f"{move.name}-{state.name}")
    for states, moves in MACHINES.items()
    for move in moves
    for state in states
]


def test_all_moves_are_known() -> None:
    assert {move.name for moves in MACHINES.values() for move in moves} == set(ALLOWED)


@pytest.mark.parametrize(("move", "state"), PAIRS)
def test_move(move: Move[IntEnum], state: IntEnum) -> None:
    allowed = ALLOWED[move.name]
    if state in allowed:
        assert move[state] is allowed[state]
    else:
        with pytest.raises(LocalProtocolError, match=f"'{move.name}' from state {state.name}"):
            move[state]
        assert state not in move, "asking must not add to the table"


@pytest.mark.parametrize("state", [*sorted(life.TERMINAL), W.GONE, N.DOWN])
def test_terminal_states_have_no_exit(state: IntEnum) -> None:
    assert not [move.name for move in MACHINES[type(state)] if state in move]


def test_every_other_state_can_be_reached_and_left() -> None:
    for states, moves in MACHINES.items():
        reached = {target for move in moves for target in move.values()} | {min(states)}
        assert reached == set(states)
        left = {source for move in moves for source, target in move.items() if source is not target}
        assert set(states) - left == {s for s in states if s in life.TERMINAL} | {
            s for s in (W.GONE, N.DOWN, B.DRAINED) if isinstance(s, states)
        }


def test_a_live_request_can_always_end() -> None:
    """From every state in which a request can rest there is a way to an end."""
    for state in (R.QUEUED, R.DISPATCHED, R.STREAMING, R.WAITING, R.SUSPENDED):
        assert life.EXPIRE[state] in life.TERMINAL
        assert life.CANCEL[state] in life.TERMINAL
