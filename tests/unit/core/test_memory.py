"""What is kept and for how long: answers, clients, services, topics; and how the bus comes to its end."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core import actions as act
from polybus.core import events, replies, topics
from polybus.core.bus import Bus
from polybus.core.journal import Journal
from polybus.core.lifecycle import BusState
from polybus.core.model import JobOptions, Limits
from polybus.core.replies import KEPT_OVERHEAD_BYTES
from support.invariants import check
from support.stage import LedgerStage, Stage, client


def answered(stage: Stage, *ids: str, who: str = "c", body: bytes = b"") -> None:
    for request_id in ids:
        stage.submit(who, request_id)
        stage.result("w", body=[body])
    stage.nothing()


def kept(stage: Stage) -> list[bytes]:
    return [answer.request_id for _, answer in replies.kept(stage.bus)]


# -- answers ------------------------------------------------------------------------------------------


def test_answers_are_kept_by_count() -> None:
    stage = Stage(Limits(replies_count=2))
    stage.worker("w")
    answered(stage, "1", "2", "3")
    assert kept(stage) == [b"2", b"3"]
    stage.submit("c", "1")
    assert stage.delivered() == [("w", "1")], "forgotten, so it runs again"


def test_answers_are_kept_by_bytes() -> None:
    stage = Stage(Limits(replies_bytes=2 * KEPT_OVERHEAD_BYTES + 150))
    stage.worker("w")
    answered(stage, "1", "2", body=b"x" * 60)
    assert stage.bus.replies_bytes == 2 * KEPT_OVERHEAD_BYTES + 120
    answered(stage, "3", body=b"x" * 60)
    assert kept(stage) == [b"2", b"3"]
    answered(stage, "large", body=b"x" * 1000)
    assert kept(stage) == []
    assert stage.bus.replies_bytes == 0


def test_answers_are_kept_by_age() -> None:
    stage = Stage(Limits(replies_age_s=10.0))
    stage.worker("w")
    answered(stage, "1")
    stage.wait(6.0)
    answered(stage, "2")
    stage.wait(6.0)
    assert kept(stage) == [b"2"]
    stage.wait(6.0)
    assert kept(stage) == []


def test_an_answer_is_kept_for_as_long_as_is_said_and_no_longer() -> None:
    stage = Stage(Limits(replies_age_s=10.0))
    stage.worker("w")
    answered(stage, "1")
    replies.forget_old(stage.bus, stage.now + 10.0)
    assert kept(stage) == [b"1"]
    replies.forget_old(stage.bus, stage.now + 10.001)
    assert kept(stage) == []


def test_answers_may_take_all_the_bytes_that_are_allowed() -> None:
    stage = Stage(Limits(replies_bytes=2 * (KEPT_OVERHEAD_BYTES + 60)))
    stage.worker("w")
    answered(stage, "1", "2", body=b"x" * 60)
    assert kept(stage) == [b"1", b"2"]
    answered(stage, "3", body=b"x" * 60)
    assert kept(stage) == [b"2", b"3"]


def test_an_answer_knows_for_whom_it_is_kept_and_since_when() -> None:
    stage = Stage(Limits(replies_count=1))
    stage.worker("w")
    stage.submit("c", "1")
    stage.result("w")
    answer = stage.one(act.Answer)
    assert (answer.kept_for, answer.kept_at) == (stage.bus.clients[client("c")], stage.now)
    answered(stage, "2")
    assert answer.kept_for is None


def test_what_is_kept_is_listed_with_its_client_be_it_an_answer_or_a_refusal() -> None:
    stage = Stage()
    stage.worker("w")
    answered(stage, "1", who="a")
    stage.submit("b", "2")
    stage.fail("w")
    listed = [(who, type(word), word.request_id) for who, word in replies.kept(stage.bus)]
    clients = stage.bus.clients
    assert listed == [(clients[client("a")], act.Answer, b"1"), (clients[client("b")], act.Refuse, b"2")]


def test_clients_are_let_go_with_their_last_answer() -> None:
    stage = Stage(Limits(replies_age_s=10.0))
    stage.worker("w")
    answered(stage, "1", who="a")
    answered(stage, "1", who="b")
    stage.submit("b", "2")
    stage.wait(12.0)
    assert set(stage.bus.clients) == {client("b")}, "it still waits for one"
    stage.result("w")
    stage.wait(12.0)
    assert not stage.bus.clients


def test_bodies_are_not_held_after_the_end() -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1", body=[b"x" * 100])
    assert stage.bus.held_bytes == 100
    stage.result("w")
    assert stage.bus.held_bytes == 0


# -- services -----------------------------------------------------------------------------------------


def test_idle_services_are_let_go() -> None:
    stage = Stage(Limits(idle_service_s=10.0))
    stage.worker("w", "kept")
    stage.submit("c", "1", "asked", ttl_s=5.0)
    stage.worker("x", "left")
    stage.gone("x")
    stage.wait(9.0)
    assert set(stage.bus.services) == {b"kept", b"asked", b"left"}
    stage.wait(4.0)
    assert set(stage.bus.services) == {b"kept", b"asked"}, "nobody asked for it for so long"
    stage.wait(6.0)
    assert set(stage.bus.services) == {b"kept"}


@pytest.mark.parametrize(("idle_s", "is_known"), [(10.0, True), (10.5, False)])
def test_a_service_may_be_idle_for_exactly_its_time(idle_s: float, is_known: bool) -> None:
    stage = Stage(Limits(idle_service_s=10.0))
    stage.worker("w", "echo")
    stage.do(events.Tick())
    stage.gone("w")
    stage.now += idle_s
    stage.do(events.Tick())
    assert (b"echo" in stage.bus.services) == is_known


def test_a_service_is_known_while_its_work_is_on_its_way_to_the_disk() -> None:
    stage = LedgerStage(Limits(idle_service_s=10.0))
    stage.worker("w", "other")
    stage.submit("c", "0", "other", options=JobOptions(guarantee=True))
    stage.write()
    # The end of a job waits for the disk, too, and its service is offered no more.
    stage.result("w", stage.token("c", "0"))
    stage.gone("w")
    stage.submit("c", "1", options=JobOptions(guarantee=True))
    stage.wait(30.0, step=1.0)
    assert set(stage.bus.services) == {b"echo"}
    stage.write()
    stage.worker("v")
    assert stage.delivered()[-1] == ("v", "1")
    check(stage.bus, stage.now)


# -- how often it is looked for -----------------------------------------------------------------------


def test_what_is_too_old_is_looked_for_once_a_second() -> None:
    """Others go by the time of the last look."""
    bus = Bus(b"n-")
    looks = []
    for now in (0.5, 1.5, 2.0, 2.25, 2.5, 3.0, 3.5, 10.0, 10.75, 11.0):
        bus.handle(events.Tick(), now)
        looks.append(bus.swept_at)
    assert looks == [0.0, 1.5, 1.5, 1.5, 2.5, 2.5, 3.5, 10.0, 10.0, 11.0]


def test_log_records_are_let_go_when_they_are_too_old() -> None:
    stage = Stage()
    stage.bus.logs.age_s = 10.0
    stage.do(events.Publish(b"log/info/n", [b"hello"]))
    stage.wait(9.0, step=1.0)
    assert len(stage.bus.logs) == 1
    stage.wait(3.0, step=1.0)
    assert len(stage.bus.logs) == 0


# -- topics -------------------------------------------------------------------------------------------


def test_publications_are_passed_on_and_counted() -> None:
    stage = Stage(Limits(topics_counted=2))
    for topic in (b"a", b"b", b"c", b"a", b"d"):
        stage.do(events.Publish(topic, [b"1", b"22"]))
    assert next((f.topic, f.body) for f in stage.actions(act.Fanout)) == (b"a", [b"1", b"22"])
    assert stage.bus.topic_counts == {b"a": 2, b"b": 1, topics.OTHER_TOPICS: 2}
    assert stage.bus.counters.published == 5
    record = stage.told("published")[0]
    assert (record.service, record.size) == (b"a", 3)


def test_subscriptions_are_known_per_link_and_end_with_the_last_who_wants_them() -> None:
    stage = Stage()
    for link, prefix, wanted in (
        (5, b"a", True),
        (5, b"a", True),
        (6, b"b", True),
        (6, b"b", False),
        (6, b"never", False),
    ):
        stage.do(events.Subscribe(link, prefix, wanted))
    assert stage.bus.subscriptions == {5: {b"a": 2}, 6: {}}
    assert topics.wanted(stage.bus, b"abc")
    assert not topics.wanted(stage.bus, b"bcd")
    stage.do(events.Subscribe(5, b"a", False))
    assert topics.wanted(stage.bus, b"abc")
    stage.do(events.Subscribe(5, b"a", False))
    assert not topics.wanted(stage.bus, b"abc")
    stage.do(events.Subscribe(6, b"", True))
    assert topics.wanted(stage.bus, b"anything")


def test_nobody_else_publishes_on_topics_of_the_broker() -> None:
    stage = Stage()
    stage.do(events.Publish(b"polybus/monitor/summary", [b"{}"]))
    assert not stage.actions(act.Fanout)
    assert (stage.bus.counters.published, stage.bus.publications_refused) == (0, 1)
    assert stage.told("refused")[0].reason == "own_topic"
    topics.publish(stage.bus, b"polybus/monitor/summary", [b"{}"], stage.now)
    assert stage.bus.last.get(b"polybus/monitor/summary") is not None


# -- the end ------------------------------------------------------------------------------------------


def test_an_empty_bus_is_drained_at_once_and_once() -> None:
    stage = Stage()
    for _ in range(3):
        stage.do(events.Drain())
    assert len(stage.actions(act.Drained)) == 1
    assert stage.bus.state is BusState.DRAINED


def test_drained_when_the_last_request_has_ended() -> None:
    stage = Stage()
    stage.worker("w", credit=2)
    stage.submit("c", "1")
    stage.submit("c", "2")
    stage.submit("c", "3", ttl_s=1.0)
    stage.do(events.Drain())
    stage.do(events.Drain())
    stage.result("w")
    stage.do(events.Cancel(client("c"), b"2"))
    assert stage.actions(act.Drained) == []
    stage.wait(1.1)
    assert len(stage.actions(act.Drained)) == 1
    stage.do(events.Drain())
    stage.gone("w")
    assert stage.actions(act.Drained) == []


def test_lost_work_is_done_again_while_draining() -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1")
    stage.do(events.Drain())
    stage.gone("w")
    assert stage.actions(act.Drained) == []
    stage.worker("next")
    stage.result("next")
    assert stage.one(act.Answer).request_id == b"1"
    assert len(stage.actions(act.Drained)) == 1


def test_invalid_messages_are_counted_and_told() -> None:
    stage = Stage()
    stage.do(events.Invalid(client("c"), "ebus", "length", "too short"))
    assert stage.bus.counters.invalid == 1
    assert stage.told("invalid")[0].detail == "ebus: too short"


# -- observations -------------------------------------------------------------------------------------


def test_every_accepted_request_is_told_from_the_beginning_to_its_one_end() -> None:
    stage = Stage(Limits(attempts=2))
    stage.worker("w", credit=10)
    for request_id in ("reply", "fail", "cancel", "expire"):
        stage.submit("c", request_id, ttl_s=1.0 if request_id == "expire" else None)
    tokens = {name: stage.token("c", name) for name in ("reply", "fail", "cancel", "expire")}
    stage.part("w", tokens["reply"])
    stage.result("w", tokens["reply"])
    stage.fail("w", tokens["fail"])
    stage.do(events.Cancel(client("c"), b"cancel"))
    stage.wait(1.1)
    stage.gone("w")
    stage.submit("c", "lost")
    tokens["lost"] = stage.token("c", "lost")
    for name in ("x", "y"):
        stage.worker(name)
        stage.gone(name)
    lives = {
        name: [record.what for record in stage.observed if record.token == token]
        for name, token in tokens.items()
    }
    assert lives == {
        "reply": ["accepted", "dispatched", "partial", "replied"],
        "fail": ["accepted", "dispatched", "failed"],
        "cancel": ["accepted", "dispatched", "cancelled"],
        "expire": ["accepted", "dispatched", "expired"],
        "lost": ["accepted", "dispatched", "requeued", "dispatched", "failed"],
    }


def test_an_observation_says_who_when_and_why() -> None:
    stage = Stage()
    stage.submit("c", "1", body=[b"question"])
    stage.now += 2.0
    stage.worker("w")
    stage.now += 3.0
    stage.result("w", body=[b"answer"])
    accepted, dispatched, replied = (stage.told(w)[0] for w in ("accepted", "dispatched", "replied"))
    assert accepted.body == [b"question"]
    assert accepted.worker is None
    assert (dispatched.worker, dispatched.worker_voice, dispatched.attempt) == ((2, b"w"), "w", 1)
    assert (replied.client, replied.client_voice, replied.service) == (client("c"), "c", b"echo")
    assert (replied.size, replied.body, replied.reason) == (8, [b"answer"], "")
    assert (replied.accepted_at, replied.dispatched_at, replied.at) == (1000.0, 1002.0, 1005.0)


def test_nothing_is_observed_when_nobody_listens() -> None:
    stage = Stage(watched=False)
    stage.worker("w")
    stage.submit("c", "1")
    stage.part("w")
    stage.result("w")
    stage.gone("w")
    assert stage.observed == []


class Notes(Journal):
    """A journal that only keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note_request(self, what: str, *_: Any) -> None:
        self.told.append(what)

    def note(self, observed: act.Observed, offset: float) -> None:
        self.told.append(observed.what)


def test_what_is_for_the_journal_alone_is_told_to_nobody_else() -> None:
    stage = Stage(watched=False)
    notes = Notes()
    stage.bus.listen(False, notes)
    stage.worker("w")
    stage.submit("c", "1")
    stage.result("w")
    stage.gone("w")
    assert notes.told == ["worker_up", "accepted", "dispatched", "replied", "worker_down"]
    assert stage.observed == []
