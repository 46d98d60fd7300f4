"""New alerts of the pipeline, told to the bus and to whoever looks at the terminal.

They are JSON, published under `polybus.alert.SERVICE`.  A pipeline never fails because nobody takes them.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from polybus.cli.options import WrongUse
from polybus.errors import PolybusError

TOPIC: Final = "polybus.alert."
# One connection for each batch of alerts, for which the broker has this long.
PATIENCE_S: Final = 5.0
LINGER_S: Final = 2.0
# So many are shown of a batch; a first build may find those of a month.
SHOWN: Final = 5

RuleOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        metavar="NAME=VALUE",
        envvar="POLYBUS_ALERT_RULES",
        show_envvar=True,
        help="When there is an alert: error_rate=0.1 (share of requests), slow=1s (p95 of the time of "
        "service), flapping=3 (workers lost in a minute); requests=10 is how many a window must have.",
    ),
]
NoPublish = Annotated[
    bool, typer.Option("--no-publish", help=f"Do not publish new alerts as {TOPIC}SERVICE.")
]
AlarmAddress = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="ADDRESS",
        help="Where the broker takes publications (EBUS), for alerts. Without it the data directory says it.",
    ),
]

_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s|m)")
_MICROS: Final = {"us": 1, "µs": 1, "ms": 1000, "s": 1_000_000, "m": 60_000_000}


def read_rules(texts: list[str] | None) -> Any:
    """The thresholds of alerts, as options say them; a `polybus.spark.rules.Rules`."""
    import msgspec

    from polybus.spark.rules import Rules

    changes: dict[str, Any] = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        readers = {
            "error_rate": ("error_rate", _share),
            "slow": ("slow_us", _micros),
            "flapping": ("flaps", _number),
            "requests": ("least_requests", _number),
        }
        if name not in readers:
            raise WrongUse(f"--rule {text!r}: there is no rule {name!r}; there are {', '.join(readers)}")
        field, read = readers[name]
        found = read(value.strip())
        if found is None:
            raise WrongUse(
                f"--rule {text!r} cannot be read; write error_rate=0.05, slow=500ms, flapping=5, requests=20"
            )
        changes[field] = found
    return msgspec.structs.replace(Rules(), **changes)


def _share(text: str) -> float | None:
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
    return share if 0 < share <= 1 else None


def _micros(text: str) -> int | None:
    found = _TIME.fullmatch(text)
    return max(1, int(float(found[1]) * _MICROS[found[2]])) if found else None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text) else None


def message(row: dict[str, Any]) -> dict[str, Any]:
    """An alert as subscribers get it."""
    return {
        "rule": row["rule"],
        "service": row["subject"],
        "broker": row["broker"],
        "window_start": row["window_start"].isoformat(),
        "window_s": 60 if row["rule"] == "flapping" else 10,
        "value": row["value"],
        "threshold": row["threshold"],
        "text": sentence(row),
    }


def sentence(row: dict[str, Any]) -> str:
    value, threshold, service = row["value"], row["threshold"], row["subject"]
    texts = {
        "error_rate": f"{value:.1%} of the requests to {service} failed or expired (limit {threshold:.1%})",
        "slow": f"{service} is slow: one request in twenty takes {value / 1e6:.3g} s or longer "
        f"(limit {threshold / 1e6:.3g} s)",
        "silent": f"nobody answers for {service}: {value:.0f} requests expired, none was answered",
        "flapping": f"{service} lost {value:.0f} workers in a minute (limit {threshold:.0f})",
    }
    return texts.get(row["rule"], f"{row['rule']} of {service}: {value:g} (limit {threshold:g})")


class Alarm:
    """What the pipeline calls with the alerts that are new."""

    def __init__(self, address: str | None, data_dir: Path) -> None:
        self._address = address
        self._data_dir = data_dir
        self._has_complained = False

    def __call__(self, rows: list[dict[str, Any]]) -> None:
        from polybus.cli.output import printable, say

        rows = sorted(rows, key=lambda row: (row["window_start"], row["subject"] or "", row["rule"]))
        for row in rows[-SHOWN:]:
            say(printable(f"alert at {row['window_start']:%Y-%m-%d %H:%M:%S} UTC: {sentence(row)}"))
        if len(rows) > SHOWN:
            say(f"and {len(rows) - SHOWN} alerts before that; 'polybus pipeline show alerts' lists them")
        try:
            self._publish(rows)
        except (PolybusError, OSError) as error:
            if not self._has_complained:
                say(f"alerts are not published, the tables have them: {error}")
            self._has_complained = True
        else:
            self._has_complained = False

    def _publish(self, rows: list[dict[str, Any]]) -> None:
        import zmq

        from polybus.cli.find import peer_endpoint
        from polybus.client.pubsub import Publisher, write_publication
        from polybus.errors import ConfigError

        dialect = "ebus"
        try:
            endpoint = peer_endpoint(dialect, "publish", self._address, self._data_dir)
        except ConfigError:
            # A broker may have EBUS turned off.
            if self._address is not None:
                raise
            dialect = "emqp"
            endpoint = peer_endpoint(dialect, "publish", None, self._data_dir)
        with zmq.Context() as context:
            publisher = Publisher(dialect, endpoint, context)
            try:
                publisher.join(PATIENCE_S)
                for row in rows:
                    body = json.dumps(message(row), ensure_ascii=False).encode()
                    topic = f"{TOPIC}{row['subject']}".encode()
                    publication = write_publication(dialect, os.urandom(8).hex().encode(), topic, [body])
                    publisher.send(publication, PATIENCE_S)
            finally:
                publisher.close(LINGER_S)


def broker_of(journal: str, data_dir: Path) -> Path:
    """The data directory of the broker that writes this journal, if it is here."""
    from polybus.client.places import ENDPOINTS_FILE

    beside = Path(journal).parent
    return beside if (beside / ENDPOINTS_FILE).exists() else data_dir
