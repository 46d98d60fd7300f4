"""What is common to all dialects: a message that cannot be read is noted with its sender."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core.actions import Observed
from polybus.core.bus import Bus
from polybus.dialects.mdr import Mdr
from polybus.dialects.port import RouterEar
from support.wire_frames import Opaque


def test_the_sender_of_a_bad_message_is_named() -> None:
    bus = Bus(b"n-", watched=True)
    receiver = RouterEar(bus, "majordomo", Mdr(bus, heartbeat_s=1.0).tags)
    receiver.receive(3, [b"peer", b"MDRC01", b"\x01"], 10.0)
    (record,) = [action for action in bus.take() if isinstance(action, Observed)]
    assert (record.what, record.client) == ("invalid", (3, b"peer"))
    assert bus.counters.invalid == 1


def test_a_large_frame_in_the_place_of_a_tag_is_a_bad_message() -> None:
    """Nothing but its length and its bytes can be asked of a large frame."""
    bus = Bus(b"n-", watched=True)
    receiver = RouterEar(bus, "majordomo", Mdr(bus, heartbeat_s=1.0).tags)
    receiver.receive(3, [b"peer", b"", Opaque(b"MDRC01")], 10.0)
    (record,) = [action for action in bus.take() if isinstance(action, Observed)]
    assert (record.what, record.client, record.reason) == ("invalid", (3, b"peer"), "unknown_tag")


@pytest.mark.parametrize(
    ("frames", "heard", "at"),
    [
        ([b"peer", b"TAG", b"x"], True, 1),
        ([b"peer", b"TAG"], True, 1),
        ([b"peer", b"", b"TAG", b"x"], True, 2),
        ([b"peer", b"", b"TAG"], True, 2),
        # An identity is no tag.
        ([b"TAG", b"", b"TAG", b"x"], True, 2),
        ([b"TAG", b"junk"], False, 1),
        ([b"TAG"], False, 1),
        # Only an empty frame may stand before a tag.
        ([b"peer", b"junk", b"TAG", b"x"], False, 1),
        ([b"peer", b"", b"junk", b"TAG"], False, 2),
        ([b"peer", b"", b"", b"TAG"], False, 2),
        ([b"peer", b""], False, 1),
        ([b"peer"], False, 1),
    ],
)
def test_where_a_tag_is_looked_for(frames: list[Any], heard: bool, at: int) -> None:
    calls: list[tuple[str, int]] = []

    def hear(link: int, frames: Any, at: int, now: float) -> None:
        calls.append(("heard", at))

    def rebuke(link: int, frames: Any, at: int, error: Any, now: float) -> None:
        calls.append((error.reason, at))

    bus = Bus(b"n-")
    RouterEar(bus, "dialect", {b"TAG": (hear, rebuke)}, rebuke).receive(3, frames, 10.0)
    assert calls == [("heard" if heard else "unknown_tag", at)]
    assert bus.counters.invalid == (not heard)
