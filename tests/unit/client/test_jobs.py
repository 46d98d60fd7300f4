"""Jobs as the client library makes them: names, settings, messages, errors; nobody is asked anything."""

from __future__ import annotations

import asyncio
import json
import math
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import polybus
from polybus import (
    Bus,
    ConfigError,
    ConnectionLost,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobRefused,
    JobUnconfirmed,
    LocalProtocolError,
    RequestFailed,
    RequestTimeout,
    ResultTimeout,
    UnknownJob,
    WorkerRejected,
)
from polybus.client.calls import new_id
from polybus.client.discovery import Finder
from polybus.client.jobs import Job
from polybus.client.many import AT_ONCE, AT_ONCE_BYTES
from polybus.client.questions import Question
from support.fake_desk import FakeDesk
from support.patience import patient

MODULE = __name__


@dataclass
class Order:
    number: int
    placed: datetime


def shipped(order: Order, on: date | None = None, *numbers: uuid.UUID, **more: date) -> Order:
    assert isinstance(order, Order)
    assert on is None or isinstance(on, date)
    assert all(isinstance(number, uuid.UUID) for number in numbers)
    assert all(isinstance(value, date) for value in more.values())
    return order


@pytest.fixture
def desk() -> FakeDesk:
    return FakeDesk()


@pytest.fixture
def bus(desk: FakeDesk) -> Bus:
    bus = Bus()
    bus.use(desk, None)
    return bus


@pytest.fixture
def send(bus: Bus) -> Job[Any, str, str]:
    def send(to: str, subject: str = "hi") -> str:
        return f"{subject}, {to}"

    return bus.job(queue="email", retries=3, timeout_s=60, backoff_s=0.5, name="shop.mail.send")(send)


# -- the function ---------------------------------------------------------------------------------


def test_a_job_is_still_its_function(bus: Bus) -> None:
    @bus.job
    def double(number: int) -> int:
        """Twice as much."""
        return number * 2

    assert double(2) == 4
    assert double.__doc__ == "Twice as much."
    assert double.__name__ == "double"
    assert bus.jobs == {double.name: double}
    assert double.name == f"{MODULE}.test_a_job_is_still_its_function.<locals>.double"
    assert repr(double) == f"<Job {double.name}>"


def test_a_coroutine_function_too(bus: Bus) -> None:
    @bus.job()
    async def double(number: int) -> int:
        return number * 2

    assert double.is_async
    assert asyncio.run(double(2)) == 4


def test_only_functions_are_jobs(bus: Bus) -> None:
    with pytest.raises(ConfigError, match="is no function"):
        bus.job(str)


def test_a_name_is_used_once(bus: Bus, send: Job[Any, str, str]) -> None:
    with pytest.raises(ConfigError, match=r"shop\.mail\.send is defined twice"):
        bus.job(name="shop.mail.send")(send.function)


def test_a_name_has_a_module(bus: Bus) -> None:
    with pytest.raises(ConfigError, match=r"it takes module\.function"):
        bus.job(name="send")(lambda: None)


def test_queues_in_order(bus: Bus, send: Job[Any, str, str]) -> None:
    bus.job(name="a.b")(lambda: None)
    bus.job(name="a.c", queue="email")(lambda: None)
    assert bus.queues == ["email", "default"]


def test_jobs_are_run_by_another_command(bus: Bus, send: Job[Any, str, str]) -> None:
    with pytest.raises(ConfigError, match="polybus worker"):
        bus.run()


def test_hooks(bus: Bus) -> None:
    def hook() -> None: ...

    for name, decorator in (
        ("start", bus.on_start),
        ("stop", bus.on_stop),
        ("before", bus.on_before),
        ("after", bus.on_after),
    ):
        assert decorator(hook) is hook
        assert bus.hooks[name] == [hook]


@pytest.mark.parametrize("pattern", ["", "*", "*.*", "*:*", None])
def test_not_everything_is_allowed(bus: Bus, pattern: Any) -> None:
    with pytest.raises(ConfigError, match=r"a pattern such as"):
        bus.allow(pattern)
    bus.allow("shop.tasks.*")
    assert bus.allowed == ["shop.tasks.*"]


# -- what is sent -----------------------------------------------------------------------------------


