"""`polybus serve`: one broker in the foreground, until a signal has drained it.

Standard output has the one line that others wait for; everything for people goes to standard error,
as text or as JSON (`telemetry.logs`).
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import signal
import sys
from collections.abc import Callable, Iterable, Mapping

import msgspec

from polybus.cli.settings import flatten
from polybus.config import QueueSettings, Settings
from polybus.errors import ConfigError
from polybus.server.broker import Broker
from polybus.server.draining import draining, stopped
from polybus.telemetry import logs
from polybus.telemetry.logs import log as log


def serve(load: Callable[[], Settings], as_json: bool = False) -> int:
    """Run a broker; the exit status is that of the signal which ended it."""
    settings = load()
    logs.use(settings.broker.log_format)
    broker = Broker(settings)
    asked: list[int] = []

    def on_stop(number: int, frame: object) -> None:
        asked.append(number)
        if len(asked) == 1:
            name = signal.Signals(number).name
            log(
                f"{name}: {draining(False, broker.bus.request_count, broker.settings.broker.drain_s)}; "
                "a second signal stops it at once"
            )
            broker.ask_to_drain()
        else:
            broker.stop()

    def reload() -> Settings:
        return reloaded(broker.settings, load)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    endpoints = broker.open()
    signal.signal(signal.SIGHUP, lambda number, frame: broker.ask_to_reload(reload))
    announce(broker, endpoints, as_json)
    if asked:
        # It came before there was a loop to wake.
        broker.ask_to_drain()
    broker.run()
    left = broker.unanswered
    log(stopped(left, broker.kept), "warning" if left else "info", unanswered=left)
    return 128 + signal.SIGINT if asked[:1] == [signal.SIGINT] else 0


def announce(broker: Broker, endpoints: Mapping[str, str], as_json: bool) -> None:
    facts = broker.facts()
    named = {key: facts[key] for key in ("broker", "pid", "pump")}
    log(f"broker {facts['broker']!r} is up, process {facts['pid']}, {facts['pump']} pump", **named)
    log(exposure(endpoints.values()))
    # A reader that closed our output early is no reason to stop.
    with contextlib.suppress(BrokenPipeError):
        print("ready", *(f"{name}={endpoint}" for name, endpoint in endpoints.items()), flush=True)
        if as_json:
            print(json.dumps({key: facts[key] for key in ("broker", "pid", "pump", "endpoints")}), flush=True)
        sys.stdout.flush()


def exposure(endpoints: Iterable[str]) -> str:
    """Who may connect, in a sentence."""
    opened = sorted({host for host in map(host_of, endpoints) if host and not is_loopback(host)})
    if not opened:
        return "listening on loopback only: programs on this machine may connect, others cannot"
    return (
        f"listening on {', '.join(opened)}: anyone who reaches this machine may call, offer and administer; "
        "--host 127.0.0.1 closes it"
    )


def host_of(endpoint: str) -> str:
    """The host of a TCP endpoint; empty for those that never leave the machine."""
    if not endpoint.startswith("tcp://"):
        return ""
    return endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def reloaded(old: Settings, load: Callable[[], Settings]) -> Settings:
    """The settings after a reload: what may change in a running broker does, the rest is named."""
    try:
        new = load()
    except ConfigError as error:
        log(f"reload: nothing was changed, because {error}")
        return old
    merged = msgspec.structs.replace(
        old,
        limits=new.limits,
        queues=new.queues,
        last_values=new.last_values,
        monitor=new.monitor,
        logs=new.logs,
        # A store cannot be opened or closed under a running broker.
        jobs=msgspec.structs.replace(new.jobs, store=old.jobs.store),
        broker=msgspec.structs.replace(old.broker, drain_s=new.broker.drain_s),
    )
    changed = differences(old, merged)
    waiting = differences(merged, new)
    log(f"reload: {'changed ' + ', '.join(changed) if changed else 'nothing to change'}")
    if waiting:
        log(f"reload: needs a restart: {', '.join(waiting)}")
    return merged


def differences(before: Settings, after: Settings) -> list[str]:
    """What changed, setting by setting, with the old and the new value.

    A queue that came or went is named with the options that it sets: the others have the value that they have
    without it.
    """
    old, new = flatten(before), flatten(after)
    found = []
    for name in {**old, **new}:
        if (name in old) is not (name in new):
            usual = getattr(QueueSettings(), name.rpartition(".")[2])
            if old.get(name, usual) == new.get(name, usual):
                continue
        elif old[name] == new[name]:
            continue
        found.append(f"{name} {written(old.get(name))} → {written(new.get(name))}")
    return [*found, *_plain_queues(before, after)]


def _plain_queues(before: Settings, after: Settings) -> list[str]:
    """Queues that came or went and set nothing. They count all the same, as does the order: the first pattern
    that fits the name of a queue holds for it."""
    found = [
        f'queues."{pattern}" {"added" if pattern in after.queues else "removed"}, with no options'
        for pattern in before.queues.keys() ^ after.queues.keys()
        if (before.queues.get(pattern) or after.queues.get(pattern)) == QueueSettings()
    ]
    kept = before.queues.keys() & after.queues.keys()
    orders = [[pattern for pattern in queues if pattern in kept] for queues in (before.queues, after.queues)]
    if orders[0] != orders[1]:
        found.append(f"the order of queues {', '.join(orders[0])} → {', '.join(orders[1])}")
    return sorted(found)


def written(value: object) -> str:
    """A value as it stands in the file."""
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)
