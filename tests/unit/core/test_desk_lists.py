"""Many jobs in one submission: each is taken or refused on its own, and told when all are on disk."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.core import actions as act
from polybus.core import events
from polybus.core.envelope import Listed
from polybus.core.ledger import Accepted, Line
from polybus.core.model import Limits, Reason
from support.stage import LedgerStage, client


@pytest.fixture
def stage() -> LedgerStage:
    stage = LedgerStage()
    stage.worker("w", credit=10)
    return stage


def message(*jobs: dict[str, Any], bodies: bytes | None = None) -> bytes:
    """A submission of these jobs; a job's `body` is its body."""
    heads, parts = [], []
    for job in jobs:
        body = job.pop("body", b"work")
        parts.append(body)
        heads.append({"service": "echo", "size": len(body), **job})
    return json.dumps(heads).encode() + b"\n" + (b"".join(parts) if bodies is None else bodies)


def submit(stage: LedgerStage, data: bytes, by: str = "c", number: str = "1", receipt: bool = False) -> None:
    stage.call(by, number, "submit", data, receipt=receipt)


def answer(stage: LedgerStage) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bytes(stage.one(act.Answer).body[0]))
    return found


def test_all_are_accepted_and_told_in_one_word_when_they_are_on_disk(stage: LedgerStage) -> None:
    submit(stage, message({"id": "a", "body": b"first"}, {"id": "b", "body": b""}, {"id": "c", "body": b"3"}))
    assert stage.nothing()
    stage.write()
    assert answer(stage) == {"jobs": 3, "refused": {}}
    assert [request.body for request in map(stage.job_request, "abc")] == [[b"first"], [b""], [b"3"]]
    assert len(stage.delivered()) == 3
    assert {job.request_id for job in stage.contents().jobs} == {b"a", b"b", b"c"}


def test_an_eMQP_client_gets_its_receipt_at_that_moment_too(stage: LedgerStage) -> None:
    submit(stage, message({"id": "a"}), receipt=True)
    assert stage.nothing()
    stage.write()
    assert stage.one(act.Accept).request_id == b"1"
    assert answer(stage)["jobs"] == 1


def test_one_that_is_refused_does_not_hinder_the_others(stage: LedgerStage) -> None:
    jobs: list[dict[str, Any]] = [
        {"id": "a"},
        {"id": "b", "service": "polybus.submit"},
        {},
        {"id": "d", "reply": "result"},
        {"id": "e", "then": [{"service": "polybus.job"}]},
        {"id": "f", "group": [{"service": "echo"}]},
        {"id": "g"},
    ]
    submit(stage, message(*jobs))
    stage.write()
    found = answer(stage)
    assert found["jobs"] == 2
    assert list(found["refused"]) == ["1", "2", "3", "4", "5"]
    assert {why["error"] for why in found["refused"].values()} == {str(Reason.BAD_JOB)}
    assert all(why["detail"] for why in found["refused"].values())
    assert stage.bus.counters.rejected == 5
    assert {job.request_id for job in stage.contents().jobs} == {b"a", b"g"}


def test_the_limits_hold_for_each_of_them() -> None:
    stage = LedgerStage(Limits(queue_length=2, body_bytes=1000))
    submit(stage, message({"id": "large", "body": bytes(1001)}, *({"id": f"j{n}"} for n in range(2))))
    stage.write()
    submit(stage, message({"id": "j3"}), number="2")
    stage.write()
    first, second = (json.loads(bytes(word.body[0])) for word in stage.actions(act.Answer))
    assert first["refused"]["0"]["error"] == str(Reason.TOO_LARGE)
    assert second["refused"]["0"]["error"] == str(Reason.QUEUE_FULL)


def test_the_same_list_again_is_the_same_jobs(stage: LedgerStage) -> None:
    data = message({"id": "a"}, {"id": "b"})
    submit(stage, data)
    submit(stage, data, number="2")
    # Nothing is certain yet, so nothing is said.
    assert stage.nothing()
    stage.write()
    assert [json.loads(bytes(word.body[0]))["jobs"] for word in stage.actions(act.Answer)] == [2, 2]
    submit(stage, data, number="3")
    assert answer(stage) == {"jobs": 2, "refused": {}}
    assert stage.bus.counters.duplicates == 4
    assert len(stage.delivered()) == 2
    stage.result("w", stage.job_request("a").token)
    stage.write()
    stage.taken.clear()
    submit(stage, data, number="4")
    assert answer(stage) == {"jobs": 2, "refused": {}}


def test_a_draining_broker_refuses_a_list_as_a_whole(stage: LedgerStage) -> None:
    """Unless all of its jobs are known: those it has."""
    submit(stage, message({"id": "a"}))
    stage.write()
    stage.taken.clear()
    stage.do(events.Drain())
    submit(stage, message({"id": "a"}, {"id": "b"}), number="2")
    assert stage.one(act.Refuse).reason is Reason.DRAINING
    assert not stage.actions(act.Answer)
    stage.taken.clear()
    submit(stage, message({"id": "a"}), number="3")
    assert answer(stage) == {"jobs": 1, "refused": {}}


