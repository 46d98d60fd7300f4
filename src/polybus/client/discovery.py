"""Finding a bus without its address: by what it wrote down here, at its usual port, by its beacon.

A broker announces the port of its DBP socket once a second (`wire.dbp_udp`); the sender's address is the
broker's.  Where it listens for the other dialects it says itself, when it is asked over DBP about
`polybus.broker`.  Anyone on the network can send such a datagram: who cannot trust the network gives an
address.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq
from msgspec import Struct, field

from polybus.client.addresses import PORTS, Role, given_endpoint, is_endpoint, variables
from polybus.client.places import ENDPOINTS_FILE, PORT_OF, TCP, from_there, refusal, written_endpoints
from polybus.errors import ConfigError, ConnectionLost, RemoteProtocolError
from polybus.wire import dbp
from polybus.wire.dbp_udp import MAX_BEACON_BYTES, read_beacon
from polybus.wire.frames import EMPTY, MAX_TEXT_BYTES

# The settings of the broker that hold for whoever looks for it, too.
BEACON_ENABLED: Final = "POLYBUS_BEACON_ENABLED"
BEACON_PORT: Final = "POLYBUS_BEACON_PORT"
DATA_DIR: Final = "POLYBUS_BROKER_DATA_DIR"
DEFAULT_PORT: Final = 5245
DEFAULT_DATA_DIR: Final = "var"
# Two announcements, and a little more for a busy machine.
LISTEN_S: Final = 2.5
# Somebody who is there answers in milliseconds, unless the machine is very busy.
ASK_S: Final = 2.0
# The same announcement may come by two ways at once; the next one is a second later.
SAME_S: Final = 0.5
# A network with more buses than this is one where somebody makes them up.
MOST_BUSES: Final = 64

Place = tuple[str, int]


class About(Struct, frozen=True):
    """What a polybus broker says about itself."""

    name: str
    endpoints: dict[str, str] = {}


class Heard(Struct):
    """A bus that announced itself."""

    address: str
    port: int
    times: int
    first_at: float
    last_at: float
    # None if it did not answer, or is no polybus.
    about: About | None = None

    @property
    def place(self) -> Place:
        return self.address, self.port

    @property
    def endpoint(self) -> str:
        """Where it speaks DBP."""
        return f"tcp://{self.address}:{self.port}"

    @property
    def every_s(self) -> float | None:
        """How long it waits between two announcements; None if there was only one."""
        return (self.last_at - self.first_at) / (self.times - 1) if self.times > 1 else None


class Listener:
    """Hears announcements. Several may listen on one machine."""

    def __init__(self, port: int) -> None:
        self.buses: Final[dict[Place, Heard]] = {}
        # Datagrams that were no announcement.
        self.invalid = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT"):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._socket.bind(("", port))
        except OSError as error:
            self._socket.close()
            why = (error.strerror or str(error)).lower()
            raise ConnectionLost(f"UDP port {port} cannot be listened on: {why}") from None

    def hear(self, seconds: float) -> Iterator[Heard]:
        """Every announcement as it comes, for so many seconds."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            try:
                packet, (address, _) = self._socket.recvfrom(MAX_BEACON_BYTES + 1)
            except TimeoutError:
                return
            found = self._take(packet, address, time.monotonic())
            if found is not None:
                yield found

    def _take(self, packet: bytes, address: str, now: float) -> Heard | None:
        try:
            port = read_beacon(packet)
        except RemoteProtocolError:
            self.invalid += 1
            return None
        heard = self.buses.get((address, port))
        if heard is None:
            if len(self.buses) >= MOST_BUSES:
                return None
            heard = self.buses[address, port] = Heard(address, port, 1, now, now)
        elif now - heard.last_at < SAME_S:
            return None
        else:
            heard.times += 1
            heard.last_at = now
        return heard

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def introduce(buses: Sequence[Heard], timeout_s: float = ASK_S) -> None:
    """Ask all of them at once who they are, and put it down as their `about`."""
    question = [EMPTY, *dbp.write_from_node(dbp.InfoRequest(dbp.BROKER), time.time())]
    poller = zmq.Poller()
    asked: dict[Any, Heard] = {}
    with zmq.Context() as context:
        try:
            for heard in buses:
                asker: zmq.Socket[bytes] = context.socket(zmq.DEALER)
                asker.setsockopt(zmq.LINGER, 0)
                asker.setsockopt(zmq.MAXMSGSIZE, MAX_TEXT_BYTES)
                asked[asker] = heard
                asker.connect(heard.endpoint)
                asker.send_multipart([bytes(frame) for frame in question])
                poller.register(asker, zmq.POLLIN)
            until = time.monotonic() + timeout_s
            waiting = set(asked)
            while waiting and (left_s := until - time.monotonic()) > 0:
                for asker, _ in poller.poll(int(left_s * 1000) + 1):
                    asked[asker].about = _read_about(asker.recv_multipart())
                    poller.unregister(asker)
                    waiting.discard(asker)
        finally:
            for asker in asked:
                asker.close(0)


