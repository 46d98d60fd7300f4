"""Peers that must be heard in time, on a machine that may stall for longer than that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from support.live import WAIT_S


def is_kept(converse: Callable[[], Iterator[bool]], dead_s: float) -> bool:
    """Whether a broker keeps a peer that it hears more often than every `dead_s`.

    A conversation gives a sign of life, makes sure that the broker has heard it, and yields whether the
    peer is still kept; and so on. If it is not, but the broker may have heard nothing for `dead_s`, because
    this machine stalled, that shows nothing: another conversation is begun.
    """
    until = time.monotonic() + WAIT_S
    while True:
        before = since = time.monotonic()
        longest_s = 0.0
        for kept in converse():
            now = time.monotonic()
            # From before the last sign of life was given to when this one had surely been heard.
            longest_s = max(longest_s, now - before)
            before, since = since, now
            if not kept:
                break
        else:
            return True
        if longest_s < dead_s or now > until:
            return False
