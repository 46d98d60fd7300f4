"""The newest message of every topic: limits, order, what goes to disk, and the service that tells them."""

from __future__ import annotations

import json
import random
from bisect import insort

import pytest

from polybus.core import events, last_values, topics
from polybus.core.actions import Accept, Answer, Fanout, Refuse
from polybus.core.last_values import (
    NOTED_AT_ONCE,
    OVERHEAD_BYTES,
    LastValues,
    note_all,
)
from polybus.core.ledger import Unvalued, Valued
from polybus.core.model import JobOptions, Limits, Reason
from support.stage import Stage, client


def put(last: LastValues, topic: bytes, body: bytes = b"", at: float = 0.0) -> None:
    last.put(Fanout(topic, [body], at))


def names(last: LastValues, prefix: bytes = b"") -> list[bytes]:
    return [value.topic for value in last.matching(prefix)]


# -- what is kept -------------------------------------------------------------------------------------


def test_the_newest_value_of_each_topic_is_kept_and_an_empty_one_is_one_too() -> None:
    last = LastValues()
    put(last, b"a", b"old")
    put(last, b"b", b"")
    put(last, b"a", b"new")
    last.put(Fanout(b"none", []))
    assert {value.topic: value.body for value in last.matching(b"")} == {
        b"a": [b"new"],
        b"b": [b""],
        b"none": [],
    }


def test_those_updated_the_longest_time_ago_leave_first() -> None:
    last = LastValues(count=3)
    for topic in (b"a", b"b", b"c", b"a", b"d", b"e"):
        put(last, topic)
    assert names(last) == [b"a", b"d", b"e"]
    assert (len(last), last.evicted) == (3, 2)


def test_bytes_are_limited_and_counted_exactly() -> None:
    last = LastValues(bytes_=3 * (OVERHEAD_BYTES + 2 * 101))
    for topic in (b"a", b"b", b"c"):
        put(last, topic, b"x" * 100)
    assert last.held_bytes == last.max_bytes
    put(last, b"c", b"x" * 50)
    assert (len(last), last.held_bytes) == (3, last.max_bytes - 100)
    put(last, b"b", b"x" * 200)
    assert names(last) == [b"b", b"c"]
    # One that never fits leaves no older one behind, which would be wrong.
    put(last, b"b", b"x" * 2000)
    assert names(last) == [b"c"]
    last.remove(b"c")
    assert (len(last), last.held_bytes, last.evicted) == (0, 0, 2)


def test_a_value_counts_twice_its_bytes_and_500() -> None:
    last = LastValues()
    last.put(Fanout(b"topic", [b"123", b"", b"4567"]))
    assert last.held_bytes == 2 * (5 + 3 + 4) + 500


def test_a_value_that_fills_everything_is_kept_and_a_larger_one_never_was() -> None:
    last = LastValues(bytes_=2 * (1 + 100) + OVERHEAD_BYTES)
    put(last, b"a", b"x" * 101)
    assert (len(last), last.evicted) == (0, 0)
    put(last, b"a", b"x" * 100)
    assert (names(last), last.held_bytes, last.evicted) == ([b"a"], last.max_bytes, 0)
    put(last, b"b", b"x" * 101)
    assert (names(last), last.evicted) == ([b"a"], 0)


def test_nothing_is_kept_when_it_is_turned_off() -> None:
    last = LastValues(count=0)
    put(last, b"a")
    assert len(last) == 0
    assert not last.changed


def test_limits_can_change() -> None:
    last = LastValues()
    for topic in (b"a", b"b", b"c"):
        put(last, topic)
    last.change(2, last.max_bytes, True)
    assert names(last) == [b"b", b"c"]
    last.change(0, last.max_bytes, True)
    assert (len(last), last.held_bytes) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_topics_are_found_by_their_beginning_whatever_came_and_went(seed: int) -> None:
    rng = random.Random(seed)
    last = LastValues(count=rng.choice((50, 10_000)))
    alphabet = (b"a", b"b", b"\xff", b"/")
    for _ in range(40):
        for _ in range(rng.choice((1, 10, 200))):
            topic = b"".join(rng.choices(alphabet, k=rng.randrange(1, 7)))
            if rng.random() < 0.3:
                last.remove(topic)
            else:
                put(last, topic)
        prefix = b"".join(rng.choices(alphabet, k=rng.randrange(4)))
        but = [prefix + rng.choice(alphabet) for _ in range(rng.randrange(3))]
        expected = sorted(topic for topic in last.values if topic.startswith(prefix))
        assert last.topics(prefix) == expected
        assert [value.topic for value in last.matching(prefix, but)] == [
            topic for topic in expected if not topic.startswith(tuple(but)) or not but
        ]