def test_delay(desk: FakeDesk, send: Job[Any, str, str]) -> None:
    handle = send.delay("a@b", subject="news")
    assert desk.asked[0].service == b"polybus.submit"
    assert desk.order == {
        "id": handle.id,
        "service": "email",
        "guarantee": True,
        "retries": 3,
        "timeout_s": 60,
        "backoff_s": 0.5,
    }
    assert desk.call == {
        "path": "shop.mail",
        "callable": "send",
        "args": ["a@b"],
        "kwargs": {"subject": "news"},
    }


def test_a_job_without_settings_leaves_them_to_the_broker(bus: Bus, desk: FakeDesk) -> None:
    handle = bus.job(name="a.b")(lambda: None).delay()
    assert desk.order == {"id": handle.id, "service": "default", "guarantee": True}


def test_send_has_full_control(desk: FakeDesk, send: Job[Any, str, str]) -> None:
    handle = send.send(
        ("a@b",), {}, queue="slow", retries=0, guarantee=False, delay_s=5, ttl_s=60, id="order-7"
    )
    assert handle.id == "order-7"
    assert desk.order == {
        "id": "order-7",
        "service": "slow",
        "guarantee": False,
        "retries": 0,
        "timeout_s": 60,
        "backoff_s": 0.5,
        "delay_s": 5,
        "ttl_s": 60,
    }
    send.s("a@b").set(queue="other").delay()
    assert desk.order["service"] == "other"
    assert desk.order["retries"] == 3


def test_ids_differ(send: Job[Any, str, str]) -> None:
    assert len({send.delay("x").id for _ in range(100)}) == 100


def test_a_fork_makes_ids_of_its_own() -> None:
    read, write = os.pipe()
    mine = new_id()
    child = os.fork()
    if not child:
        os.write(write, new_id().encode())
        os._exit(0)
    os.close(write)
    theirs = os.read(read, 200).decode()
    os.close(read)
    os.waitpid(child, 0)
    assert theirs.partition("-")[0] != mine.partition("-")[0]


def test_anything_that_json_can_hold(bus: Bus, desk: FakeDesk) -> None:
    job = bus.job(name="a.b")(shipped)
    placed = datetime(2026, 3, 1, 12, tzinfo=UTC)
    number = uuid.UUID(int=7)
    job.delay(Order(7, placed), date(2026, 3, 2), number, extra=date(2026, 3, 3))
    assert desk.call["args"] == [{"number": 7, "placed": "2026-03-01T12:00:00Z"}, "2026-03-02", str(number)]
    # And back, in the worker.
    assert job.invoke(desk.call["args"], desk.call["kwargs"]) == Order(7, placed)
    assert job.read_result(msgspec.json.encode(Order(7, placed))) == Order(7, placed)


def test_arguments_of_the_wrong_kind_are_rejected_by_the_worker(bus: Bus) -> None:
    job = bus.job(name="a.b")(shipped)
    with pytest.raises(WorkerRejected, match=r"argument order of a\.b: Expected `object`, got `int`"):
        job.invoke([7], {})
    with pytest.raises(WorkerRejected, match=r"argument more of a\.b"):
        job.invoke([{"number": 1, "placed": "2026-03-01T12:00:00Z"}], {"x": 1})


def test_plain_arguments_are_left_alone(bus: Bus) -> None:
    def plain(a: int, b: str | None, c: list[dict[str, Any]], d, *e: float, **f: Any) -> Any:  # type: ignore[no-untyped-def]
        return a, b, c, d, e, f

    job = bus.job(name="a.b")(plain)
    # Annotations are for people here: nothing is looked at.
    assert job.invoke(["1", 2, 3, 4, 5], {"g": 6}) == ("1", 2, 3, 4, (5,), {"g": 6})


def test_annotations_that_nobody_can_resolve(bus: Bus) -> None:
    def odd(a: Nowhere, b: Job) -> Nowhere:  # type: ignore[name-defined,type-arg]  # noqa: F821
        return (a, b)

    job = bus.job(name="a.b")(odd)
    assert job.invoke([1, 2], {}) == (1, 2)
    assert job.read_result(b"[1,2]") == [1, 2]


@pytest.mark.parametrize(
    ("body", "value"),
    [(b"", None), (b"null", None), (b'"x"', "x"), (b"7", 7), (b"\xff not json", b"\xff not json")],
)
def test_results_of_any_worker(bus: Bus, body: bytes, value: Any) -> None:
    def number() -> date:
        return date(2026, 1, 1)

    assert bus.job(name="a.b")(number).read_result(body) == value