def _read_about(frames: list[bytes]) -> About | None:
    try:
        message = dbp.read_as_node(frames, 1)
        if not isinstance(message, dbp.Answer):
            return None
        text = b"".join(bytes(frame) for frame in message.body)
        about = msgspec.json.decode(text, type=dict[str, About]).get(dbp.BROKER.decode())
    except (RemoteProtocolError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    if about is None:
        return None
    endpoints = {name: place for name, place in about.endpoints.items() if _is_plain(place)}
    return About(about.name, endpoints)


def _is_plain(endpoint: str) -> bool:
    """Whether it can be connected to without asking anyone for a name, and without options of ZeroMQ."""
    if not is_endpoint(endpoint) or not endpoint.startswith(TCP):
        return endpoint.startswith("ipc://")
    host = endpoint.removeprefix(TCP).rpartition(":")[0].strip("[]")
    try:
        ip_address(host)
    except ValueError:
        return host == "*"
    return True


class Finder:
    """Where the sockets of a client or worker connect; a bus that was heard is remembered for all of them."""

    def __init__(self, environ: Mapping[str, str] | None = None, listen_s: float | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._listen_s = LISTEN_S if listen_s is None else listen_s
        self._bus: Heard | None = None

    def endpoint(self, dialect: str, role: Role, address: str | None = None) -> str:
        """The address, else the environment, else where a bus is; raises `ConnectionLost` if none is."""
        given = given_endpoint(dialect, role, address, self._environ)
        if given is not None:
            return given
        search = _Search(dialect, role)
        if self._bus is not None:
            found = search.offered(self._bus)
        else:
            found = search.nearby(self._environ) or self._announced(search)
        if found:
            return found
        raise ConnectionLost(search.failure())

    def endpoint_or_usual(self, dialect: str, role: Role, address: str | None = None) -> tuple[str, str]:
        """The same for programs that wait for their broker: if none is there its usual port, and why."""
        try:
            return self.endpoint(dialect, role, address), ""
        except ConnectionLost as error:
            return f"tcp://127.0.0.1:{PORTS[dialect][role]}", str(error)

    def _announced(self, search: _Search) -> str:
        port = beacon_port(self._environ)
        if not port:
            search.note(f"no beacon, because {BEACON_ENABLED} turns it off")
            return ""
        try:
            with Listener(port) as listener:
                for heard in listener.hear(self._listen_s):
                    # One that was too slow gets another chance with its next announcement.
                    found = search.offered(heard)
                    if found:
                        self._bus = heard
                        return found
                if not listener.buses:
                    search.note(f"no beacon on UDP port {port} within {self._listen_s:g} s")
        except ConnectionLost as error:
            search.note(str(error))
        return ""


class _Search(Struct):
    """One search, and what was tried in vain."""

    dialect: str
    role: Role
    tried: dict[str, None] = field(default_factory=dict)

    def note(self, what: str) -> None:
        self.tried[what] = None

    def nearby(self, environ: Mapping[str, str]) -> str:
        """What listens on this machine: as it wrote down, else at the usual port."""
        folder = Path(environ.get(DATA_DIR) or DEFAULT_DATA_DIR)
        file = folder / ENDPOINTS_FILE
        try:
            written = written_endpoints(folder).get(PORT_OF[self.dialect, self.role], "")
            if self._answers(written, f" (from {file})") if written else False:
                return written
        except FileNotFoundError:
            self.note(f"no broker in {folder}/ (there is no {file.name})")
        except (OSError, ValueError) as error:
            self.note(f"{file}: {getattr(error, 'strerror', None) or error}")
        usual = f"tcp://127.0.0.1:{PORTS[self.dialect][self.role]}"
        return usual if self._answers(usual) else ""

    def offered(self, heard: Heard) -> str:
        """What an announced bus offers for this."""
        setting = PORT_OF[self.dialect, self.role]
        if setting == PORT_OF["dbp", "client"]:
            return heard.endpoint if self._answers(heard.endpoint, " (announced)") else ""
        if heard.about is None:
            introduce([heard])
        if heard.about is None:
            self.note(f"{heard.endpoint} (announced) does not answer as a polybus broker does")
            return ""
        bound = heard.about.endpoints.get(setting, "")
        if not bound:
            self.note(f"{heard.endpoint} (announced) does not listen for this: {setting} is off")
            return ""
        place = from_there(bound, heard.address)
        if not place:
            self.note(f"{heard.endpoint} (announced) keeps {setting} to its own machine ({bound})")
            return ""
        return place if self._answers(place, " (announced)") else ""

    def failure(self) -> str:
        names = variables(self.dialect, self.role)
        return (
            f"no bus was found for a {self.dialect} {self.role}. Tried: {names[0]} (not set); "
            f"{'; '.join(self.tried)}. Start a broker with 'polybus serve', or say where it is: give an "
            f"address such as tcp://host:{PORTS[self.dialect][self.role]}, or set {names[0]}"
        )

    def _answers(self, endpoint: str, origin: str = "") -> bool:
        reason = refusal(endpoint, ASK_S)
        if reason:
            self.note(f"{endpoint}{origin} ({reason})")
        return not reason


def beacon_port(environ: Mapping[str, str]) -> int:
    """The port on which to listen for beacons; 0 if nobody wants to."""
    if environ.get(BEACON_ENABLED, "").strip().lower() in ("false", "0", "no", "off"):
        return 0
    text = environ.get(BEACON_PORT) or str(DEFAULT_PORT)
    if text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 65535:
        return int(text)
    raise ConfigError(f"{BEACON_PORT} is {text!r}; a port is a number from 1 to 65535")
