"""The fair queue: what came back first, then one of each client in turn, shells skipped."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from polybus.core.actions import Answer
from polybus.core.lifecycle import RequestState
from polybus.core.model import PLAIN_CALL, Client, FairQueue, Request, Service
from polybus.core.records import SHELLS_KEPT, Alarm, new_request

numbers = count(1)


def request(client: Client, name: str, at: float = 0.0) -> Request:
    service = Service(b"s")
    made = new_request(
        b"%d" % next(numbers), name.encode(), client, None, service, [], 0, PLAIN_CALL, at, at + 1
    )
    made.state = RequestState.QUEUED
    return made


def clients(names: str) -> dict[str, Client]:
    return {name: Client((1, name.encode())) for name in names}


def pop(queue: FairQueue) -> str:
    """What a dispatch does: the request leaves its state as well."""
    found = queue.pop()
    found.state = RequestState.DISPATCHED
    return found.request_id.decode()


def drop(queue: FairQueue, gone: Request) -> None:
    """What an expiry does."""
    queue.forget(gone)
    gone.state = RequestState.EXPIRED


def is_bare(queue: FairQueue) -> bool:
    return not queue._front and not queue._lanes and not queue._turns


def test_one_client_is_served_in_order() -> None:
    queue, (one,) = FairQueue(), clients("a").values()
    for name in "123":
        queue.push(request(one, name))
    assert [pop(queue) for _ in range(3)] == ["1", "2", "3"]
    assert is_bare(queue)


def test_clients_take_turns() -> None:
    queue, who = FairQueue(), clients("abc")
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        queue.push(request(who[name[0]], name))
    assert [pop(queue) for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert queue.length == 0
    assert is_bare(queue)


def test_a_flood_does_not_delay_a_newcomer() -> None:
    queue, who = FairQueue(), clients("ab")
    for n in range(1000):
        queue.push(request(who["a"], f"a{n}"))
    queue.push(request(who["b"], "b"))
    assert "b" in [pop(queue) for _ in range(2)]


def test_what_came_back_is_first() -> None:
    queue, who = FairQueue(), clients("ab")
    queue.push(request(who["a"], "a1"))
    queue.push_front(request(who["b"], "second"))
    queue.push_front(request(who["b"], "first"))
    assert queue.length == 3
    assert [pop(queue) for _ in range(3)] == ["first", "second", "a1"]


def test_shells_are_skipped_everywhere() -> None:
    queue, who = FairQueue(), clients("ab")
    made = [request(who[name[0]], name) for name in ("a1", "a2", "b1", "b2")]
    for one in made:
        queue.push(one)
    back = [request(who["a"], "back1"), request(who["a"], "back2")]
    for one in back:
        queue.push_front(one)
    drop(queue, back[1])
    drop(queue, made[0])
    drop(queue, made[2])
    assert queue.length == 3
    assert [pop(queue) for _ in range(3)] == ["back1", "a2", "b2"]


def test_nothing_is_left_when_the_last_becomes_a_shell() -> None:
    queue, who = FairQueue(), clients("ab")
    made = [request(who["a"], "1"), request(who["b"], "2")]
    for one in made:
        queue.push(one)
    for one in made:
        drop(queue, one)
    assert queue.length == 0
    assert is_bare(queue)
    assert queue.oldest_at() is None


def test_nothing_is_left_of_what_was_sent_back_and_expired() -> None:
    queue, (one,) = FairQueue(), clients("a").values()
    back = request(one, "back")
    queue.push_front(back)
    drop(queue, back)
    assert is_bare(queue)


def test_shells_do_not_pile_up() -> None:
    """A queue that nobody works off, whose requests expire while new ones come, stays as small as it is."""
    queue, (one,) = FairQueue(), clients("a").values()
    waiting = [request(one, "0")]
    queue.push(waiting[0])
    for n in range(1, 5000):
        waiting.append(request(one, str(n)))
        queue.push(waiting[-1])
        drop(queue, waiting.pop(0))
    assert queue.length == 1
    assert len(queue._lanes[one]) < 200
    assert pop(queue) == "4999"


def test_the_oldest_is_one_that_still_waits() -> None:
    queue, who = FairQueue(), clients("ab")
    made = [request(who["a"], "1", 1.0), request(who["a"], "2", 2.0), request(who["b"], "3", 3.0)]
    for one in made:
        queue.push(one)
    assert queue.oldest_at() == 1.0
    drop(queue, made[0])
    assert queue.oldest_at() == 2.0
    drop(queue, made[1])
    assert queue.oldest_at() == 3.0, "of the other client nothing waits"
    back = request(who["b"], "0", 0.5)
    queue.push_front(back)
    assert queue.oldest_at() == 0.5


@given(st.lists(st.tuples(st.sampled_from(["push", "front", "pop", "drop"]), st.integers(0, 3)), max_size=80))
def test_like_a_plain_list(steps: list[tuple[str, int]]) -> None:
    """Against a model: those sent back, then the heads of the clients' lines in turn."""
    queue = FairQueue()
    people = [Client((1, b"%d" % n)) for n in range(4)]
    front: list[Request] = []
    lines: dict[Client, list[Request]] = {}
    for step, (what, which) in enumerate(steps):
        client = people[which]
        if what == "push":
            made = request(client, str(step))
            queue.push(made)
            lines.setdefault(client, []).append(made)
        elif what == "front":
            made = request(client, str(step))
            queue.push_front(made)
            front.insert(0, made)
        elif what == "pop" and queue.length:
            found = queue.pop()
            assert found.state is RequestState.QUEUED
            found.state = RequestState.DISPATCHED
            if front:
                assert found is front.pop(0)
            else:
                # Whose turn it is depends on shells met on the way; within a client the order is strict.
                assert found is lines[found.client].pop(0)
        elif what == "drop":
            alive = front + [one for line in lines.values() for one in line]
            if alive:
                gone = alive[which % len(alive)]
                drop(queue, gone)
                for line in (front, *lines.values()):
                    if gone in line:
                        line.remove(gone)
        assert queue.length == len(front) + sum(map(len, lines.values()))
        if not queue.length:
            assert queue.oldest_at() is None


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_no_client_waits_for_more_than_one_of_each_other(order: list[int]) -> None:
    queue = FairQueue()
    people = [Client((1, b"%d" % n)) for n in range(5)]
    for which in order:
        queue.push(request(people[which], str(which)))
    left = {which: order.count(which) for which in set(order)}
    since = dict.fromkeys(left, 0)
    while queue.length:
        served = int(pop(queue))
        left[served] -= 1
        since[served] = 0
        for which in left:
            if which != served and left[which]:
                since[which] += 1
                assert since[which] <= len(left), "everyone is served once a round"


