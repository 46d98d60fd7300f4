"""The jobs API against a broker with workers, and against the memory bus: the same tests for both."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from polybus import (
    Bus,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobRefused,
    JobUnconfirmed,
    ResultTimeout,
    UnknownJob,
    chain,
    group,
    testing,
)
from polybus.client.addresses import DIALECTS
from support import job_app
from support.fake_brokers import Background
from support.job_app import Parcel, add, bus, deliver, fail, flaky, nap, note, refuse, sleep, total
from support.job_broker import JobBroker, JobWorker
from support.patience import patient
from support.waiting import until

WAIT_S = patient(30.0)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobBroker]:
    with JobBroker(tmp_path_factory.mktemp("jobs"), {"jobs.backoff_s": 0.05}) as broker, JobWorker(broker):
        yield broker
        assert not broker.crashes()


@pytest.fixture
def live(broker: JobBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobBroker]:
    for name, value in broker.places.items():
        monkeypatch.setenv(name, value)
    yield broker
    bus.close()


class Place:
    """Where the jobs of a test run, and how time passes there."""

    def __init__(self, memory: testing.MemoryBus | None) -> None:
        self._memory = memory

    def until(self, condition: Callable[[], Any]) -> Any:
        """Let time pass until a condition holds."""
        if self._memory is None:
            return until(condition)
        for _ in range(1000):
            value = condition()
            if value:
                return value
            self._memory.clock.advance(0.1)
        raise AssertionError("it did not happen")


@pytest.fixture(params=["memory", "live"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "live":
        request.getfixturevalue("live")
        yield Place(None)
    else:
        with testing.bus(bus) as memory:
            yield Place(memory)


# -- one job ----------------------------------------------------------------------------------------


def test_a_job_runs_and_returns(place: Place) -> None:
    handle = add.delay(1, b=2)
    assert handle.get(timeout_s=WAIT_S) == 3
    # As often as one asks, and whoever asks.
    assert handle.get(timeout_s=WAIT_S) == 3
    assert bus.result(handle.id) == 3
    assert handle.state() == "done"
    assert handle.info()["job"] == handle.id
    assert not handle.cancel()


def test_arguments_and_results_keep_their_types(place: Place) -> None:
    parcel = Parcel(7, date(2026, 2, 28))
    assert deliver.delay(parcel).get(WAIT_S) == Parcel(7, date(2026, 3, 1))
    assert deliver.delay(parcel, days=2).get(WAIT_S) == Parcel(7, date(2026, 3, 2))


def test_a_coroutine_function(place: Place) -> None:
    assert nap.delay(0.01).get(WAIT_S) == "rested"


def test_a_failure_is_told_with_its_history(place: Place) -> None:
    handle = fail.delay()
    with pytest.raises(JobFailed, match="failed: ValueError: this never works") as caught:
        handle.get(WAIT_S)
    error = caught.value
    assert (error.job, error.reason) == (handle.id, "failed")
    assert [(attempt["number"], attempt["reason"]) for attempt in error.history] == [(1, "failed")]
    assert handle.state() == "failed"


def test_a_rejection(place: Place) -> None:
    with pytest.raises(JobFailed, match="rejected: not today"):
        refuse.delay().get(WAIT_S)


def test_a_result_that_is_no_json(place: Place) -> None:
    with pytest.raises(JobFailed, match="JSON"):
        job_app.unspeakable.delay().get(WAIT_S)


def test_retries(place: Place, tmp_path: Path) -> None:
    path = str(tmp_path / "tries")
    assert flaky.delay(path, 2).get(WAIT_S) == 3
    other = str(tmp_path / "others")
    with pytest.raises(JobFailed, match="not there yet") as caught:
        flaky.send((other, 99), retries=1).get(WAIT_S)
    assert len(Path(other).read_text().splitlines()) == 2
    assert [attempt["number"] for attempt in caught.value.history] == [1, 2]


def test_a_job_that_tells_how_far_it_is(place: Place) -> None:
    # Only what is said while somebody follows is heard: by then somebody does.
    handle = job_app.report.send((3,), delay_s=patient(1.0))
    assert list(handle.progress(WAIT_S)) == [{"done": 0}, {"done": 1}, {"done": 2}]
    assert handle.get(WAIT_S) == 1
    # It is over; there is nothing more to say.
    assert list(handle.progress()) == []
    assert list(fail.delay().progress(WAIT_S)) == []
    with pytest.raises(UnknownJob):
        next(bus.handle("nothing").progress())
    with pytest.raises(ResultTimeout):
        next(add.send((1, 2), delay_s=3600).progress(0.1))

    async def watch() -> None:
        async with bus:
            handle = await job_app.report.asend((2,), delay_s=patient(1.0))
            assert [word async for word in handle.aprogress(WAIT_S)] == [{"done": 0}, {"done": 1}]

    asyncio.run(watch())


def test_a_time_limit(place: Place) -> None:
    # A busy machine may take longer than the job's own limit.
    assert sleep.send((0.01,), timeout_s=WAIT_S).get(WAIT_S) == "awake"
    with pytest.raises(JobFailed) as caught:
        sleep.delay(60).get(WAIT_S)
    assert caught.value.reason == "timeout"


def test_delay_and_cancel(place: Place) -> None:
    handle = add.send((1, 2), delay_s=3600)
    assert handle.state() == "waiting"
    with pytest.raises(ResultTimeout, match="it goes on"):
        handle.get(timeout_s=0.2)
    assert handle.cancel()
    assert handle.state() == "cancelled"
    with pytest.raises(JobCancelled):
        handle.get(WAIT_S)
    soon = add.send((1, 2), delay_s=0.2)
    assert soon.get(WAIT_S) == 3


def test_a_job_that_grows_stale(place: Place) -> None:
    handle = add.send((1, 2), delay_s=3600, ttl_s=0.2)
    with pytest.raises(JobExpired):
        handle.get(WAIT_S)
    assert handle.state() == "expired"


def test_the_same_id_runs_once(place: Place, tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    job_id = f"once-{tmp_path.name}-{os.getpid()}-{os.urandom(4).hex()}"
    handles = [note.send((path, "once"), id=job_id) for _ in range(3)]
    assert [handle.get(WAIT_S) for handle in handles] == [1, 1, 1]
    assert note.send((path, "once"), id=job_id).get(WAIT_S) == 1
    assert Path(path).read_text() == "once\n"


def test_a_job_that_nobody_knows(place: Place) -> None:
    for ask in (bus.result, bus.cancel, lambda job: bus.handle(job).state()):
        with pytest.raises(UnknownJob, match="knows no job nothing"):
            ask("nothing")


def test_without_a_guarantee(place: Place) -> None:
    assert add.send((1, 2), guarantee=False).get(WAIT_S) == 3


def test_without_waiting_for_the_receipt(place: Place) -> None:
    handles = [add.send((n, n), wait=False) for n in range(20)]
    bus.flush()
    assert [handle.get(WAIT_S) for handle in handles] == [2 * n for n in range(20)]


def test_many_at_once(place: Place) -> None:
    handles = bus.send_many(add.s(n, 1) for n in range(500))
    assert [handle.get(WAIT_S) for handle in handles] == list(range(1, 501))
    assert len({handle.id for handle in handles}) == 500
    assert bus.get_many(handles, WAIT_S) == list(range(1, 501))
    found = bus.get_many([handles[0], fail.delay(), handles[2]], WAIT_S, return_errors=True)
    assert (found[0], str(found[1]), found[2]) == (1, "failed: ValueError: this never works", 3)


# -- flows ------------------------------------------------------------------------------------------


def test_a_chain(place: Place) -> None:
    assert chain(add.s(1, 2), add.s(3), add.s(b=4)).delay().get(WAIT_S) == 10
    parcels = chain(deliver.s(Parcel(1, date(2026, 1, 1))), deliver.s(), deliver.s(days=5)).delay()
    assert parcels.get(WAIT_S) == Parcel(1, date(2026, 1, 8))


def test_a_chain_that_breaks(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    with pytest.raises(JobFailed, match="never works"):
        chain(fail.s(), note.s(str(path))).delay().get(WAIT_S)
    assert not path.exists()


def test_a_group(place: Place) -> None:
    handle = group(add.s(n, n) for n in range(10)).delay()
    assert handle.get(WAIT_S) == [2 * n for n in range(10)]
    mixed = group(add.s(1, 1), deliver.s(Parcel(1, date(2026, 1, 1))), nap.s(0)).delay()
    assert mixed.get(WAIT_S) == [2, Parcel(1, date(2026, 1, 2)), "rested"]


def test_a_group_and_then(place: Place) -> None:
    handle = group(add.s(n, n) for n in range(10)).delay(then=total.s())
    assert handle.get(WAIT_S) == 90
    longer = chain(group(add.s(n, n) for n in range(10)), total.s(), add.s(10)).delay()
    assert longer.get(WAIT_S) == 100


def test_a_group_with_a_failure(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    handle = group(add.s(1, 1), fail.s(), note.s(str(path), "ran")).delay(then=total.s())
    with pytest.raises(JobFailed, match="1 of 3 jobs failed") as caught:
        handle.get(WAIT_S)
    assert caught.value.reason == "group_failed"
    # The others have run to their end.
    assert path.read_text() == "ran\n"


# -- schedules --------------------------------------------------------------------------------------


def test_a_schedule(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "ticks"
    schedule = note.schedule(every_s=0.2, args=(str(path), "tick"), key=f"ticks-{tmp_path.name}", haste=True)
    assert schedule.key in [row["key"] for row in bus.schedules()]
    place.until(lambda: path.exists() and len(path.read_text().splitlines()) >= 3)
    assert schedule.remove()
    assert not bus.unschedule(schedule.key)
    with pytest.raises(JobRefused, match="cron"):
        note.schedule(cron="every day", args=(str(path), "tick"))


# -- asyncio ----------------------------------------------------------------------------------------


def test_asyncio(place: Place, tmp_path: Path) -> None:
    async def main() -> None:
        async with bus:
            handle = await add.adelay(1, 2)
            assert await handle.aget(WAIT_S) == 3
            assert await handle.astate() == "done"
            assert (await handle.ainfo())["job"] == handle.id
            assert await bus.aresult(handle.id) == 3
            later = await add.asend((1, 2), delay_s=3600)
            assert await later.acancel()
            with pytest.raises(JobCancelled):
                await later.aget(WAIT_S)
            with pytest.raises(JobFailed, match="never works"):
                await (await fail.adelay()).aget(WAIT_S)
            results = await asyncio.gather(*(nap.adelay(0.01) for _ in range(5)))
            assert [await each.aget(WAIT_S) for each in results] == ["rested"] * 5
            assert await (await chain(add.s(1, 2), add.s(3)).adelay()).aget(WAIT_S) == 6
            numbers = group(add.s(n, n) for n in range(3))
            assert await (await numbers.adelay(then=total.s())).aget(WAIT_S) == 6
            many = await bus.asend_many(add.s(n, 0) for n in range(200))
            assert [await each.aget(WAIT_S) for each in many] == list(range(200))
            assert await bus.aget_many(many, WAIT_S) == list(range(200))
            posted = [await add.asend((n, n), wait=False) for n in range(5)]
            await bus.aflush()
            assert [await each.aget(WAIT_S) for each in posted] == [0, 2, 4, 6, 8]
            schedule = await add.aschedule(every_s=3600, args=(1, 2))
            assert schedule.key in [row["key"] for row in await bus.aschedules()]
            assert await schedule.aremove()
            with pytest.raises(UnknownJob):
                await bus.acancel("nothing")

    # Twice: the second loop has nothing of the first.
    asyncio.run(main())
    asyncio.run(main())


# -- only with a broker -----------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_in_every_dialect(live: JobBroker, dialect: str) -> None:
    with Bus(dialect=dialect, timeout_s=WAIT_S) as other:
        plus = other.job(name="support.job_app.add")(add.function)
        broken = other.job(name="support.job_app.fail")(fail.function)
        assert plus.delay(1, 2).get(WAIT_S) == 3
        handles = other.send_many(plus.s(n, n) for n in range(50))
        assert [handle.get(WAIT_S) for handle in handles] == [2 * n for n in range(50)]
        with pytest.raises(JobFailed, match="this never works") as caught:
            broken.delay().get(WAIT_S)
        assert caught.value.reason == "failed"
        assert group(plus.s(n, n) for n in range(3)).delay().get(WAIT_S) == [0, 2, 4]
        later = plus.send((1, 2), delay_s=3600)
        with pytest.raises(ResultTimeout):
            later.get(0.1)
        assert later.cancel()
        with pytest.raises(JobCancelled):
            later.get(WAIT_S)
        assert plus.delay(2, 2).get(WAIT_S) == 4


@pytest.mark.parametrize("dialect", DIALECTS)
def test_asyncio_in_every_dialect(live: JobBroker, dialect: str) -> None:
    async def main() -> None:
        async with Bus(dialect=dialect, timeout_s=WAIT_S) as other:
            plus = other.job(name="support.job_app.add")(add.function)
            handles = await asyncio.gather(*(plus.adelay(n, n) for n in range(20)))
            assert await asyncio.gather(*(handle.aget(WAIT_S) for handle in handles)) == [
                2 * n for n in range(20)
            ]

    asyncio.run(main())


def test_threads_have_connections_of_their_own(live: JobBroker) -> None:
    before = len(os.listdir("/proc/self/fd"))

    def work(number: int) -> int:
        return add.delay(number, number).get(WAIT_S)

    for _ in range(3):
        threads = [Background(work, number) for number in range(8)]
        assert [thread.join() for thread in threads] == [2 * number for number in range(8)]
    # They are closed with their threads.
    until(lambda: len(os.listdir("/proc/self/fd")) <= before + 20)


def test_a_handle_may_cross_threads(live: JobBroker) -> None:
    handle = Background(add.send, (1, 2), wait=False).join()
    assert handle.get(WAIT_S) == 3


def test_a_fork_asks_for_itself(live: JobBroker) -> None:
    assert add.delay(1, 2).get(WAIT_S) == 3
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, str(add.delay(3, 4).get(WAIT_S)).encode())
        finally:
            os._exit(0)
    os.close(write)
    assert os.read(read, 100) == b"7"
    os.close(read)
    os.waitpid(child, 0)
    # The parent's connection is as it was.
    assert add.delay(5, 6).get(WAIT_S) == 11


def test_nobody_there(live: JobBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    lonely = Bus("tcp://127.0.0.1:9", timeout_s=0.2)
    plus = lonely.job(name="support.job_app.add")(add.function)
    with pytest.raises(JobUnconfirmed, match="is the broker up"):
        plus.delay(1, 2)
    posted = plus.send((1, 2), wait=False)
    with pytest.raises(JobUnconfirmed):
        posted.get(0.1)
    lonely.close()


# -- restarts ---------------------------------------------------------------------------------------


@pytest.fixture
def phoenix(tmp_path: Path) -> Iterator[JobBroker]:
    with JobBroker(tmp_path, {"jobs.backoff_s": 0.05}) as broker:
        yield broker


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_was_received_survives_the_broker(
    phoenix: JobBroker, monkeypatch: pytest.MonkeyPatch, dialect: str, tmp_path: Path
) -> None:
    for name, value in phoenix.places.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "notes"
    with Bus(dialect=dialect, timeout_s=WAIT_S) as other:
        written = other.job(name="support.job_app.note")(note.function)
        handles = other.send_many(written.s(str(path), str(n)) for n in range(20))
        result = Background(handles[0].get, WAIT_S)
        phoenix.kill()
        # Sent while nobody is there; taken when somebody is.
        late = Background(written.delay, str(path), "late")
        phoenix.start()
        with JobWorker(phoenix):
            assert result.join() > 0
            assert late.join().get(WAIT_S) > 0
            assert all(handle.get(WAIT_S) for handle in handles)
        assert sorted(path.read_text().split()) == sorted([*map(str, range(20)), "late"])


@pytest.mark.long
def test_a_broker_that_dies_in_the_middle_of_many(
    phoenix: JobBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in phoenix.places.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "notes"
    sent = threading.Event()

    def calls(other: Bus) -> Iterator[Any]:
        written = other.job(name="support.job_app.note")(note.function)
        for number in range(3000):
            if number == 2000:
                sent.set()
            yield written.s(str(path), str(number))

    with Bus(timeout_s=WAIT_S) as other:
        many = Background(lambda: other.send_many(calls(other)))
        assert sent.wait(WAIT_S)
        phoenix.restart()
        handles = many.join()
        with JobWorker(phoenix):
            assert all(handle.get(WAIT_S) for handle in handles)
        # Nothing was lost and nothing doubled.
        assert sorted(map(int, path.read_text().split())) == list(range(3000))
