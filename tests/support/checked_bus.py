"""A bus that looks at every action when it is noted, not only when all of an event have been."""

from __future__ import annotations

from typing import Any, SupportsIndex

from polybus.core import actions as act
from polybus.core.bus import Bus
from polybus.core.lifecycle import WorkerState
from polybus.core.model import Limits


class CheckedActions(list[Any]):
    """Looks at every action when it is noted: nothing is asked for that concerns a worker who is gone."""

    def __init__(self, bus: Bus) -> None:
        super().__init__()
        self._bus = bus

    def append(self, action: Any) -> None:
        if isinstance(action, act.Deliver | act.Stop | act.Beat | act.Reschedule):
            worker = action.worker
            assert worker.state is not WorkerState.GONE, action
            known = self._bus.workers.get(worker.address)
            if known is None and isinstance(action, act.Beat):
                # Whether a silent one is connected may decide what becomes of a request.
                known = self._bus.silent.get(worker.address)
            assert known is worker, action
        super().append(action)

    def extend(self, actions: Any) -> None:
        for action in actions:
            self.append(action)

    def insert(self, index: SupportsIndex, action: Any) -> None:
        raise AssertionError("actions are noted in order")


class CheckedBus(Bus):
    def __init__(self, limits: Limits) -> None:
        super().__init__(b"n-", limits, watched=True)
        self.actions = CheckedActions(self)

    def take(self) -> list[Any]:
        actions, self.actions = self.actions, CheckedActions(self)
        return list(actions)
