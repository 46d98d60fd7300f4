"""Jobs over crashes: random events, a disk that fails, a broker that dies between any two turns.

The model is simple.  What was promised (a receipt was sent) is known until it has ended; whatever is told of
it is on disk and is the same every time, in this life or a later one; nobody hears more last words than it
asked for; what a worker was given was accepted; the history of a job only grows.  In the end everything ends.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from polybus.core import actions as act
from polybus.core import events
from polybus.core.dispatching import note_starts
from polybus.core.ledger import Accepted, Attempt
from polybus.core.lifecycle import BusState
from polybus.core.model import Address, JobOptions, Limits, QueuePolicy, Reason, Request, Retrying
from polybus.core.revival import revive
from support import invariants
from support.stage import CLIENTS, LedgerStage, client, worker

LIMITS = Limits(
    body_bytes=2000,
    held_bytes=20_000,
    queue_length=12,
    outstanding_per_client=10,
    attempts=3,
    request_ttl_s=20.0,
    replies_age_s=5.0,
    replies_count=8,
    idle_service_s=10.0,
    orphan_grace_s=3.0,
    timeout_grace_s=0.5,
    waiters=6,
    group_size=3,
)
SERVICES = ["a", "b"]
JOBS = ["j1", "j2", "j3", "j4"]
# Said of a call that came to nothing, before any job was accepted or because too many wait for one.
AT_ONCE = {
    Reason.STORE_UNAVAILABLE,
    Reason.QUEUE_FULL,
    Reason.TOO_MANY_OUTSTANDING,
    Reason.TOO_LARGE,
    Reason.OUT_OF_MEMORY,
    Reason.UNKNOWN_JOB,
    Reason.DRAINING,
    Reason.BAD_JOB,
}
clients = st.sampled_from(["c0", "c1", "c2"])
workers = st.sampled_from(["w0", "w1", "w2"])
services = st.sampled_from(SERVICES)
job_ids = st.sampled_from(JOBS)
numbers = st.integers(0, 30)
options = st.builds(
    JobOptions,
    reply_requested=st.sampled_from([True, True, False]),
    guarantee=st.sampled_from([True, True, True, False]),
    retries=st.sampled_from([0, 0, 1, 3]),
    timeout_s=st.sampled_from([0.0, 0.0, 1.0]),
    backoff_s=st.sampled_from([None, 0.0, 0.5]),
)
policies = st.sampled_from(
    [
        {},
        {"a": QueuePolicy(guarantee=True, retries=1)},
        {"a": QueuePolicy(concurrency=1), "b": QueuePolicy(rate_per_s=2.0, weight=3)},
    ]
)
steps = st.lists(
    st.fixed_dictionaries(
        {
            "service": services,
            "body": st.sampled_from(["", '["run", {"args": []}]']),
            "guarantee": st.booleans(),
            "retries": st.sampled_from([0, 1]),
            "backoff_s": st.just(0.0),
        }
    ),
    max_size=2,
)

Key = tuple[Address, bytes] | bytes
Word = tuple[str, Any]


class Model(LedgerStage):
    """A stage that looks at everything that leaves it."""

    def __init__(self) -> None:
        # What was told to somebody, which has to stay true.
        self.promised: set[Key] = set()
        self.told: dict[Key, Word] = {}
        # What the calls of the broker's own services are about.
        self.calls: dict[tuple[Address, bytes], tuple[str, bytes]] = {}
        self.asked: Counter[tuple[Address, bytes]] = Counter()
        self.finals: Counter[tuple[Address, bytes]] = Counter()
        self.on_disk: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.histories: dict[bytes, tuple[Attempt, ...]] = {}
        self.stored: dict[bytes, tuple[Attempt, ...]] = {}
        # What worker processes really run, whatever becomes of the broker.
        self.running: dict[str, list[bytes]] = {}
        self.bodies = 0
        self.drained = False
        super().__init__(LIMITS, starts_linger=True)

    def _prepare(self, bus: Any) -> None:
        super()._prepare(bus)
        bus.retrying = Retrying(backoff_s=0.5, backoff_max_s=2.0, jitter=0.1)
        self.histories = {}
        self.drained = False

    # -- what leaves --------------------------------------------------------------------------------

    def _collect(self) -> None:
        self._note_disk()
        for action in self.bus.take():
            match action:
                case act.Deliver(who, request):
                    if request.durable:
                        assert request.token in self.on_disk, "dispatched before it was on disk"
                        assert request.token not in self.refused, "dispatched although it was refused"
                    self.running.setdefault(who.address[1].decode(), []).append(request.token)
                case act.Accept():
                    self._accepted(action)
                case act.Answer() | act.Refuse():
                    self.finals[action.client, action.request_id] += 1
                    self._final(action)
                case act.Drained():
                    assert not self.drained
                    self.drained = True

    def _note_disk(self) -> None:
        for line in self.pen.written:
            if isinstance(line, Accepted):
                self.on_disk.add(line.job.token)
        self.pen.written.clear()

    def _known(self, address: Address, request_id: bytes) -> Any:
        owner = self.bus.clients.get(address)
        return owner.known.get(request_id) if owner else None

    def _accepted(self, action: act.Accept) -> None:
        if action.service.startswith(b"polybus.") or not action.request_id:
            return
        known = self._known(action.client, action.request_id)
        if isinstance(known, Request) and known.durable:
            assert known.token in self.on_disk, "a receipt before it was on disk"
            self.promised.add((action.client, action.request_id))

    def _final(self, action: act.Answer | act.Refuse) -> None:
        if not action.request_id:
            return
        word = _word(action)
        what, job_id = self.calls.get((action.client, action.request_id), ("", b""))
        if what == "submit" and isinstance(action, act.Answer):
            assert msgspec.json.decode(action.body[0]) == {"job": job_id.decode()}
            if self._is_durable_job(job_id):
                assert self._job_is_on_disk(job_id), "a job's receipt before it was on disk"
                self.promised.add(job_id)
        elif what in ("submit", "result"):
            self._ended(job_id, action, word, (DESK_NAME, job_id))
        elif not what:
            key = (action.client, action.request_id)
            self._ended(key, action, word, (action.client[1], action.request_id))

    def _ended(
        self, key: Key, action: act.Answer | act.Refuse, word: Word, name: tuple[bytes, bytes]
    ) -> None:
        outcome = self._outcome(*name)
        if isinstance(action, act.Refuse) and action.reason in AT_ONCE:
            if action.reason is Reason.STORE_UNAVAILABLE and isinstance(key, bytes):
                assert key not in self.promised or key in self.bus.desk.known
            return
        if outcome is None:
            # Not guaranteed: it may be told at once, and forgotten.
            assert key not in self.promised, (key, word)
            return
        kept = ("no", outcome.reason) if outcome.reason else ("yes", b"".join(outcome.body))
        if key in self.promised:
            assert word == kept, "told before it was on disk, or something else"
            assert self.told.setdefault(key, word) == word, "two ends of one job"

    def _outcome(self, identity: bytes, request_id: bytes) -> Any:
        for outcome in self.store._outcomes.values():
            if (outcome.identity, outcome.request_id) == (identity, request_id):
                return outcome
        return None

    def _is_durable_job(self, job_id: bytes) -> bool:
        group = self.bus.groups.get(job_id)
        if group is not None:
            return bool(group.guarantee)
        known = self.bus.desk.known.get(job_id)
        return known.durable if isinstance(known, Request) else False

    def _job_is_on_disk(self, job_id: bytes) -> bool:
        names = {job.request_id for job in self.store._jobs.values() if job.identity == DESK_NAME}
        return job_id in names or job_id in self.store._groups

    # -- what must hold -----------------------------------------------------------------------------

    def look(self) -> None:
        self._note_disk()
        invariants.check(self.bus, self.now)
        for key in self.promised:
            if isinstance(key, bytes):
                assert key in self.bus.desk.known or key in self.bus.groups, f"job {key!r} is lost"
            else:
                assert self._known(*key) is not None, f"request {key} is lost"
        for key, count in self.finals.items():
            assert count <= self.asked[key], f"{key} was told more than it asked for"
        for token, request in self.bus.requests.items():
            before = self.histories.get(token, ())
            assert request.history[: len(before)] == before
            self.histories[token] = request.history
        for token, job in self.store._jobs.items():
            before = self.stored.get(token, ())
            assert job.history[: len(before)] == before
            self.stored[token] = job.history

    def restart(self, last_batch_on_disk: bool = False, after_s: float = 0.0) -> None:
        super().restart(last_batch_on_disk, after_s)
        # Also what nobody knows of, because the disk said no and did yes.
        self.on_disk |= set(self.store._jobs)
        assert set(self.bus.patient) >= set(self.store._jobs), "a job on disk was not taken up"

    def new_body(self) -> list[bytes]:
        self.bodies += 1
        return [b"%d" % self.bodies]


DESK_NAME = b"jobs"


def _word(action: act.Answer | act.Refuse) -> Word:
    if isinstance(action, act.Answer):
        return ("yes", b"".join(action.body))
    return ("no", str(action.reason))


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.call_number = 0

    # -- clients ------------------------------------------------------------------------------------

    @rule(
        name=clients,
        request_id=st.sampled_from(["", "1", "2", "3"]),
        service=services,
        options=options,
        ttl_s=st.sampled_from([None, None, inf, 3.0]),
        receipt=st.booleans(),
    )
    def submit(
        self,
        name: str,
        request_id: str,
        service: str,
        options: JobOptions,
        ttl_s: float | None,
        receipt: bool,
    ) -> None:
        model = self.model
        model.asked[client(name), request_id.encode()] += 1
        counters = model.bus.counters
        before = counters.duplicates - counters.replayed
        model.submit(name, request_id, service, options=options, ttl_s=ttl_s, receipt=receipt)
        # A duplicate that waits with the first gets the same one answer.
        waits = counters.duplicates - counters.replayed - before
        model.asked[client(name), request_id.encode()] -= waits

    @rule(name=clients, request_id=st.sampled_from(["1", "2", "3"]))
    def cancel(self, name: str, request_id: str) -> None:
        self.model.do(events.Cancel(client(name), request_id.encode()))

    @rule(name=clients, withdraw=st.booleans())
    def client_gone(self, name: str, withdraw: bool) -> None:
        self.model.do(events.ClientGone(client(name), withdraw))

    # -- jobs ---------------------------------------------------------------------------------------

    def call(self, name: str, what: str, body: bytes, about: tuple[str, str], again: bool = False) -> None:
        model = self.model
        if not again:
            self.call_number += 1
        address = (CLIENTS, name.encode())
        request_id = f"{what}-{self.call_number}"
        kind, job_id = about
        model.calls[address, request_id.encode()] = (kind, job_id.encode())
        model.asked[address, request_id.encode()] += 1
        model.call(name, request_id, what, body, receipt=self.call_number % 2 == 0)

    @rule(
        name=clients,
        job_id=job_ids,
        service=services,
        guarantee=st.sampled_from([True, True, True, False]),
        retries=st.sampled_from([0, 0, 2]),
        delay_s=st.sampled_from([0.0, 0.0, 0.0, 2.0]),
        ttl_s=st.sampled_from([None, None, None, 4.0]),
        timeout_s=st.sampled_from([0.0, 0.0, 1.0]),
        reply=st.sampled_from(["receipt", "receipt", "result"]),
        then=steps,
    )
    def job(self, name: str, job_id: str, reply: str, **spec: Any) -> None:
        head = {"id": job_id, "reply": reply, "backoff_s": 0.0, **spec}
        body = msgspec.json.encode(head) + b"\n" + job_id.encode()
        self.call(name, "submit", body, ("result" if reply == "result" else "submit", job_id))

    @rule(
        name=clients,
        job_id=job_ids,
        members=st.lists(
            st.fixed_dictionaries({"service": services, "guarantee": st.booleans(), "retries": st.just(1)}),
            min_size=1,
            max_size=3,
        ),
        then=steps,
        reply=st.sampled_from(["receipt", "result"]),
    )
    def group(self, name: str, job_id: str, members: list[Any], then: list[Any], reply: str) -> None:
        head = {"id": job_id, "group": members, "then": then, "reply": reply}
        about = ("result" if reply == "result" else "submit", job_id)
        self.call(name, "submit", msgspec.json.encode(head), about)

    @rule(name=clients, job_id=job_ids, what=st.sampled_from(["result", "result", "cancel", "job"]))
    def ask(self, name: str, job_id: str, what: str) -> None:
        self.call(name, what, job_id.encode(), (what, job_id))

    @rule(name=clients)
    def ask_again(self, name: str) -> None:
        """The same call once more, as a client does that heard nothing."""
        mine = [(key, about) for key, about in self.model.calls.items() if key[0] == client(name)]
        for (address, request_id), (what, job_id) in mine[-1:]:
            if what == "result" and request_id.startswith(b"result"):
                self.model.asked[address, request_id] += 1
                self.model.call(name, request_id.decode(), "result", job_id)

    # -- workers ------------------------------------------------------------------------------------

    @rule(
        name=workers,
        offers=st.lists(services, min_size=1, max_size=2, unique=True),
        credit=st.integers(1, 3),
        grants=st.booleans(),
        process=st.sampled_from(["new", "same", "same"]),
    )
    def worker_up(self, name: str, offers: list[str], credit: int, grants: bool, process: str) -> None:
        model = self.model
        if process == "new":
            model.running[name] = []
        holding = tuple(model.running.get(name, ()))
        model.worker(name, *offers, credit=credit, grants_slots=grants, holding=holding)
        if grants:
            for _ in range(credit):
                model.do(events.Slot(worker(name), name))

    def pick(self, name: str, number: int) -> bytes | None:
        tokens = self.model.running.get(name) or []
        return tokens.pop(number % len(tokens)) if tokens else None

    def granted(self, name: str) -> None:
        known = self.model.bus.workers.get(worker(name))
        if known is not None and known.grants_slots:
            self.model.do(events.Slot(worker(name), name))

    @rule(name=workers, number=numbers)
    def answer(self, name: str, number: int) -> None:
        token = self.pick(name, number)
        if token is not None:
            self.model.result(name, token, self.model.new_body())
            self.granted(name)

    @rule(name=workers, number=numbers)
    def fail(self, name: str, number: int) -> None:
        token = self.pick(name, number)
        if token is not None:
            self.model.do(events.Failure(worker(name), token, "it broke", []))
            self.granted(name)

    @rule(
        name=workers, number=numbers, what=st.sampled_from([events.Part, events.Returned, events.WorkerFull])
    )
    def other_words(self, name: str, number: int, what: type) -> None:
        known = self.model.bus.workers.get(worker(name))
        tokens = self.model.running.get(name) or []
        if not tokens or known is None or (what is events.Returned and not known.grants_slots):
            return
        if what is events.Part:
            self.model.part(name, tokens[number % len(tokens)], [b"part"])
        else:
            self.model.do(what(worker(name), tokens.pop(number % len(tokens))))

    @rule(name=workers, number=numbers)
    def out_of_turn(self, name: str, number: int) -> None:
        tokens = [*self.model.on_disk, b"nonsense"]
        self.model.result(name, sorted(tokens)[number % len(tokens)], self.model.new_body())

    @rule(name=workers, dies=st.booleans())
    def worker_gone(self, name: str, dies: bool) -> None:
        if dies:
            self.model.running[name] = []
        self.model.gone(name)

    # -- time, disk, crashes ------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 0.6, 1.5, 4.0]))
    def tick(self, seconds: float) -> None:
        self.model.wait(seconds, step=0.5)

    @rule()
    def turn(self) -> None:
        self.model.pen.take(self.model.bus)

    @rule()
    def write(self) -> None:
        self.model.write()
        self.model.do(events.StoreHealth(""))

    @rule()
    def starts_are_noted(self) -> None:
        note_starts(self.model.bus)

    @rule(doubtful=st.booleans())
    def refuse(self, doubtful: bool) -> None:
        self.model.pen.take(self.model.bus)
        for _, lines in self.model.pen.batches:
            self.model.refused |= {
                line.job.token for line in lines if isinstance(line, Accepted) and not line.promised
            }
        self.model.refuse_writes("the disk is full", doubtful)

    @rule(on_disk=st.booleans(), after_s=st.sampled_from([0.1, 5.0]))
    def crash(self, on_disk: bool, after_s: float) -> None:
        model = self.model
        model.restart(on_disk, after_s)
        # What was refused and is on disk nevertheless was to be taken back: now it is back as accepted, and
        # its client may hear of it once more.
        for token in model.refused & set(model.store._jobs):
            job = model.store._jobs[token]
            model.asked[(CLIENTS, job.identity), job.request_id] += 1
        model.refused.clear()

    @rule(number=numbers)
    def cancel_by_token(self, number: int) -> None:
        tokens = list(self.model.bus.requests)
        if tokens:
            self.model.do(events.CancelToken(tokens[number % len(tokens)]))

    @rule(number=numbers)
    def revive(self, number: int) -> None:
        """An operator puts a dead letter back: what was told of it does not bind any more."""
        model = self.model
        letters = model.dead()
        if not letters:
            return
        letter = letters[number % len(letters)]
        request, _ = revive(model.bus, letter, model.now)
        if request is not None:
            model.told.pop(request.request_id, None)
            if request.options.group:
                model.told.pop(request.options.group, None)
        model._collect()

    @rule(rules=policies)
    def change_rules(self, rules: dict[str, QueuePolicy]) -> None:
        self.model.queue_rules(**rules)

    @precondition(lambda self: len(self.model.on_disk) > 4)
    @rule()
    def drain(self) -> None:
        self.model.do(events.Drain())

    # -- what must hold -----------------------------------------------------------------------------

    @invariant()
    def it_all_holds(self) -> None:
        self.model.look()

    @invariant()
    def nothing_on_disk_holds_up_a_drain(self) -> None:
        bus = self.model.bus
        if bus.state is BusState.SERVING:
            return
        self.model.do(events.Tick())
        if not bus.held and all(r.durable and r.worker is None for r in bus.requests.values()):
            assert bus.state is BusState.DRAINED

    def teardown(self) -> None:
        """The disk is well, workers do their work, time passes: everything ends, and is forgotten."""
        model = self.model
        if model.bus.state is not BusState.SERVING:
            model.write()
            model.restart()
        model.recover()
        model.queue_rules()
        model.running.clear()
        for round_ in range(60):
            for name in ("w0", "w1", "w2"):
                if worker(name) not in model.bus.workers:
                    model.worker(name, *SERVICES, credit=20)
            model.write()
            for name, tokens in list(model.running.items()):
                for token in tokens:
                    model.result(name, token, model.new_body())
                tokens.clear()
            model.write()
            if round_ == 20:
                model.restart()
            if round_ % 10 == 5:
                for name in ("w0", "w1", "w2"):
                    model.gone(name)
            model.wait(3.0, step=0.5)
        model.look()
        assert not model.bus.requests
        assert not model.bus.groups
        assert not len(model.bus.waiters)
        assert not model.store._jobs
        assert not model.store._groups
        for key in model.promised:
            known = model.bus.desk.known.get(key) if isinstance(key, bytes) else model._known(*key)
            assert known is not None
            assert key not in model.told or model.told[key] == _word(known)
        for letter in model.dead():
            assert letter.job.token not in model.bus.patient
        model.promised.clear()
        model.wait(model.bus.outcomes_age_s + 1000.0, step=500.0)
        model.write()
        model.wait(60.0, step=1.0)
        model.write()
        bus = model.bus
        assert not model.store._outcomes
        assert not bus.desk.known
        assert not bus.clients
        assert not bus.held
        assert bus.held_bytes == bus.outcomes_bytes == bus.desk.unanswered == 0
        for timers in (bus.expiries, bus.alarms, bus.gates):
            assert not timers._slots


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestMachine = Machine.TestCase
