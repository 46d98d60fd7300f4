"""Questions about jobs: what the core knows is told at once, the rest when the store has said it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.model import Heartbeat, JobOptions
from polybus.core.restoring import restore
from polybus.core.tables import DESK, NO_STORE
from polybus.dialects.port import Voice
from polybus.server import admin_jobs
from polybus.server.admin import BadQuestion, Later
from polybus.server.admin_jobs import JobDesk
from polybus.server.effects import Outbox
from polybus.store.memory import MemoryStore

CLIENT = (1, b"client")
WORKER = (2, b"worker")
WALL = 1_700_000_000.0


class Mute(Voice):
    dialect = "mute"

    def deliver(self, worker: Any, request: Any) -> list[Any]:
        return [worker.address[1], request.token]


VOICE = Mute()


class NoPump:
    kind = "none"

    def send_many(self, messages: Any) -> list[tuple[int, int]]:
        return []

    def recv_many(self, timeout_ms: int, limit: int = 1000) -> list[Any]:
        raise AssertionError


class Office:
    """A bus with a store that is written when the test says so."""

    def __init__(self, has_store: bool = True) -> None:
        self.now = 100.0
        self.store = MemoryStore()
        self.has_store = has_store
        self.is_broken = False
        self.questions: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
        self.open()

    def open(self) -> None:
        self.bus = Bus(b"n-")
        self.bus.wall_offset = WALL
        self.bus.link_names = {1: "emqp.clients", 2: "emqp.workers", DESK[0]: "jobs"}
        self.bus.voices = {"mute": VOICE}
        if self.has_store:
            self.bus.store_trouble = ""
            restore(self.bus, self.store.load(), Voice(), self.now)
        self.outbox = Outbox(self.bus, NoPump())
        self.desk = JobDesk(self.bus, self.outbox, lambda: self.now, self._ask_store)

    def _ask_store(self, call: Callable[..., Any], done: Callable[..., Any]) -> bool:
        if self.has_store:
            self.questions.append((call, done))
        return self.has_store

    def turn(self) -> bool:
        """Let everything happen that is due; whether something did."""
        asked, self.questions = self.questions, []
        for call, done in asked:
            done(call(self.store), None)
        moved = bool(asked or self.bus.actions or self.bus.lines)
        self.outbox.settle(self.now)
        if self.bus.lines:
            number, lines = self.bus.take_lines()
            if self.is_broken:
                refused = tuple(line.job.token for line in lines if hasattr(line, "job"))
                self.bus.handle(events.Unwritten(refused, "the disk is full"), self.now)
            else:
                self.store.write(lines)
            self.bus.handle(events.Written(number), self.now)
        return moved

    def settle(self) -> None:
        while self.turn():
            pass

    def do(self, event: Any) -> None:
        self.bus.handle(event, self.now)
        self.settle()

    def ask(self, do: str, **question: Any) -> Any:
        answer = self.desk.commands[do]({"do": do, **question}, self.now)
        if not isinstance(answer, Later):
            return answer
        heard: list[dict[str, Any]] = []
        answer.then(heard.append)
        self.settle()
        (told,) = heard
        if "error" in told:
            raise BadQuestion(told["error"])
        return told["ok"]

    def submit(
        self, request_id: bytes = b"r1", service: bytes = b"mail", body: bytes = b"to: ada", **options: Any
    ) -> str:
        """Send a job and return its token."""
        known = set(self.bus.patient)
        self.do(events.Submit(CLIENT, VOICE, request_id, service, [body], options=JobOptions(**options)))
        (token,) = set(self.bus.patient) - known
        return token.decode()

    def worker(self, slots: int = 10) -> None:
        self.do(events.WorkerUp(WORKER, VOICE, ((b"mail", 3),), Heartbeat(0.0), slots))

    def fail(self, token: str, detail: str = "smtp is down") -> None:
        self.do(events.Failure(WORKER, token.encode(), detail, []))

    def dead(self, count: int = 1, **options: Any) -> list[str]:
        """So many dead letters."""
        self.worker(slots=1000)
        tokens = [self.submit(b"d%d" % number, guarantee=True, **options) for number in range(count)]
        for token in tokens:
            self.fail(token)
        self.do(events.WorkerGone(WORKER, "it was only there for this"))
        return tokens


# -- looking ------------------------------------------------------------------------------------------


def test_jobs_in_all_their_states() -> None:
    office = Office()
    office.worker(slots=2)
    running = office.submit(b"a", guarantee=True)
    waiting = office.submit(b"b", retries=2)
    office.fail(waiting)
    office.do(events.Submit(CLIENT, VOICE, b"plain", b"mail", [b"x"]))
    queued = office.submit(b"c", service=b"sms", retries=1)
    office.now += 0.5
    rows = {row["token"]: row for row in office.ask("jobs")}
    assert {token: row["state"] for token, row in rows.items()} == {
        running: "running",
        waiting: "waiting",
        queued: "queued",
    }
    assert rows[running]["worker"] == "worker"
    assert rows[running]["guarantee"]
    assert (rows[waiting]["reason"], rows[waiting]["detail"]) == ("failed", "smtp is down")
    assert 0 < rows[waiting]["due_in_s"] < 1
    assert rows[queued]["age_s"] == 0.5
    assert (rows[queued]["job"], rows[queued]["client"], rows[queued]["dialect"]) == ("c", "client", "mute")
    assert [row["token"] for row in office.ask("jobs", state="waiting")] == [waiting]
    assert [row["token"] for row in office.ask("jobs", service="sms")] == [queued]
    assert len(office.ask("jobs", limit=2)) == 2


@pytest.mark.parametrize("wrong", [{"state": "asleep"}, {"limit": 0}, {"limit": 5000}, {"service": 3}])
def test_wrong_questions_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadQuestion, match="the question is wrong"):
        Office().ask("jobs", **wrong)


def test_a_job_by_its_token_and_by_its_id() -> None:
    office = Office()
    token = office.submit(b"mail-1", guarantee=True, retries=2, timeout_s=60.0)
    found = office.ask("job", job=token)
    assert found == office.ask("job", job="mail-1")
    assert (found["state"], found["accepted_at"], found["timeout_s"]) == ("queued", WALL + 100.0, 60.0)
    assert [base64.b64decode(frame) for frame in found["body_base64"]] == [b"to: ada"]
    assert (found["dead"], found["history"], found["expires_at"]) == (False, [], None)


def test_two_jobs_of_one_name_are_told_apart_by_their_tokens() -> None:
    office = Office()
    first = office.submit(b"same", guarantee=True)
    other = events.Submit((1, b"other"), VOICE, b"same", b"mail", [b"x"], options=JobOptions(guarantee=True))
    office.do(other)
    with pytest.raises(BadQuestion, match=first):
        office.ask("job", job="same")


def test_a_job_that_has_ended() -> None:
    office = Office()
    office.worker()
    token = office.submit(b"mail-1", guarantee=True)
    office.do(events.Result(WORKER, token.encode(), [b"sent"]))
    for name in (token, "mail-1"):
        found = office.ask("job", job=name)
        assert (found["state"], found["token"], found["ended_at"]) == ("done", token, WALL + 100.0)
        assert [base64.b64decode(frame) for frame in found["result_base64"]] == [b"sent"]


def test_a_dead_letter_has_its_whole_history() -> None:
    office = Office()
    (token,) = office.dead()
    found = office.ask("job", job=token)
    assert (found["state"], found["dead"], found["reason"]) == ("failed", True, "failed")
    (attempt,) = found["history"]
    assert (attempt["number"], attempt["worker"], attempt["detail"]) == (1, "worker", "smtp is down")
    (row,) = office.ask("dead")
    assert (row["token"], row["attempts"], row["reason"], row["detail"]) == (
        token,
        1,
        "failed",
        "smtp is down",
    )
    assert row["at"] == WALL + 100.0
    assert office.ask("dead", service="sms") == []


def test_an_unknown_job() -> None:
    with pytest.raises(BadQuestion, match="no job is called"):
        Office().ask("job", job="nobody")


def test_a_group_is_a_job_too() -> None:
    office = Office()
    head = b'{"group": [{"service": "mail"}, {"service": "mail"}], "id": "both"}\n'
    office.do(events.Submit(CLIENT, VOICE, b"r", b"polybus.submit", [head]))
    found = office.ask("job", job="both")
    assert (found["state"], found["job"]) == ("running", "both")
    assert "both/0 to both/1" in found["detail"]
    assert office.ask("job", job="both/0")["state"] == "queued"


def test_an_answer_knows_what_was_noted_before_the_question() -> None:
    office = Office()
    office.worker()
    token = office.submit(guarantee=True)
    # Its end is noted in this very turn, and not on disk yet.
    office.bus.handle(events.Result(WORKER, token.encode(), [b"sent"]), office.now)
    assert office.ask("job", job=token)["state"] == "done"


# -- without a store ----------------------------------------------------------------------------------


def test_without_a_store_jobs_are_there_and_dead_letters_are_not() -> None:
    office = Office(has_store=False)
    office.submit(retries=1)
    assert len(office.ask("jobs")) == 1
    for do, question in (("dead", {}), ("job", {"job": "x"}), ("dead_drop", {"all": ""})):
        with pytest.raises(BadQuestion) as caught:
            office.ask(do, **question)
        assert str(caught.value) == NO_STORE


def test_a_store_that_cannot_answer_says_why() -> None:
    office = Office()
    later = office.desk.commands["dead"]({}, office.now)
    office.outbox.settle(office.now)
    ((_, done),) = office.questions
    office.questions = []
    heard: list[Any] = []
    later.then(heard.append)
    done(None, OSError("disk on fire"))
    assert heard == [{"error": "the store cannot answer: disk on fire"}]


# -- orders -------------------------------------------------------------------------------------------


def test_cancel_is_answered_when_it_is_on_disk() -> None:
    office = Office()
    token = office.submit(b"mail-1", guarantee=True)
    later = office.desk.commands["job_cancel"]({"job": "mail-1"}, office.now)
    heard: list[Any] = []
    later.then(heard.append)
    office.outbox.settle(office.now)
    assert not heard
    office.settle()
    assert heard == [{"ok": {"cancelled": token}}]
    assert office.ask("job", job=token)["state"] == "cancelled"
    assert office.ask("dead") == []
    with pytest.raises(BadQuestion, match="queued, running or waiting"):
        office.ask("job_cancel", job=token)


def test_retry_gives_all_attempts_again_and_keeps_the_history() -> None:
    office = Office()
    (token,) = office.dead()
    assert office.ask("job_retry", jobs=[token]) == {"retried": 1, "refused": {}}
    assert office.ask("dead") == []
    found = office.ask("job", job=token)
    assert (found["state"], found["attempt"], found["guarantee"]) == ("queued", 0, True)
    assert [attempt["reason"] for attempt in found["history"]] == ["failed", "revived"]
    office.worker()
    office.do(events.Result(WORKER, token.encode(), [b"sent"]))
    assert office.ask("job", job=token)["state"] == "done"


def test_retries_of_a_revived_job_count_anew_after_a_restart() -> None:
    office = Office()
    (token,) = office.dead()
    office.ask("job_retry", jobs=[token])
    office.open()
    assert office.bus.patient[token.encode()].failures == 0
    office.worker()
    office.fail(token)
    (row,) = office.ask("dead")
    assert [attempt["reason"] for attempt in row["history"]] == ["failed", "revived", "failed"]


def test_retry_by_the_id_of_a_client_and_of_what_nobody_knows() -> None:
    office = Office()
    (token,) = office.dead()
    answer = office.ask("job_retry", jobs=["d0", "nobody"])
    assert answer == {"retried": 1, "refused": {"nobody": "no dead letter is called so"}}
    assert token.encode() in office.bus.patient


def test_retry_of_all_of_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_jobs, "AT_ONCE", 4)
    office = Office()
    tokens = office.dead(11)
    assert office.ask("job_retry", all="sms") == {"retried": 0, "refused": {}}
    assert office.ask("job_retry", all="mail") == {"retried": 11, "refused": {}}
    assert [request.decode() for request in office.bus.patient] == tokens
    assert office.ask("dead") == []


def test_a_full_queue_keeps_its_dead_letters() -> None:
    office = Office()
    tokens = office.dead(3)
    office.bus.change_limits(type(office.bus.limits)(queue_length=1))
    answer = office.ask("job_retry", jobs=tokens)
    # All of a batch are admitted before the first is queued.
    assert answer["retried"] + len(answer["refused"]) == 3
    assert len(office.ask("dead")) == len(answer["refused"])


def test_what_cannot_be_written_stays_a_dead_letter() -> None:
    office = Office()
    (token,) = office.dead()
    office.is_broken = True
    assert office.ask("job_retry", jobs=[token]) == {
        "retried": 0,
        "refused": {token: "it could not be written down"},
    }
    office.is_broken = False
    assert [row["token"] for row in office.ask("dead")] == [token]
    office.bus.store_trouble = "the disk is full"
    assert "the disk is full" in office.ask("job_retry", jobs=[token])["refused"][token]


def test_a_retry_of_what_was_retried_is_refused_by_name() -> None:
    office = Office()
    (token,) = office.dead()
    letter = office.store.dead_letter(token.encode())
    assert letter is not None
    office.ask("job_retry", jobs=[token])
    request, reason = office.desk.revive(letter)
    assert (request, reason) == (None, "it was sent again and has not ended yet")


def test_drop() -> None:
    office = Office()
    first, second, third = office.dead(3)
    assert office.ask("dead_drop", jobs=[first, "nobody"]) == {"dropped": 1, "unknown": ["nobody"]}
    assert [row["token"] for row in office.ask("dead")] == [second, third]
    assert office.ask("dead_drop", all="sms") == {"dropped": 0, "unknown": []}
    assert office.ask("dead_drop", all="") == {"dropped": 2, "unknown": []}
    assert office.ask("dead") == []


@pytest.mark.parametrize("do", ["job_retry", "dead_drop"])
@pytest.mark.parametrize("wrong", [{}, {"jobs": ["a"], "all": ""}, {"jobs": "a"}, {"all": 3}])
def test_orders_name_what_they_mean(do: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadQuestion):
        Office().ask(do, **wrong)


def test_the_oldest_dead_letters_leave_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_jobs, "MAX_NAMED", 3)
    office = Office()
    tokens = office.dead(10)
    for _ in range(4):
        office.desk.keep_at_most(5)
        office.settle()
    assert [row["token"] for row in office.ask("dead")] == tokens[5:]
    assert office.desk.dropped == 5
    # Nobody is asked while nothing dies.
    office.desk.keep_at_most(5)
    assert not office.questions


def test_schedules_are_those_of_the_brokers_own_service() -> None:
    office = Office()
    added = office.ask("schedule_add", queue="mail", message="hello", every_s=60, key="k")
    assert added == {"key": "k", "next_at": WALL + 160.0}
    (row,) = office.ask("schedules")
    assert (row["key"], row["queue"], row["every_s"], row["runs_left"]) == ("k", "mail", 60.0, None)
    office.now += 61
    office.do(events.Tick())
    (run,) = office.ask("schedule_runs", key="k")
    assert (run["due_at"], run["what"], run["missed"]) == (WALL + 160.0, "ran", 0)
    assert office.ask("job", job=run["token"])["state"] == "queued"
    assert office.ask("schedule_rm", key="k") == {"removed": True}
    assert office.ask("schedules") == []
    with pytest.raises(BadQuestion, match="bad_schedule"):
        office.ask("schedule_add", queue="mail", message="hello", cron="often")