# -- what is refused at once ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"queue": ""}, r"queue of .* is ''; it takes 1 to 255 bytes"),
        ({"queue": "a\nb"}, "printable"),
        ({"queue": "x" * 256}, "255"),
        ({"queue": "polybus.submit"}, "the broker's own"),
        ({"queue": 7}, "queue of .* is 7"),
        ({"retries": -1}, r"retries of a\.b are -1; they take a whole number from 0"),
        ({"retries": 1.5}, "whole number"),
        ({"retries": True}, "whole number"),
        ({"timeout_s": -1}, r"timeout_s of a\.b is -1; it takes seconds from 0"),
        ({"timeout_s": math.nan}, "takes seconds"),
        ({"timeout_s": "60"}, "takes seconds"),
        ({"backoff_s": -0.1}, "takes seconds"),
        ({"guarantee": 1}, "takes True or False"),
        ({"retry": 3}, "bus.job takes name, queue, retries"),
    ],
)
def test_bad_settings(bus: Bus, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        bus.job(name="a.b", **settings)(lambda: None)
    assert bus.jobs == {}


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"retries": -1}, "whole number"),
        ({"queue": ""}, "printable"),
        ({"delay_s": -1}, "delay_s"),
        ({"ttl_s": math.inf}, "ttl_s"),
        ({"id": ""}, "a job's id is ''"),
        ({"id": "x" * 201}, "1 to 200"),
        ({"id": "a\nb"}, "printable"),
    ],
)
def test_bad_sends(desk: FakeDesk, send: Job[Any, str, str], how: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        send.send(("a",), **how)
    assert desk.asked == []


def test_arguments_that_do_not_fit(desk: FakeDesk, send: Job[Any, str, str]) -> None:
    with pytest.raises(TypeError, match=r"shop\.mail\.send: missing a required argument: 'to'"):
        send.delay()
    with pytest.raises(TypeError, match="unexpected keyword argument 'cc'"):
        send.delay("a", cc="b")
    assert desk.asked == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "argument 2 of .* cannot be written as JSON: .*type object"),
        ({"a": [open]}, "argument 2"),
        ("\ud800", "argument 2"),
        (math.nan, "infinite or not a number"),
        ({"a": [1.0, -math.inf]}, "infinite or not a number"),
    ],
)
def test_arguments_that_are_no_json(desk: FakeDesk, send: Job[Any, str, str], value: Any, text: str) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        send.delay("a", value)
    assert desk.asked == []
    send.delay("a", None)  # type: ignore[arg-type]


def test_a_deep_argument(send: Job[Any, str, str]) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(LocalProtocolError, match="argument subject of"):
        send.delay("a", subject=deep)  # type: ignore[arg-type]
    while deep:
        # Taken apart gently: freeing it at once would be too deep as well.
        deep = deep.pop()


# -- __main__ ---------------------------------------------------------------------------------------

PROGRAM = """
    from polybus import Bus, ConfigError

    bus = Bus()

    @bus.job
    def send() -> None: ...

    if __name__ == "__main__":
        print(send.name)
        try:
            send.delay()
        except ConfigError as error:
            print(error)
        except Exception as error:
            print(type(error).__name__)
"""


# Nobody is there, and nobody is looked for.
ELSEWHERE = "Bus('tcp://127.0.0.1:1', timeout_s=0.01)"


def run_program(folder: Path, *how: str) -> list[str]:
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM).replace("Bus()", ELSEWHERE))
    done = subprocess.run(
        [sys.executable, *how], cwd=folder, capture_output=True, text=True, check=True, timeout=patient(30)
    )
    return done.stdout.splitlines()


def test_a_job_of_the_main_program_cannot_be_sent(tmp_path: Path) -> None:
    name, error = run_program(tmp_path, "program.py")
    assert name == "__main__.send"
    assert "Move it to a module of its own" in error
    assert '@bus.job(name="module.send")' in error


def test_a_module_that_is_run_knows_its_name(tmp_path: Path) -> None:
    assert run_program(tmp_path, "-m", "program") == ["program.send", "JobUnconfirmed"]


# -- what comes back --------------------------------------------------------------------------------


