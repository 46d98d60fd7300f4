"""The admin socket's questions about jobs, dead letters and schedules.

What runs or waits is in the core and is told at once.  What has ended is in the store, which belongs to the
scribe's thread, so those answers come later (`Later`): the loop goes on, and nobody else waits for them.
An order is answered when it is on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from polybus.core import events, job_views
from polybus.core.actions import Answer, Refuse
from polybus.core.bus import Bus
from polybus.core.durable import after_written
from polybus.core.ledger import Buried, DeadLetter
from polybus.core.lifecycle import RequestState
from polybus.core.model import PLAIN_CALL, Request
from polybus.core.revival import revive
from polybus.core.tables import NO_STORE
from polybus.core.views import peer_name
from polybus.dialects.port import Message, Voice
from polybus.server.admin import MAX_LISTED, BadQuestion, Later
from polybus.server.effects import Outbox
from polybus.store.port import Store

# Dead letters that are read or revived in one go. They come whole, and the disk has other things to do.
AT_ONCE: Final = 200
# Tokens that one question may name.
MAX_NAMED: Final = 10_000
# The address of whoever asks the broker's own services from here; nothing is ever sent to it.
NOBODY: Final = (-3, b"admin")

Done = Callable[[Any, Exception | None], None]
# As `Keeping.ask`: False if there is no store.
AskStore = Callable[[Callable[[Store], Any], Done], bool]
Command = Callable[[dict[str, Any], float], Any]
Limit = Annotated[int, Meta(ge=1, le=MAX_LISTED)]
Q = TypeVar("Q")


class JobsQuestion(Struct):
    state: Literal["", "queued", "running", "waiting"] = ""
    service: str = ""
    limit: Limit = 100


class DeadQuestion(Struct):
    service: str = ""
    limit: Limit = 100
    # The token of the last one that was seen: those after it are told.
    after: str = ""


class JobQuestion(Struct):
    job: Annotated[str, Meta(min_length=1)]


class Letters(Struct):
    """Dead letters by name, or all of a service (empty: of every service)."""

    jobs: Annotated[list[str], Meta(max_length=MAX_NAMED)] | None = None
    all: str | None = None


class RunsQuestion(Struct):
    key: str
    limit: Limit = 100


class Ready(Struct, frozen=True):
    """An action: everything that was noted before it is on disk."""

    call: Callable[[], object]


class Hearing(Voice):
    """Takes the answer of one of the broker's own services, and gives it to whoever asked here."""

    dialect = "admin"

    def __init__(self, later: Later) -> None:
        self._later = later

    def answer(self, action: Answer) -> Message | None:
        self._later.give(msgspec.json.decode(b"".join(bytes(frame) for frame in action.body)))
        return None

    def refuse(self, action: Refuse) -> Message | None:
        self._later.refuse(f"{action.reason}: {action.detail}" if action.detail else str(action.reason))
        return None


