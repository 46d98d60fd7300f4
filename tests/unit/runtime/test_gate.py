"""What a worker may run: its jobs, what was let in, and nothing else."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus import Bus, WorkerRejected
from polybus.runtime.gate import Call, Gate, Target, read_call

SHOP = "support.shop"
ALL = ("support.shop:*", "support.shop:Till.*")


def gate(*patterns: str) -> Gate:
    return Gate({}, patterns)


def refusal(found: Gate, path: str, name: str) -> str:
    with pytest.raises(WorkerRejected) as caught:
        found.find(Call(path, name))
    return caught.value.reason


def message(path: Any = SHOP, name: Any = "sell", **more: Any) -> bytes:
    return json.dumps(["run", {"path": path, "callable": name, **more}]).encode()


# -- messages -----------------------------------------------------------------------------------


def test_a_job_message_in_eventmqs_words() -> None:
    call = read_call(message(args=["tea"], kwargs={"count": 2}, class_args=[], class_kwargs={}))
    assert (call.path, call.callable, call.args, call.kwargs) == (SHOP, "sell", ["tea"], {"count": 2})


def test_arguments_may_be_left_out_or_be_null() -> None:
    assert read_call(message()) == read_call(message(args=None, kwargs=None)) == Call(SHOP, "sell")


def test_what_else_is_in_it_is_ignored() -> None:
    assert read_call(message(priority=5)) == Call(SHOP, "sell")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"run",
        b"[]",
        b"{}",
        b"null",
        b'["run"]',
        b'["run", {}]',
        b'["run", {"path": "a"}]',
        b'["run", {"path": "a", "callable": 5}]',
        b'["run", {"path": ["a"], "callable": "b"}]',
        b'["run", {"path": "a", "callable": "b", "args": {}}]',
        b'["run", {"path": "a", "callable": "b", "kwargs": []}]',
        b'["run", {"path": "a", "callable": "b"}, 5]',
        b'["stop", {"path": "a", "callable": "b"}]',
        b"\xff\xfe",
        b"[" * 100_000,
        b'["run", {"path": "a", "callable": "b", "args": ' + b"[" * 50_000 + b"]" * 50_000 + b"}]",
    ],
)
def test_what_is_no_job_message_is_refused(body: bytes) -> None:
    with pytest.raises(WorkerRejected):
        read_call(body)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(body: bytes) -> None:
    with contextlib.suppress(WorkerRejected):
        read_call(body)


# -- jobs ---------------------------------------------------------------------------------------


def test_jobs_of_the_application_are_found_by_name() -> None:
    bus = Bus()

    @bus.job(name="mail.send")
    def send(to: str) -> str:
        return f"to {to}"

    target = Gate(bus.jobs).find(Call("mail", "send", ["me"]))
    assert target.call(Call("mail", "send", ["me"])) == "to me"
    assert "mail.receive is not a job" in refusal(Gate(bus.jobs), "mail", "receive")


def test_a_refusal_says_what_to_do() -> None:
    assert 'bus.allow("os:system")' in refusal(gate(), "os", "system")


# -- patterns -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "name", "allowed"),
    [
        ("support.shop:*", "sell", True),
        ("support.shop:sell", "sell", True),
        ("support.shop:s*", "sell", True),
        ("support.*:sell", "sell", True),
        ("support.shop.*", "sell", True),
        ("support.shop.sell", "sell", True),
        ("support.shop:order", "sell", False),
        ("support:*", "sell", False),
        ("shop:*", "sell", False),
        ("support.shop:Till.*", "sell", False),
    ],
)
def test_patterns(pattern: str, name: str, allowed: bool) -> None:
    if allowed:
        assert gate(pattern).find(Call(SHOP, name)).call(Call(SHOP, name, ["tea"])) == "1 tea"
    else:
        assert "is not a job" in refusal(gate(pattern), SHOP, name)


def test_coroutines_are_told_apart() -> None:
    assert gate(*ALL).find(Call(SHOP, "order")).is_async
    assert not gate(*ALL).find(Call(SHOP, "sell")).is_async


def test_methods_of_classes_that_were_let_in() -> None:
    call = Call(f"{SHOP}:Till", "add", [5], {}, [10], {})
    assert gate("support.shop:Till.*").find(call).call(call) == 15
    assert gate("support.shop:Till").find(call).call(call) == 15
    assert gate("support.shop:Till.add").find(call).call(call) == 15
    currency = Call(f"{SHOP}:Till", "currency")
    assert gate("support.shop:Till").find(currency).call(currency) == "EUR"
    # A star for functions does not reach into classes.
    assert "is not a job" in refusal(gate("support.shop:*"), f"{SHOP}:Till", "add")
    assert "is not a job" in refusal(gate("support.shop.*"), f"{SHOP}:Till", "add")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (SHOP, "_private"),
        (SHOP, "__import__"),
        (SHOP, "__dict__"),
        (SHOP, "getcwd"),
        (SHOP, "run_program"),
        (SHOP, "Bus"),
        (SHOP, "number"),
        (SHOP, "sold"),
        (SHOP, "bus"),
        (SHOP, "Till"),
        (SHOP, "missing"),
        (SHOP, "sell.__globals__"),
        (SHOP, ""),
        (SHOP, "sell "),
        (SHOP, "süß"),
        ("", "sell"),
        (".support.shop", "sell"),
        ("support..shop", "sell"),
        ("support/shop", "sell"),
        ("os", "system"),
        ("builtins", "eval"),
        ("subprocess", "run"),
        (f"{SHOP}:Till", "_empty"),
        (f"{SHOP}:Till", "__init__"),
        (f"{SHOP}:Till", "limit"),
        (f"{SHOP}:Till", "missing"),
        (f"{SHOP}:run_program", "communicate"),
        (f"{SHOP}:Bus", "run"),
        (f"{SHOP}:Till:add", "x"),
        ("x" * 300, "sell"),
        (SHOP, "x" * 300),
    ],
)
def test_what_is_not_the_modules_own_or_not_public_is_refused(path: str, name: str) -> None:
    refusal(gate(*ALL, "support.shop:Bus.*"), path, name)


@pytest.mark.parametrize("path", ["antigravity", "this", "support.shop.more", "idlelib.idle"])
def test_nothing_is_imported_that_was_not_let_in(path: str) -> None:
    before = set(sys.modules)
    refusal(gate(*ALL), path, "main")
    assert set(sys.modules) == before


def test_a_module_that_was_let_in_but_is_not_there() -> None:
    assert "no module shops" in refusal(gate("shops:*"), "shops", "sell")


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_names_break_the_gate(path: str, name: str) -> None:
    try:
        found: Target | None = gate(*ALL).find(Call(path, name))
    except WorkerRejected:
        found = None
    assert found is None or (path, name) in {(SHOP, "sell"), (SHOP, "order")}


def test_the_memory_of_found_targets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.runtime.gate.MAX_FOUND", 1)
    found = gate(*ALL)
    for name in ("sell", "order", "sell"):
        found.find(Call(SHOP, name))
    assert len(found._found) == 1