def test_topics_that_came_and_went_take_no_room() -> None:
    last = LastValues()
    put(last, b"kept")
    for number in range(5_000):
        put(last, b"t%d" % number)
        assert last.topics(b"t") == [b"t%d" % number]
        last.remove(b"t%d" % number)
    assert last.topics(b"") == [b"kept"]
    assert len(last._sorted) < 200
    assert len(last._gone) < 200


def test_a_topic_that_comes_back_is_there_once_although_its_name_was_kept() -> None:
    last = LastValues()
    for _ in range(3):
        put(last, b"a")
        put(last, b"b")
        assert last.topics(b"") == [b"a", b"b"]
        assert last.remove(b"a")
        assert last.topics(b"") == [b"b"]
        assert not last.remove(b"a")
        assert last.matching(b"a") == []


def test_a_beginning_may_end_with_any_byte() -> None:
    last = LastValues()
    for topic in (b"tW", b"tX", b"tX1", b"tY", b"t\xff", b"t\xff\xff1", b"u", b"\xff"):
        put(last, topic)
    assert last.topics(b"tX") == [b"tX", b"tX1"]
    assert last.topics(b"t\xff") == [b"t\xff", b"t\xff\xff1"]
    assert last.topics(b"\xff") == [b"\xff"]


# -- the disk -----------------------------------------------------------------------------------------


def test_a_topic_that_left_does_not_have_all_others_put_in_order_again() -> None:
    """With 100,000 topics that would hold up the bus with every look-up."""
    last = LastValues()
    for number in range(1000):
        put(last, b"%04d" % number)
    assert len(names(last)) == 1000
    order = last._sorted
    for number in range(700):
        last.remove(b"%04d" % number)
        assert len(last.topics(b"")) == 999 - number
        if number < 200:
            assert last._sorted is order
    assert last._sorted is not order, "but when many have left"


