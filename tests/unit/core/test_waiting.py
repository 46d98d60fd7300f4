"""Who waits for the outcome of which job."""

from __future__ import annotations

from polybus.core.waiting import Waiter, Waiters

ADA, BOB = (1, b"ada"), (1, b"bob")


def waiter(client: tuple[int, bytes], request_id: bytes = b"", voice: str = "v") -> Waiter:
    return Waiter(client, voice, b"polybus.result", request_id)


def test_all_who_wait_for_a_job_are_taken_in_their_order_and_once() -> None:
    waiters = Waiters()
    waiters.add(b"j", waiter(BOB, b"1"))
    waiters.add(b"j", waiter(ADA, b"1"))
    waiters.add(b"k", waiter(ADA, b"2"))
    assert waiters.of(b"j") == [waiter(BOB, b"1"), waiter(ADA, b"1")]
    assert (len(waiters), waiters.count_of(ADA), waiters.count_of(BOB)) == (3, 2, 1)
    assert waiters.take(b"j") == [waiter(BOB, b"1"), waiter(ADA, b"1")]
    assert waiters.take(b"j") == waiters.of(b"j") == waiters.take(b"nothing") == []
    assert (len(waiters), waiters.count_of(ADA), waiters.count_of(BOB)) == (1, 1, 0)
    assert list(waiters.by_job) == [b"k"]


def test_the_same_question_again_is_the_same_waiter() -> None:
    waiters = Waiters()
    waiters.add(b"j", waiter(ADA, b"1", "old"))
    waiters.add(b"j", waiter(ADA, b"1", "new"))
    assert (len(waiters), waiters.count_of(ADA)) == (1, 1)
    assert waiters.take(b"j") == [waiter(ADA, b"1", "new")]
    # Those without ids cannot be told apart, so each is one.
    waiters.add(b"j", waiter(ADA))
    waiters.add(b"j", waiter(ADA))
    assert (len(waiters), waiters.count_of(ADA)) == (2, 2)


def test_who_has_waited_longest_gives_way() -> None:
    waiters = Waiters()
    waiters.add(b"j", waiter(ADA, b"1"))
    waiters.add(b"k", waiter(BOB, b"1"))
    waiters.add(b"j", waiter(ADA, b"1"))
    assert waiters.take_oldest() == waiter(ADA, b"1")
    assert waiters.take_oldest() == waiter(BOB, b"1")
    assert (len(waiters), waiters.by_job) == (0, {})


def test_who_leaves_or_withdraws_its_question_is_forgotten() -> None:
    waiters = Waiters()
    for job in (b"j", b"k"):
        waiters.add(job, waiter(ADA, b"1"))
        waiters.add(job, waiter(ADA, b"2"))
        waiters.add(job, waiter(ADA))
        waiters.add(job, waiter(BOB, b"1"))
    waiters.forget(ADA, b"1")
    waiters.forget(ADA, b"unknown")
    waiters.forget((9, b"nobody"), b"1")
    assert waiters.of(b"j") == [waiter(ADA, b"2"), waiter(ADA), waiter(BOB, b"1")]
    assert waiters.count_of(ADA) == 4
    waiters.forget_all(ADA)
    waiters.forget_all(ADA)
    assert waiters.of(b"j") == waiters.of(b"k") == [waiter(BOB, b"1")]
    assert (len(waiters), waiters.count_of(ADA), waiters.count_of(BOB)) == (2, 0, 2)


def test_who_was_told_and_says_goodbye_afterwards_still_waits_for_other_jobs() -> None:
    waiters = Waiters()
    waiters.add(b"j", waiter(ADA, b"1"))
    waiters.add(b"k", waiter(ADA, b"1"))
    waiters.add(b"k", waiter(ADA, b"2"))
    assert waiters.take(b"j") == [waiter(ADA, b"1")]
    waiters.forget(ADA, b"1")
    assert waiters.of(b"k") == [waiter(ADA, b"2")]
    assert waiters.take_oldest() == waiter(ADA, b"2")
    waiters.forget_all(ADA)
    assert (len(waiters), waiters.count_of(ADA), waiters.by_job) == (0, 0, {})


def test_questions_without_ids_are_different_waiters_for_each_client_and_job() -> None:
    waiters = Waiters()
    for client in (ADA, BOB, ADA):
        waiters.add(b"j", waiter(client))
    waiters.add(b"j", waiter(ADA, b"1"))
    waiters.add(b"j", waiter(ADA))
    assert waiters.of(b"j") == [waiter(ADA), waiter(BOB), waiter(ADA), waiter(ADA, b"1"), waiter(ADA)]
    waiters.forget(ADA, b"")
    assert waiters.of(b"j") == [waiter(BOB), waiter(ADA, b"1")]
    assert (waiters.count_of(ADA), waiters.count_of(BOB), len(waiters)) == (1, 1, 2)


def test_the_same_question_is_the_same_whoever_asked_without_an_id_in_between() -> None:
    waiters = Waiters()
    for request_id in (b"1", b"", b"1"):
        waiters.add(b"j", waiter(ADA, request_id))
    assert waiters.of(b"j") == [waiter(ADA, b"1"), waiter(ADA)]


def test_nothing_is_left_of_those_who_wait_no_longer() -> None:
    waiters = Waiters()
    for number in range(4):
        client = (1, b"c%d" % number)
        for job in (b"j", b"k"):
            waiters.add(job, waiter(client, b"%d" % number))
    waiters.take(b"j")
    waiters.forget((1, b"c0"), b"0")
    waiters.forget_all((1, b"c1"))
    waiters.take_oldest()
    waiters.take_oldest()
    assert vars(waiters) == vars(Waiters())
