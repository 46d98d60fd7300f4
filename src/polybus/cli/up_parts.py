"""The parts of `polybus up`: what each is started with, how it is treated, and what its lines mean."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import secrets
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from polybus import config
from polybus.cli.free_ports import steady_ports
from polybus.cli.supervision import Rules
from polybus.errors import PolybusError

BROKER: Final = "broker"
WORKERS: Final = "workers"
PIPELINE: Final = "pipeline"
DASHBOARD: Final = "dashboard"

EXAMPLE_APP: Final = "polybus.cli.example_app:bus"
TOKEN_VARIABLE: Final = "POLYBUS_WEB_TOKEN"
# The broker drains for `broker.drain_s`, and its archiver has as long again.
BROKER_END_S: Final = 25.0
# `polybus worker` gives running jobs 30 s.
WORKERS_END_S: Final = 35.0
# The batch at hand may be finished. A long one is given up: nothing is lost, the next run does it again.
PIPELINE_END_S: Final = 5.0
DASHBOARD_END_S: Final = 5.0

# A part's own lines begin with the time and our name; ours have both already.
_STAMP: Final = re.compile(r"^(\d\d:\d\d:\d\d )?polybus: ")


class _JsonLine(Struct):
    """What POLYBUS_LOG_FORMAT=json makes of a line, as far as people read it."""

    message: str


class Kind(Enum):
    """What a line of a part is."""

    READY = auto()  # it does its work now
    NEWS = auto()  # one of a kind: shown
    PROGRESS = auto()  # the newest of many: shown on a terminal, until the next one
    SAID = auto()  # whatever else it says: shown
    NOTED = auto()  # for the log file alone


class Heard(Struct, frozen=True):
    kind: Kind
    text: str = ""


Reader = Callable[[str], Heard]


class Component(Struct):
    """One part: the command that it is, and how it is treated and read."""

    name: str
    arguments: list[str]
    rules: Rules
    # A new one for every process: what a line means may depend on those before it.
    reader: Callable[[], Reader]
    # Nothing of it gets into a log file.
    environment: dict[str, str] = field(default_factory=dict)

    def without_secrets(self, line: str) -> str:
        for value in self.environment.values():
            line = line.replace(value, "…")
        return line


class Wanted(Struct, frozen=True):
    """What `polybus up` was asked for."""

    data_dir: Path
    app: str = ""
    # Processes of the pool; None: one a processor, 0: no pool.
    workers: int | None = None
    any_port: bool = False
    has_pipeline: bool = True
    has_dashboard: bool = True


class Plan(Struct):
    """The parts in the order in which they start, and why others are not among them."""

    components: list[Component]
    missing: dict[str, str]


def plan(wanted: Wanted) -> Plan:
    ports = steady_ports((*config.PORTS, DASHBOARD)) if wanted.any_port else {}
    place = ["--data-dir", str(wanted.data_dir)]
    components = [broker_part(place, ports)]
    missing: dict[str, str] = {}
    if wanted.workers != 0:
        components.append(workers_part(place, wanted))
    if wanted.has_dashboard:
        missing[DASHBOARD] = why_no_dashboard()
        if not missing[DASHBOARD]:
            components.append(dashboard_part(place, ports.get(DASHBOARD)))
    if wanted.has_pipeline:
        missing[PIPELINE] = why_no_pipeline()
        if not missing[PIPELINE]:
            components.append(pipeline_part(place))
    # They end in the opposite order: the dashboard, the pipeline, the workers, the broker.
    components.sort(key=lambda part: (BROKER, WORKERS, PIPELINE, DASHBOARD).index(part.name))
    return Plan(components, {name: why for name, why in missing.items() if why})


def broker_part(place: list[str], ports: dict[str, int]) -> Component:
    more: list[str] = []
    for name in config.PORTS:
        if name in ports:
            more += ["--set", f"{name}={ports[name]}"]
    if ports:
        # Like any second broker (`serve --any-port`) it does not announce itself.
        more += ["--set", "beacon.enabled=false"]
    rules = Rules(is_vital=True, end_s=BROKER_END_S)
    return Component(BROKER, ["serve", *place, *more], rules, lambda: read_broker)


def workers_part(place: list[str], wanted: Wanted) -> Component:
    many = ["-c", str(wanted.workers)] if wanted.workers else []
    arguments = ["worker", wanted.app or EXAMPLE_APP, *place, *many]
    rules = Rules(needs=BROKER, is_vital=True, end_s=WORKERS_END_S)
    return Component(WORKERS, arguments, rules, lambda: read_workers)


def dashboard_part(place: list[str], port: int | None) -> Component:
    arguments = ["web", *place, *(["--port", str(port)] if port else [])]
    # The same one for every process: pages that are open go on after a restart. In the environment, because
    # everybody on the machine sees the arguments.
    environment = {TOKEN_VARIABLE: secrets.token_urlsafe(24)}
    rules = Rules(needs=BROKER, end_s=DASHBOARD_END_S)
    return Component(DASHBOARD, arguments, rules, lambda: read_dashboard, environment)


def pipeline_part(place: list[str]) -> Component:
    # What keeps Spark from starting is the same the next time; once more, because a machine may be busy.
    rules = Rules(needs=BROKER, tries=2, is_awaited=False, end_s=PIPELINE_END_S)
    return Component(PIPELINE, ["pipeline", "run", *place], rules, PipelineReader)


def why_no_dashboard() -> str:
    """Why there is no dashboard, and what there is instead; empty if there can be one."""
    from polybus.cli.web import require_web

    try:
        require_web()
    except PolybusError as error:
        return f"{error}; 'polybus top' shows the bus in a terminal"
    return ""


def why_no_pipeline() -> str:
    missing = [name for name in ("pyspark", "deltalake", "pyarrow") if not importlib.util.find_spec(name)]
    if not missing:
        return ""
    return (
        f"it needs {', '.join(missing)}, which is not installed (pip install 'polybus[spark]'); calls, jobs, "
        "topics and the journal do without"
    )


# -- what they say --------------------------------------------------------------------------------


def plain(line: str) -> str:
    """The line without the time and name that parts put before it; of a JSON log its message."""
    if line.startswith("{"):
        with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
            return msgspec.json.decode(line, type=_JsonLine).message
    return _STAMP.sub("", line)


def read_broker(line: str) -> Heard:
    if line.startswith("ready "):
        return Heard(Kind.READY, line.removeprefix("ready "))
    text = plain(line)
    # Told already: that it is up is what the first line means.
    return Heard(Kind.NOTED if text.startswith("broker ") else Kind.SAID, text)


def read_workers(line: str) -> Heard:
    if not line.startswith("ready "):
        text = plain(line)
        return Heard(Kind.NOTED if "looking for the broker" in text else Kind.SAID, text)
    words = line.split()[1:]
    facts = dict(word.split("=", 1) for word in words if "=" in word)
    queues = [word for word in words if "=" not in word]
    number = facts.get("processes", "?")
    processes = "1 process serves" if number == "1" else f"{number} processes serve"
    return Heard(Kind.READY, f"{processes} {', '.join(queues)}")


def read_dashboard(line: str) -> Heard:
    if line.startswith("ready dashboard="):
        return Heard(Kind.READY, line.removeprefix("ready dashboard="))
    return Heard(Kind.SAID, plain(line))


class PipelineReader:
    """The first batch is news: from then on there are tables. The others are progress."""

    def __init__(self) -> None:
        self._has_tables = False

    def __call__(self, line: str) -> Heard:
        text = plain(line)
        if text.startswith("starting Spark"):
            return Heard(Kind.PROGRESS, "Spark is starting; nothing waits for it")
        if text.startswith("Spark ") and text.endswith(" is up"):
            return Heard(Kind.READY, f"{text.removesuffix(' is up')} follows the journal")
        if text.startswith("batch "):
            if self._has_tables:
                return Heard(Kind.PROGRESS, text)
            self._has_tables = True
            return Heard(Kind.NEWS, f"the first tables are there ({text.partition(': ')[2]})")
        return Heard(Kind.SAID, text)


def last_words(status: int, line: str) -> str:
    """Why a process ended, in a sentence without its full stop."""
    how = f"killed by signal {-status}" if status < 0 else f"ended with status {status}"
    text = plain(line).rstrip(".")
    return f"{how}: {text}" if text and status > 0 else how


def port_taken(why: str) -> str:
    """What else can be done about a port that is taken, beside what the part says itself."""
    return f"{why}. Or 'polybus up --any-port' takes free ones" if "in use" in why else why
