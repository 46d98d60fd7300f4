"""The settings of the broker that conformance tests talk to: everything happens within a second."""

from __future__ import annotations

from typing import Final

BEAT_S: Final = 0.2
LIVENESS: Final = 4
DEAD_S: Final = BEAT_S * LIVENESS
TTL_S: Final = 2.0

FAST: Final[dict[str, object]] = {
    "ebus.heartbeat_s": BEAT_S,
    "ebus.liveness": LIVENESS,
    "emqp.heartbeat_s": BEAT_S,
    "emqp.timeout_s": BEAT_S,
    "emqp.liveness": LIVENESS,
    "majordomo.heartbeat_s": BEAT_S,
    "majordomo.liveness": LIVENESS,
    "limits.request_ttl_s": TTL_S,
    "limits.timeout_grace_s": BEAT_S,
    "limits.orphan_grace_s": BEAT_S,
    "jobs.backoff_s": BEAT_S / 4,
}
