"""A broker that comes back: what waited waits again, what was running may still be, nothing is told twice."""

from __future__ import annotations

import pytest

from polybus.core import actions as act
from polybus.core import events, ledger
from polybus.core.lifecycle import BusState, RequestState
from polybus.core.model import JobOptions, Limits, QueuePolicy, Reason
from polybus.core.restoring import restore
from polybus.core.tables import DESK
from support import invariants
from support.stage import LedgerStage, client, worker

GUARANTEED = JobOptions(guarantee=True)
RETRIED = JobOptions(guarantee=True, retries=3, backoff_s=10.0)
GRACE_S = Limits().orphan_grace_s


@pytest.fixture
def stage() -> LedgerStage:
    return LedgerStage()


def check(stage: LedgerStage) -> None:
    invariants.check(stage.bus, stage.now)


# -- what waited ----------------------------------------------------------------------------------


def test_jobs_that_waited_wait_again_in_their_order(stage: LedgerStage) -> None:
    for name in "12345":
        stage.submit("c", name, options=GUARANTEED)
    stage.write()
    stage.restart()
    check(stage)
    stage.worker("w", credit=5)
    assert [name for _, name in stage.delivered()] == ["1", "2", "3", "4", "5"]
    assert all(stage.request("c", name).attempt == 1 for name in "12345")


def test_jobs_that_come_back_count_as_accepted(stage: LedgerStage) -> None:
    for name in "123":
        stage.submit("c", name, options=GUARANTEED)
    stage.write()
    stage.restart()
    assert stage.bus.services[b"echo"].accepted == 3
    assert stage.bus.counters.accepted == 3


