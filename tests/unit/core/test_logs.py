"""Log records: what is kept, for how long, how it is found, and what hostile ones do (nothing)."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from polybus.core import events, logs
from polybus.core.logs import LogRecord, Logs
from support.stage import Stage


def record(level: str = "info", node: str = "n", text: bytes = b"hello", at: float = 0.0) -> LogRecord:
    found = logs.read(f"log/{level}/{node}".encode(), [text], at)
    assert found is not None
    return found


def view(topic: bytes, *body: bytes) -> dict[str, Any]:
    found = logs.read(topic, list(body), 5.0)
    assert found is not None
    shown = logs.view(found, 1000.0)
    # Whatever it was, it can be told.
    assert json.loads(msgspec.json.encode(shown))["level"] in logs.LEVELS
    assert shown["message"] == logs.message_of(found)
    return shown


def texts(found: list[LogRecord]) -> list[str]:
    return [one.text.decode() for one in found]


def test_a_record_is_read() -> None:
    body = {"at": 12.5, "level": "x", "node": "y", "logger": "a.b", "message": "hi", "extra": {"k": [1]}}
    shown = view(b"log/warning/probe/7", json.dumps(body).encode())
    assert shown == {
        "number": 0,
        "at": 12.5,
        "received_at": 1005.0,
        "level": "warning",
        "node": "probe/7",
        "logger": "a.b",
        "message": "hi",
        "extra": {"k": [1]},
        "cut": False,
    }


@pytest.mark.parametrize(
    ("topic", "level", "node"),
    [
        (b"log/WARN/a", "warning", "a"),
        (b"log/fatal/a", "critical", "a"),
        (b"log/Info/", "info", "unknown"),
        (b"log/debug/\xff", "debug", "\ufffd"),
    ],
)
def test_other_ways_to_say_it(topic: bytes, level: str, node: str) -> None:
    shown = view(topic, b"text")
    assert (shown["level"], shown["node"], shown["message"]) == (level, node, "text")


@pytest.mark.parametrize("topic", [b"log/", b"log/info", b"log/rotation/x", b"log//x", b"log/in fo/x"])
def test_other_topics_are_no_records(topic: bytes) -> None:
    assert logs.read(topic, [b"x"], 0.0) is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", ""),
        (b"{", "{"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"[1]", "[1]"),
        (b'"text"', '"text"'),
        (b'{"message": 7}', "7"),
        (b'{"message": {"a": [null]}}', '{"a":[null]}'),
        (b'{"message": null}', '{"message": null}'),
        (b'{"message": "\\ud800"}', '{"message": "\\ud800"}'),
        (b'{"message": "m", "at": 1e400}', '{"message": "m", "at": 1e400}'),
        (b'{"message": "m", "at": ' + b"9" * 400 + b"}", "m"),
        (b'{"message": "m", "at": true, "logger": 3, "extra": "no", "level": []}', "m"),
        (b'{"message": "m", "at": -1e300}', "m"),
    ],
)
def test_what_is_no_proper_record_is_text(body: bytes, message: str) -> None:
    assert view(b"log/error/n", body)["message"] == message


def test_numbers_of_thousands_of_digits_and_deep_nesting() -> None:
    for body in (b'{"at": ' + b"9" * 6000 + b"}", b'{"a":' * 3000, b'{"extra":' * 900 + b"1" + b"}" * 900):
        assert view(b"log/error/n", body)["message"] == body.decode()


def test_large_records_are_cut() -> None:
    long = json.dumps({"message": "m" * 50_000, "logger": "l", "extra": {"x": "y" * 10_000}}).encode()
    shown = view(b"log/error/n", long)
    assert (shown["message"], shown["logger"], shown["cut"]) == ("m" * logs.MESSAGE_CHARS, "l", True)
    assert shown["extra"] == {}
    dense = json.dumps({"message": "\x01" * 9000, "at": 1}).encode()
    assert view(b"log/error/n", dense)["message"] == "\x01" * (logs.MESSAGE_CHARS // 4)
    for body in (b"x" * 20_000, b"{" + b"x" * 2_000_000, json.dumps({"message": "ü" * 200_000}).encode()):
        shown = view(b"log/error/n", body)
        assert shown["cut"]
        assert shown["message"].encode() == body[: logs.RECORD_BYTES]
    assert view(b"log/error/n", b"", b"z" * 20_000)["message"] == "z" * logs.RECORD_BYTES


def test_records_of_many_frames_are_joined() -> None:
    shown = view(b"log/info/n", b"one", b"two")
    assert (shown["message"], shown["cut"]) == ("one\ntwo", False)
    assert view(b"log/info/n")["message"] == ""


def test_the_oldest_leave_first_and_warnings_last() -> None:
    kept = Logs(count=20)
    for number in range(10):
        kept.put(record("warning", text=b"w%d" % number))
    for number in range(100):
        kept.put(record("debug", text=b"d%d" % number))
    assert len(kept) == 20
    assert texts(kept.newest("warning", "", 0.0, 100)) == [f"w{number}" for number in range(10)]
    assert texts(kept.newest("debug", "", 0.0, 100))[10:] == [f"d{number}" for number in range(90, 100)]
    assert kept.evicted == 90
    for number in range(100):
        kept.put(record("error", text=b"e%d" % number))
    # A share is left to the rest.
    assert len(kept.newest("warning", "", 0.0, 100)) == 18
    assert texts(kept.newest("debug", "", 0.0, 100))[:2] == ["d98", "d99"]


def test_bytes_are_limited() -> None:
    kept = Logs(count=1000, bytes_=100_000)
    for _ in range(100):
        kept.put(record("info", text=b"x" * 5000))
    assert kept.held_bytes <= 100_000
    assert 15 < len(kept) < 20
    kept.change(1000, 1, 10.0, 10.0)
    assert (len(kept), kept.held_bytes) == (0, 0)
    kept.put(record("critical"))
    assert len(kept) == 0


def test_old_ones_are_forgotten_warnings_later() -> None:
    kept = Logs(age_s=10.0)
    kept.warnings_age_s = 100.0
    kept.put(record("info", at=0.0))
    kept.put(record("error", at=0.0))
    kept.forget_old(10.0)
    assert len(kept) == 2
    kept.forget_old(11.0)
    assert [one.level for one in kept.newest("debug", "", 0.0, 9)] == ["error"]
    kept.forget_old(101.0)
    assert len(kept) == 0
    assert kept.evicted == 0
    assert kept.nodes() == {}


def test_by_level_node_time_and_number() -> None:
    kept = Logs()
    for at, (level, node) in enumerate(
        [("info", "a"), ("error", "b"), ("debug", "a"), ("warning", "ab"), ("critical", "a")]
    ):
        kept.put(record(level, node, b"%d" % at, float(at)))
    assert texts(kept.newest("debug", "", 0.0, 9)) == ["0", "1", "2", "3", "4"]
    assert texts(kept.newest("debug", "", 0.0, 2)) == ["3", "4"]
    assert texts(kept.newest("info", "a", 0.0, 9)) == ["0", "4"]
    assert texts(kept.newest("debug", "a*", 1.0, 9)) == ["2", "3", "4"]
    assert texts(kept.newest("debug", "zzz", 0.0, 9)) == []
    assert [texts(kept.after(n, "info", "", 9)[0]) for n in (0, 2, 5)] == [
        ["0", "1", "3", "4"],
        ["3", "4"],
        [],
    ]
    assert texts(kept.after(0, "info", "", 2)[0]) == ["0", "1"]
    assert kept.nodes() == {
        "a": {"debug": 1, "info": 1, "critical": 1},
        "b": {"error": 1},
        "ab": {"warning": 1},
    }


def test_a_follower_that_is_far_behind_is_told() -> None:
    kept = Logs()
    for number in range(logs.BEHIND + 1):
        kept.put(record(text=b"%d" % number))
    found, missed = kept.after(0, "debug", "", 100)
    assert missed == logs.BEHIND - 99
    assert texts(found) == [str(number) for number in range(logs.BEHIND - 99, logs.BEHIND + 1)]


def test_random_lives_agree_with_a_plain_list() -> None:
    rng = random.Random(4)
    for _ in range(30):
        kept = Logs(count=rng.randint(1, 40), bytes_=rng.choice([3_000, 10**9]), age_s=50.0)
        model: list[LogRecord] = []
        now = 0.0
        for _ in range(300):
            now += rng.random()
            one = record(rng.choice(logs.LEVELS), rng.choice("abc"), b"x" * rng.randint(0, 600), now)
            kept.put(one)
            kept.forget_old(now)
            model.append(one)
            found = kept.newest("debug", "", 0.0, 1000)
            assert len(found) == len(kept) <= kept.count
            assert kept.held_bytes == sum(each.size for each in found) <= kept.max_bytes
            assert [each for each in model if each in found] == found
            serious = [each for each in found if each.rank >= logs.SERIOUS]
            assert serious == kept.newest("warning", "", 0.0, 1000)
            # Of each kind it is the newest that are there.
            all_serious = [each for each in model if each.rank >= logs.SERIOUS]
            assert serious == all_serious[len(all_serious) - len(serious) :]
        assert kept.taken == 300


def test_publications_are_kept_passed_on_and_observed() -> None:
    stage = Stage()
    stage.do(events.Publish(b"log/error/n", [b'{"message": "it broke"}']))
    stage.do(events.Publish(b"log/other", [b"plain"]))
    stage.do(events.Publish(b"log/info/n", []))
    assert len(stage.bus.logs) == 2
    assert stage.bus.counters.published == 3
    observed = [(one.what, one.service, one.reason, one.detail) for one in stage.observed]
    assert observed == [
        ("log", b"log/error/n", "error", "it broke"),
        ("published", b"log/other", "", ""),
        ("log", b"log/info/n", "info", ""),
    ]


def test_a_record_costs_its_text_the_name_of_its_node_and_a_share_of_the_tables() -> None:
    kept = Logs()
    for number, (node, text) in enumerate(
        [("n", b"hello"), ("a much longer name", b""), ("n", b"x" * 999)], 1
    ):
        kept.put(record(node=node, text=text))
        assert len(kept) == kept.taken == number
    assert kept.held_bytes == 3 * logs.OVERHEAD_BYTES + 1 + 5 + 18 + 1 + 999


@pytest.mark.parametrize("level", ["info", "error"])
def test_records_leave_when_there_is_no_room_and_not_before(level: str) -> None:
    one = record(level).size
    for kept in (Logs(count=3), Logs(bytes_=3 * one)):
        for number in range(3):
            kept.put(record(level, text=b"rec-%d" % number))
        assert (len(kept), kept.held_bytes, kept.evicted) == (3, 3 * one, 0)
        kept.put(record(level, text=b"rec-3"))
        assert texts(kept.newest("debug", "", 0.0, 9)) == ["rec-1", "rec-2", "rec-3"]
        assert (len(kept), kept.held_bytes, kept.evicted) == (3, 3 * one, 1)


@pytest.mark.parametrize("ordinary", range(5))
def test_a_tenth_of_the_room_belongs_to_ordinary_records(ordinary: int) -> None:
    one = record().size
    for limits in ({"count": 20}, {"bytes_": 20 * one}):
        kept = Logs(**limits)
        for number in range(20):
            kept.put(record("info" if number < ordinary else "error", text=b"%05d" % number))
        kept.put(record("error", text=b"00020"))
        left = kept.nodes()["n"]
        # With no more than two of twenty records they have their share, and a serious one has to leave.
        expected = ordinary - 1 if ordinary > 2 else ordinary
        assert left.get("info", 0) == expected
        assert left["error"] == 20 - expected


def test_other_limits_hold_at_once() -> None:
    kept = Logs()
    for number in range(10):
        kept.put(record(text=b"%05d" % number, at=float(number)))
    kept.put(record("error", text=b"worse", at=10.0))
    kept.change(5, 10_000, 3.0, 30.0)
    assert texts(kept.newest("debug", "", 0.0, 99)) == ["00006", "00007", "00008", "00009", "worse"]
    assert kept.evicted == 6
    kept.forget_old(11.0)
    assert texts(kept.newest("debug", "", 0.0, 99)) == ["00008", "00009", "worse"], "of 3 seconds and younger"
    kept.forget_old(40.0)
    assert texts(kept.newest("debug", "", 0.0, 99)) == ["worse"]
    kept.forget_old(40.1)
    assert (len(kept), kept.held_bytes, kept.nodes(), kept.evicted) == (0, 0, {}, 6)


@pytest.mark.parametrize(("brackets", "is_read"), [(logs.NESTED, True), (logs.NESTED + 1, False)])
def test_a_record_with_too_many_brackets_is_text(brackets: int, is_read: bool) -> None:
    # Its own bracket and that of the list are counted.
    body = b'{"message":"hi","x":[%b]}' % b",".join([b"[]", b"{}"] * 999)[: 3 * (brackets - 2) - 1]
    assert body.count(b"[") + body.count(b"{") == brackets
    assert view(b"log/info/n", body)["message"] == ("hi" if is_read else body.decode())


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        (b"12", 12.0),
        (b"12.5", 12.5),
        (b"-3", -3.0),
        (b"%d" % ((1 << 53) - 1), float((1 << 53) - 1)),
        (b"%d" % -((1 << 53) - 1), -float((1 << 53) - 1)),
        (b"%d" % (1 << 53), 1005.0),
        (b"%d" % -(1 << 53), 1005.0),
        (b"1e999", 1005.0),
        (b"true", 1005.0),
        (b'"12"', 1005.0),
        (b"null", 1005.0),
    ],
)
def test_a_record_without_a_sensible_time_has_the_time_of_its_arrival(at: bytes, shown: float) -> None:
    assert view(b"log/info/n", b'{"at":%b,"message":"hi"}' % at)["at"] == shown


@pytest.mark.parametrize(("waiting", "seen", "missed"), [(5, "012", 0), (6, "345", 3)])
def test_only_a_follower_that_is_further_behind_than_allowed_misses_records(
    monkeypatch: pytest.MonkeyPatch, waiting: int, seen: str, missed: int
) -> None:
    monkeypatch.setattr(logs, "BEHIND", 5)
    kept = Logs()
    for number in range(waiting):
        kept.put(record(text=b"%d" % number))
    found, passed_over = kept.after(0, "debug", "", 3)
    assert ("".join(texts(found)), passed_over) == (seen, missed)


def test_a_long_record_keeps_its_time_its_logger_and_the_beginning_of_its_message() -> None:
    long = {"at": 12.5, "logger": "a.b", "message": "m" * 20_000, "extra": {"k": 1}}
    shown = view(b"log/info/n", json.dumps(long).encode())
    assert (shown["at"], shown["logger"], shown["extra"], shown["cut"]) == (12.5, "a.b", {}, True)
    assert shown["message"] == "m" * logs.MESSAGE_CHARS
    # Characters that are long in JSON are halved until they fit.
    wide = {"at": 3, "message": "\u0001" * 9_000}
    shown = view(b"log/info/n", json.dumps(wide).encode())
    assert (shown["at"], shown["logger"], shown["cut"]) == (3.0, "", True)
    assert shown["message"] == "\u0001" * (logs.MESSAGE_CHARS // 4)


def test_records_that_were_cut_are_counted() -> None:
    kept = Logs()
    for text in (b"short", b"x" * (logs.RECORD_BYTES + 1), b"x" * logs.RECORD_BYTES):
        kept.put(record(text=text))
    assert (kept.cut, kept.taken) == (1, 3)


def test_frames_that_are_as_long_as_a_record_may_be_are_kept_whole() -> None:
    shown = view(b"log/info/n", b"x" * 10, b"y" * (logs.RECORD_BYTES - 10))
    assert shown["message"] == "x" * 10 + "\n" + "y" * (logs.RECORD_BYTES - 10)
    assert not shown["cut"]


def test_a_long_record_of_several_frames_is_read_as_one() -> None:
    shown = view(b"log/info/n", b'{"logger": "a.b",', b'"message": "%b"}' % (b"m" * 20_000))
    assert (shown["logger"], shown["message"], shown["cut"]) == ("a.b", "m" * logs.MESSAGE_CHARS, True)


@pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False)])
def test_a_record_is_cut_where_its_message_ends_up_to_a_size(more: int, is_read: bool) -> None:
    begin, end = b'{"message": "hi", "x": "', b'"}'
    body = begin + b"x" * (logs.READ_BYTES - len(begin) - len(end) + more) + end
    shown = view(b"log/info/n", body)
    assert shown["message"] == ("hi" if is_read else body[: logs.RECORD_BYTES].decode())
    assert shown["cut"]


@pytest.mark.parametrize(("more", "part"), [(0, 1), (1, 2)])
def test_a_message_is_halved_only_if_its_record_is_too_long(more: int, part: int) -> None:
    # Characters of two bytes, and a logger of as many as are missing.
    message = "ü" * 8_100
    rest = logs.RECORD_BYTES - len(msgspec.json.encode({"at": 1, "logger": "", "message": message}))
    assert 0 < rest < logs.LOGGER_CHARS
    logger = "l" * (rest + more)
    long = {"at": 1, "logger": logger, "message": message, "extra": {"x": "y" * 9_000}}
    found = logs.read(b"log/info/n", [msgspec.json.encode(long)], 5.0)
    assert found is not None
    shown = logs.view(found, 1000.0)
    assert (shown["logger"], shown["message"]) == (logger, "ü" * (8_100 // part))
    assert part == 2 or len(found.text) == logs.RECORD_BYTES


def test_a_record_came_in_at_a_time_of_day_in_whole_milliseconds() -> None:
    shown = logs.view(record(at=5.12345), 1_700_000_000.0)
    assert shown["received_at"] == shown["at"] == 1_700_000_005.123


@pytest.mark.parametrize("body", [b"text", b"{}", b'{"logger": 3, "extra": "no"}', b'{"logger": null}'])
def test_a_record_without_a_proper_logger_and_extra_has_empty_ones(body: bytes) -> None:
    shown = view(b"log/info/n", body)
    assert (shown["logger"], shown["extra"]) == ("", {})


@pytest.mark.parametrize(
    ("pattern", "found"),
    [("[ab]?*", "12"), ("[ab]", "0"), ("?1", "13"), ("*1", "13"), ("b12", "2"), ("b1", ""), ("[]?*", "")],
)
def test_nodes_are_found_by_every_kind_of_pattern(pattern: str, found: str) -> None:
    kept = Logs()
    for number, node in enumerate(["a", "a1", "b12", "c1"]):
        kept.put(record("info", node, b"%d" % number))
    assert "".join(texts(kept.newest("debug", pattern, 0.0, 9))) == found
