"""Records: both recorders write the same bytes, and everything that was written can be read again."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from polybus.core import records as core_records
from polybus.core.actions import Observed
from polybus.core.model import PLAIN_CALL, Heartbeat, JobOptions
from polybus.core.records import Client, Request, Service, Worker, new_request
from polybus.errors import JournalDamaged
from polybus.journal import columns
from polybus.journal.log import LogHead
from polybus.journal.record import DIALECTS, NO_LINK, WHATS, Row, options_text, read_rows, write_row
from polybus.journal.recorder import PlainRecorder, Recorder, open_recorder, records_are_compiled

try:
    from polybus.journal._columns import split as compiled_split
    from polybus.journal._recorder import CompiledRecorder

    RECORDERS: list[Any] = [PlainRecorder, CompiledRecorder]
    SPLITS: list[Any] = [columns.split, compiled_split]
except (ImportError, KeyError, ValueError):
    RECORDERS, SPLITS = [PlainRecorder], [columns.split]

HEAD = LogHead("tested", "life", 1, 0.0, {"3": "majordomo.clients", "4": "emqp.workers"})


class Speaks:
    def __init__(self, dialect: str) -> None:
        self.dialect = dialect


names = st.binary(max_size=255)
texts = st.text(max_size=40)
times = st.floats(0, 1e6)
options = st.sampled_from(
    [PLAIN_CALL, JobOptions(guarantee=True, retries=3, then=(b'{"service": "next"}', b"\xff"), group=b"g")]
)
bodies = st.none() | st.lists(st.binary(max_size=300), max_size=4)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    client = Client((draw(st.integers(-1, 70_000)), draw(names)))
    voice = draw(st.none() | st.sampled_from(DIALECTS[1:]).map(Speaks))
    body = draw(st.lists(st.binary(max_size=300), max_size=3))
    size = sum(map(len, body))
    request = new_request(
        draw(names),
        draw(names),
        client,
        voice,
        Service(draw(names)),
        body,
        size,
        draw(options),
        draw(times),
        2e6,
    )
    request.attempt = draw(st.integers(0, 1_000_000))
    request.dispatched_at = draw(times)
    if draw(st.booleans()):
        speaks = Speaks(draw(st.sampled_from(DIALECTS[1:])))
        address = (draw(st.integers(0, 60_000)), draw(names))
        request.worker = Worker(address, speaks, Heartbeat(5, 1), 10, False, 1.0, {})
    return request


happenings = st.lists(
    st.tuples(st.just("request"), st.sampled_from(WHATS), requests(), times, texts, texts, bodies)
    | st.tuples(st.just("dead"), requests(), times, texts, texts)
    | st.tuples(st.just("started"), requests(), st.floats(0.001, 1e6), texts, bodies)
    | st.tuples(st.just("published"), names, st.lists(st.binary(max_size=300), max_size=3), times),
    max_size=5,
)


def start(recorder: Recorder, request: Request, now: float, offset: float, reason: str, body: Any) -> None:
    """It is accepted and given to a worker in one moment."""
    worker, request.worker = request.worker, None
    attempt, request.attempt = request.attempt, 0
    request.dispatched_at = 0.0
    recorder.note_request("accepted", request, now, offset, reason, "", body)
    request.worker, request.attempt, request.dispatched_at = worker, attempt, now
    recorder.note_request("dispatched", request, now, offset, "", "", None)


def record(recorder: Recorder, happened: list[Any], offset: float) -> tuple[int, bytes]:
    for kind, *what in happened:
        if kind == "request":
            name, request, now, reason, detail, body = what
            recorder.note_request(name, request, now, offset, reason, detail, body)
        elif kind == "started":
            request, now, reason, body = what
            start(recorder, request, now, offset, reason, body)
        elif kind == "dead":
            request, now, reason, detail = what
            recorder.note_dead(request, now, offset, reason, detail, request.body)
        else:
            topic, body, now = what
            recorder.note_published(topic, body, now, offset)
    return recorder.take()


@given(happened=happenings, offset=st.floats(0, 2e9), limit=st.integers(0, 600), keeps=st.booleans())
@settings(max_examples=200, deadline=None)
def test_both_recorders_write_the_same(happened: list[Any], offset: float, limit: int, keeps: bool) -> None:
    written = [record(kind(limit, lambda name: keeps), happened, offset) for kind in RECORDERS]
    assert all(one == written[0] for one in written)
    count, payload = written[0]
    rows = list(read_rows(payload))
    assert len(rows) == count == len(happened) + sum(kind == "started" for kind, *_ in happened)
    assert list(read_rows(b"".join(map(write_row, rows)))) == rows
    for row in rows:
        assert row.body is None or (keeps and sum(map(len, row.body)) <= limit)


LIMIT = 100


@pytest.mark.parametrize("kind", RECORDERS)
@pytest.mark.parametrize("shape", [1, 3], ids=["one frame", "three frames"])
@pytest.mark.parametrize("size", [0, LIMIT - 1, LIMIT, LIMIT + 1, 5000])
@pytest.mark.parametrize("what", [*WHATS, "dead letter", "publication"])
def test_a_body_of_whatever_happens_is_kept_up_to_the_limit(
    kind: Any, what: str, size: int, shape: int
) -> None:
    body = [b"x" * (size // shape)] * (shape - 1)
    body.append(b"y" * (size - sum(map(len, body))))
    request = new_request(
        b"token", b"id", Client((1, b"c")), None, Service(b"s"), body, size, PLAIN_CALL, 1.0, 9.0
    )
    for keeps in (True, False):
        recorder: Recorder = kind(LIMIT, lambda name, keeps=keeps: keeps)
        if what == "dead letter":
            recorder.note_dead(request, 2.0, 0.0, "", "", body)
        elif what == "publication":
            recorder.note_published(b"topic", body, 2.0, 0.0)
        else:
            recorder.note_request(what, request, 2.0, 0.0, "", "", body)
        (row,) = read_rows(recorder.take()[1])
        assert row.body == (tuple(body) if keeps and size <= LIMIT else None)
        assert row.size == size or what == "publication"


@given(happened=happenings, observed=bodies, limit=st.integers(0, 600))
@settings(max_examples=200, deadline=None)
def test_records_without_bodies_are_the_same_but_for_the_bodies(
    happened: list[Any], observed: Any, limit: int
) -> None:
    rows: dict[bool, list[Row]] = {}
    for drops in (False, True):
        recorders = [kind(limit) for kind in RECORDERS]
        written = []
        for recorder in recorders:
            recorder.drops_bodies = drops
            recorder.note(Observed(1.0, "log", service=b"s", body=observed), 0.0)
            written.append(record(recorder, happened, 1e9))
        assert all(one == written[0] for one in written)
        rows[drops] = list(read_rows(written[0][1]))
        kept = sum(any(row.body or ()) for row in rows[False])
        assert {recorder.bodies_dropped for recorder in recorders} == {kept if drops else 0}
    assert not any(any(row.body or ()) for row in rows[True])
    bare = [[structs.replace(row, body=None) for row in each] for each in rows.values()]
    assert bare[0] == bare[1]


@given(happened=happenings, offset=st.floats(0, 2e9))
@settings(max_examples=100, deadline=None)
def test_columns_hold_what_the_rows_hold(happened: list[Any], offset: float) -> None:
    count, payload = record(open_recorder(10_000), happened, offset)
    assert all(split(payload, count) == columns.split(payload, count) for split in SPLITS)
    table = columns.to_table(HEAD, 7, count, payload)
    table.validate(full=True)
    found = table.to_pylist()
    for number, (row, seen) in enumerate(zip(read_rows(payload), found, strict=True)):
        assert seen["seq"] == 7 + number
        assert seen["what"] == row.what
        assert seen["service"] == (columns.readable(row.service) if row.service else None)
        assert seen["client"] == (columns.readable(row.client) if row.client else None)
        assert seen["client_dialect"] == (row.client_dialect or None)
        assert seen["client_link"] == HEAD.links.get(str(row.client_link))
        assert seen["attempt"] == row.attempt
        assert seen["body_size"] == row.body_size
        assert seen["body"] == (None if row.body is None else list(row.body))
        assert (seen["dispatched_at"] is None) == (row.dispatched_at == 0)


@given(request=requests(), now=st.floats(0.001, 1e6), body=bodies)
@settings(max_examples=100, deadline=None)
def test_a_request_that_is_dispatched_at_once_is_one_record_and_two_rows(
    request: Request, now: float, body: Any
) -> None:
    for kind in RECORDERS:
        together, apart = kind(1000), kind(1000)
        start(together, request, now, 1e9, "why", body)
        # The same, but something else happens in between.
        worker, attempt = request.worker, request.attempt
        request.worker, request.attempt, request.dispatched_at = None, 0, 0.0
        apart.note_request("accepted", request, now, 1e9, "why", "", body)
        apart.note_published(b"topic", [], now, 1e9)
        request.worker, request.attempt, request.dispatched_at = worker, attempt, now
        apart.note_request("dispatched", request, now, 1e9, "", "", None)
        one, (accepted, _, dispatched) = together.take(), read_rows(apart.take()[1])
        assert one[0] == 2
        assert list(read_rows(one[1])) == [accepted, dispatched]
        assert len(one[1]) < len(write_row(accepted)) + len(write_row(dispatched)) - 48


def test_what_is_dispatched_later_has_a_record_of_its_own() -> None:
    body = [b"x"]
    client, service = Client((3, b"c")), Service(b"s")
    request = new_request(b"t", b"r", client, Speaks("mdr"), service, body, 1, PLAIN_CALL, 1.0, 9.0)
    for kind in RECORDERS:
        recorder = kind(1000)
        recorder.note_request("accepted", request, 1.0, 0.0, "", "", body)
        taken = [recorder.take()]
        request.dispatched_at = 2.0
        recorder.note_request("dispatched", request, 2.0, 0.0, "", "", None)
        taken.append(recorder.take())
        assert [count for count, _ in taken] == [1, 1]
        assert [[row.what for row in read_rows(data)] for _, data in taken] == [["accepted"], ["dispatched"]]


def test_a_row_survives() -> None:
    row = Row(
        "failed",
        1_700_000_000_000_001,
        "mdr",
        "emqp",
        1,
        2,
        3,
        4,
        5,
        6,
        NO_LINK,
        b"token",
        b"\xff\x00",
        b"service",
        b"\x00\x01",
        b"w",
        "timeout",
        "zu spät\nund mehr",
        "headers",
        (b"", b"x"),
    )
    assert list(read_rows(write_row(row))) == [row]


def test_what_has_no_number_is_named_in_its_detail() -> None:
    recorder = open_recorder(100)
    recorder.note(Observed(1.0, "brand_new", detail="so it is", service=b"s"), 0.0)
    (row,) = read_rows(recorder.take()[1])
    assert (row.what, row.detail, row.service) == ("other", "brand_new: so it is", b"s")


def _dispatched_at_once() -> bytes:
    client, service = Client((3, b"c")), Service(b"s")
    request = new_request(b"t", b"r", client, Speaks("mdr"), service, [b"x"], 1, PLAIN_CALL, 1.0, 9.0)
    request.worker = Worker((4, b"worker"), Speaks("emqp"), Heartbeat(5, 1), 10, False, 1.0, {})
    recorder = PlainRecorder(1000)
    start(recorder, request, 1.0, 0.0, "why", [b"x"])
    return recorder.take()[1]


DISPATCHED_AT_ONCE = _dispatched_at_once()


@pytest.mark.parametrize("split", SPLITS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damage_is_found_or_harmless(split: Any, data: st.DataObject) -> None:
    rows = [Row("accepted", 1, token=b"t%d" % n, body=(b"body",)) for n in range(2)]
    payload = bytearray(b"".join(map(write_row, rows)) + DISPATCHED_AT_ONCE)
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    for damaged in (bytes(payload), cut):
        try:
            split(damaged, 4)
        except JournalDamaged:
            continue
        assert len(list(read_rows(damaged))) == 4


@pytest.mark.parametrize("split", SPLITS)
def test_a_length_that_runs_over_is_no_crash(split: Any) -> None:
    payload = bytearray(DISPATCHED_AT_ONCE)
    for at in range(4, len(payload)):
        for evil in (struct.pack("<I", 0xFFFFFFFF), struct.pack("<I", 0x7FFFFFFF), b"\xff\xff"):
            copy = bytearray(payload)
            copy[at : at + len(evil)] = evil[: len(copy) - at]
            try:
                split(bytes(copy), 2)
            except JournalDamaged:
                continue


def test_a_record_that_is_cut_anywhere_is_damage_and_no_shorter_body() -> None:
    payload = write_row(Row("accepted", 1, token=b"t", body=(b"first", b"second")))
    for size in range(1, len(payload)):
        with pytest.raises(JournalDamaged):
            list(read_rows(payload[:size]))


def test_every_fact_of_what_was_observed_is_in_its_record() -> None:
    recorder = open_recorder(100)
    observed = Observed(
        10.5,
        "late",
        token=b"t",
        request_id=b"r",
        client=(3, b"client"),
        client_voice=Speaks("mdr"),
        worker=(4, b"worker"),
        worker_voice=Speaks("emqp"),
        service=b"s",
        reason="why",
        detail="more",
        attempt=2,
        size=7,
        body=[b"ab", b"c"],
        accepted_at=8.25,
        dispatched_at=9.25,
    )
    recorder.note(observed, 100.0)
    (row,) = read_rows(recorder.take()[1])
    assert row == Row(
        "late",
        110_500_000,
        client_dialect="mdr",
        worker_dialect="emqp",
        accepted_at=108_250_000,
        dispatched_at=109_250_000,
        size=7,
        body_size=3,
        attempt=2,
        client_link=3,
        worker_link=4,
        token=b"t",
        request_id=b"r",
        service=b"s",
        client=b"client",
        worker=b"worker",
        reason="why",
        detail="more",
        body=(b"ab", b"c"),
    )


@pytest.mark.parametrize(("link", "kept"), [(-1, NO_LINK), (0, 0), (1, 1), (65_534, 65_534)])
def test_a_peer_of_no_link_has_none_in_the_record(link: int, kept: int) -> None:
    recorder = open_recorder(100)
    recorder.note(Observed(1.0, "late", client=(link, b"c"), worker=(link, b"w")), 0.0)
    recorder.note(Observed(1.0, "late"), 0.0)
    there, nobody = read_rows(recorder.take()[1])
    assert (there.client_link, there.worker_link, there.client, there.worker) == (kept, kept, b"c", b"w")
    assert nobody == Row("late", 1_000_000)


@pytest.mark.parametrize(
    ("limit", "keeps", "kept"), [(3, True, (b"ab", b"c")), (2, True, None), (0, True, None), (3, False, None)]
)
def test_a_body_is_kept_whole_or_not_at_all(limit: int, keeps: bool, kept: tuple[bytes, ...] | None) -> None:
    asked: list[bytes] = []

    def keeps_bodies(name: bytes) -> bool:
        asked.append(name)
        return keeps

    for recorder in (kind(limit, keeps_bodies) for kind in RECORDERS):
        recorder.note(Observed(1.0, "dropped", service=b"s", body=[b"ab", b"c"]), 0.0)
        (row,) = read_rows(recorder.take()[1])
        assert (row.body, row.body_size) == (kept, 3)
    assert set(asked) == {b"s"}


@pytest.mark.parametrize("length", [65_535, 65_536])
def test_texts_that_are_too_long_for_their_length_are_cut(length: int) -> None:
    text = "x" * length
    (row,) = read_rows(write_row(Row("late", 1, token=text.encode(), reason=text, detail=text + "y")))
    assert (len(row.token), len(row.reason), len(row.detail)) == (65_535, 65_535, min(length + 1, 65_536))
    (row,) = read_rows(write_row(Row("late", 1, size=2**40, body_size=2**40, attempt=2**40)))
    assert (row.size, row.body_size, row.attempt) == (2**32 - 1,) * 3


def test_options_are_told_as_far_as_they_are_asked_for() -> None:
    assert options_text(PLAIN_CALL) == ""
    asked = JobOptions(
        reply_requested=False,
        guarantee=True,
        retries=2,
        timeout_s=1.5,
        other=("x:1",),
        backoff_s=0.5,
        then=(b"next", b"\xff"),
        group=b"\xffg",
    )
    assert json.loads(options_text(asked)) == {
        "reply_requested": False,
        "guarantee": True,
        "retries": 2,
        "timeout_s": 1.5,
        "other": ["x:1"],
        "backoff_s": 0.5,
        "then": ["next", "\ufffd"],
        "group": "\ufffdg",
    }
    # What follows is left out if it is too long; of the rest all or nothing is told.
    empty = len('{"retries":2,"then":[""]}')
    for length, is_whole in ((65_536 - empty, True), (65_537 - empty, False)):
        text = options_text(JobOptions(retries=2, then=(b"x" * length,)))
        assert ("then" in json.loads(text)) == is_whole
        assert json.loads(text)["retries"] == 2
    assert options_text(JobOptions(other=("x" * 65_536,))) == ""


def test_every_fact_of_a_request_is_in_its_record() -> None:
    body = [b"ab", b"c"]
    client, service = Client((3, b"client")), Service(b"s")
    request = new_request(b"t", b"r", client, Speaks("mdr"), service, body, 3, PLAIN_CALL, 8.25, 99.0)
    for kind in RECORDERS:
        recorder = kind(1000)
        recorder.note_request("expired", request, 10.5, 100.0, "why", "more", None)
        (row,) = read_rows(recorder.take()[1])
        # No worker has it, and it was never given to one.
        assert row == Row(
            "expired",
            110_500_000,
            client_dialect="mdr",
            accepted_at=108_250_000,
            size=3,
            client_link=3,
            token=b"t",
            request_id=b"r",
            service=b"s",
            client=b"client",
            reason="why",
            detail="more",
        )
    request.voice = None
    recorder = PlainRecorder(1000)
    recorder.note_request("expired", request, 10.5, 100.0, "", "", None)
    (row,) = read_rows(recorder.take()[1])
    assert (row.client_dialect, row.detail) == ("", "")


def test_only_five_columns_have_a_value_in_every_row() -> None:
    required = [field.name for field in columns.SCHEMA if not field.nullable]
    assert required == ["broker", "life", "seq", "at", "what"]


@pytest.mark.parametrize(
    ("word", "text"),
    [
        (b"plain", "plain"),
        ("grüße".encode(), "grüße"),
        (b"Traceback:\n\tline 1\n", "Traceback:\n\tline 1\n"),
        (b"a\x00b", "610062"),
        (b"\x1b[31m", "1b5b33316d"),
        (b"\xff\xfe", "fffe"),
    ],
)
def test_text_that_can_be_shown_stays_text(word: bytes, text: str) -> None:
    assert columns.readable(word) == text


@pytest.mark.parametrize("split", SPLITS)
def test_numbers_that_a_later_version_may_write_have_names(
    split: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of a record that is not known is `other`, and a dialect that is not known is none."""
    monkeypatch.setattr(columns, "best_split", split)
    known = write_row(Row("accepted", 1, "mdr", "none"))
    last = write_row(Row(WHATS[-1], 1, DIALECTS[-1], "ebus"))
    records = [known, last]
    for what, dialect in ((len(WHATS), len(DIALECTS)), (255, 255)):
        records.append(known[:4] + bytes((what, dialect, dialect)) + known[7:])
    table = columns.to_table(HEAD, 1, 4, b"".join(records))
    assert table["what"].to_pylist() == ["accepted", WHATS[-1], "other", "other"]
    assert table["client_dialect"].to_pylist() == ["mdr", DIALECTS[-1], None, None]
    assert table["worker_dialect"].to_pylist() == ["none", "ebus", None, None]
    assert [row.what for row in read_rows(b"".join(records))] == table["what"].to_pylist()


