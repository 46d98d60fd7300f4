"""eMQP clients and workers, frame by frame, on a clock of our own."""

from __future__ import annotations

import pytest

from polybus.client.sessions.emqp import EmqpClient, EmqpWorker
from polybus.client.sessions.port import Accepted, Cancelled, Done, Failed, Leave, Options, Restart, Work

TAG = b"eMQP/1.0"
Frames = list[bytes]


def emqp(*frames: bytes) -> Frames:
    return [b"", TAG, *frames]


def worker(credit: int = 2) -> EmqpWorker:
    session = EmqpWorker([(10, b"default"), (40, b"email")], credit, b"w", lambda: 1234.5)
    session.hello(0.0)
    return session


def ready(credit: int = 2) -> EmqpWorker:
    session = worker(credit)
    session.receive(emqp(b"ACK", b"b1", b"w-1"), 0.0)
    session.pending()
    return session


def is_text(frames: Frames) -> bool:
    """Public peers decode everything as UTF-8."""
    return all(frame.decode().isprintable() or not frame for frame in frames)


# -- clients ----------------------------------------------------------------------------------


@pytest.mark.conforms("EMQP-10", "EMQP-26", "EMQP-27", "EMQP-28")
def test_request() -> None:
    session = EmqpClient()
    (call,) = session.request(b"r1", b"email", [b"hi"])
    assert call == emqp(b"REQUEST", b"r1", b"email", b"reply-requested", b"hi")
    (job,) = session.request(b"r2", b"email", [b"hi"], wants_reply=False)
    # What ends with its receipt asks for it: a strict broker sends none to others.
    assert job == emqp(b"REQUEST", b"r2", b"email", b"receipt-requested", b"hi")


@pytest.mark.conforms("EMQP-26", "EMQP-29", "EMQP-30", "EMQP-31")
def test_options_are_headers() -> None:
    options = Options(guarantee=True, retries=3, time_limit_s=60)
    (job,) = EmqpClient().request(b"r1", b"email", [b"hi"], options=options, wants_reply=False)
    listed = {b"guarantee", b"retry-count:3", b"timeout:60", b"receipt-requested"}
    assert set(job[5].split(b",")) == listed  # type: ignore[attr-defined]


@pytest.mark.conforms("EMQP-6", "EMQP-28")
def test_receipt_then_result() -> None:
    session = EmqpClient()
    session.request(b"r1", b"email", [b"hi"])
    assert session.receive(emqp(b"REPLY", b"b1", b"r1")) == [Accepted(b"r1")]
    assert session.receive(emqp(b"REPLY", b"b2", b"r1")) == []
    assert len(session.resend()) == 1
    assert session.receive(emqp(b"REPLY", b"b3", b"result", b"r1")) == [Done(b"r1", [b"result"])]
    assert session.resend() == []


def test_a_job_without_a_result_is_done_with_its_receipt() -> None:
    session = EmqpClient()
    session.request(b"r1", b"email", [b"hi"], wants_reply=False)
    assert session.receive(emqp(b"REPLY", b"b1", b"r1")) == [Accepted(b"r1"), Done(b"r1", [])]
    assert session.resend() == []


@pytest.mark.conforms("EMQP-5", "EMQP-6", "EMQP-43")
def test_the_documents_forms_of_a_strict_broker() -> None:
    session = EmqpClient()
    session.request(b"r1", b"email", [b"hi"], wants_reply=False)
    assert session.receive(emqp(b"ACK", b"b1", b"r1")) == [Accepted(b"r1"), Done(b"r1", [])]
    session.request(b"r2", b"email", [b"hi"])
    session.request(b"r3", b"email", [b"hi"])
    # The body of the reply looks like the receipt of another request.
    assert session.receive(emqp(b"REPLY", b"r2", b"r3")) == [Done(b"r2", [b"r3"])]
    failed = session.receive(emqp(b"REPLY", b"r3", b'{"error": "draining"}'))
    assert [type(event) for event in failed] == [Failed]
    assert session.resend() == []


def test_an_error_object_is_a_failure() -> None:
    session = EmqpClient()
    session.request(b"r1", b"email", [b"hi"])
    (event,) = session.receive(emqp(b"REPLY", b"b1", b'{"error":"queue_full","detail":"no"}', b"r1"))
    assert isinstance(event, Failed)
    assert (event.code, event.detail) == ("queue_full", "no")


