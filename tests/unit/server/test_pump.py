"""Both pumps keep the same promises; every test here runs over each of them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket as sockets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq

from polybus.errors import ConfigError
from polybus.server import pump as pump_module
from polybus.server.pump import Batch, Pump, open_pump, pump_report
from polybus.server.pump_twin import PyzmqPump
from support.patience import patient

DEADLINE_S = patient(20.0)
WAIT_MS = int(patient(20_000))

try:
    from polybus.server._pump import CompiledPump
except ImportError as error:
    NOT_BUILT = f"the compiled pump is not built: {error}"
    COMPILED = pytest.param("compiled", marks=pytest.mark.skip(reason=NOT_BUILT))
else:
    COMPILED = pytest.param("compiled")

Open = Callable[..., Pump]


@pytest.fixture(params=[COMPILED, pytest.param("pyzmq")])
def open_one(request: pytest.FixtureRequest) -> Open:
    def open_it(sockets: Sequence[Any], fds: Sequence[int] = ()) -> Pump:
        return open_pump(sockets, fds, kind=request.param)

    return open_it


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    """A context that keeps its sockets until the end and then closes them."""
    made: list[Any] = []

    class Keeper(zmq.Context[Any]):
        def socket(self, *args: Any, **options: Any) -> Any:
            made.append(super().socket(*args, **options))
            return made[-1]

    context = Keeper()
    yield context
    for socket in made:
        socket.close(linger=0)
    context.term()


def pair(
    context: zmq.Context[Any], a: int = zmq.DEALER, b: int = zmq.DEALER, hwm: int = 0
) -> tuple[Any, Any]:
    """Two connected sockets; the high-water mark is set first, or it would not count."""
    name = f"inproc://{id(context)}-{time.monotonic_ns()}"
    one, two = context.socket(a), context.socket(b)
    for socket in (one, two):
        socket.set_hwm(hwm)
        socket.linger = 0
    one.bind(name)
    two.connect(name)
    return one, two


def receive(pump: Pump, count: int) -> Batch:
    batch: Batch = []
    deadline = time.monotonic() + DEADLINE_S
    while len(batch) < count:
        batch += pump.recv_many(1000)
        assert time.monotonic() < deadline, f"{len(batch)} of {count} messages came"
    return batch


def plain(batch: Batch) -> list[tuple[int, list[bytes]]]:
    return [(index, [bytes(frame) for frame in frames]) for index, frames in batch]


ODD = [
    [b""],
    [b"", b""],
    [b"one"],
    [b"a", b"", b"b", b""],
    [b"%d" % n for n in range(200)],
    [bytes(range(256)), b"\0", b"x" * 33, b"x" * 34],
]


@pytest.mark.parametrize("transport", ["inproc", "tcp"])
def test_odd_messages_go_round_unchanged_and_in_order(
    open_one: Open, context: zmq.Context[Any], transport: str
) -> None:
    if transport == "inproc":
        router, dealer = pair(context, zmq.ROUTER)
    else:
        router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        dealer.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
    server, client = open_one([router]), open_one([dealer])
    messages = [(0, frames) for frames in ODD * 50]
    assert client.send_many(messages) == []
    requests = receive(server, len(messages))
    assert [frames[1:] for _, frames in plain(requests)] == ODD * 50
    assert server.send_many(requests) == []
    assert plain(receive(client, len(messages))) == messages


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))])
@pytest.mark.parametrize("size", [0, 5, 8191, 8192, 100_000])
def test_anything_bytes_like_is_sent(open_one: Open, context: zmq.Context[Any], make: Any, size: int) -> None:
    one, two = pair(context)
    data = os.urandom(size)
    assert open_one([two]).send_many(((0, (make(data), make(b"end"))),)) == []
    assert plain(receive(open_one([one]), 1)) == [(0, [data, b"end"])]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ((0, [b"head", 5]), TypeError),
        ((0, [b"head", "text"]), TypeError),
        ((0, [b"head", None]), TypeError),
        ((0, [b"head", memoryview(b"abcdef")[::2]]), TypeError),
        ((0, b"a lone frame"), TypeError),
        ((0, []), ValueError),
        ((1, [b"head"]), IndexError),
        ((-1, [b"head"]), IndexError),
    ],
)
def test_a_bad_message_is_refused_before_anything_is_sent(
    open_one: Open, context: zmq.Context[Any], message: Any, error: type[Exception]
) -> None:
    one, two = pair(context)
    here, there = open_one([two]), open_one([one])
    with pytest.raises(error):
        here.send_many([(0, [b"before"]), message])
    assert here.send_many([(0, [b"after"])]) == []
    assert plain(receive(there, 1)) == [(0, [b"after"])]


def test_limit_counts_per_socket_and_the_first_socket_changes(
    open_one: Open, context: zmq.Context[Any]
) -> None:
    pairs = [pair(context) for _ in range(3)]
    feeder, eater = open_one([two for _, two in pairs]), open_one([one for one, _ in pairs])
    feeder.send_many([(index, [b"%d" % n]) for n in range(30) for index in range(3)])
    firsts = []
    seen: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for _ in range(3):
        batch = plain(eater.recv_many(WAIT_MS, limit=10))
        firsts.append(batch[0][0])
        for index in range(3):
            mine = [frames[0] for at, frames in batch if at == index]
            assert len(mine) == 10
            seen[index] += mine
    assert sorted(firsts) == [0, 1, 2]
    assert all(numbers == [b"%d" % n for n in range(30)] for numbers in seen.values())
    with pytest.raises(ValueError, match="limit"):
        eater.recv_many(0, limit=0)


def test_timeout_is_honoured(open_one: Open, context: zmq.Context[Any]) -> None:
    one, _ = pair(context)
    pump = open_one([one])
    assert pump.recv_many(0) == []
    start = time.monotonic()
    assert pump.recv_many(60) == []
    assert 0.05 <= time.monotonic() - start < patient(5)


def greet(context: zmq.Context[Any], names: Sequence[bytes], hwm: int = 0) -> tuple[Any, dict[bytes, Any]]:
    """A ROUTER that knows its peers by name and refuses what it cannot deliver."""
    router = context.socket(zmq.ROUTER)
    router.router_mandatory = True
    router.set_hwm(hwm)
    address = f"inproc://router-{time.monotonic_ns()}"
    router.bind(address)
    peers = {}
    for name in names:
        peer = peers[name] = context.socket(zmq.DEALER)
        peer.routing_id = name
        peer.set_hwm(hwm)
        peer.connect(address)
        peer.send(b"hello")
        assert router.poll(WAIT_MS)
        assert router.recv_multipart() == [name, b"hello"]
    return router, peers


def test_a_full_peer_is_reported_and_the_others_still_get_theirs(
    open_one: Open, context: zmq.Context[Any]
) -> None:
    router, peers = greet(context, [b"full", b"free"], hwm=1)
    pump = open_one([router])
    refused = pump.send_many([(0, [b"full", b"%d" % n, b"tail"]) for n in range(10)] + [(0, [b"free", b"x"])])
    sent = 10 - len(refused)
    assert 0 < sent < 10
    assert refused == [(n, errno.EAGAIN) for n in range(sent, 10)]
    assert plain(receive(open_one([peers[b"free"]]), 1)) == [(0, [b"x"])]
    full = open_one([peers[b"full"]])
    assert plain(receive(full, sent)) == [(0, [b"%d" % n, b"tail"]) for n in range(sent)]
    deadline = time.monotonic() + DEADLINE_S
    while pump.send_many([(0, [b"full", b"again"])]):
        assert time.monotonic() < deadline, "the peer has room but is still refused"
    assert plain(receive(full, 1)) == [(0, [b"again"])]


@pytest.mark.parametrize("kind", [zmq.ROUTER, zmq.DEALER])
def test_nothing_overtakes_what_a_full_peer_refused(
    open_one: Open, context: zmq.Context[Any], kind: int
) -> None:
    """The peer reads all the time, so there is room again and again in the middle of a batch."""
    count, batch = 3_000, 200
    sender, reader = context.socket(kind), context.socket(zmq.DEALER)
    for socket in (sender, reader):
        socket.set_hwm(4)
        socket.linger = 0
    if kind == zmq.ROUTER:
        sender.set(zmq.ROUTER_MANDATORY, 1)
    reader.set(zmq.IDENTITY, b"peer")
    reader.connect(f"tcp://127.0.0.1:{sender.bind_to_random_port('tcp://127.0.0.1')}")
    lead = [b"peer"] if kind == zmq.ROUTER else []
    # A ROUTER refuses what is for a peer that it does not know yet, and may learn of it in mid-batch.
    reader.send(b"connected")
    assert sender.poll(DEADLINE_S * 1000), "the peer did not connect"
    assert sender.recv_multipart() == [*lead, b"connected"]
    got: list[int] = []
    ended = threading.Event()

    def read() -> None:
        while len(got) < count and not ended.is_set():
            if reader.poll(50):
                got.append(int(reader.recv()))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        pump = open_one([sender])
        waiting = [(0, [*lead, b"%d" % number]) for number in range(count)]
        deadline = time.monotonic() + DEADLINE_S
        was_full = False
        while waiting and time.monotonic() < deadline:
            sent = waiting[:batch]
            refused = pump.send_many(sent)
            assert {error for _, error in refused} <= {errno.EAGAIN}
            positions = [position for position, _ in refused]
            first = positions[0] if positions else len(sent)
            assert positions == list(range(first, len(sent))), "what came later was sent earlier"
            was_full = was_full or bool(positions)
            waiting = waiting[first:]
        assert not waiting
        assert was_full, "nothing was tested"
        thread.join(DEADLINE_S)
    finally:
        ended.set()
        thread.join(DEADLINE_S)
    assert got == list(range(count))
    assert not reader.poll(50), "something arrived twice"


def test_an_unknown_peer_is_reported_at_its_position(open_one: Open, context: zmq.Context[Any]) -> None:
    router, peers = greet(context, [b"a"])
    big = b"x" * 10_000
    refused = open_one([router]).send_many(
        [
            (0, [b"nobody", b"", b"1", big]),
            (0, [b"a", b"2"]),
            (0, [b"gone", b"3"]),
            (0, [bytearray(b"gone"), b"4"]),
            (0, [b"a", b"", b"5"]),
        ]
    )
    assert refused == [(n, errno.EHOSTUNREACH) for n in (0, 2, 3)]
    assert plain(receive(open_one([peers[b"a"]]), 2)) == [(0, [b"2"]), (0, [b"", b"5"])]


@pytest.mark.parametrize("first", [b"small", b"x" * 20_000])
def test_a_refused_message_leaves_the_socket_usable(
    open_one: Open, context: zmq.Context[Any], first: bytes
) -> None:
    dealer, other = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    pump = open_one([dealer])
    message: tuple[int, list[Any]] = (0, [memoryview(first), b"middle", b"last"])
    assert pump.send_many([message, message]) == [(0, errno.EAGAIN), (1, errno.EAGAIN)]  # nobody is connected
    dealer.bind("inproc://late")
    other.connect("inproc://late")
    assert dealer.poll(WAIT_MS, zmq.POLLOUT)
    assert pump.send_many([message]) == []
    assert plain(receive(open_one([other]), 1)) == [(0, [first, b"middle", b"last"])]


def test_a_message_cut_by_its_peer_does_not_spoil_the_next(
    context: zmq.Context[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """libzmq refuses a later frame when the peer vanishes; only the twin can be made to see that."""
    from polybus.server import pump_twin

    one, two = pair(context)
    attempts: list[tuple[bytes, int]] = []
    real = pump_twin._send

    def send(socket: Any, frame: bytes, flags: int) -> None:
        attempts.append((frame, flags))
        if frame == b"2":
            raise zmq.Again(errno.EAGAIN)
        real(socket, frame, flags)

    monkeypatch.setattr(pump_twin, "_send", send)
    pump = PyzmqPump([two])
    more, last = int(zmq.DONTWAIT | zmq.SNDMORE), int(zmq.DONTWAIT)
    assert pump.send_many([(0, [b"1", b"2", b"3", b"4"])]) == [(0, errno.EAGAIN)]
    assert attempts == [(b"1", more), (b"2", more), (b"3", more), (b"4", last)]
    assert one.poll(WAIT_MS)
    one.recv_multipart()
    assert pump.send_many([(0, [b"next", b"whole"])]) == []
    assert plain(receive(PyzmqPump([one]), 1)) == [(0, [b"next", b"whole"])]


@pytest.mark.parametrize("size", [8191, 8192, 1 << 20])
def test_large_frames_arrive_and_are_forwarded_to_many(
    open_one: Open, context: zmq.Context[Any], size: int
) -> None:
    source, relay_in = pair(context)
    outs = [pair(context) for _ in range(3)]
    relay = open_one([relay_in, *(one for one, _ in outs)])
    data = os.urandom(size)
    source.send_multipart([b"head", data, data[:100]])
    [(_, frames)] = receive(relay, 1)
    assert (type(frames[1]) is bytes) == (size < 8192 or relay.kind == "pyzmq")
    assert len(frames[1]) == size
    assert frames[1] != b"something else"
    assert bytes(frames[1]) == data
    view = memoryview(frames[1])  # type: ignore[arg-type]
    assert view.readonly
    assert view == data
    assert relay.send_many([(1, frames), (2, frames), (3, [frames[1], frames[1]])]) == []
    got = plain(receive(open_one([two for _, two in outs]), 3))
    assert sorted(got) == [
        (0, [b"head", data, data[:100]]),
        (1, [b"head", data, data[:100]]),
        (2, [data, data]),
    ]


def test_a_large_frame_outlives_its_socket_and_context(open_one: Open) -> None:
    context = zmq.Context()
    one, two = pair(context)
    data = os.urandom(100_000)
    two.send_multipart([data, b"small"])
    pump = open_one([one])
    [(_, frames)] = receive(pump, 1)
    one.close()
    two.close()
    context.term()
    del pump
    assert bytes(frames[0]) == data
    view = memoryview(frames[0])  # type: ignore[arg-type]
    frames.clear()
    assert view[5_000] == data[5_000]


def test_twenty_thousand_large_frames_leave_no_memory_behind(
    open_one: Open, context: zmq.Context[Any]
) -> None:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("reads the resident size from /proc")
    one, two = pair(context)
    here, there = open_one([two]), open_one([one])
    body = bytes(64 * 1024)

    def shuttle(frames: int) -> int:
        for _ in range(frames // 20):
            here.send_many([(0, [b"id", body])] * 10)
            there.send_many(receive(there, 10))  # and back, shared
            receive(here, 10)
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = shuttle(2_000)
    assert shuttle(20_000) - before < 32 << 20


class Alarmed(Exception):
    """Raised by the handler."""


@pytest.fixture
def pestered() -> Iterator[Callable[[Callable[..., None]], None]]:
    """Send this thread a signal again and again, so that none falls into a gap unseen."""
    done = threading.Event()
    main = threading.get_ident()
    previous = signal.getsignal(signal.SIGUSR1)

    def pester() -> None:
        while not done.wait(0.01):
            signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=pester)

    def begin(handler: Callable[..., None]) -> None:
        signal.signal(signal.SIGUSR1, handler)
        thread.start()

    yield begin
    done.set()
    if thread.is_alive():
        thread.join()
    signal.signal(signal.SIGUSR1, previous)


def test_a_handler_that_raises_ends_the_wait(
    open_one: Open, context: zmq.Context[Any], pestered: Any
) -> None:
    one, _ = pair(context)
    pump = open_one([one])
    waiting = False

    def handler(*_: object) -> None:
        nonlocal waiting
        if waiting:
            waiting = False
            raise Alarmed

    pestered(handler)
    with pytest.raises(Alarmed):  # noqa: PT012
        waiting = True
        pump.recv_many(-1)


@pytest.mark.parametrize("open_one", [COMPILED], indirect=True)
def test_a_handler_that_returns_ends_the_compiled_pumps_wait(
    open_one: Open, context: zmq.Context[Any], pestered: Any
) -> None:
    one, _ = pair(context)
    pump = open_one([one])
    calls: list[int] = []
    pestered(lambda *_: calls.append(1))
    while not calls:
        assert pump.recv_many(-1) == []


def test_handlers_that_raise_never_tear_a_message(
    open_one: Open, context: zmq.Context[Any], pestered: Any
) -> None:
    """Received by both, sent by the compiled pump: pyzmq does not tell whether an interrupted frame went."""
    one, two = pair(context)
    here, there = open_one([two]), open_one([one])
    armed, raised, number = False, 0, 0

    def handler(*_: object) -> None:
        nonlocal armed, raised
        if armed:
            armed = False
            raised += 1
            raise Alarmed

    pestered(handler)
    deadline = time.monotonic() + DEADLINE_S
    while raised < 40 and time.monotonic() < deadline:
        batch: Batch = []
        try:
            armed = here.kind == "compiled"
            here.send_many([(0, [b"%d" % (number + n)] * 5) for n in range(100)])
            number += 100
            armed = True
            batch = there.recv_many(0)
            armed = False
        except Alarmed:
            continue
        for _, frames in batch:
            assert frames == [frames[0]] * 5
    assert raised


def test_a_wakeup_fd_wakes_both_pumps(open_one: Open, context: zmq.Context[Any]) -> None:
    one, _ = pair(context)
    reader, writer = sockets.socketpair()
    writer.setblocking(False)
    previous_handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    previous_fd = signal.set_wakeup_fd(writer.fileno())
    try:
        pump = open_one([one], fds=[reader.fileno()])
        os.kill(os.getpid(), signal.SIGUSR1)
        assert receive(pump, 1) == [(1, [])]
    finally:
        signal.set_wakeup_fd(previous_fd)
        signal.signal(signal.SIGUSR1, previous_handler)
        reader.close()
        writer.close()


def test_fds_are_reported_also_beside_busy_sockets(open_one: Open, context: zmq.Context[Any]) -> None:
    one, two = pair(context)
    ends = [sockets.socketpair() for _ in range(2)]
    try:
        pump = open_one([one], fds=[reader.fileno() for reader, _ in ends])
        ends[1][1].send(b"x")
        assert pump.recv_many(WAIT_MS) == [(2, [])]
        assert pump.recv_many(0) == [(2, [])]  # until its owner reads it
        two.send_multipart([b"busy"])
        assert one.poll(WAIT_MS)
        pump.suspect(0)
        assert plain(pump.recv_many(WAIT_MS)) == [(0, [b"busy"]), (2, [])]
        ends[1][0].recv(1)
        ends[0][1].close()  # a hang-up is for the owner to see, too
        assert pump.recv_many(WAIT_MS) == [(1, [])]
        assert open_one([], fds=[ends[0][0].fileno()]).recv_many(WAIT_MS) == [(0, [])]
        with pytest.raises(IndexError):
            pump.send_many([(1, [b"not a socket"])])
    finally:
        for reader, writer in ends:
            reader.close()
            writer.close()
    with pytest.raises(ValueError, match="at least one"):
        open_one([])


def test_a_closed_socket_raises(open_one: Open, context: zmq.Context[Any]) -> None:
    one, two = pair(context)
    pump = open_one([one, two])
    two.send(b"unread")
    two.close()
    for call in (
        lambda: pump.recv_many(0),
        lambda: pump.recv_many(-1),
        lambda: pump.send_many([(1, [b"x"])]),
        lambda: open_one([two]),
    ):
        with pytest.raises(zmq.ZMQError) as caught:
            call()
        assert caught.value.errno == errno.ENOTSOCK


def test_a_terminated_context_raises_and_refuses(open_one: Open) -> None:
    context = zmq.Context()
    one, two = pair(context)
    pump = open_one([one, two])
    thread = threading.Thread(target=context.term)
    thread.start()
    try:
        with pytest.raises(zmq.ContextTerminated):
            pump.recv_many(-1)
        # The context tells its sockets one after the other.
        deadline = time.monotonic() + DEADLINE_S
        while pump.send_many([(0, [b"x", b"y"]), (1, [b"z"])]) != [(0, zmq.ETERM), (1, zmq.ETERM)]:
            assert time.monotonic() < deadline, "a socket still takes messages"
    finally:
        one.close()
        two.close()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_a_socket_that_cannot_receive_is_only_sent_to(open_one: Open, context: zmq.Context[Any]) -> None:
    push, pull = pair(context, zmq.PUSH, zmq.PULL)
    req, rep = pair(context, zmq.REQ, zmq.REP)
    pump, peer = open_one([push, req]), open_one([pull, rep])
    assert pump.recv_many(0) == []
    assert pump.recv_many(20) == []
    assert pump.send_many([(0, [b"job"]), (1, [b"ask"])]) == []
    assert sorted(plain(receive(peer, 2))) == [(0, [b"job"]), (1, [b"ask"])]
    assert peer.send_many([(0, [b"no"]), (1, [b"answer"])]) == [(0, zmq.ENOTSUP)]
    assert plain(receive(pump, 1)) == [(1, [b"answer"])]


def test_many_threads_each_with_their_own_pump(open_one: Open, context: zmq.Context[Any]) -> None:
    big = os.urandom(10_000)
    results: list[int] = []

    def echo() -> None:
        one, two = pair(context)
        here, there = open_one([two]), open_one([one])
        done = 0
        for start in range(0, 1000, 50):
            here.send_many([(0, [b"%d" % n, big]) for n in range(start, start + 50)])
            there.send_many(receive(there, 50))
            done += [bytes(f[0]) for _, f in receive(here, 50)] == [
                b"%d" % n for n in range(start, start + 50)
            ]
        results.append(done)
        one.close()
        two.close()

    threads = [threading.Thread(target=echo) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert results == [20] * 8


def test_which_pump_is_taken(context: zmq.Context[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = pair(context)
    monkeypatch.setenv("POLYBUS_PUMP", "pyzmq")
    assert open_pump([one]).kind == "pyzmq" == pump_report()[0]
    monkeypatch.setenv("POLYBUS_PUMP", "steam")
    with pytest.raises(ConfigError, match="steam"):
        open_pump([one])
    monkeypatch.delenv("POLYBUS_PUMP")
    assert open_pump([one]).kind == pump_report()[0]
    monkeypatch.setitem(sys.modules, "polybus.server._pump", None)
    monkeypatch.delattr(pump_module.__package__ + "._pump", raising=False)
    assert open_pump([one]).kind == "pyzmq"
    kind, why = pump_report()
    assert kind == "pyzmq"
    assert "reinstall" in why
    with pytest.raises(ConfigError, match="C compiler"):
        open_pump([one], kind="compiled")


@pytest.mark.skipif("NOT_BUILT" in globals(), reason="the compiled pump is not built")
def test_the_compiled_pump_is_the_default(context: zmq.Context[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = pair(context)
    monkeypatch.delenv("POLYBUS_PUMP", raising=False)
    assert type(open_pump([one])) is CompiledPump
    assert pump_report()[0] == "compiled"


def open_files() -> Counter[str]:
    """What this process has open. Sockets and pipes are named by their own numbers."""
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[os.readlink(f"/proc/self/fd/{fd}")] += 1
    return found


@pytest.mark.skipif("NOT_BUILT" in globals(), reason="the compiled pump is not built")
def test_a_closed_pump_holds_no_file(context: zmq.Context[Any]) -> None:
    one, _ = pair(context)
    before = open_files()
    pump = CompiledPump([one])
    pump.close()
    pump.close()
    # Not equal: what earlier tests had open may be closed meanwhile.
    assert not open_files() - before
    with pytest.raises(ValueError, match="closed"):
        pump.recv_many(0)
