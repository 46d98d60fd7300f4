"""Chains and groups as they are sent, and how their results are read."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from polybus import Bus, ConfigError, Job, LocalProtocolError, chain, group
from support.fake_desk import FakeDesk, call_in


@pytest.fixture
def desk() -> FakeDesk:
    return FakeDesk()


@pytest.fixture
def bus(desk: FakeDesk) -> Bus:
    bus = Bus()
    bus.use(desk, None)
    return bus


@pytest.fixture
def add(bus: Bus) -> Job[Any, int, int]:
    def add(a: int, b: int) -> int:
        return a + b

    return bus.job(name="sums.add", queue="sums", retries=2)(add)


@pytest.fixture
def total(bus: Bus) -> Job[Any, int, int]:
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    return bus.job(name="sums.total")(total)


@pytest.fixture
def day(bus: Bus) -> Job[Any, date, date]:
    def day(text: str) -> date:
        return date.fromisoformat(text)

    return bus.job(name="days.day")(day)


def test_chain(desk: FakeDesk, add: Job[Any, int, int]) -> None:
    handle = chain(add.s(1, 2), add.s(3).set(queue="late", retries=0), add.s(b=4)).delay()
    order = desk.order
    then = order.pop("then")
    assert order == {"id": handle.id, "service": "sums", "guarantee": True, "retries": 2}
    assert desk.call["args"] == [1, 2]
    # The result of the one before comes in front of these.
    assert [call_in(spec["body"])["args"] for spec in then] == [[3], []]
    assert call_in(then[1]["body"])["kwargs"] == {"b": 4}
    assert [(spec["service"], spec["retries"]) for spec in then] == [("late", 0), ("sums", 2)]


def test_a_chain_reads_the_result_of_its_last(
    desk: FakeDesk, add: Job[Any, int, int], day: Job[Any, date, date]
) -> None:
    handle = chain(add.s(1, 2), day.s()).delay()
    desk.replies = [b'"2026-03-01"']
    assert handle.get() == date(2026, 3, 1)


def test_group(desk: FakeDesk, day: Job[Any, date, date], add: Job[Any, int, int]) -> None:
    handle = group(day.s("2026-03-01"), add.s(1, 2)).delay()
    order = desk.order
    assert [call_in(spec["body"])["callable"] for spec in order.pop("group")] == ["day", "add"]
    assert order == {"id": handle.id}
    assert desk.asked[-1].body.endswith(b"\n")
    desk.replies = [b'["2026-03-01", 3]']
    assert handle.get() == [date(2026, 3, 1), 3]


def test_a_group_and_then(desk: FakeDesk, add: Job[Any, int, int], total: Job[Any, int, int]) -> None:
    handle = group(add.s(n, n) for n in range(3)).delay(then=total.s())
    assert len(desk.order["group"]) == 3
    assert [call_in(spec["body"])["callable"] for spec in desk.order["then"]] == ["total"]
    desk.replies = [b"6"]
    assert handle.get() == 6
    group([add.s(1, 1)]).delay(then=chain(total.s(), add.s(1)))
    assert len(desk.order["then"]) == 2
    chain(group(add.s(1, 1)), total.s(), add.s(1)).send(id="mine", delay_s=3)
    assert (desk.order["id"], desk.order["delay_s"], len(desk.order["then"])) == ("mine", 3, 2)


def test_chains_of_chains_are_chains(add: Job[Any, int, int]) -> None:
    flow = chain(chain(add.s(1, 2), add.s(3)), add.s(4))
    assert len(flow.rest) == 2
    assert repr(flow).startswith("chain(<Call sums.add(1, 2)>, ")
    assert repr(group(add.s(1, b=2))) == "group(<Call sums.add(1, b=2)>)"


def test_flows_can_be_sent_by_the_thousand(bus: Bus, desk: FakeDesk, add: Job[Any, int, int]) -> None:
    assert len(bus.send_many([chain(add.s(1, 2), add.s(3)), group(add.s(1, 2)), add.s(1, 2)])) == 3
    heads, _, bodies = desk.asked[0].body.partition(b"\n")
    assert [len(json.loads(heads)), len(desk.asked)] == [3, 1]
    assert [head.get("size", 0) for head in json.loads(heads)] == [len(bodies) // 2, 0, len(bodies) // 2]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda add: chain(), "a chain takes one call or more"),
        (lambda add: group(), "a group takes one call or more"),
        (lambda add: group([]), "a group takes one call or more"),
        (lambda add: chain(add, add.s(1)), r"write job\.s\(…\)"),
        (lambda add: chain(add.s(1, 2), 7), r"not 7; write job\.s\(…\)"),
        (lambda add: group(7), r"not 7; write job\.s\(…\)"),
        (lambda add: group([add(1, 2)]), r"not 3; write job\.s\(…\)"),
        (lambda add: chain(add.s(1, 2), group(add.s(1))), "only be at the beginning of a chain"),
        (lambda add: group(chain(add.s(1, 2))), "a group cannot contain chain"),
        (lambda add: group(group(add.s(1, 2))), "a group cannot contain group"),
    ],
)
def test_what_is_no_flow(add: Job[Any, int, int], make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make(add)


def test_arguments_are_checked_with_the_result_in_front(desk: FakeDesk, add: Job[Any, int, int]) -> None:
    with pytest.raises(TypeError, match="too many positional arguments"):
        chain(add.s(1, 2), add.s(3, 4)).delay()
    with pytest.raises(TypeError, match="missing a required argument: 'b'"):
        chain(add.s(1, 2), add.s()).delay()
    with pytest.raises(TypeError, match="missing a required argument: 'b'"):
        group(add.s(1)).delay()
    with pytest.raises(LocalProtocolError, match="JSON"):
        chain(add.s(1, 2), add.s(object())).delay()
    assert desk.asked == []


def test_a_group_does_not_grow_stale(add: Job[Any, int, int]) -> None:
    with pytest.raises(ConfigError, match="ttl_s"):
        group(add.s(1, 2)).send(ttl_s=5)
