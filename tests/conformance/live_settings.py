"""The settings of the brokers that conformance tests talk to: everything happens within a second or two."""

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
# Nobody is lost and nothing expires while a test has nothing to say, or a machine that many share stalls.
UNHURRIED: Final[dict[str, object]] = {
    **FAST,
    "ebus.liveness": 200,
    "emqp.liveness": 200,
    "majordomo.liveness": 200,
    "limits.request_ttl_s": 60.0,
}
# Who is silent for DEAD_S is lost.
HASTY: Final[dict[str, object]] = {**FAST, "limits.request_ttl_s": 60.0}
# A request that nobody has answered after TTL_S expires.
EXPIRING: Final[dict[str, object]] = {**UNHURRIED, "limits.request_ttl_s": TTL_S}