def test_a_client_drops_and_counts_what_is_not_for_it() -> None:
    session = EmqpClient()
    session.request(b"r1", b"email", [b"hi"])
    for frames in (
        emqp(b"REPLY", b"b1", b"r9"),
        emqp(b"REPLY", b"b1", b"x", b"r9"),
        emqp(b"NONSENSE", b"b1"),
        [b"other"],
        [],
    ):
        assert session.receive(frames) == []
    assert session.invalid == 5
    assert session.receive(emqp(b"HEARTBEAT", b"b1", b"1.0")) == []
    assert session.invalid == 5
    session.cancel(b"r1")
    assert session.resend() == []


def test_nothing_is_repeated_by_the_clock() -> None:
    # EventMQ's own router does not know an id again: only a lost connection is a reason to repeat a job.
    assert not EmqpClient.resends_by_time


# -- workers ------------------------------------------------------------------------------------


@pytest.mark.conforms("EMQP-2", "EMQP-16")
def test_inform_lists_the_queues_with_their_weights() -> None:
    session = EmqpWorker([(10, b"default"), (40, b"email")], 2, b"w")
    assert session.hello(0.0) == [emqp(b"INFORM", b"w-1", b'[[10,"default"],[40,"email"]]', b"worker")]


@pytest.mark.conforms("EMQP-5", "EMQP-17")
def test_one_ready_for_every_slot_but_not_before_the_ack() -> None:
    session = worker(3)
    assert session.pending() == []
    assert session.receive(emqp(b"ACK", b"b1", b"other"), 0.0) == []
    assert session.pending() == []
    session.receive(emqp(b"ACK", b"b2", b"w-1"), 0.0)
    slots = session.pending()
    assert [frames[:3] for frames in slots] == [emqp(b"READY")] * 3
    assert len({bytes(frames[3]) for frames in slots}) == 3
    session.receive(emqp(b"ACK", b"b3", b"w-1"), 0.0)
    assert session.pending() == []


@pytest.mark.conforms("EMQP-6", "EMQP-10", "EMQP-17", "EMQP-38")
def test_reply_names_the_original_and_is_followed_by_a_ready() -> None:
    session = ready()
    (work,) = session.receive(emqp(b"REQUEST", b"r1", b"email", b"reply-requested", b"in"), 0.0)
    assert work == Work(b"r1", b"email", b"r1", [b"in"])
    reply, slot = session.reply(b"r1", [b"out"])
    assert reply[:3] + reply[4:] == [*emqp(b"REPLY"), b"out", b"r1"]
    assert slot[:3] == emqp(b"READY")
    assert session.reply(b"r1", [b"again"]) == []


def test_a_failure_is_an_error_object_and_frees_the_slot() -> None:
    session = ready()
    session.receive(emqp(b"REQUEST", b"r1", b"email", b"", b"in"), 0.0)
    reply, slot = session.fail(b"r1", "boom")
    assert reply[4] == b'{"error":"failed","detail":"boom"}'
    assert slot[2] == b"READY"


def test_all_that_we_make_up_is_text() -> None:
    session = worker()
    session.receive(emqp(b"ACK", b"b1", b"w-1"), 0.0)
    session.receive(emqp(b"REQUEST", b"r1", b"email", b"", b"in"), 0.0)
    said = [*session.hello(0.0), *session.pending(), *session.tick(3.0), *session.goodbye()]
    assert said
    assert all(is_text([bytes(frame) for frame in frames]) for frames in said)


@pytest.mark.conforms("EMQP-7", "EMQP-18", "EMQP-21")
def test_a_heartbeat_every_three_seconds() -> None:
    session = ready()
    assert session.tick(2.9) == []
    (beat,) = session.tick(3.0)
    assert beat[:3] + beat[4:] == [*emqp(b"HEARTBEAT"), b"1234.5"]
    assert session.tick(3.0) == []
    assert session.tick(5.9) == []
    assert len(session.tick(6.0)) == 1


@pytest.mark.conforms("EMQP-20")
def test_no_heartbeat_while_we_say_other_things() -> None:
    session = ready()
    for i in range(1, 30):
        session.receive(emqp(b"REQUEST", b"r%d" % i, b"email", b"", b"in"), i * 1.0)
        session.reply(b"r%d" % i, [b"out"])
        assert session.tick(i * 1.0) == []


@pytest.mark.conforms("EMQP-21")
def test_the_pause_after_an_answer_is_no_longer_than_others() -> None:
    """Whoever drives the session sleeps until the deadline, which was set before the answer."""
    session = ready()
    session.receive(emqp(b"REQUEST", b"r1", b"email", b"", b"in"), 1.0)
    assert session.tick(1.0) == []
    session.reply(b"r1", [b"out"])
    assert session.deadline == 3.0
    assert session.tick(3.0) == []
    assert session.deadline == 4.0
    assert [beat[2] for beat in session.tick(4.0)] == [b"HEARTBEAT"]