def test_chains_and_groups_may_be_in_it(stage: LedgerStage) -> None:
    group = {"id": "g", "service": None, "group": [{"service": "echo", "body": "x"}] * 2, "body": b""}
    submit(stage, message({"id": "c", "then": [{"service": "echo"}]}, group))
    assert stage.nothing()
    stage.write()
    assert answer(stage)["jobs"] == 2
    assert len(stage.delivered()) == 3


def test_if_they_cannot_be_written_all_are_refused_and_may_be_sent_again(stage: LedgerStage) -> None:
    data = message({"id": "a"}, {"id": "b"})
    submit(stage, data)
    first = stage.job_request("a").token
    stage.refuse_writes()
    refusal = stage.one(act.Refuse)
    assert (refusal.reason, refusal.token) == (Reason.STORE_UNAVAILABLE, first)
    assert not stage.bus.desk.known
    stage.recover()
    submit(stage, data, number="2")
    stage.write()
    assert answer(stage) == {"jobs": 2, "refused": {}}
    assert len(stage.delivered()) == 2


@pytest.mark.parametrize("first_is_stored", [False, True])
@pytest.mark.parametrize("second_is_stored", [False, True])
@pytest.mark.parametrize("group", [False, True])
def test_a_list_with_jobs_that_were_sent_before_is_only_certain_if_all_are_on_disk(
    first_is_stored: bool, second_is_stored: bool, group: bool
) -> None:
    """The lines of one list may be of two transactions then, and the disk may refuse either."""
    stage = LedgerStage()

    def data(*names: str) -> bytes:
        facts = {"service": None, "group": [{"service": "echo"}], "body": b""} if group else {}
        return message(*({"id": name, **facts} for name in names))

    def settle(number: int, lines: list[Line], is_stored: bool) -> None:
        tokens = tuple(line.token for line in lines if isinstance(line, Accepted))
        if is_stored:
            stage.store.write(lines)
        else:
            stage.do(events.Unwritten(tokens, "the disk is full"))
        stage.do(events.Written(number))

    submit(stage, data("a"))
    first = stage.bus.take_lines()
    submit(stage, data("a", "b"), number="2", receipt=True)
    second = stage.bus.take_lines()
    assert stage.nothing()
    settle(*first, first_is_stored)
    settle(*second, second_is_stored)
    words = [word for word in stage.taken if getattr(word, "request_id", b"") == b"2"]
    if first_is_stored and second_is_stored:
        assert [type(word) for word in words] == [act.Accept, act.Answer]
    else:
        assert [getattr(word, "reason", word) for word in words] == [Reason.STORE_UNAVAILABLE]
    assert stage.bus.shared_words == {}
    # Whatever happened, it may be sent again.
    stage.taken.clear()
    submit(stage, data("a", "b"), number="3")
    stage.write()
    assert answer(stage) == {"jobs": 2, "refused": {}}
    assert len(stage.contents().jobs) == 2


def settle(stage: LedgerStage, batch: tuple[int, list[Line]], is_stored: bool) -> None:
    number, lines = batch
    if is_stored:
        stage.store.write(lines)
    else:
        tokens = tuple(line.token for line in lines if isinstance(line, Accepted))
        stage.do(events.Unwritten(tokens, "the disk is full"))
    stage.do(events.Written(number))


@pytest.mark.parametrize("again", [[], ["b"]])
def test_a_list_does_not_depend_on_a_job_that_it_was_refused(stage: LedgerStage, again: list[str]) -> None:
    """A job of the same id that was sent before cannot be written down; those of the list can."""
    submit(stage, message({"id": "a"}))
    first = stage.bus.take_lines()
    for name in again:
        submit(stage, message({"id": name}), number="2")
    refused = {"id": "a", "reply": "result"}
    submit(stage, message(refused, {"id": "c"}, *({"id": name} for name in again)), number="3")
    second = stage.bus.take_lines()
    stage.taken.clear()
    settle(stage, first, False)
    settle(stage, second, True)
    (word,) = (word for word in stage.taken if getattr(word, "request_id", b"") == b"3")
    assert isinstance(word, act.Answer)
    told = json.loads(bytes(word.body[0]))
    assert (told["jobs"], list(told["refused"])) == (1 + len(again), ["0"])