def test_only_what_was_written_is_there(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    stage.submit("c", "2", options=GUARANTEED)
    stage.submit("c", "3")
    stage.submit("c", "4", options=JobOptions(retries=5))
    stage.restart()
    assert list(stage.bus.clients[client("c")].outstanding) == [b"1"]
    check(stage)


def test_what_was_written_and_not_told_is_there(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    stage.restart(last_batch_on_disk=True)
    assert stage.nothing()
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    assert stage.one(act.Accept).request_id == b"1"
    stage.worker("w")
    assert stage.delivered() == [("w", "1")]


def test_a_retry_keeps_its_pause_its_history_and_its_count(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=RETRIED)
    stage.write()
    stage.fail("w", stage.token("c", "1"))
    stage.write()
    stage.restart(after_s=4.0)
    check(stage)
    request = stage.request("c", "1")
    assert (request.state, request.failures, request.attempt) == (RequestState.WAITING, 1, 1)
    assert [attempt.detail for attempt in request.history] == ["it broke"]
    stage.worker("w")
    stage.wait(4.0)
    assert not stage.delivered()
    stage.wait(3.0)
    assert stage.delivered() == [("w", "1")]
    for _ in range(3):
        stage.fail("w", stage.token("c", "1"))
        stage.wait(60.0, step=1.0)
        stage.write()
    assert stage.one(act.Refuse).reason is Reason.FAILED
    assert len(stage.dead()[0].job.history) == 4


def test_a_delay_goes_on_and_may_be_over(stage: LedgerStage) -> None:
    stage.job("soon", delay_s=10)
    stage.job("late", delay_s=1000)
    stage.write()
    stage.restart(after_s=60.0)
    stage.worker("w", credit=5)
    assert stage.delivered() == [("w", "soon")]
    stage.wait(930.0, step=1.0)
    assert not stage.delivered()
    stage.wait(20.0, step=1.0)
    assert stage.delivered() == [("w", "late")]


def test_what_expired_meanwhile_expires(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED, ttl_s=10.0)
    stage.submit("c", "2", options=GUARANTEED, ttl_s=100.0)
    stage.write()
    stage.restart(after_s=60.0)
    stage.wait(0.2)
    stage.write()
    assert stage.one(act.Refuse).request_id == b"1"
    assert stage.request("c", "2").expires_at == pytest.approx(1100.0)
    check(stage)


def test_outcomes_are_there_for_those_who_ask_again(stage: LedgerStage) -> None:
    stage.worker("w", credit=5)
    for name in "12":
        stage.submit("c", name, options=GUARANTEED)
    stage.write()
    stage.result("w", stage.token("c", "1"), [b"one", b"two"])
    stage.fail("w", stage.token("c", "2"))
    stage.write()
    stage.restart()
    check(stage)
    assert stage.nothing(), "nobody is told twice"
    stage.submit("c", "1", options=GUARANTEED)
    assert stage.one(act.Answer).body == [b"one", b"two"]
    stage.submit("c", "2", options=GUARANTEED)
    refusal = stage.one(act.Refuse)
    assert (refusal.reason, refusal.detail) == (Reason.FAILED, "it broke")
    stage.submit("other", "1", options=GUARANTEED)
    assert not stage.actions(act.Answer), "it is not the one who asked"


def test_an_end_that_was_not_written_did_not_happen(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    token = stage.token("c", "1")
    stage.result("w", token, [b"first"])
    stage.restart()
    assert not stage.actions(act.Answer)
    stage.worker("w")
    stage.result("w", token, [b"first"])
    stage.write()
    assert stage.one(act.Answer).body == [b"first"], "the worker says it again, and that is enough"


def test_a_link_that_is_gone(stage: LedgerStage) -> None:
    """Its clients cannot be spoken to, but their jobs are done; two of the same name are not confused."""
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    del stage.policies[:]
    contents = stage.contents()
    fresh = LedgerStage()
    fresh.bus.link_names = {DESK[0]: "jobs"}
    restore(fresh.bus, contents, "silent", fresh.now)
    fresh.worker("w")
    fresh.result("w", next(iter(fresh.bus.patient)))
    fresh.write()
    answer = fresh.one(act.Answer)
    assert (answer.client[0], answer.voice) == (-2, "silent")


@pytest.mark.parametrize("link", ["gone", "first"])
def test_a_client_that_is_called_like_the_desk_is_not_the_desk(link: str) -> None:
    """Whatever its link is now: jobs with an id of their own are another's."""
    stage = LedgerStage()
    job = ledger.JobEntry(b"t-1", link, DESK[1], b"1", "", b"echo", [b"x"], GUARANTEED, stage.now)
    stage.bus.link_names = {DESK[0]: "jobs", 0: "first", 1: "clients"}
    restore(stage.bus, ledger.Contents([job], [], [], {}), "silent", stage.now)
    check(stage)
    stage.call("c", "ask", "job", b"1")
    assert stage.one(act.Refuse).reason is Reason.UNKNOWN_JOB
    stage.worker("w")
    stage.result("w", b"t-1")
    stage.write()
    assert stage.one(act.Answer).client[1] == DESK[1]


def test_voices_are_found_by_their_names(stage: LedgerStage) -> None:
    stage.bus.voices = {"by name": "c"}
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    (entry,) = stage.store.load().jobs
    assert (entry.voice, entry.link) == ("by name", "clients")


def test_more_services_than_allowed_are_no_reason_to_lose_a_job(stage: LedgerStage) -> None:
    for name in "abc":
        stage.submit("c", name, name, options=GUARANTEED)
    stage.write()
    stage.limits = Limits(services=1)
    stage.restart()
    assert len(stage.bus.services) == 3
    stage.worker("w", "a")
    assert stage.delivered() == [("w", "a")]


def test_services_beyond_the_limit_have_the_rules_of_their_queues(stage: LedgerStage) -> None:
    stage.queue_rules(b=QueuePolicy(concurrency=1))
    for name in ("a", "b", "b"):
        stage.submit(name, str(stage.bus.sequence), name, options=GUARANTEED)
    stage.write()
    stage.limits = Limits(services=1)
    stage.restart()
    stage.worker("w", "b", credit=5)
    assert len(stage.delivered()) == 1


def test_outcomes_are_forgotten_by_their_own_age(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    stage.result("w", stage.token("c", "1"))
    stage.write()
    stage.restart(after_s=stage.bus.outcomes_age_s - 100.0)
    stage.wait(50.0, step=1.0)
    assert client("c") in stage.bus.clients
    stage.wait(100.0, step=1.0)
    stage.write()
    assert client("c") not in stage.bus.clients
    assert not stage.store.load().outcomes


def test_the_clock_was_set_back_while_we_were_away(stage: LedgerStage) -> None:
    stage.job("j", delay_s=10)
    stage.worker("w")
    stage.submit("c", "1", options=GUARANTEED, ttl_s=100.0)
    stage.write()
    stage.result("w", stage.token("c", "1"))
    stage.write()
    stage.now -= 500.0
    stage.restart()
    check(stage)
    stage.wait(600.0, step=5.0)
    stage.worker("w")
    assert stage.delivered() == [("w", "j")]


# -- orphans --------------------------------------------------------------------------------------


def orphan(stage: LedgerStage, options: JobOptions = GUARANTEED, name: str = "1") -> bytes:
    """A job that a worker has when the broker dies."""
    stage.worker("w", credit=5)
    stage.submit("c", name, options=options)
    stage.write()
    token = stage.token("c", name)
    stage.restart()
    assert stage.request("c", name).state is RequestState.ORPHANED
    check(stage)
    return token


@pytest.mark.parametrize("name", ["w", "another"])
def test_any_worker_of_the_service_may_answer_for_an_orphan(stage: LedgerStage, name: str) -> None:
    token = orphan(stage)
    stage.worker(name)
    assert not stage.delivered(), "it is still being worked on"
    stage.result(name, token, [b"7"])
    check(stage)
    stage.write()
    assert stage.one(act.Answer).body == [b"7"]
    assert stage.bus.workers[worker(name)].free == 1
    stage.wait(GRACE_S + 1)
    assert not stage.delivered()


def test_a_worker_of_another_service_may_not(stage: LedgerStage) -> None:
    token = orphan(stage)
    stage.worker("w", "other")
    stage.result("w", token)
    assert stage.request("c", "1").state is RequestState.ORPHANED
    stage.result("nobody", token)
    assert stage.request("c", "1").state is RequestState.ORPHANED
    check(stage)


def test_an_orphan_may_fail(stage: LedgerStage) -> None:
    token = orphan(stage, RETRIED)
    stage.worker("w")
    stage.fail("w", token)
    check(stage)
    request = stage.request("c", "1")
    assert (request.state, request.failures) == (RequestState.WAITING, 1)
    stage.write()
    stage.restart()
    assert stage.request("c", "1").failures == 1


def test_an_orphan_answers_while_its_worker_has_other_work(stage: LedgerStage) -> None:
    token = orphan(stage)
    stage.submit("c", "2")
    stage.worker("w", credit=1)
    assert stage.delivered() == [("w", "2")]
    stage.result("w", token)
    check(stage)
    stage.submit("c", "3")
    assert not stage.delivered(), "its slot is not free twice"
    stage.result("w", stage.token("c", "2"))
    assert stage.delivered() == [("w", "3")]
    check(stage)


def test_a_worker_comes_back_and_claims_its_orphan(stage: LedgerStage) -> None:
    token = orphan(stage, JobOptions(guarantee=True, timeout_s=10.0))
    stage.wait(5.0)
    stage.worker("w", grants_slots=True, holding=(token,))
    check(stage)
    request = stage.request("c", "1")
    assert (request.state, request.attempt, request.history) == (RequestState.DISPATCHED, 1, ())
    stage.wait(GRACE_S - 1.0)
    assert not stage.delivered()
    stage.result("w", token)
    stage.write()
    stage.one(act.Answer)
    check(stage)


def test_after_the_grace_time_orphans_are_in_front(stage: LedgerStage) -> None:
    token = orphan(stage)
    stage.submit("c", "2", options=GUARANTEED)
    stage.submit("c", "3", options=GUARANTEED)
    stage.write()
    stage.wait(GRACE_S - 0.2)
    assert stage.request("c", "1").state is RequestState.ORPHANED
    stage.wait(0.5)
    assert stage.request("c", "1").state is RequestState.QUEUED
    stage.write()
    assert [entry.worker for entry in stage.store.load().jobs] == ["", "", ""]
    stage.worker("v", credit=1)
    assert stage.delivered() == [("v", "1")]
    assert stage.request("c", "1").attempt == 2
    stage.worker("w", holding=(token,))
    assert stage.one(act.Stop).token == token, "it came too late"
    check(stage)


def test_a_worker_that_comes_late_may_claim_what_is_still_queued(stage: LedgerStage) -> None:
    token = orphan(stage)
    stage.wait(GRACE_S + 1.0)
    stage.worker("w", credit=5, holding=(token,))
    assert not stage.delivered()
    assert not stage.actions(act.Stop)
    assert stage.request("c", "1").state is RequestState.DISPATCHED
    check(stage)


def test_a_job_whose_start_was_not_written_is_claimed_all_the_same(stage: LedgerStage) -> None:
    """Starts linger: a job that began just before the crash is queued for the disk."""
    stage = LedgerStage(starts_linger=True)
    stage.worker("w", credit=5)
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    token = stage.token("c", "1")
    stage.restart()
    assert stage.request("c", "1").state is RequestState.QUEUED
    stage.worker("w", credit=5, holding=(token,))
    assert not stage.delivered()
    assert stage.request("c", "1").attempt == 1
    check(stage)


def test_orphans_may_be_cancelled_before_and_after_their_worker_is_back(stage: LedgerStage) -> None:
    token = orphan(stage)
    stage.do(events.Cancel(client("c"), b"1"))
    stage.write()
    assert stage.one(act.Refuse).reason is Reason.CANCELLED
    check(stage)
    stage.worker("w", holding=(token,))
    assert stage.one(act.Stop).token == token
    stage.result("w", token)
    stage.write()
    assert not stage.actions(act.Answer)
    check(stage)
    other = orphan(stage, name="2")
    stage.worker("w", holding=(other,))
    stage.do(events.Cancel(client("c"), b"2"))
    assert stage.one(act.Stop).token == other
    check(stage)


def test_an_orphan_may_expire(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=GUARANTEED, ttl_s=5.0)
    stage.write()
    stage.restart()
    stage.wait(6.0)
    stage.write()
    assert stage.one(act.Refuse).reason is Reason.EXPIRED
    check(stage)
    stage.wait(GRACE_S)
    check(stage)


def test_restarts_of_the_broker_are_no_lost_workers(stage: LedgerStage) -> None:
    orphan(stage)
    for _ in range(Limits().attempts + 2):
        stage.wait(GRACE_S + 1.0)
        stage.worker("w")
        stage.write()
        stage.restart()
    stage.wait(GRACE_S + 1.0)
    stage.worker("w")
    stage.write()
    stage.gone("w")
    stage.write()
    assert stage.request("c", "1").state is RequestState.QUEUED
    assert not stage.actions(act.Refuse)


def test_orphans_count_for_the_limits_of_their_queue(stage: LedgerStage) -> None:
    stage.queue_rules(echo=QueuePolicy(concurrency=1))
    token = orphan(stage)
    stage.submit("c", "2", options=GUARANTEED)
    stage.write()
    stage.worker("w", credit=5)
    assert not stage.delivered()
    stage.result("w", token)
    assert stage.delivered() == [("w", "2")]
    check(stage)


def test_an_orphan_keeps_its_service(stage: LedgerStage) -> None:
    stage.limits = Limits(idle_service_s=2.0, orphan_grace_s=60.0)
    orphan(stage)
    stage.wait(61.0, step=0.5)
    stage.worker("w")
    assert stage.delivered() == [("w", "1")]


# -- draining -------------------------------------------------------------------------------------


def test_jobs_on_disk_do_not_hold_up_a_drain(stage: LedgerStage) -> None:
    for name in ("1", "2"):
        stage.submit("c", name, "nobody", options=GUARANTEED)
    stage.job("j", service="nobody", delay_s=100)
    stage.write()
    stage.do(events.Drain())
    stage.one(act.Drained)
    stage.restart()
    assert len(stage.bus.patient) == 3


def test_what_is_not_written_yet_holds_it_up(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    stage.do(events.Drain())
    assert stage.nothing()
    stage.write()
    stage.wait(0.2)
    stage.one(act.Accept)
    stage.one(act.Drained)


def test_what_workers_have_holds_it_up_and_nothing_more_is_begun(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.worker("v")
    for name in "12345":
        stage.submit("c", name, options=GUARANTEED)
    stage.write()
    stage.submit("c", "plain")
    assert stage.delivered() == [("w", "1"), ("v", "2")]
    stage.do(events.Drain())
    check(stage)
    assert stage.bus.state is BusState.DRAINING
    stage.result("w", stage.token("c", "1"))
    assert stage.delivered() == [("w", "plain")], "what would be lost is done first"
    stage.gone("v")
    stage.worker("v")
    stage.write()
    assert not stage.delivered()
    check(stage)
    assert stage.bus.state is BusState.DRAINING
    stage.result("w", stage.token("c", "plain"))
    stage.write()
    stage.wait(0.2)
    stage.one(act.Drained)
    stage.restart()
    stage.worker("w", credit=10)
    assert [name for _, name in stage.delivered()] == ["2", "3", "4", "5"]


def test_a_job_that_a_worker_has_holds_it_up_alone(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    stage.delivered()
    stage.do(events.Drain())
    stage.wait(1.0)
    assert stage.bus.state is BusState.DRAINING
    stage.result("w")
    stage.write()
    stage.wait(0.2)
    assert stage.bus.state is BusState.DRAINED


def test_retries_and_chains_are_left_to_the_successor(stage: LedgerStage) -> None:
    stage.worker("w", credit=5)
    stage.submit("c", "1", options=JobOptions(guarantee=True, retries=1, backoff_s=0.0))
    stage.job("j", then=[{"service": "echo"}])
    stage.write()
    stage.delivered()
    stage.do(events.Drain())
    stage.fail("w", stage.token("c", "1"))
    stage.wait(0.2)
    stage.result("w", stage.job_request("j").token)
    stage.write()
    stage.wait(0.2)
    assert not stage.delivered()
    stage.one(act.Drained)
    check(stage)
    stage.restart()
    stage.worker("w", credit=5)
    assert len(stage.delivered()) == 2


def test_plain_retries_hold_it_up(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=JobOptions(retries=1, backoff_s=1.0))
    stage.do(events.Drain())
    stage.fail("w", stage.token("c", "1"))
    stage.delivered()
    stage.wait(1.2)
    assert stage.delivered() == [("w", "1")]
    stage.result("w", stage.token("c", "1"))
    stage.one(act.Drained)


def test_a_drained_broker_left_nothing_behind_in_its_ledger(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    stage.do(events.Drain())
    stage.result("w", stage.token("c", "1"))
    stage.write()
    stage.wait(0.2)
    stage.one(act.Answer)
    stage.one(act.Drained)
    contents = stage.store.load()
    assert not contents.jobs
    assert [(outcome.identity, outcome.request_id) for outcome in contents.outcomes] == [(b"c", b"1")]
    assert isinstance(stage.pen.written[0], ledger.Accepted)
    assert stage.pen.written[0].job.link == "clients"


def test_the_end_of_the_grace_time_is_told_and_written_down(stage: LedgerStage) -> None:
    token = orphan(stage)
    stage.observed.clear()
    stage.wait(GRACE_S + 0.3)
    (told,) = stage.told("requeued")
    assert (told.token, told.reason) == (token, "its worker did not come back")
    stage.write()
    (entry,) = stage.store.load().jobs
    assert (entry.worker, entry.attempt, entry.due_at) == ("", 1, 0.0)


def test_a_job_that_is_due_at_this_very_moment_is_queued(stage: LedgerStage) -> None:
    stage.job("j", delay_s=10)
    stage.write()
    stage.restart(after_s=10.0)
    assert stage.job_request("j").state is RequestState.QUEUED
    check(stage)


def test_an_outcome_is_no_members_because_its_client_called_it_so(stage: LedgerStage) -> None:
    """It is forgotten after its age; those of a group's members are kept until the group has ended."""
    stage.worker("w", credit=5)
    stage.submit("c", "g/0", options=GUARANTEED)
    stage.group("g", {"service": "echo", "body": ""}, {"service": "unserved", "body": ""})
    stage.write()
    for token in list(stage.bus.workers[worker("w")].inflight):
        stage.result("w", token)
    stage.write()
    stage.restart()
    assert sorted(outcome.identity for outcome in stage.store.load().outcomes) == [b"c", b"jobs"]
    stage.wait(stage.bus.outcomes_age_s + 2.0, step=3600.0)
    stage.write()
    assert list(stage.bus.groups) == [b"g"]
    assert [outcome.identity for outcome in stage.store.load().outcomes] == [b"jobs"]


# -- who asked ------------------------------------------------------------------------------------


def made_up(number: int) -> str:
    """An identity as libzmq makes it up for a peer that chose none."""
    return f"\0\1\2\3{number}"


def test_a_client_without_an_identity_of_its_own_is_no_client_of_the_next_life(stage: LedgerStage) -> None:
    stage.submit(made_up(1), "1", body=[b"first"], options=GUARANTEED)
    stage.write()
    stage.restart()
    # Somebody else gets that identity, and uses the same id.
    stage.submit(made_up(1), "1", body=[b"another"], options=GUARANTEED)
    stage.write()
    assert stage.bus.counters.duplicates == 0
    stage.worker("w", credit=2)
    first, second = stage.bus.workers[worker("w")].inflight.values()
    assert (first.body, second.body) == ([b"first"], [b"another"])
    assert first.client.address == (client("")[0], made_up(1).encode() + b"n")
    assert second.client.address == client(made_up(1))
    check(stage)


def test_its_outcome_is_nobody_elses_either_however_often_the_broker_is_restarted(stage: LedgerStage) -> None:
    stage.submit(made_up(1), "1", options=GUARANTEED)
    stage.submit("own", "1", options=GUARANTEED)
    stage.write()
    stage.worker("w", credit=2)
    for token in list(stage.bus.workers[worker("w")].inflight):
        stage.do(events.Result(worker("w"), token, [b"done"]))
    stage.write()
    for _ in range(2):
        stage.restart()
        kept = {address for address in stage.bus.clients if address[0] == client("")[0]}
        assert kept == {client("own"), (client("")[0], made_up(1).encode() + b"n")}
        check(stage)
    stage.submit("own", "1", options=GUARANTEED)
    assert stage.bus.counters.replayed == 1
    stage.submit(made_up(1), "1", options=GUARANTEED)
    assert stage.bus.counters.replayed == 1
    stage.write()
    assert stage.bus.services[b"echo"].queue.length == 1


def test_two_lives_of_the_broker_had_two_clients_of_one_identity(stage: LedgerStage) -> None:
    for _ in range(2):
        stage.submit(made_up(1), "1", options=GUARANTEED)
        stage.write()
        stage.restart()
    names = {request.client.address[1] for request in stage.bus.patient.values()}
    assert names == {made_up(1).encode() + b"n", made_up(1).encode() + b"n2"}
    check(stage)


@pytest.mark.parametrize("name", ["\0chosen", "\0abc", "plain", "12345"])
def test_other_identities_are_those_of_the_same_clients(stage: LedgerStage, name: str) -> None:
    stage.submit(name, "1", options=GUARANTEED)
    stage.write()
    stage.restart()
    assert list(stage.bus.clients[client(name)].outstanding) == [b"1"]
