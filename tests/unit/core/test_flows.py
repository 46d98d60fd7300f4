"""Chains and groups: one job to the world, whatever happens in between."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from polybus.core import actions as act
from polybus.core import events
from polybus.core.ledger import Ended, Outcome
from polybus.core.lifecycle import RequestState
from polybus.core.model import Limits, QueuePolicy, Reason
from polybus.core.revival import revive
from support.stage import NEVER_DEAD, LedgerStage, client, worker


def message(*args: Any) -> str:
    return json.dumps(["run", {"path": "shop", "callable": "go", "args": list(args), "kwargs": {}}])


def args_of(body: list[bytes]) -> list[Any]:
    args: list[Any] = msgspec.json.decode(body[0])[1]["args"]
    return args


def step(service: str = "echo", *args: Any, **options: Any) -> dict[str, Any]:
    return {"service": service, "body": message(*args), **options}


@pytest.fixture
def stage() -> LedgerStage:
    stage = LedgerStage()
    stage.worker("w", "echo", "b", "c", credit=10)
    return stage


def order(stage: LedgerStage) -> Any:
    """The one request that was handed out since the last look."""
    return stage.one(act.Deliver).request


def finish(stage: LedgerStage, token: bytes, value: Any) -> None:
    stage.result("w", token, [json.dumps(value).encode()])
    stage.write()


# -- chains ---------------------------------------------------------------------------------------


def test_a_chain_is_one_job_with_the_result_of_the_last_step(stage: LedgerStage) -> None:
    stage.job("j", body=message(1).encode(), then=[step("b", 2), step("c")], reply="result")
    stage.write()
    first = order(stage)
    assert first.service.name == b"echo"
    finish(stage, first.token, {"x": 1})
    second = order(stage)
    assert second.service.name == b"b"
    assert args_of(second.body) == [{"x": 1}, 2]
    assert stage.facts("j")["service"] == "b"
    finish(stage, second.token, [5])
    third = order(stage)
    assert args_of(third.body) == [[5]]
    assert not stage.actions(act.Answer)
    finish(stage, third.token, "end")
    answer = stage.one(act.Answer)
    assert answer.client == client("c")
    assert answer.body == [b'"end"']
    assert stage.facts("j")["state"] == "done"
    contents = stage.store.load()
    assert not contents.jobs
    assert [outcome.request_id for outcome in contents.outcomes] == [b"j"]


def test_the_end_of_a_step_and_the_next_one_are_one_batch(stage: LedgerStage) -> None:
    stage.job("j", then=[step("b")])
    stage.write()
    stage.result("w", order(stage).token, [b"1"])
    assert not stage.actions(act.Deliver), "it is not on disk"
    assert len(stage.store.load().jobs) == 1
    number, lines = stage.bus.take_lines()
    assert len(lines) == 2
    stage.store.write(lines)
    stage.do(events.Written(number))
    assert order(stage).service.name == b"b"


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_restart_between_two_steps(stage: LedgerStage, on_disk: bool) -> None:
    stage.job("j", then=[step("b"), step("c")])
    stage.write()
    stage.result("w", order(stage).token, [b"1"])
    stage.restart(last_batch_on_disk=on_disk)
    stage.worker("w", "echo", "b", "c", credit=10)
    stage.wait(20.0)
    stage.write()
    if not on_disk:
        finish(stage, order(stage).token, 1)
    again = order(stage)
    assert again.service.name == b"b"
    assert args_of(again.body) == [1]
    finish(stage, again.token, 2)
    finish(stage, order(stage).token, 3)
    stage.call("c", "1", "result", b"j")
    assert stage.one(act.Answer).body == [b"3"]


def test_a_failing_step_ends_the_chain_with_its_reason(stage: LedgerStage) -> None:
    stage.job("j", then=[step("b"), step("c")], reply="result")
    stage.write()
    finish(stage, order(stage).token, 1)
    stage.fail("w", order(stage).token)
    stage.write()
    refusal = stage.one(act.Refuse)
    assert refusal.reason is Reason.FAILED
    assert refusal.client == client("c")
    assert not stage.actions(act.Deliver)
    assert stage.facts("j")["state"] == "failed"
    (letter,) = stage.dead()
    assert letter.job.service == b"b"
    assert len(letter.job.options.then) == 1


def test_a_revived_step_goes_on_with_the_chain(stage: LedgerStage) -> None:
    stage.job("j", then=[step("b"), step("c")])
    stage.write()
    finish(stage, order(stage).token, 1)
    stage.fail("w", order(stage).token)
    stage.write()
    revive(stage.bus, stage.dead()[0], stage.now)
    stage.write()
    assert not stage.dead()
    again = order(stage)
    assert (again.service.name, args_of(again.body)) == (b"b", [1])
    finish(stage, again.token, 2)
    last = order(stage)
    assert args_of(last.body) == [2]
    finish(stage, last.token, 3)
    stage.taken.clear()
    stage.call("c", "1", "result", b"j")
    assert stage.one(act.Answer).body == [b"3"]


def test_a_step_retries_with_its_own_options(stage: LedgerStage) -> None:
    stage.job("j", retries=0, then=[step("b", retries=2, backoff_s=1.0)])
    stage.write()
    finish(stage, order(stage).token, 1)
    for _ in range(2):
        stage.fail("w", order(stage).token)
        stage.wait(3.0)
        stage.write()
    finish(stage, order(stage).token, 2)
    assert stage.facts("j")["state"] == "done"


def test_a_sick_disk_does_not_break_a_chain(stage: LedgerStage) -> None:
    """That a step has ended is known and the next one promised: both are written as soon as possible."""
    stage.job("j", then=[step("b")])
    stage.write()
    stage.result("w", order(stage).token, [b"1"])
    stage.refuse_writes()
    assert not stage.actions(act.Refuse)
    assert stage.job_request("j").state is RequestState.ACCEPTED
    stage.recover()
    again = order(stage)
    assert again.service.name == b"b"
    finish(stage, again.token, 2)
    assert stage.facts("j")["state"] == "done"


def test_a_sick_disk_does_not_break_a_chain_that_is_lost_before_it_is_back(stage: LedgerStage) -> None:
    stage.job("j", then=[step("b")])
    stage.write()
    stage.result("w", order(stage).token, [b"1"])
    stage.refuse_writes()
    stage.restart()
    assert stage.facts("j")["service"] == "echo", "it is where the disk says it is"


def test_no_limit_refuses_what_follows(stage: LedgerStage) -> None:
    stage = LedgerStage(Limits(services=2))
    stage.worker("w", "echo", credit=10)
    stage.job("j", then=[step("b")])
    stage.write()
    stage.submit("c", "other", "second service")
    finish(stage, order(stage).token, 1)
    assert stage.job_request("j").service.name == b"b"
    stage.do(events.WorkerUp(worker("v"), "v", ((b"third", 0),), NEVER_DEAD))
    assert [dismissed.peer[1] for dismissed in stage.actions(act.Dismiss)] == [b"v"], "the limit still holds"


def test_what_follows_a_guaranteed_job_is_guaranteed(stage: LedgerStage) -> None:
    stage.job("j", guarantee=True, then=[step("b", guarantee=False)])
    stage.write()
    finish(stage, order(stage).token, 1)
    stage.restart()
    assert stage.facts("j")["service"] == "b"


def test_a_chain_of_jobs_without_a_guarantee_touches_no_disk(stage: LedgerStage) -> None:
    stage.job("j", guarantee=False, then=[step("b", guarantee=False)], reply="result")
    stage.result("w", order(stage).token, [b"1"])
    again = order(stage)
    stage.result("w", again.token, [b"2"])
    assert stage.one(act.Answer).body == [b"2"]
    assert not stage.bus.lines


def test_a_guaranteed_step_needs_a_store() -> None:
    stage = LedgerStage()
    stage.do(events.StoreHealth("no disk"))
    stage.job("j", guarantee=False, then=[step("b", guarantee=True)])
    assert stage.one(act.Refuse).reason is Reason.STORE_UNAVAILABLE
    assert not stage.bus.desk.known


def test_queue_rules_hold_for_steps_and_members(stage: LedgerStage) -> None:
    stage.queue_rules(b=QueuePolicy(retries=3, timeout_s=7.0))
    stage.job("j", then=[step("b")])
    stage.write()
    finish(stage, order(stage).token, 1)
    options = order(stage).options
    assert (options.retries, options.timeout_s) == (3, 7.0)
    stage.group("g", step("b"))
    stage.write()
    assert order(stage).options.retries == 3


def test_cancelling_a_chain_ends_it_where_it_is(stage: LedgerStage) -> None:
    stage.job("j", then=[step("b"), step("c")])
    stage.write()
    finish(stage, order(stage).token, 1)
    token = order(stage).token
    stage.call("c", "x", "cancel", b"j")
    assert stage.one(act.Stop).token == token
    stage.write()
    assert stage.facts("j")["state"] == "cancelled"
    stage.result("w", token, [b"2"])
    stage.write()
    assert not stage.actions(act.Deliver)
    assert not stage.store.load().jobs
    assert not stage.dead()


@pytest.mark.parametrize(
    ("body", "result", "expected"),
    [
        ("", b'{"a": 1}', [b'{"a": 1}']),
        ("", b"\xff no text", [b"\xff no text"]),
        ("plain text", b"1", [b"plain text"]),
        ('{"no": "job"}', b"1", [b'{"no": "job"}']),
        ('["run", "no object"]', b"1", [b'["run", "no object"]']),
        ('["run", {"args": 5}]', b"1", [b'["run", {"args": 5}]']),
        ('["run", {"args": [2]}]', b"no json", [b'["run", {"args": [2]}]']),
        ('["run", {}]', b"7", [b'["run",{"args":[7]}]']),
        ('["run", {"args": [2]}]', b"", [b'["run",{"args":[null,2]}]']),
        ('["run", {"args": [2]}]', b"1" * 400, None),
        ("[" * 100_000, b"1", None),
        ('["run", {"args": [2]}]', b"[" * 100_000 + b"]" * 100_000, None),
    ],
)
def test_how_a_result_gets_into_the_next_body(
    stage: LedgerStage, body: str, result: bytes, expected: list[bytes] | None
) -> None:
    stage.job("j", then=[{"service": "b", "body": body}])
    stage.write()
    stage.result("w", order(stage).token, [result])
    stage.write()
    again = order(stage)
    assert again.service.name == b"b"
    if expected is not None:
        assert again.body == expected


# -- groups ---------------------------------------------------------------------------------------


def run_members(stage: LedgerStage, count: int) -> list[Any]:
    requests = [action.request for action in stage.actions(act.Deliver)]
    assert len(requests) == count
    return requests


def test_a_group_ends_with_the_results_in_order(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), step("b"), step("c"), reply="result")
    assert stage.nothing()
    stage.write()
    members = run_members(stage, 3)
    finish(stage, members[2].token, "c")
    finish(stage, members[0].token, {"a": 1})
    facts = stage.facts("g")
    assert (facts["state"], facts["group"], facts["missing"]) == ("running", 3, 1)
    stage.result("w", members[1].token, [b"no json"])
    stage.write()
    answer = stage.one(act.Answer)
    assert msgspec.json.decode(answer.body[0]) == [{"a": 1}, "no json", "c"]
    assert stage.facts("g")["state"] == "done"
    contents = stage.store.load()
    assert not contents.groups
    assert not contents.jobs


def test_a_group_is_accepted_whole_or_not_at_all() -> None:
    stage = LedgerStage(Limits(services=2))
    stage.group("g", step("a"), step("b"), step("c"))
    assert stage.one(act.Refuse).reason is Reason.TOO_MANY_SERVICES
    assert not stage.bus.patient
    assert not stage.bus.groups
    assert not stage.bus.lines
    assert not stage.bus.desk.known


def test_a_group_that_is_too_large_is_refused() -> None:
    stage = LedgerStage(Limits(group_size=2))
    stage.group("g", step("a"), step("b"), step("c"))
    assert stage.one(act.Refuse).reason is Reason.TOO_LARGE
    assert not stage.bus.patient


def test_a_group_does_not_take_the_id_of_another_job(stage: LedgerStage) -> None:
    stage.job("g/1")
    stage.write()
    stage.taken.clear()
    stage.group("g", step("echo"), step("b"))
    refusal = stage.one(act.Refuse)
    assert refusal.reason is Reason.BAD_JOB
    assert "g/1" in refusal.detail
    assert "g" not in stage.bus.groups
    assert len(stage.bus.patient) == 1


def test_a_refused_write_of_a_group_leaves_nothing(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), step("b"), reply="result")
    stage.refuse_writes()
    assert stage.one(act.Refuse).reason is Reason.STORE_UNAVAILABLE
    assert not stage.bus.groups
    assert not stage.bus.desk.known
    stage.recover()
    assert stage.nothing()
    contents = stage.store.load()
    assert not contents.groups
    assert not contents.jobs
    assert not contents.outcomes
    stage.group("g", step("echo"), step("b"))
    stage.write()
    run_members(stage, 2)


def test_a_failed_member_makes_the_group_fail_once_all_have_ended(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), step("b"), step("c"), then=[step("echo")], reply="result")
    stage.write()
    members = run_members(stage, 3)
    stage.fail("w", members[1].token)
    stage.write()
    finish(stage, members[0].token, 1)
    assert not stage.actions(act.Refuse)
    finish(stage, members[2].token, 2)
    refusal = stage.one(act.Refuse)
    assert refusal.reason is Reason.GROUP_FAILED
    assert "1 of 3" in refusal.detail
    assert "it broke" in refusal.detail
    assert not stage.actions(act.Deliver), "what was to follow does not"
    assert stage.facts("g")["state"] == "failed"


def test_what_follows_a_group_gets_the_list(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), step("b"), then=[step("c", "own"), step("b")], reply="result")
    stage.write()
    for member in run_members(stage, 2):
        finish(stage, member.token, member.service.name.decode())
    after = order(stage)
    assert args_of(after.body) == [["echo", "b"], "own"]
    finish(stage, after.token, 9)
    last = order(stage)
    assert args_of(last.body) == [9]
    finish(stage, last.token, 10)
    assert stage.one(act.Answer).body == [b"10"]


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_restart_in_the_middle_of_a_group(stage: LedgerStage, done: int) -> None:
    stage.group("g", step("echo"), step("b"), then=[step("c")])
    stage.write()
    members = run_members(stage, 2)
    for member in members[:done]:
        finish(stage, member.token, member.service.name.decode())
    stage.restart()
    stage.worker("w", "echo", "b", "c", credit=10)
    for member in members[done:]:
        # Its worker has it still.
        finish(stage, member.token, member.service.name.decode())
    # What follows may have been running.
    stage.wait(20.0)
    stage.write()
    assert args_of(order(stage).body) == [["echo", "b"]]


def test_a_restart_when_the_last_end_was_written_and_nobody_told(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), step("b"), then=[step("c")])
    stage.write()
    members = run_members(stage, 2)
    finish(stage, members[0].token, 1)
    stage.result("w", members[1].token, [b"2"])
    stage.restart(last_batch_on_disk=True)
    stage.worker("w", "echo", "b", "c", credit=10)
    assert args_of(order(stage).body) == [[1, 2]]
    assert not stage.bus.groups


def test_results_of_members_are_kept_until_the_group_has_them_all() -> None:
    stage = LedgerStage(Limits(outcomes_count=1))
    stage.worker("w", "echo", credit=10)
    stage.group("g", step("echo"), step("echo"))
    stage.write()
    members = run_members(stage, 2)
    finish(stage, members[0].token, 1)
    stage.wait(stage.bus.outcomes_age_s + 100.0, step=3600.0)
    stage.write()
    stage.restart()
    stage.worker("w", "echo", credit=10)
    stage.wait(10.0)
    stage.write()
    finish(stage, members[1].token, 2)
    stage.call("c", "1", "result", b"g")
    assert stage.one(act.Answer).body == [b"[1,2]"]
    stage.wait(stage.bus.outcomes_age_s + 100.0, step=3600.0)
    stage.write()
    assert not stage.store.load().outcomes
    assert not stage.bus.desk.known
    assert stage.bus.outcomes_bytes == 0


def test_a_member_that_is_revived_before_its_group_has_ended(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), step("b"), reply="result")
    stage.write()
    members = run_members(stage, 2)
    stage.fail("w", members[0].token)
    stage.write()
    revive(stage.bus, stage.dead()[0], stage.now)
    stage.write()
    again = order(stage)
    finish(stage, members[1].token, "b")
    assert not stage.actions(act.Answer)
    assert not stage.actions(act.Refuse)
    finish(stage, again.token, "a")
    assert stage.one(act.Answer).body == [b'["a","b"]']


def test_of_a_group_that_is_cancelled_nothing_is_handed_out_any_more(stage: LedgerStage) -> None:
    stage.worker("w", forgets_stopped=True)
    stage.group("g", *({"service": "echo", "guarantee": False} for _ in range(4)))
    stage.submit("d", "other")
    assert stage.delivered() == [("w", "g/0")]
    stage.call("c", "x", "cancel", b"g")
    assert stage.one(act.Stop)
    assert stage.delivered() == [("w", "other")]


def test_cancelling_a_group_cancels_what_has_not_ended(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), step("b"), step("unserved"), then=[step("c")], reply="result")
    stage.write()
    members = run_members(stage, 2)
    finish(stage, members[0].token, 1)
    stage.call("x", "1", "cancel", b"g")
    stage.write()
    answers = {answer.client: answer.body for answer in stage.actions(act.Answer)}
    assert answers == {client("x"): [b'{"cancelled":true}']}
    assert stage.one(act.Stop).token == members[1].token
    assert stage.one(act.Refuse).reason is Reason.GROUP_FAILED
    assert not stage.actions(act.Deliver)
    assert not stage.bus.patient
    assert not stage.dead()
    stage.call("x", "2", "cancel", b"g")
    assert stage.one(act.Answer).body == [b'{"cancelled":false}']


def test_a_group_survives_only_with_members_that_do(stage: LedgerStage) -> None:
    stage.group("g", step("echo", guarantee=False), step("b", guarantee=True))
    stage.write()
    assert all(job.options.guarantee for job in stage.store.load().jobs)
    assert len(stage.store.load().jobs) == 2
    stage.group("h", step("echo", guarantee=False), step("b", guarantee=False))
    assert not stage.bus.lines
    stage.restart()
    assert list(stage.bus.groups) == [b"g"]


def test_a_group_may_expire_and_be_delayed(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), step("b"), delay_s=10.0, ttl_s=15.0)
    stage.write()
    assert not stage.actions(act.Deliver)
    stage.wait(9.0)
    assert not stage.actions(act.Deliver)
    stage.wait(2.0)
    run_members(stage, 2)
    stage.wait(10.0)
    stage.write()
    assert stage.facts("g")["state"] == "failed"


def test_an_empty_result_of_a_member_is_null(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), reply="result")
    stage.write()
    stage.result("w", order(stage).token, [])
    stage.write()
    assert stage.one(act.Answer).body == [b"[null]"]


STRANGE = [b"[" * 100_000, b"\xff\xfe", b"1e999", b"{}" * 5, b"[1," + b"9" * 500 + b"]"]


@pytest.mark.parametrize("result", STRANGE)
def test_strange_results_do_not_break_a_group(stage: LedgerStage, result: bytes) -> None:
    stage.group("g", step("echo"), step("b"), then=[step("c")])
    stage.write()
    members = run_members(stage, 2)
    stage.result("w", members[0].token, [result])
    stage.write()
    finish(stage, members[1].token, 1)
    assert order(stage).service.name == b"c"


@pytest.mark.parametrize("guarantee", [False, True])
def test_only_a_group_that_was_written_down_is_struck_out(stage: LedgerStage, guarantee: bool) -> None:
    stage.group("g", step("echo", guarantee=guarantee))
    stage.write()
    finish(stage, order(stage).token, "done")
    assert not stage.bus.groups
    struck = [type(line).__name__ for line in stage.pen.written if type(line).__name__.endswith("rouped")]
    assert struck == (["Grouped", "Ungrouped"] if guarantee else [])


def test_a_result_in_several_frames_is_one_value_of_the_list(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), step("b"), reply="result")
    stage.write()
    first, second = run_members(stage, 2)
    stage.result("w", first.token, [b'{"a"', b":1}"])
    stage.result("w", second.token, [b"no ", b"json"])
    stage.write()
    assert stage.one(act.Answer).body == [b'[{"a":1},"no json"]']


def test_what_follows_a_group_is_a_member_of_none(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), then=[step("c")])
    stage.write()
    finish(stage, order(stage).token, 1)
    assert order(stage).options.group == b""
    assert [job.options.group for job in stage.contents().jobs] == [b""]


def test_a_member_whose_result_is_gone_makes_its_group_fail(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), step("b"), then=[step("c")])
    stage.write()
    first, second = run_members(stage, 2)
    finish(stage, first.token, 1)
    # Somebody threw it out of the store while the broker was down.
    stage.store.write([Ended(second.token)])
    stage.restart()
    stage.worker("w", "echo", "b", "c", credit=10)
    stage.write()
    assert not stage.bus.groups
    assert not stage.contents().groups
    facts = stage.facts("g")
    assert (facts["state"], facts["reason"]) == ("failed", "group_failed")
    assert facts["detail"] == "1 of 2 jobs failed; the first: its result is gone"
    assert not stage.actions(act.Deliver)


def test_a_member_that_is_revived_when_its_group_has_failed_ends_alone(stage: LedgerStage) -> None:
    stage.group("g", step("echo"))
    stage.write()
    stage.fail("w", order(stage).token)
    stage.write()
    assert stage.facts("g")["state"] == "failed"
    revive(stage.bus, stage.dead()[0], stage.now)
    stage.write()
    finish(stage, order(stage).token, 1)
    assert (stage.facts("g/0")["state"], stage.facts("g")["state"]) == ("done", "failed")


def test_the_end_of_a_step_is_observed_as_an_answer_without_further_words(stage: LedgerStage) -> None:
    stage.job("j", then=[step("b")])
    stage.write()
    finish(stage, order(stage).token, 1)
    (record,) = stage.told("replied")
    assert (record.service, record.reason, record.detail) == (b"echo", "", "")


def test_the_result_of_a_guaranteed_group_is_on_disk_and_survives(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), step("b"))
    stage.write()
    for number, member in enumerate(run_members(stage, 2), 1):
        finish(stage, member.token, number)
    outcomes = {outcome.request_id: outcome for outcome in stage.store.load().outcomes}
    assert set(outcomes) == {b"g", b"g/0", b"g/1"}
    at = stage.bus.wall_at(stage.now)
    service = b"polybus.submit"
    assert outcomes[b"g"] == Outcome(b"group:g", "jobs", b"jobs", b"g", service, at, "", "", [b"[1,2]"])
    stage.restart()
    stage.call("c", "1", "result", b"g")
    assert stage.one(act.Answer).body == [b"[1,2]"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_outcome_of_a_guaranteed_group_is_told_when_it_is_on_disk(
    stage: LedgerStage, fails: bool
) -> None:
    stage.group("g", step("echo"))
    stage.write()
    token = order(stage).token
    stage.taken.clear()
    (stage.fail if fails else stage.result)("w", token)
    stage.call("c", "1", "result", b"g")
    assert stage.nothing()
    stage.write()
    if fails:
        assert stage.one(act.Refuse).reason is Reason.GROUP_FAILED
    else:
        assert stage.one(act.Answer).body == [b'["done"]']


@pytest.mark.parametrize("fails", [False, True])
def test_the_outcome_of_a_group_without_a_guarantee_waits_for_no_disk(
    stage: LedgerStage, fails: bool
) -> None:
    stage.group("g", step("echo", guarantee=False))
    token = order(stage).token
    stage.job("other", "unserved")
    stage.taken.clear()
    (stage.fail if fails else stage.result)("w", token)
    assert stage.bus.lines, "something waits for the disk"
    stage.call("c", "1", "result", b"g")
    if fails:
        assert stage.one(act.Refuse).reason is Reason.GROUP_FAILED
    else:
        assert stage.one(act.Answer).body == [b'["done"]']
    stage.write()
    assert not [outcome for outcome in stage.store.load().outcomes if outcome.request_id == b"g"]


def test_a_member_that_could_not_be_put_back_does_not_end_its_group(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), step("b"), reply="result")
    stage.write()
    first, second = run_members(stage, 2)
    stage.fail("w", first.token)
    stage.write()
    revive(stage.bus, stage.dead()[0], stage.now)
    stage.refuse_writes()
    stage.recover()
    assert stage.nothing()
    assert list(stage.bus.groups) == [b"g"]
    finish(stage, second.token, 1)
    refusal = stage.one(act.Refuse)
    assert (refusal.client, refusal.reason) == (client("c"), Reason.GROUP_FAILED)
    assert "1 of 2" in refusal.detail


def test_of_a_refused_group_nothing_is_left_though_a_member_was_cancelled(stage: LedgerStage) -> None:
    stage.group("g", step("echo"), step("b"), reply="result")
    stage.pen.take(stage.bus)
    stage.call("x", "1", "cancel", b"g/0")
    stage.refuse_writes()
    refusal = stage.one(act.Refuse)
    assert (refusal.client, refusal.reason) == (client("c"), Reason.STORE_UNAVAILABLE)
    assert not stage.bus.desk.known
    assert not stage.bus.groups
    stage.recover()
    contents = stage.store.load()
    assert (contents.jobs, contents.outcomes, contents.groups) == ([], [], {})
    stage.group("g", step("echo"), step("b"))
    stage.write()
    run_members(stage, 2)