def test_a_list_of_jobs_that_are_new_on_disk_and_done(stage: LedgerStage) -> None:
    submit(stage, message({"id": "running"}, {"id": "done"}))
    stage.write()
    stage.result("w", stage.job_request("done").token)
    stage.write()
    stage.taken.clear()
    jobs = [{"id": "new"}, {"id": "running"}, {"id": "done"}, {"id": "other", "reply": "result"}]
    submit(stage, message(*jobs), number="2")
    assert stage.nothing(), "the new one is not on disk yet"
    assert list(stage.bus.shared_words) == [stage.job_request("new").token]
    stage.write()
    told = answer(stage)
    assert (told["jobs"], list(told["refused"])) == (3, ["3"])
    assert stage.bus.shared_words == {}
    submit(stage, message({"id": "x"}, {"id": "y"}), number="3")
    assert stage.bus.shared_words == {}, "those of one list are written together"


def test_what_is_not_guaranteed_is_told_at_once(stage: LedgerStage) -> None:
    submit(stage, message({"id": "a", "guarantee": False}))
    assert answer(stage)["jobs"] == 1


def test_what_needs_no_disk_is_told_at_once_whatever_waits_for_the_disk(stage: LedgerStage) -> None:
    """Jobs without a guarantee, jobs that are on disk, and jobs that have ended."""
    fleeting = message({"id": "fleeting", "guarantee": False})
    running, ended = message({"id": "running"}), message({"id": "ended"})
    submit(stage, running)
    submit(stage, ended, number="2")
    stage.write()
    stage.result("w", stage.job_request("ended").token)
    stage.write()
    stage.job("other")
    stage.taken.clear()
    for number, data in enumerate((fleeting, running, ended)):
        submit(stage, data, number=str(number))
        assert stage.one(act.Answer).body == [b'{"jobs":1,"refused":{}}']
        assert not stage.actions(act.Accept), "nobody asked for a receipt"


def test_a_group_in_it_is_told_when_it_is_on_disk(stage: LedgerStage) -> None:
    def group(guarantee: bool) -> bytes:
        members = [{"service": "echo", "body": "x", "guarantee": guarantee}]
        return message({"id": f"g{guarantee}", "service": None, "group": members, "body": b""})

    submit(stage, group(True))
    assert stage.nothing()
    stage.write()
    assert answer(stage) == {"jobs": 1, "refused": {}}
    submit(stage, group(False), number="2")
    assert answer(stage) == {"jobs": 1, "refused": {}}
    submit(stage, message({"id": "other"}), number="3")
    stage.nothing()
    submit(stage, group(True), number="4")
    assert answer(stage) == {"jobs": 1, "refused": {}}, "it has been on disk for a while"


def test_whoever_listens_hears_what_was_refused(stage: LedgerStage) -> None:
    nameless: dict[str, Any] = {"service": None, "group": [], "body": b""}
    submit(stage, message({"id": "a", "service": "polybus.job"}, {"body": b""}, nameless))
    records = stage.told("rejected")
    assert [(one.request_id, one.service, one.reason, one.client) for one in records] == [
        (b"a", b"polybus.job", "bad_job", client("c")),
        (b"", b"echo", "bad_job", client("c")),
        (b"", b"", "bad_job", client("c")),
    ]
    assert stage.bus.refusals == {"bad_job": 3}


@pytest.mark.parametrize(
    "body",
    [
        b"[",
        b"[]",
        b"[1]\n",
        b'[{"service": "echo", "id": "a", "size": -1}]\n',
        b'[{"service": "echo", "id": "a", "size": 5}]\nfour',
        b'[{"service": "echo", "id": "a", "size": 3}]\nfour',
        b'[{"service": "echo", "id": "a"}]\nbody',
        b'[{"service": "echo", "id": "a", "size": 9223372036854775807}]\n',
        b'[{"service": "echo", "id": "a", "size": 99999999999999999999}]\n',
        b'[{"service": "echo", "id": "a", "retires": 1}]\n',
        b'[[{"service": "echo", "id": "a"}]]\n',
    ],
)
def test_a_message_that_cannot_be_read_is_refused_whole(stage: LedgerStage, body: bytes) -> None:
    submit(stage, body)
    assert stage.one(act.Refuse).reason is Reason.BAD_JOB
    assert not stage.bus.desk.known
    assert not stage.bus.lines


values = st.none() | st.booleans() | st.integers(-5, 50) | st.text(max_size=5) | st.just("echo")
heads = st.lists(
    st.dictionaries(st.sampled_from([*Listed.__struct_fields__, "other"]), values, max_size=6), max_size=4
)


@given(heads=heads, bodies=st.binary(max_size=20))
@settings(max_examples=300, deadline=None)
def test_any_list_is_answered_once_and_never_raises(heads: list[dict[str, Any]], bodies: bytes) -> None:
    stage = LedgerStage()
    stage.worker("w", credit=10)
    submit(stage, json.dumps(heads).encode() + b"\n" + bodies)
    stage.write()
    assert len([*stage.actions(act.Answer), *stage.actions(act.Refuse)]) == 1