def test_get(desk: FakeDesk, send: Job[Any, str, str]) -> None:
    handle = send.delay("a")
    desk.replies = [b'"sent"']
    assert handle.get(timeout_s=5) == "sent"
    assert desk.asked[-1] == (b"polybus.result", handle.id.encode(), 5.0)
    desk.replies = [b'"sent"']
    assert handle.get() == "sent"
    assert desk.asked[-1].timeout_s == math.inf


def facts(**known: Any) -> bytes:
    return json.dumps(known).encode()


HISTORY = [{"number": 1, "at": 1.0, "worker": "w", "reason": "failed", "detail": "boom"}]


def test_a_failure_comes_with_its_history(desk: FakeDesk, send: Job[Any, str, str]) -> None:
    desk.replies = [RequestFailed("failed", "boom"), facts(state="failed", history=HISTORY)]
    with pytest.raises(JobFailed, match="failed: boom") as caught:
        send.bus.result("j1")
    assert [question.service for question in desk.asked] == [b"polybus.result", b"polybus.job"]
    error = caught.value
    assert (error.job, error.reason, error.detail, error.history) == ("j1", "failed", "boom", tuple(HISTORY))
    again = pickle.loads(pickle.dumps(error))
    assert (again.job, again.reason, again.detail, again.history) == ("j1", "failed", "boom", tuple(HISTORY))
    assert str(again) == "failed: boom"


@pytest.mark.parametrize(
    ("refusal", "known", "error"),
    [
        ("cancelled", facts(state="cancelled"), JobCancelled),
        ("expired", facts(state="expired"), JobExpired),
        ("unknown_job", None, UnknownJob),
        ("draining", facts(state="running"), JobRefused),
        # Nobody knows more: the refusal itself has to do.
        ("cancelled", RequestFailed("unknown_job"), JobCancelled),
        ("worker_lost", RequestTimeout("too late"), JobFailed),
    ],
)
def test_other_ends(bus: Bus, desk: FakeDesk, refusal: str, known: Any, error: type[Exception]) -> None:
    desk.replies = [RequestFailed(refusal, "because"), *([] if known is None else [known])]
    with pytest.raises(error) as caught:
        bus.result("j1")
    assert "j1" in str(caught.value) or "because" in str(caught.value)


def test_a_question_that_grew_stale_is_asked_again(bus: Bus, desk: FakeDesk) -> None:
    desk.replies = [RequestFailed("expired"), facts(state="running"), b"7"]
    assert bus.result("j1", timeout_s=60) == 7
    desk.replies = [RequestFailed("expired"), facts(state="running")]
    with pytest.raises(ResultTimeout):
        bus.result("j1", timeout_s=0)


def test_a_result_that_takes_too_long(bus: Bus, desk: FakeDesk) -> None:
    desk.replies = [RequestTimeout("no")]
    with pytest.raises(ResultTimeout, match="j1 has no result after 3 s; it goes on"):
        bus.handle("j1").get(3)


def test_no_receipt(desk: FakeDesk, send: Job[Any, str, str]) -> None:
    desk.replies = [RequestTimeout("no")]
    with pytest.raises(JobUnconfirmed, match="again with id='order-7' is safe") as caught:
        send.send(("a",), id="order-7")
    assert caught.value.job == "order-7"
    assert isinstance(caught.value, RequestTimeout)


def test_a_refused_job(desk: FakeDesk, send: Job[Any, str, str]) -> None:
    desk.replies = [RequestFailed("queue_full", "add workers")]
    with pytest.raises(JobRefused, match="queue_full: add workers") as caught:
        send.delay("a")
    assert (caught.value.code, caught.value.detail) == ("queue_full", "add workers")


def test_state_info_and_cancel(bus: Bus, desk: FakeDesk) -> None:
    handle = bus.handle("j1")
    desk.replies = [facts(state="queued", attempt=0), facts(state="queued"), b'{"cancelled":true}']
    assert handle.info() == {"state": "queued", "attempt": 0}
    assert handle.state() == "queued"
    assert handle.cancel() is True
    assert desk.asked[-1][:2] == (b"polybus.cancel", b"j1")
    desk.replies = [b'{"cancelled":false}', RequestFailed("unknown_job", "")]
    assert bus.cancel("j1") is False
    with pytest.raises(UnknownJob, match="knows no job j1"):
        bus.cancel("j1")
    assert repr(handle) == "<JobHandle j1>"