@pytest.mark.conforms("EMQP-19", "EMQP-23")
def test_a_silent_broker_is_lost_after_three_times_five_seconds() -> None:
    session = ready()
    session.receive(emqp(b"HEARTBEAT", b"b5", b"1.0"), 10.0)
    assert not session.is_lost(24.9)
    assert session.is_lost(25.0)
    assert session.hello(25.0)[0][2] == b"INFORM"
    assert session.pending() == []
    assert not session.is_lost(25.0)


@pytest.mark.conforms("EMQP-23", "EMQP-36")
@pytest.mark.parametrize("word", [b"KBYE", b"KBAI"])
def test_a_broker_that_leaves_is_looked_for_again(word: bytes) -> None:
    (event,) = ready().receive(emqp(word, b"b1"), 1.0)
    assert isinstance(event, Restart)


@pytest.mark.conforms("EMQP-8", "EMQP-9", "EMQP-33", "EMQP-34", "EMQP-35")
def test_disconnect_lets_what_is_pending_complete_and_takes_no_more() -> None:
    session = ready()
    session.receive(emqp(b"REQUEST", b"r1", b"email", b"", b"in"), 0.0)
    assert session.receive(emqp(b"DISCONNECT", b"b1"), 1.0) == [Leave()]
    (reply,) = session.reply(b"r1", [b"out"])
    assert reply[2] == b"REPLY"
    ((*head, _),) = session.goodbye()
    assert head == emqp(b"KBYE")


def test_a_worker_drops_and_counts_what_it_cannot_read() -> None:
    session = ready()
    for frames in ([], [b""], [b"x"], emqp(b"REQUEST", b"r1"), emqp(b"HEARTBEAT", b"b1", b"soon")):
        assert session.receive(frames, 5.0) == []
    assert session.invalid == 5
    assert session.heard_at == 0.0


# -- workers whose work outlives the conversation -----------------------------------------------

EXTENDED_ACK = emqp(b"ACK", b"b1", b"w-1", b'{"polybus":1}')


def keeper(holding: list[bytes] | None = None, ack: list[bytes] | None = None) -> EmqpWorker:
    """A worker that keeps its work, after the ACK."""
    held = holding or []
    session = EmqpWorker([(10, b"email")], 1, b"w", lambda: 1234.5, lambda: held)
    session.hello(0.0)
    session.receive(EXTENDED_ACK if ack is None else ack, 0.0)
    return session


def test_inform_names_what_is_still_run() -> None:
    session = EmqpWorker([(10, b"email")], 1, b"w", holding=lambda: [b"t1", b"t2"])
    ((*_, extension),) = session.hello(0.0)
    assert extension == b'{"polybus":2,"holding":["t1","t2"]}'
    assert EmqpWorker([(10, b"email")]).hello(0.0)[0][-1] == b"worker"


def test_whoever_keeps_the_work_grants_the_slots() -> None:
    session = keeper()
    assert session.pending() == []
    assert [frames[:3] for frames in session.grant(2)] == [emqp(b"READY")] * 2
    assert session.granted == 2
    session.receive(emqp(b"REQUEST", b"r1", b"email", b"", b"in"), 0.0)
    assert session.granted == 1
    (reply,) = session.reply(b"r1", [b"out"])
    assert reply[2] == b"REPLY"


def test_work_says_which_attempt_it_is_and_how_long_it_may_take() -> None:
    session = keeper()
    (work,) = session.receive(
        emqp(b"REQUEST", b"r1", b"email", b"reply-requested,timeout:5,attempt:2", b"in"), 0.0
    )
    assert work == Work(b"r1", b"email", b"r1", [b"in"], attempt=2, timeout_s=5)


def test_what_was_held_before_is_answered_in_the_new_conversation() -> None:
    session = keeper([b"old"])
    (reply,) = session.reply(b"old", [b"out"])
    assert reply[4:] == [b"out", b"old"]
    assert session.reply(b"old", [b"again"]) == []


def test_a_request_of_an_earlier_conversation_is_not_taken() -> None:
    session = EmqpWorker([(10, b"email")], 1, b"w", holding=list)
    session.hello(0.0)
    assert session.receive(emqp(b"REQUEST", b"r1", b"email", b"", b"in"), 0.0) == []
    assert session.granted == 0


