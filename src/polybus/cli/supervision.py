"""What a supervisor decides: which part to start, to end and to kill, and when. No process, no clock.

A part goes through the states of `MOVES`; a pair that is not in it is an error.  `Supervision` is told what
happened and what time it is, and says what is to be done: start, terminate, kill, tell.  Who carries it out
(`up_run`) decides nothing.

A part that ends by itself is started again after a pause that grows with every failure.  One that never came
up is another matter: nothing is gained by trying for ever, so it is given up after some tries, or everything
ends if it cannot be done without.
"""

from __future__ import annotations

from enum import Enum, auto
from math import inf
from typing import Final

from msgspec import Struct

# The pause before a part is started again; each further one is twice as long.
PAUSE_S: Final = 0.25
PAUSE_MAX_S: Final = 30.0
# One that was up for so long did well: its next failure is a first one.
WELL_S: Final = 60.0


class State(Enum):
    WAITING = auto()  # for what it needs
    STARTING = auto()
    UP = auto()
    PAUSED = auto()  # it ended, and is started again
    ENDING = auto()  # asked to
    GONE = auto()
    OFF = auto()  # given up


class Move(Enum):
    START = auto()
    READY = auto()
    DIE = auto()
    GIVE_UP = auto()
    END = auto()  # somebody wants it to end


S, M = State, Move
MOVES: Final[dict[tuple[State, Move], State]] = {
    (S.WAITING, M.START): S.STARTING,
    (S.WAITING, M.END): S.GONE,
    (S.STARTING, M.READY): S.UP,
    (S.STARTING, M.DIE): S.PAUSED,
    (S.STARTING, M.GIVE_UP): S.OFF,
    (S.STARTING, M.END): S.ENDING,
    (S.UP, M.DIE): S.PAUSED,
    (S.UP, M.END): S.ENDING,
    (S.PAUSED, M.START): S.STARTING,
    (S.PAUSED, M.END): S.GONE,
    # It said so while it was being asked to end.
    (S.ENDING, M.READY): S.ENDING,
    (S.ENDING, M.DIE): S.GONE,
    (S.OFF, M.END): S.GONE,
}
HAS_PROCESS: Final = frozenset({S.STARTING, S.UP, S.ENDING})


class Rules(Struct, frozen=True):
    """How one part is treated."""

    # The part that has to be up before this one is started.
    needs: str = ""
    # How often it may fail before it has ever been up; after that it is off.
    tries: int = 3
    # Whether everything ends if it never came up.
    is_vital: bool = False
    # Whether `Ready` waits until it is up, or off.
    is_awaited: bool = True
    # How long it may take to end when asked; then it is killed.
    end_s: float = 10.0


class Start(Struct, frozen=True):
    name: str


class Terminate(Struct, frozen=True):
    name: str


class Kill(Struct, frozen=True):
    name: str


class Tell(Struct, frozen=True):
    """A line for people about a part."""

    name: str
    text: str
    is_bad: bool = False


class Ready(Struct, frozen=True):
    """Everything that is waited for is up, or off; once."""


class Over(Struct, frozen=True):
    """Nothing is left; `why` if that was not wanted."""

    why: str = ""


Action = Start | Terminate | Kill | Tell | Ready | Over


class Part(Struct):
    """One part, as the supervisor sees it."""

    name: str
    rules: Rules
    state: State = State.WAITING
    was_up: bool = False
    started_at: float = 0.0
    # When it is started again, or killed.
    due_at: float = inf
    failures: int = 0
    restarts: int = 0
    # The last reason that was told, so that it is not told again and again.
    reason: str = ""


