"""How children come and go: started, replaced, retired, killed, buried."""

from __future__ import annotations

import signal
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec

from polybus.runtime import handing
from polybus.runtime.pipe import Facts, Kind
from polybus.runtime.seat import BURY, END, KILL, RETIRE, UP, Seat, SeatState, how_it_ended

if TYPE_CHECKING:
    from polybus.runtime.pool import Pool

# A child that was asked to end runs the application's own hooks; not for ever.
END_S: Final = 10.0
# A child must be up by then: importing an application takes seconds, rarely more.
START_S: Final = 120.0
# Children that die at start are replaced ever more slowly.
RETRY_S: Final = 0.2
MAX_RETRY_S: Final = 30.0

CRASHED: Final = "crashed"

_COMING: Final = (SeatState.STARTING, SeatState.SERVING)
_FACTS: Final = msgspec.json.Decoder(Facts)
_FILES: Final = msgspec.json.Decoder(list[str])


def missing(pool: Pool) -> int:
    """How many children have to be started; after a failure one at a time, to see whether it works."""
    there = sum(seat.state in _COMING and seat is not pool.fresh for seat in pool.seats.values())
    wanted = max(0, pool.rules.processes - there)
    return wanted if not pool.failed_starts else min(1, wanted)


def fill_up(pool: Pool, now: float) -> None:
    starting = any(seat.state is SeatState.STARTING for seat in pool.seats.values())
    if pool.failed_starts and starting:
        return
    for _ in range(missing(pool)):
        start(pool, now)


def start(pool: Pool, now: float) -> Seat:
    pool.last_key += 1
    key = pool.last_key
    seat = Seat(key, pool.nest.fork, now, pool.rules.max_jobs, pool.output(key))
    seat.kill_at = seat.due = now + START_S
    pool.seats[key] = seat
    pool.watch(seat.pipe, seat)
    return seat


def of_itself(pool: Pool, seat: Seat, kind: int, body: bytes, now: float) -> None:
    """What a child says about itself, not about a job."""
    match kind:
        case Kind.UP:
            _came_up(pool, seat, body, now)
        case Kind.FAULT:
            seat.fault = body.decode("utf-8", "replace")
        case Kind.LARGE:
            if seat.state is SeatState.SERVING:
                pool.listener.note(f"process {seat.pid} has grown to {int(body) >> 20} MiB and is replaced")
            retire(pool, seat, now)
        case Kind.FILES:
            pool.listener.loaded(_FILES.decode(body))


def _came_up(pool: Pool, seat: Seat, body: bytes, now: float) -> None:
    seat.was_up = True
    seat.state = UP[seat.state]
    seat.kill_at = seat.due = inf
    pool.failed_starts = 0
    pool.start_at = now
    pool.listener.came_up(_FACTS.decode(body))
    if pool.ending:
        retire(pool, seat, now)
    if seat is pool.fresh:
        pool.fresh = None
        pool.old = [old for old in pool.old if old.state in _COMING]
        if pool.old:
            retire(pool, pool.old.pop(0), now)
        elif sum(other.state in _COMING for other in pool.seats.values()) > pool.rules.processes:
            # The one that it came in for has ended by itself, and was replaced already.
            retire(pool, seat, now)
        _replace_next(pool, now)


# -- going ------------------------------------------------------------------------------------


def retire(pool: Pool, seat: Seat, now: float) -> None:
    """Let it finish what it has begun; another takes its place."""
    if seat.state is SeatState.STARTING:
        kill(pool, seat, signal.SIGKILL)
        return
    seat.state = RETIRE[seat.state]
    handing.recall(seat, now)
    idle(seat, now)


def idle(seat: Seat, now: float) -> None:
    """It has nothing to do: it retires, or is worn out and has to be replaced."""
    if seat.handed:
        return
    if seat.state is SeatState.SERVING and seat.jobs_left == 0:
        seat.state = RETIRE[seat.state]
    if seat.state is SeatState.RETIRING:
        seat.state = END[seat.state]
        seat.ask_to_end()
        seat.kill_at = now + END_S
        seat.due = min(seat.due, seat.kill_at)


def hung_up(seat: Seat, now: float) -> None:
    """Its end of the pipe is closed. It is about to end, or a job has closed what was not its own."""
    if seat.state not in (SeatState.ENDING, SeatState.DYING):
        seat.state = KILL[seat.state]
        seat.kill_at = now + handing.TERM_GRACE_S
        seat.due = min(seat.due, seat.kill_at)


def kill(pool: Pool, seat: Seat, number: int) -> None:
    seat.kill_at = inf
    seat.state = KILL[seat.state]
    if seat.pid:
        pool.nest.kill(seat.pid, number)


def replace_all(pool: Pool, now: float) -> None:
    """A second time while it goes on, those that have come in meanwhile are replaced as well."""
    # Also those that have not come up yet: they may have loaded what is no longer there.
    pool.old = [seat for seat in pool.seats.values() if seat.state in _COMING]
    if pool.fresh is None:
        _replace_next(pool, now)


def _replace_next(pool: Pool, now: float) -> None:
    pool.old = [seat for seat in pool.old if seat.state in _COMING]
    pool.fresh = start(pool, now) if pool.old and not pool.ending else None


def bury(pool: Pool, seat: Seat, status: int, now: float) -> None:
    """A child is gone. What it ran has failed; what it had not begun waits for another."""
    # In this order: what has ended since is in the pipe.
    running = seat.page.running
    pool.hear(seat, seat.read_last(), now)
    how = how_it_ended(status)
    task = seat.take(running)
    if task is not None:
        code, detail = CRASHED, f"its process {how}"
        if seat.verdict is not None and seat.verdict[0] == running:
            code, detail = seat.verdict[1:]
            # The signal was ours.
            how = f"was killed because of its job ({code}: {detail})"
        pool.listener.failed(task, code, detail)
    handing.put_back(pool, seat, list(seat.handed))
    expected = seat.state in (SeatState.ENDING, SeatState.DYING)
    seat.state = BURY[seat.state]
    del pool.seats[seat.key]
    pool.watch(seat.pipe, None)
    seat.close()
    if pool.ending:
        return
    if not seat.was_up:
        _could_not_start(pool, seat, seat.fault or f"the process {how} while it started", now)
    elif not expected or status:
        pool.listener.note(f"process {seat.pid} {how}; another takes its place")


def _could_not_start(pool: Pool, seat: Seat, why: str, now: float) -> None:
    if seat is pool.fresh:
        # The others are fine: better the old ones than none.
        pool.fresh = None
        pool.old = []
        pool.listener.note(f"a new process could not be started, so the old ones go on: {why}")
        return
    pool.failed_starts += 1
    retry_s = min(RETRY_S * 2.0 ** min(pool.failed_starts - 1, 16), MAX_RETRY_S)
    pool.start_at = now + retry_s
    pool.listener.could_not_start(why, retry_s)