# -- many -------------------------------------------------------------------------------------------


def heads_of(question: Question) -> list[dict[str, Any]]:
    """The orders in a message that has many."""
    heads: list[dict[str, Any]] = json.loads(question.body.partition(b"\n")[0])
    return heads


def test_send_many(bus: Bus, desk: FakeDesk, send: Job[Any, str, str]) -> None:
    handles = bus.send_many(send.s(str(number)) for number in range(AT_ONCE + 5))
    sent = [head["id"] for question in desk.asked for head in heads_of(question)]
    assert sent == [handle.id for handle in handles]
    assert [len(heads_of(question)) for question in desk.asked] == [AT_ONCE, 5]
    desk.replies = [b'"sent"']
    assert handles[4].get() == "sent"
    assert bus.send_many([]) == []


def test_large_jobs_are_not_sent_in_one_message(bus: Bus, desk: FakeDesk, send: Job[Any, str, str]) -> None:
    bus.send_many([send.s("x" * AT_ONCE_BYTES)] * 3)
    assert [len(heads_of(question)) for question in desk.asked] == [1, 1, 1]


def test_send_many_with_refusals(bus: Bus, desk: FakeDesk, send: Job[Any, str, str]) -> None:
    answer = b'{"jobs": 2, "refused": {"1": {"error": "queue_full", "detail": "no"}}}'
    desk.replies = [answer]
    with pytest.raises(JobRefused, match="queue_full"):
        bus.send_many(send.s("a") for _ in range(3))
    desk.replies = [answer]
    found = bus.send_many([send.s("a")] * 3, return_errors=True)
    assert [isinstance(each, JobRefused) for each in found] == [False, True, False]


def test_send_many_with_messages_that_are_refused(bus: Bus, desk: FakeDesk, send: Job[Any, str, str]) -> None:
    replies: list[Any] = [b"{}", RequestFailed("store_unavailable", "no"), b"{}"]
    desk.replies = list(replies)
    with pytest.raises(JobRefused, match="store_unavailable"):
        bus.send_many(send.s("a") for _ in range(3 * AT_ONCE))
    # The others were sent all the same.
    assert len(desk.asked) == 3
    desk.replies = list(replies)
    found = bus.send_many([send.s("a")] * 3 * AT_ONCE, return_errors=True)
    refused = [isinstance(each, JobRefused) for each in found]
    assert refused == [False] * AT_ONCE + [True] * AT_ONCE + [False] * AT_ONCE


def test_send_many_says_which_receipt_is_missing(bus: Bus, desk: FakeDesk, send: Job[Any, str, str]) -> None:
    desk.replies = [b"{}", RequestTimeout("no")]
    with pytest.raises(JobUnconfirmed) as caught:
        bus.send_many([send.s("a")] * 2 * AT_ONCE)
    assert caught.value.job == heads_of(desk.asked[1])[0]["id"]


def test_get_many(bus: Bus, desk: FakeDesk, send: Job[Any, str, str]) -> None:
    handles = bus.send_many([send.s("a")] * 3)
    desk.replies = [b'"1"', b'"2"', b'"3"']
    assert bus.get_many(handles) == ["1", "2", "3"]
    broken = [b'"1"', RequestFailed("failed", "boom"), facts(state="failed", history=HISTORY), b'"3"']
    desk.replies = list(broken)
    with pytest.raises(JobFailed, match="boom") as caught:
        bus.get_many(handles)
    assert caught.value.job == handles[1].id
    desk.replies = list(broken)
    first, second, third = bus.get_many(handles, return_errors=True)
    assert (first, third) == ("1", "3")
    assert second.history == tuple(HISTORY)
    desk.replies = [b'"1"', RequestTimeout("no")]
    with pytest.raises(ResultTimeout) as late:
        bus.get_many(handles, 3)
    assert late.value.job == handles[1].id


def test_without_waiting(bus: Bus, desk: FakeDesk, send: Job[Any, str, str]) -> None:
    handle = send.send(("a",), wait=False)
    handle.confirm()
    bus.flush()
    bus.close()
    assert (desk.flushed, desk.closed) == (1, 1)
    with bus:
        pass
    assert desk.closed == 2


# -- schedules --------------------------------------------------------------------------------------

SET = b'{"key":"shop.mail.send","next_at":1772366400.0}'


