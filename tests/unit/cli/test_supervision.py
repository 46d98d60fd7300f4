"""What a supervisor decides, told what happened and when: no process is started here."""

from __future__ import annotations

import itertools

import pytest

from polybus.cli.supervision import (
    MOVES,
    PAUSE_MAX_S,
    PAUSE_S,
    WELL_S,
    Action,
    Kill,
    Move,
    Over,
    Ready,
    Rules,
    Start,
    State,
    Supervision,
    Tell,
    Terminate,
)


def four() -> Supervision:
    return Supervision(
        {
            "broker": Rules(is_vital=True, end_s=20),
            "workers": Rules(needs="broker", is_vital=True, end_s=30),
            "pipeline": Rules(needs="broker", tries=2, is_awaited=False, end_s=10),
            "dashboard": Rules(needs="broker", tries=3, end_s=5),
        }
    )


def all_up(now: float = 0.0) -> Supervision:
    made = four()
    made.turn(now)
    for name in made.parts:
        made.ready(name, "", now)
    assert all(part.state is State.UP for part in made.parts.values())
    return made


def orders(actions: list[Action]) -> list[Action]:
    """Without what is only said."""
    return [action for action in actions if not isinstance(action, Tell)]


def test_the_others_start_when_the_broker_is_up() -> None:
    made = four()
    assert made.turn(0) == [Start("broker")]
    assert made.turn(1) == []
    found = made.ready("broker", "14 ports", 2)
    assert found == [
        Tell("broker", "up after 2.0 s: 14 ports"),
        Start("workers"),
        Start("pipeline"),
        Start("dashboard"),
    ]


def test_ready_is_said_once_and_does_not_wait_for_the_pipeline() -> None:
    made = four()
    made.turn(0)
    made.ready("broker", "", 1)
    assert Ready() not in made.ready("workers", "", 2)
    assert Ready() in made.ready("dashboard", "", 3)
    assert Ready() not in made.ready("pipeline", "", 9)


@pytest.mark.parametrize("name", ["broker", "workers"])
def test_what_is_vital_and_never_came_up_ends_everything(name: str) -> None:
    made = four()
    made.turn(0)
    if name == "workers":
        made.ready("broker", "", 1)
    found = orders(made.died(name, "ended with status 1: tcp://127.0.0.1:5000 is in use", 2))
    while found != [Over(f"{name}: ended with status 1: tcp://127.0.0.1:5000 is in use")]:
        (action,) = found
        assert isinstance(action, Terminate)
        found = orders(made.died(action.name, "ended with status 0", 3))
    assert made.alive() == []


def test_a_part_that_dies_is_started_again_after_a_growing_pause() -> None:
    made = all_up()
    now, pauses = 1.0, []
    for _ in range(10):
        (told,) = made.died("broker", "killed by signal 9", now)
        assert isinstance(told, Tell)
        assert told.is_bad
        pauses.append(made.next_at - now)
        assert made.turn(made.next_at - 0.001) == []
        now = made.next_at
        assert made.turn(now) == [Start("broker")]
        made.ready("broker", "", now)
    assert pauses[:4] == pytest.approx([PAUSE_S, PAUSE_S * 2, PAUSE_S * 4, PAUSE_S * 8])
    assert pauses[-1] == PAUSE_MAX_S
    assert made.parts["broker"].restarts == 10


def test_one_that_did_well_for_long_begins_with_a_short_pause_again() -> None:
    made = all_up()
    made.died("workers", "killed by signal 9", 1)
    made.turn(2)
    made.ready("workers", "", 2)
    made.died("workers", "killed by signal 9", 3)
    made.turn(4)
    made.ready("workers", "", 4)
    late = 4 + WELL_S + 1
    made.died("workers", "killed by signal 9", late)
    assert made.next_at == late + PAUSE_S


def test_what_needs_the_broker_waits_for_it() -> None:
    made = all_up()
    made.died("dashboard", "killed by signal 9", 1)
    made.died("broker", "killed by signal 9", 1)
    assert made.turn(1 + PAUSE_S) == [Start("broker")]
    assert made.turn(2) == []
    assert Start("dashboard") in made.ready("broker", "", 3)