def test_what_is_claimed_leaves_the_queue_and_may_come_back() -> None:
    queue, who = FairQueue(), clients("ab")
    requests = {name: request(who[name[0]], name) for name in ("a1", "a2", "b1")}
    for waiting in requests.values():
        queue.push(waiting)
    queue.take_out(requests["b1"])
    queue.take_out(requests["a2"])
    assert queue.length == 1
    queue.push_front(requests["b1"])
    queue.take_out(requests["b1"])
    queue.push_front(requests["b1"])
    assert [pop(queue) for _ in range(2)] == ["b1", "a1"]
    assert queue.length == 0
    assert is_bare(queue)


def test_what_waits_stays_when_shells_are_let_go() -> None:
    queue, who = FairQueue(), clients("abc")
    for name in ("a1", "b1", "a2"):
        queue.push(request(who[name[0]], name))
    gone = [request(who["c"], str(number)) for number in range(100)]
    for one in gone:
        queue.push(one)
    for one in gone:
        drop(queue, one)
    assert queue.length == 3
    assert [pop(queue) for _ in range(3)] == ["a1", "b1", "a2"]


def test_a_deadline_beside_the_expiry_is_not_set_at_first() -> None:
    (one,) = clients("a").values()
    waiting = request(one, "1")
    alarm = Alarm(waiting)
    assert (alarm.request, alarm.slot) == (waiting, 0)


def test_what_a_client_waits_for_and_what_is_kept_for_it_are_told_apart() -> None:
    (one,) = clients("a").values()
    waiting = request(one, "1")
    answer = Answer(one.address, None, b"s", b"2", [b"done"])
    one.known = {b"1": waiting, b"2": answer}
    assert one.outstanding == {b"1": waiting}
    assert one.done == {b"2": answer}


def test_to_forget_one_of_many_is_no_reason_to_look_at_all_of_them() -> None:
    queue, (one,) = FairQueue(), clients("a").values()
    made = [request(one, str(number)) for number in range(100)]
    for waiting in made:
        queue.push(waiting)
    drop(queue, made[0])
    assert (queue.length, len(queue._lanes[one])) == (99, 100), "it stays as a shell until it is met"
    assert pop(queue) == "1"
    assert (queue.length, len(queue._lanes[one])) == (98, 98)


def test_a_queue_holds_few_more_shells_than_requests() -> None:
    queue, (one,) = FairQueue(), clients("a").values()
    made = [request(one, str(number)) for number in range(100)]
    for waiting in made:
        queue.push(waiting)
    most = (100 + SHELLS_KEPT) // 2
    for gone in made[:most]:
        drop(queue, gone)
    assert len(queue._lanes[one]) == 100
    drop(queue, made[most])
    assert len(queue._lanes[one]) == queue.length == 99 - most