def test_cancel_is_for_what_is_held() -> None:
    session = keeper([b"old"])
    assert session.receive(emqp(b"CANCEL", b"b2", b"old"), 1.0) == [Cancelled(b"old")]
    assert session.receive(emqp(b"CANCEL", b"b3", b"gone"), 1.0) == []
    assert session.invalid == 0
    # It is answered all the same.
    assert session.fail(b"old", "stopped")[0][2] == b"REPLY"


def test_progress_leave_and_return_are_said_to_polybus_brokers() -> None:
    session = keeper([b"a", b"b"])
    (progress,) = session.part(b"a", [b"50"])
    assert [progress[2], *progress[4:]] == [b"PROGRESS", b"a", b"50"]
    ((*leave, _),) = session.leave()
    assert leave == emqp(b"LEAVE")
    (back,) = session.give_back(b"b")
    assert [back[2], *back[4:]] == [b"RETURN", b"b"]
    assert session.give_back(b"b") == session.part(b"b", [b"1"]) == []


def test_and_to_nobody_else() -> None:
    session = keeper([b"a"], emqp(b"ACK", b"b1", b"w-1"))
    assert session.ready
    assert session.part(b"a", [b"50"]) == session.leave() == session.give_back(b"a") == []
    assert len(session.reply(b"a", [b"out"])) == 1


# -- version 2 ----------------------------------------------------------------------------------

JOINING_ACK = emqp(b"ACK", b"b1", b"w-1", b'{"polybus":2}')


def test_many_requests_come_in_one_message() -> None:
    session = keeper([], JOINING_ACK)
    (slots,) = session.grant(500)
    assert [slots[2], *slots[4:]] == [b"SLOTS", b"500"]
    order = (b"email", b"reply-requested,timeout:5,attempt:2")
    events = session.receive(emqp(b"ORDERS", b"b2", b"a", *order, b"one", b"b", *order, b"two"), 0.0)
    assert events == [
        Work(b"a", b"email", b"a", [b"one"], None, 2, 5),
        Work(b"b", b"email", b"b", [b"two"], None, 2, 5),
    ]
    assert session.granted == 498


def test_no_more_slots_than_a_message_takes() -> None:
    session = keeper([], JOINING_ACK)
    assert [frames[4] for frames in session.grant(250_000)] == [b"100000", b"100000", b"50000"]
    assert session.grant(0) == []
    assert session.granted == 250_000


def test_orders_of_an_earlier_conversation_are_not_taken() -> None:
    session = EmqpWorker([(10, b"email")], prefix=b"w", holding=list)
    session.hello(0.0)
    assert session.receive(emqp(b"ORDERS", b"b2", b"a", b"email", b"", b"one"), 0.0) == []


def test_many_answers_go_in_one_message_and_give_their_slots_back() -> None:
    session = keeper([b"a", b"b", b"c"], JOINING_ACK)
    (done,) = session.done([(b"a", [b"one"]), (b"unknown", [b"x"]), (b"b", [])])
    assert [done[2], *done[4:]] == [b"DONE", b"a", b"one", b"b", b"true"]
    assert session.granted == 2
    assert session.done([(b"a", [b"again"])]) == []
    assert session.granted == 2


def test_no_more_than_a_message_takes() -> None:
    tokens = [b"%d" % n for n in range(130)]
    session = keeper(tokens, JOINING_ACK)
    messages = session.done([(token, [b"x"]) for token in tokens])
    assert [(len(frames) - 4) // 2 for frames in messages] == [64, 64, 2]
    assert [token for frames in messages for token in frames[4::2]] == tokens
    assert session.granted == 130


def test_large_answers_go_alone() -> None:
    session = keeper([b"a", b"b", b"c"], JOINING_ACK)
    large = b"x" * 5000
    reply, done, slots = session.done([(b"a", [b"one"]), (b"b", [large]), (b"c", [b"three"])])
    assert [reply[2], *reply[4:]] == [b"REPLY", large, b"b"]
    assert [done[2], *done[4:]] == [b"DONE", b"a", b"one", b"c", b"three"]
    assert [slots[2], *slots[4:]] == [b"SLOTS", b"1"]
    assert session.granted == 3


def test_brokers_of_the_first_version_get_none_of_it() -> None:
    session = keeper([], EXTENDED_ACK)
    assert not session.joins
    assert [frames[2] for frames in session.grant(3)] == [b"READY"] * 3


def test_one_that_leaves_gives_no_slots_back() -> None:
    session = keeper([b"a"], JOINING_ACK)
    assert session.joins
    session.leave()
    assert not session.joins