def test_what_never_happened_to_something_observed_has_no_time() -> None:
    recorder = open_recorder(100)
    recorder.note(Observed(1.0, "late", token=b"t"), 100.0)
    (row,) = read_rows(recorder.take()[1])
    assert (row.at, row.accepted_at, row.dispatched_at) == (101_000_000, 0, 0)


def test_a_recorder_that_gives_nothing_away_is_none() -> None:
    with pytest.raises(NotImplementedError):
        Recorder().take()


def test_texts_that_are_no_text_are_read_as_far_as_they_are() -> None:
    """A detail is cut at a number of bytes, which may be in the middle of a letter."""
    payload = write_row(Row("late", 1, reason="r??", detail="d??", headers="h??")).replace(b"??", b"\xff\xfe")
    (row,) = read_rows(payload)
    assert (row.reason, row.detail, row.headers) == ("r\ufffd\ufffd", "d\ufffd\ufffd", "h\ufffd\ufffd")


@pytest.mark.parametrize(("file", "is_compiled"), [("/a/records.py", False), ("/a/records.cpython.so", True)])
def test_whether_the_records_of_the_core_are_compiled(
    monkeypatch: pytest.MonkeyPatch, file: str, is_compiled: bool
) -> None:
    monkeypatch.setattr(core_records, "__file__", file)
    assert records_are_compiled() == is_compiled


@pytest.mark.parametrize("split", SPLITS)
def test_a_record_that_ends_before_its_end_is_damage(split: Any) -> None:
    record = write_row(Row("late", 1, token=b"t"))
    longer = struct.pack("<I", len(record)) + record[4:] + b"more"
    with pytest.raises(JournalDamaged, match="should end at"):
        list(read_rows(longer))
    with pytest.raises(JournalDamaged, match="should end at"):
        split(longer, 1)