def test_the_same_reason_is_told_once() -> None:
    made = all_up()
    (first,) = made.died("dashboard", "port 5280 is in use", 1)
    made.turn(2)
    (second,) = made.died("dashboard", "port 5280 is in use", 2)
    assert isinstance(first, Tell)
    assert isinstance(second, Tell)
    assert first.text == "port 5280 is in use; started again in 0.25 s"
    assert second.text == "started again in 0.5 s"


def test_what_is_not_vital_and_never_comes_up_is_given_up_and_not_waited_for() -> None:
    made = four()
    made.turn(0)
    made.ready("broker", "", 0)
    made.ready("workers", "", 0)
    for number in range(2):
        assert orders(made.died("dashboard", f"no {number}", number)) == []
        assert made.turn(number + 0.9) == [Start("dashboard")]
    assert made.died("dashboard", "no more", 3) == [Tell("dashboard", "off: no more", True), Ready()]
    assert made.turn(1000) == []


def test_everything_ends_in_order_one_after_the_other() -> None:
    made = all_up()
    found, order = made.stop(1), []
    while not any(isinstance(action, Over) for action in found):
        (action,) = orders(found)
        assert isinstance(action, Terminate)
        order.append(action.name)
        # Nothing else is asked to end as long as this one lives.
        assert made.turn(1) == []
        found = made.died(action.name, "ended with status 0", 1)
    assert order == ["dashboard", "pipeline", "workers", "broker"]
    assert orders(found) == [Over()]
    assert made.turn(2) == []


def test_what_does_not_end_in_time_is_killed_and_the_next_one_follows() -> None:
    made = all_up()
    assert made.stop(10) == [Terminate("dashboard")]
    assert made.next_at == 15
    assert orders(made.turn(15)) == [Kill("dashboard")]
    assert made.turn(16) == []
    assert orders(made.died("dashboard", "killed by signal 9", 16)) == [Terminate("pipeline")]


def test_what_dies_while_others_end_is_not_started_again() -> None:
    made = all_up()
    made.stop(1)
    assert orders(made.died("workers", "killed by signal 9", 1)) == []
    assert orders(made.died("dashboard", "ended with status 0", 2)) == [Terminate("pipeline")]
    assert orders(made.died("pipeline", "ended with status 0", 2)) == [Terminate("broker")]


def test_asked_twice_nothing_is_waited_for() -> None:
    made = all_up()
    made.stop(1)
    assert made.stop(2) == [Kill(name) for name in made.parts]
    found: list[Action] = []
    for name in made.parts:
        found += made.died(name, "killed by signal 9", 2)
    assert orders(found) == [Over()]
    assert all(action.text == "stopped" for action in found if isinstance(action, Tell))


def test_what_pauses_or_was_given_up_has_nothing_to_end() -> None:
    made = four()
    made.turn(0)
    made.ready("broker", "", 0)
    made.ready("workers", "", 0)
    made.died("pipeline", "no Java", 1)
    made.turn(2)
    made.died("pipeline", "no Java", 3)
    made.died("dashboard", "no", 3)
    assert made.stop(3) == [Terminate("workers")]


def test_a_word_that_crosses_the_end_changes_nothing() -> None:
    made = four()
    made.turn(0)
    assert made.stop(0) == [Terminate("broker")]
    assert made.ready("broker", "", 1) == []
    assert orders(made.died("broker", "ended with status 0", 1)) == [Over()]


def test_a_pair_that_is_not_in_the_table_is_an_error() -> None:
    made = four()
    with pytest.raises(AssertionError, match="broker is WAITING and cannot READY"):
        made.ready("broker", "", 0)


def test_every_state_but_the_last_can_end() -> None:
    for state, move in itertools.product(State, [Move.END, Move.DIE]):
        if state is State.GONE:
            assert (state, move) not in MOVES
        elif state is not State.ENDING:
            assert (state, Move.END) in MOVES


def test_what_is_needed_stands_before_it() -> None:
    with pytest.raises(AssertionError, match="which comes later"):
        Supervision({"workers": Rules(needs="broker"), "broker": Rules()})
