"""A worker that is started before its broker waits for it, and says for whom."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from polybus.client.hub import Hub

# Between two searches; most of a search is listening for beacons already.
PAUSE_S: Final = 1.0

# Without any settings of the program's own, warnings are on standard error.
_log: Final = logging.getLogger("polybus")


def say_who_is_missing(hub: Hub) -> None:
    _log.warning("%s. Waiting for one", hub.missing)


def say_who_was_found(hub: Hub) -> None:
    _log.info("found a bus at %s", hub.endpoint)


def teller(hub: Hub) -> Callable[[], None]:
    """What is said if a broker whose address was given does not answer."""
    return lambda: _log.warning("no broker answers at %s. Waiting for it", hub.endpoint)
