"""Running one order: what is returned, raised, refused or said becomes a report."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import msgspec
import pytest

from polybus import Bus, CurrentJob, JobInterrupted, Request, WorkerRejected, current_job
from polybus.runtime.pipe import FRAMES, Kind, Order
from polybus.runtime.running import MAX_DETAIL, Runner, write_error

bus = Bus()
notes: list[Any] = []


@bus.job(name="jobs.add")
def add(a: int, b: int = 1) -> int:
    return a + b


@bus.job(name="jobs.day")
def day(when: date) -> date:
    return when.replace(day=1)


@bus.job(name="jobs.nothing")
def nothing() -> None:
    return None


@bus.job(name="jobs.fail")
def fail(text: str) -> None:
    raise ValueError(text)


@bus.job(name="jobs.leave")
def leave() -> None:
    raise SystemExit(3)


@bus.job(name="jobs.refuse")
def refuse() -> None:
    raise WorkerRejected("not on Sundays")


@bus.job(name="jobs.odd")
def odd() -> object:
    return socket.socket


@bus.job(name="jobs.deep")
def deep() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@dataclass
class Reading:
    value: float | None


@bus.job(name="jobs.measure")
def measure(kind: str) -> object:
    number = float(kind)
    return {"bare": number, "list": [None, 1.0, number], "class": Reading(number)}


@bus.job(name="jobs.unknown")
def unknown() -> object:
    return [None, Reading(None), 1.5, msgspec.Raw(b"[null]")]


@bus.job(name="jobs.nap")
async def nap() -> str:
    await asyncio.sleep(0)
    return "awake"


@bus.job(name="jobs.who")
def who() -> list[Any]:
    job = current_job()
    job.progress({"half": True})
    left = job.remaining_s
    has_time = left is not None and 3000 < left <= 3600
    return [job.id, job.queue, job.attempt, has_time, job.deadline is not None]


@bus.service("echo")
def echo(body: bytes) -> bytes:
    return body


@bus.service("frames")
def frames(request: Request) -> list[bytes]:
    return [request.service.encode(), *request.frames]


@bus.service("count")
def count(body: bytes) -> Iterator[bytes]:
    yield b"1"
    yield b"2"
    return b"done"


@bus.service("acount")
async def acount(body: bytes) -> AsyncIterator[bytes]:
    yield b"1"
    yield b"2"


@bus.service("later")
async def later(body: bytes) -> bytes:
    await asyncio.sleep(0)
    return body[::-1]


class Running:
    def __init__(self, app: Bus = bus) -> None:
        self.told: list[bytes] = []
        self.runner = Runner(app, self.told.append)

    def order(self, queue: str, *body: bytes, limit_s: float = 0.0) -> tuple[Kind, bytes]:
        return self.runner.run(Order(1, b"t-1", queue.encode(), list(body), 2, limit_s), 0.0)

    def job(self, name: str, *args: Any, limit_s: float = 0.0) -> tuple[Kind, Any]:
        message = json.dumps(["run", {"path": "jobs", "callable": name, "args": args}]).encode()
        kind, body = self.order("email", message, limit_s=limit_s)
        return kind, json.loads(body)


@pytest.fixture
def running() -> Iterator[Running]:
    found = Running()
    yield found
    found.runner.close()


def test_results_are_json(running: Running) -> None:
    assert running.job("add", 1, 2) == (Kind.DONE, 3)
    assert running.job("nothing") == (Kind.DONE, None)
    assert running.job("day", "2024-05-17") == (Kind.DONE, "2024-05-01")


def test_coroutines_run_in_a_loop(running: Running) -> None:
    assert running.job("nap") == (Kind.DONE, "awake")
    assert running.job("nap") == (Kind.DONE, "awake")


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        ("fail", ["no tea"], {"error": "failed", "detail": "ValueError: no tea"}),
        ("leave", [], {"error": "failed", "detail": "SystemExit: 3"}),
        ("refuse", [], {"error": "rejected", "detail": "not on Sundays"}),
    ],
)
def test_exceptions_are_failures(running: Running, name: str, args: list[Any], error: Any) -> None:
    assert running.job(name, *args) == (Kind.FAILED, error)


def test_wrong_arguments_are_failures(running: Running) -> None:
    kind, error = running.job("add")
    assert kind is Kind.FAILED
    assert "missing 1 required positional argument" in error["detail"]
    assert running.job("day", "soon")[1]["error"] == "rejected"


@pytest.mark.parametrize("name", ["odd", "deep"])
def test_a_result_that_json_cannot_hold_is_a_failure_that_says_so(running: Running, name: str) -> None:
    kind, error = running.job(name)
    assert kind is Kind.FAILED
    assert error["error"] == "bad_result"
    assert f"jobs.{name} returned a" in error["detail"]
    assert "that JSON cannot hold" in error["detail"]


@pytest.mark.parametrize("kind", ["nan", "inf", "-inf"])
def test_a_number_that_json_cannot_say_does_not_become_null(running: Running, kind: str) -> None:
    assert running.job("measure", kind)[0] is Kind.FAILED
    error = running.job("measure", kind)[1]
    assert error["error"] == "bad_result"
    assert "infinite or not a number" in error["detail"]
    assert running.job("unknown") == (Kind.DONE, [None, {"value": None}, 1.5, [None]])


def test_a_job_that_is_not_ours_is_refused(running: Running) -> None:
    kind, error = running.job("secret")
    assert kind is Kind.FAILED
    assert error["error"] == "rejected"
    assert "jobs.secret is not a job" in error["detail"]
    assert running.order("email", b"rm -rf /")[0] is Kind.FAILED
    assert running.order("email")[0] is running.order("email", b"a", b"b")[0] is Kind.FAILED


def test_what_is_no_job_in_the_default_queue_may_have_been_meant_for_another(running: Running) -> None:
    _, mistaken = running.order("default", b"world")
    assert "this is no job message" in json.loads(mistaken)["detail"]
    assert "where eMQP also takes what nobody serves" in json.loads(mistaken)["detail"]
    _, wrong = running.order("email", b"world")
    assert "nobody serves" not in json.loads(wrong)["detail"]


def test_a_job_knows_itself_and_tells_how_far_it_is(running: Running) -> None:
    message = json.dumps(["run", {"path": "jobs", "callable": "who"}]).encode()
    _, body = running.runner.run(Order(1, b"t-1", b"email", [message], 2, 3600.0), time.monotonic())
    assert json.loads(body) == ["t-1", "email", 2, True, True]
    assert running.told == [b'{"half":true}']
    assert current_job().id == ""


def test_outside_of_a_worker_there_is_a_blank_job() -> None:
    assert who.function() == ["", "", 0, False, False]


def test_a_thread_that_outlives_its_job_does_not_speak_for_the_next() -> None:
    told: list[Any] = []
    job = CurrentJob("t-1", "email", 1, None, told.append)
    job.progress(1)
    assert told == []


# -- services -----------------------------------------------------------------------------------


def test_services(running: Running) -> None:
    assert running.order("echo", b"hi") == (Kind.DONE, b"hi")
    assert running.order("later", b"hi") == (Kind.DONE, b"ih")
    kind, body = running.order("frames", b"a", b"b")
    assert kind is Kind.FRAMES
    assert FRAMES.decode(body) == [b"frames", b"a", b"b"]


def test_generators_stream(running: Running) -> None:
    assert running.order("count", b"") == (Kind.DONE, b"done")
    assert running.told == [b"1", b"2"]
    assert running.order("acount", b"") == (Kind.FRAMES, b"\x90")
    assert running.told == [b"1", b"2"] * 2


# -- hooks --------------------------------------------------------------------------------------


def test_hooks_get_as_much_as_they_take() -> None:
    app = Bus()
    seen: list[Any] = []

    @app.job(name="jobs.fail")
    def failing() -> None:
        raise ValueError("no")

    app.hooks["before"] += [lambda: seen.append("plain"), lambda job: seen.append(job.id)]
    app.hooks["after"] += [lambda *all_: seen.append(len(all_)), lambda job, error: seen.append(str(error))]
    assert Running(app).job("fail")[0] is Kind.FAILED
    assert seen == ["plain", "t-1", 2, "no"]


def test_a_hook_that_fails_before_the_job_fails_the_job() -> None:
    app = Bus()
    app.job(name="jobs.add")(add.function)
    app.hooks["before"].append(lambda: 1 / 0)
    assert Running(app).job("add", 1)[1]["detail"].startswith("ZeroDivisionError")


def test_a_hook_that_fails_afterwards_changes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    app = Bus()
    app.job(name="jobs.add")(add.function)
    app.hooks["after"].append(lambda: 1 / 0)
    assert Running(app).job("add", 1) == (Kind.DONE, 2)
    assert "a hook failed after the job" in capfd.readouterr().err


# -- errors -------------------------------------------------------------------------------------


def test_an_interruption_keeps_its_reason() -> None:
    app = Bus()

    @app.job(name="jobs.stop")
    def stop() -> None:
        raise JobInterrupted("cancelled")

    assert Running(app).job("stop")[1]["error"] == "cancelled"


def test_error_objects_stay_small_and_can_always_be_written() -> None:
    error = json.loads(write_error("failed", "x" * 100_000))
    assert len(error["detail"]) <= MAX_DETAIL + 2
    assert json.loads(write_error("failed", "lone \ud800")) == {"error": "failed", "detail": "lone ?"}


def test_the_traceback_begins_with_the_applications_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    Running().job("fail", "no tea")
    text = capsys.readouterr().err
    assert "ValueError: no tea" in text
    assert "in fail" in text
    assert "runtime/gate.py" not in text