class Supervision:
    """All parts, in the order in which they start. They end in the opposite order, one after the other."""

    def __init__(self, rules: dict[str, Rules]) -> None:
        self.parts: Final[dict[str, Part]] = {}
        for name, each in rules.items():
            assert not each.needs or each.needs in self.parts, f"{name} needs {each.needs}, which comes later"
            self.parts[name] = Part(name, each)
        self._is_ready = False
        self._is_ending = False
        self._is_over = False
        self._why = ""

    @property
    def next_at(self) -> float:
        """When `turn` has something to do even if nothing happens."""
        return min((part.due_at for part in self.parts.values()), default=inf)

    def alive(self) -> list[str]:
        return [part.name for part in self.parts.values() if part.state in HAS_PROCESS]

    # -- what happened --------------------------------------------------------------------------

    def turn(self, now: float) -> list[Action]:
        """Time has passed: start what is due, kill what takes too long."""
        if self._is_ending:
            return self._end_next(now)
        actions: list[Action] = []
        for part in self.parts.values():
            if self._may_start(part, now):
                part.state = _moved(part, Move.START)
                part.started_at, part.due_at = now, inf
                actions.append(Start(part.name))
        return actions + self._look_whether_ready()

    def ready(self, name: str, text: str, now: float) -> list[Action]:
        """A part says that it does its work; `text` is for people."""
        part = self.parts[name]
        part.state = _moved(part, Move.READY)
        if part.state is not State.UP:
            return []
        again = " again" if part.was_up else ""
        part.was_up, part.reason = True, ""
        took_s = now - part.started_at
        tell = Tell(name, f"up{again} after {took_s:.1f} s{': ' if text else ''}{text}")
        return [tell, *self.turn(now)]

    def died(self, name: str, why: str, now: float) -> list[Action]:
        """The process of a part has ended; `why` is its status and its last words."""
        part = self.parts[name]
        if self._is_ending:
            # Whoever ends before it is asked to need not be asked.
            part.state = State.ENDING if part.state is State.ENDING else _moved(part, Move.END)
            part.state = _moved(part, Move.DIE)
            part.due_at = inf
            return [Tell(name, "stopped"), *self._end_next(now)]
        part.failures = 1 if part.was_up and now - part.started_at > WELL_S else part.failures + 1
        if not part.was_up and (part.rules.is_vital or part.failures >= part.rules.tries):
            return self._give_up(part, why, now)
        pause_s = min(PAUSE_S * 2 ** (part.failures - 1), PAUSE_MAX_S)
        part.state = _moved(part, Move.DIE)
        part.due_at = now + pause_s
        part.restarts += 1
        # The same sentence every half a minute would hide what else is said.
        words = f"{why}; " if why != part.reason else ""
        part.reason = why
        return [Tell(name, f"{words}started again in {pause_s:g} s", True)]

    def stop(self, now: float) -> list[Action]:
        """Somebody wants all of it to end. Asked once more, nothing is waited for any longer."""
        if not self._is_ending:
            self._is_ending = True
            return self._end_next(now)
        return [Kill(name) for name in self.alive()]

    # -- what follows ---------------------------------------------------------------------------

    def _may_start(self, part: Part, now: float) -> bool:
        needed = self.parts.get(part.rules.needs)
        if needed is not None and needed.state is not State.UP:
            return False
        return part.state is State.WAITING or (part.state is State.PAUSED and now >= part.due_at)

    def _look_whether_ready(self) -> list[Action]:
        awaited = (part for part in self.parts.values() if part.rules.is_awaited)
        if self._is_ready or not all(part.was_up or part.state is State.OFF for part in awaited):
            return []
        self._is_ready = True
        return [Ready()]

    def _give_up(self, part: Part, why: str, now: float) -> list[Action]:
        part.state = _moved(part, Move.GIVE_UP)
        part.due_at = inf
        if not part.rules.is_vital:
            return [Tell(part.name, f"off: {why}", True), *self._look_whether_ready()]
        self._why = f"{part.name}: {why}"
        return self.stop(now)

    def _end_next(self, now: float) -> list[Action]:
        """The last part that is still there ends; the one before it follows when it is gone."""
        for part in reversed(self.parts.values()):
            if part.state is State.ENDING:
                if now < part.due_at:
                    return []
                # Killed once; its end is reported like any other.
                part.due_at = inf
                late = Tell(part.name, f"not done after {part.rules.end_s:g} s: killed", True)
                return [late, Kill(part.name)]
            if part.state is State.GONE:
                continue
            had_process = part.state in HAS_PROCESS
            part.state = _moved(part, Move.END)
            part.due_at = now + part.rules.end_s if had_process else inf
            if had_process:
                return [Terminate(part.name)]
        if self._is_over:
            return []
        self._is_over = True
        return [Over(self._why)]


def _moved(part: Part, move: Move) -> State:
    try:
        return MOVES[part.state, move]
    except KeyError:
        raise AssertionError(f"{part.name} is {part.state.name} and cannot {move.name}") from None