def test_many_new_topics_are_put_in_order_at_once_and_a_few_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each topic that is inserted moves those behind it; to sort them all looks at each of them."""
    inserted: list[bytes] = []

    def insert(order: list[bytes], topic: bytes) -> None:
        inserted.append(topic)
        insort(order, topic)

    monkeypatch.setattr(last_values, "insort", insert)
    last = LastValues()
    for number in reversed(range(1000)):
        put(last, b"%04d" % number)
    assert last.topics(b"") == [b"%04d" % number for number in range(1000)]
    assert inserted == []
    put(last, b"0500/b")
    put(last, b"0500/a")
    for _ in range(2):
        assert last.topics(b"0500") == [b"0500", b"0500/a", b"0500/b"]
        assert inserted == [b"0500/b", b"0500/a"]


def lines(stage: Stage) -> list[Valued | Unvalued]:
    """What was noted about values since the last look."""
    found = [line for line in stage.bus.lines if isinstance(line, Valued | Unvalued)]
    stage.bus.lines.clear()
    return found


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.bus.store_trouble = ""
    return stage


def test_only_the_newest_value_of_a_topic_goes_to_disk(stage: Stage) -> None:
    for number in range(1000):
        topics.publish(stage.bus, b"t%d" % (number % 3), [b"%d" % number], stage.now)
    assert not stage.bus.lines, "nobody waits for it"
    stage.bus.handle(events.Tick(), stage.now + 1.0)
    found = lines(stage)
    assert [(line.topic, line.body) for line in found if isinstance(line, Valued)] == [
        (b"t0", [b"999"]),
        (b"t1", [b"997"]),
        (b"t2", [b"998"]),
    ]
    assert len(found) == 3
    topics.publish(stage.bus, b"t0", [b"again"], stage.now)
    stage.bus.handle(events.Tick(), stage.now + 1.5)
    assert not lines(stage), "not so soon again"
    stage.bus.handle(events.Tick(), stage.now + 2.0)
    assert len(lines(stage)) == 1


def test_not_too_much_goes_to_disk_at_once(stage: Stage) -> None:
    for number in range(NOTED_AT_ONCE + 10):
        topics.publish(stage.bus, b"t%d" % number, [], stage.now)
    stage.bus.handle(events.Tick(), stage.now + 1.0)
    assert len(lines(stage)) == NOTED_AT_ONCE
    note_all(stage.bus)
    assert len(lines(stage)) == 10


def test_what_left_leaves_the_disk_too(stage: Stage) -> None:
    stage.bus.last.change(1, 10_000, True)
    topics.publish(stage.bus, b"a", [], stage.now)
    topics.publish(stage.bus, b"b", [], stage.now)
    note_all(stage.bus)
    assert [type(line) for line in lines(stage)] == [Unvalued, Valued]


def test_what_was_written_down_is_removed_when_it_leaves(stage: Stage) -> None:
    put(stage.bus.last, b"a")
    note_all(stage.bus)
    assert [type(line) for line in lines(stage)] == [Valued]
    assert stage.bus.last.remove(b"a")
    note_all(stage.bus)
    assert lines(stage) == [Unvalued(b"a")]


def test_as_many_names_that_left_are_remembered_as_there_may_be_values(stage: Stage) -> None:
    stage.bus.last.change(100, 1_000_000, True)
    for number in range(200):
        put(stage.bus.last, b"t%d" % number)
    note_all(stage.bus)
    found = lines(stage)
    assert [line.topic for line in found if isinstance(line, Unvalued)] == [b"t%d" % n for n in range(100)]
    assert sum(isinstance(line, Valued) for line in found) == 100


def test_other_limits_alone_write_nothing_anew(stage: Stage) -> None:
    put(stage.bus.last, b"a")
    note_all(stage.bus)
    lines(stage)
    stage.bus.last.change(7, 1_000, True)
    note_all(stage.bus)
    assert lines(stage) == []


def test_nothing_is_noted_without_a_disk_and_names_do_not_pile_up(stage: Stage) -> None:
    stage.bus.last.change(100, 1_000_000, True)
    stage.bus.store_trouble = "the disk is full"
    for number in range(10_000):
        topics.publish(stage.bus, b"t%d" % number, [], stage.now)
    stage.bus.handle(events.Tick(), stage.now + 1.0)
    note_all(stage.bus)
    assert not lines(stage)
    assert len(stage.bus.last.changed) < 500
    stage.bus.store_trouble = ""
    note_all(stage.bus)
    assert sum(isinstance(line, Valued) for line in lines(stage)) == 100


def test_values_come_back_in_their_order_within_the_limits(stage: Stage) -> None:
    entries = [Valued(b"%d" % number, [b"x"], float(number % 5)) for number in range(10)]
    stage.bus.last.change(4, 1_000_000, True)
    stage.bus.last.restore(entries)
    # The youngest of them.
    assert names(stage.bus.last) == [b"3", b"4", b"8", b"9"]
    note_all(stage.bus)
    assert {line.topic for line in lines(stage)} == {b"0", b"1", b"2", b"5", b"6", b"7"}
    assert stage.bus.last.evicted == 0
    put(stage.bus.last, b"new")
    assert names(stage.bus.last) == [b"4", b"8", b"9", b"new"], "the oldest left first"


@pytest.mark.parametrize(("count", "durable", "kept"), [(0, True, 0), (10, False, 3)])
def test_values_on_disk_that_nobody_will_keep_there_are_removed(
    count: int, durable: bool, kept: int, stage: Stage
) -> None:
    stage.bus.last.change(count, 1_000_000, durable)
    stage.bus.last.restore([Valued(topic, [], 0.0) for topic in (b"a", b"b", b"c")])
    assert len(stage.bus.last) == kept
    note_all(stage.bus)
    assert [line.topic for line in lines(stage) if isinstance(line, Unvalued)] == [b"a", b"b", b"c"]


def test_values_go_to_disk_when_that_is_turned_on(stage: Stage) -> None:
    last = stage.bus.last
    last.change(10, 1_000_000, False)
    put(last, b"a")
    assert not last.changed
    last.change(10, 1_000_000, True)
    note_all(stage.bus)
    assert [type(line) for line in lines(stage)] == [Valued]
    last.change(10, 1_000_000, False)
    note_all(stage.bus)
    assert [type(line) for line in lines(stage)] == [Unvalued]


# -- the service --------------------------------------------------------------------------------------


def ask(stage: Stage, *body: bytes, receipt: bool = False, reply: bool = True) -> None:
    options = JobOptions(reply_requested=reply)
    stage.do(events.Submit(client("c"), None, b"1", b"lvc", list(body), options, receipt=receipt))


def test_the_value_of_a_topic_is_asked_for() -> None:
    stage = Stage()
    topics.publish(stage.bus, b"weather/rome", [b"sunny", b"warm"], stage.now)
    topics.publish(stage.bus, b"weather/oslo", [], stage.now)
    ask(stage, b"weather/rome", receipt=True)
    ask(stage, b"weather/oslo")
    assert [action.body for action in stage.actions(Answer)] == [[b"sunny", b"warm"], [b""]]
    assert len(stage.actions(Accept)) == 1
    assert not stage.bus.clients, "nothing is kept of it"


@pytest.mark.parametrize("receipt", [False, True])
def test_who_wants_no_reply_gets_none(receipt: bool) -> None:
    stage = Stage()
    topics.publish(stage.bus, b"t", [b"value"], stage.now)
    ask(stage, b"t", receipt=receipt, reply=False)
    assert len(stage.actions(Accept)) == receipt
    assert not stage.actions(Answer)


def test_a_topic_that_nobody_published_is_refused_and_counted() -> None:
    stage = Stage()
    ask(stage, b"weather/rome")
    assert stage.one(Refuse).reason is Reason.UNKNOWN_TOPIC
    assert stage.bus.counters.rejected == 1


def test_topics_are_listed_by_their_beginning() -> None:
    stage = Stage()
    for topic in (b"weather/rome", b"news", b"weather/oslo"):
        topics.publish(stage.bus, topic, [], stage.now)
    for prefix in ("weather/", "", "x"):
        ask(stage, json.dumps({"prefix": prefix}).encode())
    found = [json.loads(action.body[0]) for action in stage.actions(Answer)]
    assert found == [["weather/oslo", "weather/rome"], ["news", "weather/oslo", "weather/rome"], []]


def test_a_topic_that_is_no_text_is_listed_with_what_can_be_read_of_it() -> None:
    stage = Stage()
    topics.publish(stage.bus, b"weather/\xff", [], stage.now)
    ask(stage, b'{"prefix": "weather/"}')
    assert json.loads(stage.one(Answer).body[0]) == ["weather/\ufffd"]


@pytest.mark.parametrize("body", [b"nobody", b"", b'{"prefix": 1}', b'{"other": "x"}', b"\xff\xfe", b"{}"])
def test_what_has_no_value_is_refused_with_a_reason(body: bytes) -> None:
    stage = Stage()
    ask(stage, body)
    (refusal,) = stage.actions(Refuse)
    assert refusal.reason == "unknown_topic"
    assert "nothing was published" in refusal.detail
    stage.bus.last.change(0, 1, False)
    ask(stage, body)
    assert "last_values.enabled" in stage.actions(Refuse)[-1].detail


def test_a_worker_of_this_name_takes_its_place() -> None:
    stage = Stage(Limits())
    topics.publish(stage.bus, b"t", [b"value"], stage.now)
    stage.worker("w", "lvc")
    ask(stage, b"t")
    assert not stage.actions(Answer)
    stage.submit("c", "2", "lvc")
    assert not stage.actions(Answer), "busy is not gone"
    stage.gone("w")
    ask(stage, b"t")


def test_no_more_values_leave_than_have_to() -> None:
    last = LastValues(bytes_=2 * (OVERHEAD_BYTES + 2 * 101))
    for topic in (b"a", b"b", b"c"):
        put(last, topic, b"x" * 100)
    assert names(last) == [b"b", b"c"]
    assert (last.held_bytes, last.evicted) == (last.max_bytes, 1)


def test_values_are_to_be_written_down_unless_that_is_turned_off() -> None:
    for last, changed in ((LastValues(), {b"a": None}), (LastValues(durable=False), {})):
        put(last, b"a")
        assert last.changed == changed
        # Nor is there anything to remove then.
        last.remove(b"a")
        assert last.changed == changed