class JobDesk:
    """Answers for `AdminEar`."""

    def __init__(
        self,
        bus: Bus,
        outbox: Outbox,
        clock: Callable[[], float],
        ask_store: AskStore,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._store = ask_store
        # Dead letters that were thrown away because there were too many.
        self.dropped = 0
        self._seen_dead = -1
        outbox.handlers[Ready] = lambda action: action.call()
        self.commands: dict[str, Command] = {
            "jobs": self._jobs,
            "job": self._job,
            "job_retry": self._retry,
            "job_cancel": self._cancel,
            "dead": self._dead,
            "dead_drop": self._drop,
            "schedules": lambda question, now: self._schedule({"do": "list"}, now),
            "schedule_add": lambda question, now: self._schedule({**question, "do": "add"}, now),
            "schedule_rm": lambda question, now: self._schedule({**question, "do": "remove"}, now),
            "schedule_runs": self._runs,
        }

    # -- what is there --------------------------------------------------------------------------

    def _jobs(self, question: dict[str, Any], now: float) -> Any:
        asked = _read(question, JobsQuestion)
        return list(job_views.jobs(self._bus, now, _dialect, asked.state, asked.service, asked.limit))

    def _job(self, question: dict[str, Any], now: float) -> Any:
        name = _read(question, JobQuestion).job
        request = self._find(name)
        if request is not None:
            return job_views.job_whole(self._bus, request, now, _dialect)
        if name.encode() in self._bus.groups:
            return job_views.group_whole(self._bus, name.encode())
        token = self._ended_token(name)
        unknown = f"no job is called {name!r}, or it ended too long ago; 'polybus jobs ls' lists them"

        def told(found: Any, later: Later) -> None:
            outcome, letter = found
            if outcome is None and letter is None:
                later.refuse(unknown)
            else:
                later.give(job_views.ended_whole(token, outcome, letter))

        return self._ask(lambda store: (store.outcome(token), store.dead_letter(token)), told)

    def _find(self, name: str) -> Request | None:
        """The one job of this name that has not ended."""
        bus, key = self._bus, name.encode()
        request = bus.requests.get(key) or bus.desk.known.get(key)
        if isinstance(request, Request):
            return request
        found = [
            request
            for request in bus.requests.values()
            if request.request_id and peer_name((0, request.request_id)) == name
        ]
        if len(found) > 1:
            tokens = ", ".join(request.token.decode() for request in found[:10])
            raise BadQuestion(f"{len(found)} clients have a job {name!r}; name one by its token: {tokens}")
        return found[0] if found else None

    def _ended_token(self, name: str) -> bytes:
        """The token of an ended job that a client or an operator names, newest first."""
        for kept in reversed(self._bus.outcomes):
            request_id = kept.word.request_id
            if request_id and peer_name((0, request_id)) == name:
                return kept.token
        return name.encode()

    def _dead(self, question: dict[str, Any], now: float) -> Any:
        asked = _read(question, DeadQuestion)

        def told(letters: Any, later: Later) -> None:
            later.give([job_views.dead_line(letter) for letter in letters])

        return self._ask(lambda store: store.dead(asked.limit, asked.service, asked.after.encode()), told)

    # -- orders ---------------------------------------------------------------------------------

    def _cancel(self, question: dict[str, Any], now: float) -> Any:
        name = _read(question, JobQuestion).job
        request = self._find(name)
        if request is None:
            raise BadQuestion(
                f"no job called {name!r} is queued, running or waiting; 'polybus jobs ls' lists them"
            )
        self._bus.handle(events.CancelToken(request.token), now)
        later = Later()
        token = request.token.decode()
        after_written(self._bus, Ready(lambda: later.give({"cancelled": token})))
        return later

    def _retry(self, question: dict[str, Any], now: float) -> Any:
        work = _Retry(self, Later())
        return self._each(question, work.start, work.later)

    def _drop(self, question: dict[str, Any], now: float) -> Any:
        later = Later()

        def drop(tokens: list[bytes], unknown: list[str]) -> None:
            if tokens:
                self._bus.lines.append(Buried(tuple(tokens)))
            answer = {"dropped": len(tokens), "unknown": unknown}
            after_written(self._bus, Ready(lambda: later.give(answer)))

        return self._each(question, drop, later)

    def keep_at_most(self, most: int) -> None:
        """Let the oldest dead letters go if there are more than that. To be called about every second."""
        dead = self._bus.counters.dead
        if dead == self._seen_dead:
            return

        def told(tokens: list[bytes], error: Exception | None) -> None:
            if not tokens:
                # None too many, or a store that cannot say so now: the next one that dies brings us back.
                return
            self._bus.lines.append(Buried(tuple(tokens)))
            self.dropped += len(tokens)
            # There may be more of them than were asked for.
            self._seen_dead = -1

        self._seen_dead = dead
        self._store(lambda store: store.dead_beyond(most, MAX_NAMED), told)

    def _each(
        self, question: dict[str, Any], start: Callable[[list[bytes], list[str]], None], later: Later
    ) -> Later:
        """Find the dead letters that are meant, then start with their tokens and with unknown names."""
        asked = _read(question, Letters)
        if (asked.jobs is None) == (asked.all is None):
            raise BadQuestion(
                "name the dead letters: either 'jobs', a list of tokens, or 'all', a service or ''"
            )
        found: list[bytes] = []
        if asked.jobs is not None:
            names = {self._ended_token(name): name for name in asked.jobs}
            self._ask(
                lambda store: [token for token in names if store.dead_letter(token) is not None],
                lambda tokens, _: start(tokens, [names[token] for token in names if token not in tokens]),
                later,
            )
            return later
        service = asked.all or ""

        def page(letters: list[DeadLetter], _: Later) -> None:
            found.extend(letter.job.token for letter in letters)
            if len(letters) < AT_ONCE:
                start(found, [])
            else:
                self._ask(lambda store: store.dead(AT_ONCE, service, found[-1]), page, later)

        self._ask(lambda store: store.dead(AT_ONCE, service), page, later)
        return later

    # -- schedules ------------------------------------------------------------------------------

    def _schedule(self, question: dict[str, Any], now: float) -> Any:
        """The broker's own service does it, for us as for anybody."""
        later = Later()
        body = [msgspec.json.encode(question)]
        bus = self._bus
        bus.serve(bus, NOBODY, Hearing(later), b"", b"polybus.schedule", body, PLAIN_CALL, False, now)
        return later

    def _runs(self, question: dict[str, Any], now: float) -> Any:
        asked = _read(question, RunsQuestion)

        def told(runs: Any, later: Later) -> None:
            later.give([job_views.run_view(run) for run in runs])

        return self._ask(lambda store: store.runs(asked.key, asked.limit), told)

    # -- the store ------------------------------------------------------------------------------

    def _ask(
        self,
        call: Callable[[Store], Any],
        told: Callable[[Any, Later], None],
        later: Later | None = None,
    ) -> Later:
        """Ask the store; what it says is told to a function, in the loop's thread, which finishes `later`."""
        answer = later or Later()

        def done(value: Any, error: Exception | None) -> None:
            if error is None:
                told(value, answer)
            else:
                answer.refuse(f"the store cannot answer: {error}")

        if self._bus.store_trouble:
            # What was noted may wait for long; what is on disk can be told.
            if not self._store(call, done):
                raise BadQuestion(NO_STORE)
        else:
            # What was noted before the question is part of the answer.
            after_written(self._bus, Ready(lambda: self._store(call, done)))
        return answer

    def letters(
        self, tokens: list[bytes], told: Callable[[list[DeadLetter | None]], None], later: Later
    ) -> None:
        self._ask(
            lambda store: [store.dead_letter(token) for token in tokens],
            lambda letters, _: told(letters),
            later,
        )

    def revive(self, letter: DeadLetter) -> tuple[Request | None, str]:
        return revive(self._bus, letter, self._clock())

    def when_written(self, call: Callable[[], None]) -> None:
        after_written(self._bus, Ready(call))


class _Retry:
    """Puts dead letters back, some at a time, each batch when the one before is on disk."""

    def __init__(self, desk: JobDesk, later: Later) -> None:
        self._desk = desk
        self.later = later
        self._left: list[bytes] = []
        self._retried = 0
        self._refused: dict[str, str] = {}

    def start(self, tokens: list[bytes], unknown: list[str]) -> None:
        self._refused.update((name, "no dead letter is called so") for name in unknown)
        self._left = tokens
        self._next()

    def _next(self) -> None:
        some, self._left = self._left[:AT_ONCE], self._left[AT_ONCE:]
        if some:
            self._desk.letters(some, self._put_back, self.later)
        else:
            self.later.give({"retried": self._retried, "refused": self._refused})

    def _put_back(self, letters: list[DeadLetter | None]) -> None:
        requests = []
        # One that is not there any more was dropped or retried by somebody else in the meantime.
        for letter in filter(None, letters):
            request, reason = self._desk.revive(letter)
            if request is None:
                self._refuse(letter.job.token, reason)
            else:
                requests.append(request)
        self._desk.when_written(lambda: self._written(requests))

    def _written(self, requests: list[Request]) -> None:
        for request in requests:
            if request.state is RequestState.FAILED:
                self._refuse(request.token, "it could not be written down")
            else:
                self._retried += 1
        self._next()

    def _refuse(self, token: bytes, reason: str) -> None:
        # A queue that is full refuses all of them, and nobody reads a hundred thousand times the same.
        if len(self._refused) < MAX_LISTED:
            self._refused[token.decode()] = reason


def _read(question: dict[str, Any], kind: type[Q]) -> Q:
    try:
        return msgspec.convert(question, kind)
    except msgspec.ValidationError as error:
        raise BadQuestion(f"the question is wrong: {error}") from None


def _dialect(voice: Any) -> str:
    return getattr(voice, "dialect", "")