def question_of(desk: FakeDesk) -> dict[str, Any]:
    assert desk.asked[-1].service == b"polybus.schedule"
    found: dict[str, Any] = json.loads(desk.asked[-1].body)
    return found


def test_schedule(bus: Bus, desk: FakeDesk) -> None:
    job = bus.job(name="shop.mail.send", queue="email")(lambda *args: None)
    desk.replies = [SET]
    schedule = job.schedule(every_s=60)
    asked = question_of(desk)
    message = asked.pop("message")
    assert '"callable":"send"' in message
    assert asked == {
        "do": "add",
        "queue": "email",
        "key": "shop.mail.send",
        "every_s": 60,
        "haste": False,
        "guarantee": True,
    }
    assert (schedule.key, schedule.next_at) == ("shop.mail.send", datetime(2026, 3, 1, 12, tzinfo=UTC))
    desk.replies = [SET, b'{"removed":true}']
    job.schedule(
        cron="0 9 * * 1", timezone="Europe/Berlin", runs=3, haste=True, missed="skip", retries=2, key="news"
    )
    asked = question_of(desk)
    assert {
        name: asked[name] for name in ("cron", "timezone", "runs", "haste", "missed", "retries", "key")
    } == {
        "cron": "0 9 * * 1",
        "timezone": "Europe/Berlin",
        "runs": 3,
        "haste": True,
        "missed": "skip",
        "retries": 2,
        "key": "news",
    }
    assert schedule.remove() is True
    assert question_of(desk) == {"do": "remove", "key": "shop.mail.send"}
    desk.replies = [b"[]"]
    assert bus.schedules() == []
    assert question_of(desk) == {"do": "list"}


def test_a_schedule_of_other_arguments_is_another_one(bus: Bus, desk: FakeDesk) -> None:
    job = bus.job(name="shop.mail.send")(lambda *args: None)
    desk.replies = [SET] * 3
    keys = []
    for args in ((1,), (2,), (1,)):
        job.schedule(every_s=60, args=args)
        keys.append(question_of(desk)["key"])
    assert keys[0] == keys[2] != keys[1]
    assert keys[0].startswith("shop.mail.send:")


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({}, "takes every_s or cron, one of them"),
        ({"every_s": 1, "cron": "* * * * *"}, "one of them"),
        ({"every_s": 0}, "more than 0"),
        ({"every_s": -1}, "seconds"),
        ({"every_s": 5, "retries": -1}, "whole number"),
    ],
)
def test_bad_schedules(bus: Bus, desk: FakeDesk, how: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        bus.job(name="a.b")(lambda: None).schedule(**how)
    assert desk.asked == []


def test_a_schedule_that_the_broker_refuses(bus: Bus, desk: FakeDesk) -> None:
    desk.replies = [RequestFailed("bad_job", "no such cron")]
    with pytest.raises(JobRefused, match="no such cron"):
        bus.job(name="a.b")(lambda: None).schedule(cron="nonsense")


# -- the namespace ----------------------------------------------------------------------------------


def test_everything_is_exported() -> None:
    for name in ("Bus", "Job", "JobHandle", "chain", "group", "JobFailed", "ResultTimeout"):
        assert name in dir(polybus)
        assert getattr(polybus, name) is not None


# -- a broker that is away --------------------------------------------------------------------------


def test_a_new_thread_goes_to_where_the_broker_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first connection finds a broker; while it restarts nobody announces anything."""
    found = [True]

    def endpoint(self: Finder, dialect: str, role: str, address: str | None = None) -> str:
        if address is not None:
            return address
        if not found[0]:
            raise ConnectionLost("no bus was found")
        return "tcp://127.0.0.1:1"

    monkeypatch.setattr(Finder, "endpoint", endpoint)
    bus = Bus(timeout_s=0.01)
    with pytest.raises(JobUnconfirmed):
        bus.job(lambda: None, name="a.b").delay()
    found[0] = False
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            bus.job(lambda: None, name="a.c").delay()
        except JobUnconfirmed as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(patient(10))
    assert len(raised) == 1
    bus.close()
    # Somebody who has never seen a broker is told so.
    stranger = Bus(timeout_s=0.01)
    with pytest.raises(ConnectionLost, match="no bus was found"):
        stranger.job(lambda: None, name="a.b").delay()
