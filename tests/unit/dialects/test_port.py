"""What is common to all dialects: a message that cannot be read is noted with its sender."""

from __future__ import annotations

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
