"""The memory bus: jobs in this process, on the real core, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from polybus import (
    Bus,
    JobExpired,
    JobFailed,
    JobInterrupted,
    JobRefused,
    ResultTimeout,
    current_job,
    testing,
)
from polybus.testing import MemoryBus
from support.patience import patient

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def app() -> Bus:
    return Bus()


@pytest.fixture
def memory(app: Bus) -> Iterator[MemoryBus]:
    real = time.monotonic()
    with testing.bus(app, start=NOON) as memory:
        yield memory
    # However much virtual time a test needs, it needs next to none of ours.
    assert time.monotonic() - real < patient(30.0)


def test_nothing_runs_before_somebody_waits(app: Bus, memory: MemoryBus) -> None:
    done: list[int] = []
    append = app.job(name="a.append")(lambda number: done.append(number))
    first, second = append.delay(1), append.delay(2)
    assert (first.state(), second.state(), done) == ("queued", "queued", [])
    second.get()
    # In the order of the queue, and not before its turn.
    assert done == [1, 2]
    append.delay(3)
    assert memory.run() == 1
    assert done == [1, 2, 3]
    assert memory.run() == 0


def test_what_was_run(app: Bus, memory: MemoryBus) -> None:
    def divide(a: int, b: int) -> float:
        current_job().progress("half")
        return a / b

    job = app.job(name="sums.divide", queue="sums")(divide)
    good, bad = job.delay(6, b=3), job.delay(1, 0)
    memory.run()
    first, second = memory.runs
    assert (first.job, first.name, first.queue, first.args, first.kwargs) == (
        good.id,
        "sums.divide",
        "sums",
        [6],
        {"b": 3},
    )
    assert (first.attempt, first.outcome, first.result, first.progress) == (1, "done", 2.0, ["half"])
    assert (second.job, second.outcome) == (bad.id, "failed")
    assert isinstance(second.error, ZeroDivisionError)
    assert [letter.job.request_id.decode() for letter in memory.dead] == [bad.id]


def test_retries_wait_in_virtual_time(app: Bus, memory: MemoryBus) -> None:
    tries: list[datetime] = []

    def flaky() -> str:
        tries.append(memory.clock.now())
        if len(tries) < 4:
            raise ValueError("not yet")
        return "at last"

    handle = app.job(name="a.flaky", retries=3, backoff_s=10)(flaky).delay()
    memory.run()
    assert handle.state() == "waiting"
    memory.clock.advance(12)
    assert len(tries) == 2
    assert handle.get() == "at last"
    pauses = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(tries)]
    assert [round(pause, -1) for pause in pauses] == [10, 20, 40]


def test_a_job_that_sleeps_too_long_is_ended(app: Bus, memory: MemoryBus) -> None:
    cleaned: list[str] = []

    def slow() -> None:
        try:
            time.sleep(3600)
        except JobInterrupted as why:
            cleaned.append(why.reason)
            raise

    handle = app.job(name="a.slow", timeout_s=60)(slow).delay()
    with pytest.raises(JobFailed) as caught:
        handle.get()
    assert caught.value.reason == "timeout"
    assert cleaned == ["timeout"]
    assert memory.clock.now() - NOON == timedelta(seconds=60)


def test_a_job_that_sleeps_and_ends_in_time(app: Bus, memory: MemoryBus) -> None:
    def slow() -> float | None:
        time.sleep(20)
        return current_job().remaining_s

    assert app.job(name="a.slow", timeout_s=60)(slow).delay().get() == pytest.approx(40)
    assert memory.clock.now() - NOON == timedelta(seconds=20)


def test_threads_that_run_no_job_really_sleep(app: Bus, memory: MemoryBus) -> None:
    """Py4J, for example, has a thread that sleeps a second at a time for as long as the program runs."""
    began, awake = threading.Event(), threading.Event()
    wrong: list[BaseException] = []

    def sleeper() -> None:
        began.wait()
        try:
            time.sleep(0.01)
        except BaseException as error:
            wrong.append(error)
        awake.set()

    @app.job(name="naps.limited", timeout_s=1.0)
    def limited() -> bool:
        began.set()
        assert awake.wait(patient(10)), "the other thread waits for the end of the job"
        before = memory.clock.monotonic()
        of_its_own = threading.Thread(target=time.sleep, args=(0.01,))
        of_its_own.start()
        of_its_own.join(patient(10))
        assert not of_its_own.is_alive()
        return memory.clock.monotonic() == before

    thread = threading.Thread(target=sleeper)
    thread.start()
    try:
        assert limited.delay().get() is True
    finally:
        began.set()
        thread.join()
    assert wrong == []


def test_coroutines_sleep_in_virtual_time(app: Bus, memory: MemoryBus) -> None:
    async def nap(seconds: float) -> str:
        await asyncio.gather(*(asyncio.sleep(seconds) for _ in range(3)))
        return "rested"

    job = app.job(name="a.nap", timeout_s=60)(nap)
    assert job.delay(50).get() == "rested"
    assert memory.clock.now() - NOON == timedelta(seconds=50)
    with pytest.raises(JobFailed, match="timeout"):
        job.delay(70).get()


def test_coroutines_with_threads_wait_for_them(app: Bus, memory: MemoryBus) -> None:
    async def work() -> str:
        return await asyncio.wait_for(asyncio.to_thread(threading.current_thread), 30) and "done"

    assert app.job(name="a.work")(work).delay().get() == "done"


def test_threads_of_a_coroutine_really_sleep(app: Bus, memory: MemoryBus) -> None:
    """They have a copy of its context, but are not the job."""

    def nap() -> tuple[float, float]:
        before, real = memory.clock.monotonic(), time.perf_counter()
        time.sleep(0.02)
        return memory.clock.monotonic() - before, time.perf_counter() - real

    async def naps() -> list[float]:
        return list(await asyncio.to_thread(nap))

    virtual_s, real_s = app.job(name="a.nap")(naps).delay().get()
    assert virtual_s == 0
    assert real_s >= 0.02


def test_time_sleep_of_a_coroutine_is_virtual_in_a_test_that_is_a_coroutine(
    app: Bus, memory: MemoryBus
) -> None:
    async def nap() -> str:
        time.sleep(3600)
        return "rested"

    job = app.job(name="a.nap", timeout_s=7200)(nap)

    async def main() -> object:
        return await (await job.adelay()).aget()

    assert asyncio.run(main()) == "rested"
    assert memory.clock.now() - NOON == timedelta(hours=1)


def test_a_coroutine_that_tests(app: Bus, memory: MemoryBus) -> None:
    async def nap() -> str:
        await asyncio.sleep(50)
        handle = await inner.adelay(1)
        return str(await handle.aget())

    inner = app.job(name="a.inner")(lambda number: number + 1)
    outer = app.job(name="a.nap")(nap)

    async def test() -> None:
        handle = await outer.adelay()
        assert await handle.aget() == "2"
        posted = await inner.asend((2,), wait=False)
        assert await posted.aget() == 3
        assert await posted.astate() == "done"
        assert not await posted.acancel()
        handles = await app.asend_many([inner.s(1), inner.s(2)])
        assert [await each.aget() for each in handles] == [2, 3]
        await app.aflush()
        await app.aclose()

    asyncio.run(test())


def test_jobs_that_wait_for_jobs(app: Bus, memory: MemoryBus) -> None:
    inner = app.job(name="a.inner")(lambda: current_job().id)

    def outer() -> bool:
        mine = current_job().id
        theirs = inner.delay().get()
        return mine == current_job().id != theirs

    assert app.job(name="a.outer")(outer).delay().get() is True
    assert current_job().id == ""


def test_delayed_and_stale(app: Bus, memory: MemoryBus) -> None:
    job = app.job(name="a.b")(lambda: "done")
    later = job.send(delay_s=3600)
    assert later.state() == "waiting"
    with pytest.raises(ResultTimeout):
        later.get(timeout_s=3000)
    memory.clock.advance_to(NOON + timedelta(hours=1, seconds=1))
    assert later.state() == "done"
    stale = job.send(delay_s=60, ttl_s=30)
    with pytest.raises(JobExpired):
        stale.get()


def test_a_job_that_never_ends_does_not_hold_up_the_test(app: Bus, memory: MemoryBus) -> None:
    handle = app.job(name="a.b")(lambda: None).send(delay_s=5 * 86_400)
    with pytest.raises(ResultTimeout):
        handle.get()
    memory.clock.advance(5 * 86_400)
    assert handle.get() is None


def test_schedules(app: Bus, memory: MemoryBus) -> None:
    times: list[datetime] = []
    job = app.job(name="a.tick")(lambda: times.append(memory.clock.now()))
    schedule = job.schedule(every_s=60)
    assert schedule.next_at == NOON + timedelta(seconds=60)
    memory.clock.advance(181)
    assert [round((at - NOON).total_seconds()) for at in times] == [60, 120, 180]
    assert schedule.remove()
    assert not schedule.remove()
    memory.clock.advance(600)
    assert len(times) == 3
    # By the clock on the wall, in a zone with summer time.
    job.schedule(cron="30 2 * * *", timezone="Europe/Berlin", key="nightly", runs=2)
    assert [row["key"] for row in app.schedules()] == ["nightly"]
    memory.clock.advance(3 * 86_400)
    assert [at.strftime("%d %H:%M") for at in times[3:]] == ["02 01:30", "03 01:30"]
    assert app.schedules() == []


def test_a_bad_schedule(app: Bus, memory: MemoryBus) -> None:
    job = app.job(name="a.tick")(lambda: None)
    for how in ({"cron": "61 * * * *"}, {"cron": "0 0 * * *", "timezone": "Atlantis/Capital"}):
        with pytest.raises(JobRefused, match="bad_schedule"):
            job.schedule(**how)  # type: ignore[arg-type]


def test_rules_of_queues(app: Bus, memory: MemoryBus) -> None:
    times: list[float] = []
    job = app.job(name="a.tick", queue="slow")(lambda: times.append(memory.clock.time() - NOON.timestamp()))
    with testing.bus(app, start=NOON, queues={"slow": {"rate_per_s": 1}}) as limited:
        memory = limited
        handles = [job.delay() for _ in range(4)]
        handles[-1].get()
    assert [round(at) for at in times] == [0, 1, 2, 3]


def test_hooks(app: Bus) -> None:
    said: list[Any] = []
    app.on_start(lambda: said.append("start"))
    app.on_stop(lambda: said.append("stop"))
    app.on_before(lambda job: said.append(("before", job.attempt)))
    app.on_after(lambda job, error: said.append(("after", repr(error))))
    job = app.job(name="a.b")(lambda: 1 / 0)
    with testing.bus(app), pytest.raises(JobFailed, match="division by zero"):
        job.delay().get()
    assert said == ["start", ("before", 1), ("after", "ZeroDivisionError('division by zero')"), "stop"]


def test_what_is_for_the_test_reaches_it(app: Bus, memory: MemoryBus) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    handle = app.job(name="a.b")(interrupted).delay()
    with pytest.raises(KeyboardInterrupt):
        handle.get()


def test_everything_is_as_before_afterwards(app: Bus) -> None:
    desk, sleep = app.desk, time.sleep
    with testing.bus(app):
        assert app.desk is not desk
    assert app.desk is desk
    assert time.sleep is sleep


def test_from_many_threads(app: Bus, memory: MemoryBus) -> None:
    job = app.job(name="a.double")(lambda number: number * 2)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(job.delay(len(found)).get())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8


def test_a_thousand_jobs(app: Bus, memory: MemoryBus) -> None:
    job = app.job(name="a.double")(lambda number: number * 2)
    handles = app.send_many(job.s(number) for number in range(1000))
    assert memory.run() == 1000
    assert app.get_many(handles) == [number * 2 for number in range(1000)]
