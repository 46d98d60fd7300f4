"""Who gets which request, when it is taken back, and what happens to one that is unwanted or takes too long.

How much is handed to a child at once follows from how long jobs take: enough for a few milliseconds of work,
so quick jobs cost one write for many, and slow ones are handed out one by one.  What sits behind a job that
turns out to be slow is taken back.
"""

from __future__ import annotations

import signal
from math import inf
from typing import TYPE_CHECKING, Final

from polybus.runtime.page import SETTLE_S
from polybus.runtime.pipe import Kind
from polybus.runtime.seat import KILL, Seat, SeatState, Task

if TYPE_CHECKING:
    from polybus.runtime.pool import Pool

# A child is handed about this much work at once: long enough to hide the way there and back.
BATCH_S: Final = 0.005
# What waits behind a job that has run for this long is taken back.
SLOW_S: Final = 0.02
# Between the signal that a job can clean up after and the one that it cannot.
TERM_GRACE_S: Final = 1.0
# How much the newest job says about the next.
WEIGHT: Final = 0.1

CANCELLED: Final = "cancelled"
TIMEOUT: Final = "timeout"
NOT_BEGUN: Final = "it was cancelled before it began"


def hand_out(pool: Pool, now: float) -> None:
    queue = pool.queue
    most = pool.fill(BATCH_S)
    free = [
        seat
        for seat in pool.seats.values()
        if seat.state is SeatState.SERVING and not seat.slow and len(seat.handed) < most
    ]
    if not free:
        return
    free.sort(key=lambda seat: len(seat.handed))
    share = -(-len(queue) // len(free))
    for seat in free:
        room = min(most - len(seat.handed), share, len(queue))
        if seat.jobs_left is not None:
            room = min(room, seat.jobs_left)
        if room > 0:
            seat.hand([queue.popitem(last=False)[0] for _ in range(room)])
            seat.due = min(seat.due, now + SLOW_S)
            if seat.unsent:
                pool.watch(seat.pipe, seat)


def finish(pool: Pool, seat: Seat, number: int, kind: int, body: bytes) -> None:
    task = seat.take(number)
    if task is None:
        return
    seat.slow = False
    verdict = seat.verdict
    if verdict is not None and verdict[0] == number:
        seat.verdict = None
        if seat.state is not SeatState.DYING:
            seat.kill_at = inf
        if kind == Kind.FAILED and verdict[1] == TIMEOUT:
            # It was interrupted and could still say so; why is for us to say.
            pool.listener.failed(task, verdict[1], verdict[2])
            return
    pool.listener.finished(task, kind, body)


def look(pool: Pool, seat: Seat, now: float) -> None:
    """How is a child doing? Sets when to look again."""
    if now >= seat.kill_at and not _has_obeyed(seat, now):
        seat.kill_at = inf
        seat.state = KILL[seat.state]
        if seat.pid:
            pool.nest.kill(seat.pid, signal.SIGKILL)
    seat.due = seat.kill_at
    reports = seat.glance()
    if reports:
        pool.hear(seat, reports, now)
    if seat.recalled_at is not None:
        if now >= seat.recalled_at + SETTLE_S:
            _settle(pool, seat, now)
        if seat.recalled_at is not None:
            seat.due = min(seat.due, seat.recalled_at + SETTLE_S)
    if seat.state not in (SeatState.SERVING, SeatState.RETIRING) or not seat.handed:
        return
    task = seat.handed.get(seat.page.running)
    if task is None:
        # Between two jobs.
        seat.due = min(seat.due, now + SLOW_S)
        return
    since = seat.page.since
    if task.limit_s and seat.verdict is None:
        if now >= since + task.limit_s:
            _overrun(pool, seat, task, now)
            return
        seat.due = min(seat.due, since + task.limit_s)
    if len(seat.handed) > 1 and seat.recalled_at is None:
        if now >= since + SLOW_S:
            recall(seat, now)
        else:
            seat.due = min(seat.due, since + SLOW_S)
    elif not seat.page.is_empty:
        # Answers lie there that the child has not rung its bell for.
        seat.due = min(seat.due, now + SLOW_S)


# -- taking back ------------------------------------------------------------------------------


def recall(seat: Seat, now: float) -> None:
    """Take back what a child has not begun; which that is shows a moment later (see `page`)."""
    if seat.handed:
        seat.page.dropped = seat.last
        seat.recalled_at, seat.kept = now, None
        seat.due = min(seat.due, now + SETTLE_S)


def _settle(pool: Pool, seat: Seat, now: float) -> None:
    if seat.kept is None:
        # From now on nothing begins that was taken back. What has ended until now shows another moment later.
        seat.recalled_at, seat.kept = now, seat.page.running
        return
    kept, seat.recalled_at = seat.kept, None
    dropped = seat.page.dropped
    pool.readable(seat, now)
    pool.hear(seat, seat.read_ring(), now)
    put_back(pool, seat, [number for number in seat.handed if number <= dropped and number != kept])
    task = seat.handed.get(kept)
    if task is not None and task.is_running:
        seat.slow = now >= seat.page.since + SLOW_S
        if task.cancelled:
            _interrupt(pool, seat, task, now)


def put_back(pool: Pool, seat: Seat, numbers: list[int]) -> None:
    """What was not begun waits again, in front, as if it had never been handed out."""
    for number in reversed(numbers):
        wait_again(pool, seat, number)


def wait_again(pool: Pool, seat: Seat, number: int) -> None:
    task = seat.take(number)
    if task is None:
        return
    if seat.jobs_left is not None:
        seat.jobs_left += 1
    if task.cancelled:
        pool.listener.failed(task, CANCELLED, NOT_BEGUN)
        return
    pool.queue[task] = None
    pool.queue.move_to_end(task, last=False)


# -- interrupting -----------------------------------------------------------------------------


def cancel(pool: Pool, task: Task, now: float) -> None:
    seat = task.seat
    if seat is None:
        if task in pool.queue:
            del pool.queue[task]
            pool.listener.failed(task, CANCELLED, NOT_BEGUN)
    elif seat.page.running == task.number:
        _interrupt(pool, seat, task, now)
    else:
        recall(seat, now)


def _interrupt(pool: Pool, seat: Seat, task: Task, now: float) -> None:
    if seat.verdict is not None:
        return
    grace_s = pool.rules.cancel_grace_s
    detail = f"it was cancelled and did not end within {grace_s:g} s, so its process was killed"
    _condemn(pool, seat, task, (task.number, CANCELLED, detail), signal.SIGINT, now + grace_s)


def _has_obeyed(seat: Seat, now: float) -> bool:
    """Whether the job that a child is to be killed for has ended: this process may have stood still."""
    if seat.verdict is None or seat.state not in (SeatState.SERVING, SeatState.RETIRING):
        return False
    # Should it end only now, nothing that is innocent begins before the signal comes.
    recall(seat, now)
    if seat.page.running == seat.verdict[0]:
        return False
    seat.verdict, seat.kill_at = None, inf
    return True


def _overrun(pool: Pool, seat: Seat, task: Task, now: float) -> None:
    verdict = (task.number, TIMEOUT, f"ran longer than {task.limit_s:g} s")
    _condemn(pool, seat, task, verdict, signal.SIGTERM, now + TERM_GRACE_S)
    seat.state = KILL[seat.state]


def _condemn(
    pool: Pool, seat: Seat, task: Task, verdict: tuple[int, str, str], number: int, kill_at: float
) -> None:
    seat.verdict = verdict
    seat.slow = True
    seat.kill_at = kill_at
    seat.due = min(seat.due, kill_at)
    seat.page.unwanted = task.number
    pool.nest.kill(seat.pid, number)
