"""The figures of the wire, and what a message means that leaves a field out.

Peers that are not polybus rely on the figures, so they are written out here; the tests of the codecs use
their names, and would follow any change of them.
"""

from __future__ import annotations

from types import ModuleType

import pytest

from polybus.wire import (
    bridge,
    bridge_messages,
    bson,
    context,
    dbp,
    dbp_info,
    dbp_time,
    dbp_udp,
    ebus,
    ebus_messages,
    emqp,
    emqp_extension,
    emqp_headers,
    emqp_inform,
    emqp_messages,
    emqp_schedule,
    frames,
    mdp1,
    mdp2,
    mdr,
    zmtp,
)
from support.defaults import check_defaults

MODULES = (
    *(bridge, bridge_messages, bson, context, dbp, dbp_info, dbp_time, dbp_udp, ebus, ebus_messages, emqp),
    *(emqp_extension, emqp_headers, emqp_inform, emqp_messages, emqp_schedule, frames, mdp1, mdp2, mdr, zmtp),
)

KIB, MIB = 1024, 1024 * 1024

FIGURES: dict[ModuleType, dict[str, object]] = {
    bridge: {
        "VERSION": 1,
        "MAX_BROKER_BYTES": 64,
        "MAX_PATH": 32,
        "ADVERT_SERVICES": 200,
        "MAX_ADVERT_BYTES": MIB,
        "MAX_CREDIT": 1_000_000,
        # A year.
        "MAX_MS": 365 * 86_400_000,
        "MAX_NUMBER": 9_223_372_036_854_775_807,
    },
    bson: {"MAX_BYTES": 64 * MIB, "MAX_DEPTH": 100},
    context: {"PARENT_BYTES": 55, "MAX_CONTEXT_BYTES": 2 * KIB},
    dbp: {"MAX_REASONS": 32, "MAX_REASON_BYTES": KIB},
    dbp_info: {
        "MAX_FUNCTION_CHARS": 1024,
        "MAX_INFO_FRAMES": 32,
        "MAX_INTERFACES": 32,
        "MIN_HEARTBEAT_S": 0.01,
        "MAX_HEARTBEAT_S": 86_400.0,
        "MAX_DEPTH": 16,
        "MAX_CATALOG_BYTES": 16 * MIB,
    },
    dbp_time: {"MAX_TIME_TEXT": 32},
    # The word, a time of 32 bytes and a name of 255, with a byte between them; the word and a port.
    dbp_udp: {"MAX_BEAT_BYTES": 291, "MAX_BEACON_BYTES": 12},
    ebus: {"MAX_TTL_MS": 2_147_483_648, "MAX_CREDIT": 1_000_000},
    emqp: {"MAX_TIMESTAMP_BYTES": 64},
    emqp_extension: {
        "MAX_JOINED": 64,
        "MAX_JOINED_BYTES": 4096,
        "MAX_SLOTS": 100_000,
        "HEAD_FRAMES": 3,
        "FULL_ORDERS": 3 + 64 * 4,
    },
    emqp_headers: {"MAX_HEADERS": 64, "MAX_RETRIES": 1_000_000, "MAX_NUMBER": 2_147_483_647},
    emqp_inform: {
        "MAX_QUEUES": 1024,
        "MAX_WEIGHT": 1_000_000,
        "VERSION": 2,
        "JOINING": 2,
        "MAX_HOLDING": 100_000,
        "MAX_EXTENSION_BYTES": 4 * MIB,
    },
    emqp_schedule: {"MAX_MESSAGE_BYTES": MIB, "MAX_INTERVAL_S": 2_147_483_647, "MAX_CRON_BYTES": 255},
    frames: {
        "MAX_NAME_BYTES": 255,
        "MAX_ID_BYTES": 255,
        "MAX_BODY_FRAMES": 1024,
        "MAX_TEXT_BYTES": 64 * KIB,
    },
    mdr: {"MAX_CREDIT": 1_000_000},
    zmtp: {
        "GREETING_BYTES": 64,
        "MAX_FRAME_BYTES": 16 * KIB,
        "MAX_CONTEXT_BYTES": 16,
        "MAX_REASON_BYTES": 255,
    },
}

# What a field means that is left out, where it is more than nothing.
MEANINGS: dict[str, object] = {
    "bridge._Hello.credit": 1,
    "bridge._Hello.heartbeat_s": 1.0,
    "bridge_messages.Hello.credit": 1,
    "bridge_messages.Hello.heartbeat_s": 1.0,
    "dbp_info.NodeInfo.credit": 1,
    "ebus_messages.Ready.upstream": True,
    "emqp_schedule.Schedule.headers": emqp_headers.Headers(),
    "emqp_schedule.Unschedule.headers": emqp_headers.Headers(),
    "mdp2.Ready.credit": 1,
    "mdr.Ready.credit": 1,
    **{
        f"dbp.{name}.form": dbp_time.TimeForm.FLOAT
        for name in (
            *("InfoRequest", "Call", "Answer", "Registration", "Update", "Approved", "Denied", "Heartbeat"),
            *("Disconnect", "Acknowledge", "Exit", "Ping", "Pong"),
        )
    },
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, figures in FIGURES.items() for name in figures]
)
def test_limits_are_what_peers_were_told(module: ModuleType, name: str) -> None:
    assert getattr(module, name) == FIGURES[module][name]


def test_a_field_that_is_left_out_says_nothing_unless_it_is_listed() -> None:
    check_defaults(MODULES, MEANINGS)
