"""The handler for Python's logging: what it sends, what it drops, and that it holds nobody up."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from polybus import ConfigError, LocalProtocolError, LogHandler
from polybus.client.log_handler import clean_node, default_node, level_name
from support.patience import patient
from support.ports import steady_ports
from support.waiting import until

WAIT_MS = int(patient(20_000))


class Taker:
    """The broker's side of EBUS publishing, which may go and come back."""

    def __init__(self, port: int = 0) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self.port = port or steady_ports(["ebus"])["ebus"]
        self.address = f"tcp://127.0.0.1:{self.port}"

    def begin(self) -> Taker:
        self._socket = self._context.socket(zmq.XSUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(self.address)
        self._socket.send(b"\x01")
        return self

    def end(self) -> None:
        if self._socket is not None:
            self._socket.close(0)
            self._socket = None

    def take(self) -> tuple[str, dict[str, Any]]:
        assert self._socket is not None
        assert self._socket.poll(WAIT_MS), "nothing came"
        topic, body = self._socket.recv_multipart()
        return topic.decode(), json.loads(body)

    def messages(self, count: int) -> list[str]:
        return [str(self.take()[1]["message"]) for _ in range(count)]

    def close(self) -> None:
        self.end()
        self._context.term()


@pytest.fixture
def taker() -> Iterator[Taker]:
    taker = Taker()
    yield taker
    taker.close()


def make(taker: Taker, **options: Any) -> tuple[logging.Logger, LogHandler]:
    handler = LogHandler(taker.address, node="probe", **options)
    logger = logging.Logger("lab.probe")
    logger.addHandler(handler)
    return logger, handler


def test_records_are_sent(taker: Taker) -> None:
    taker.begin()
    logger, handler = make(taker)
    logger.warning("%d degrees", 90, extra={"sensor": "t1", "values": (1, 2)})
    topic, record = taker.take()
    assert topic == "log/warning/probe"
    assert abs(record.pop("at") - time.time()) < 60
    assert record == {
        "level": "warning",
        "node": "probe",
        "logger": "lab.probe",
        "message": "90 degrees",
        "extra": {"sensor": "t1", "values": [1, 2]},
    }
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        logger.exception("it broke")
    topic, record = taker.take()
    assert topic == "log/error/probe"
    assert record["message"].startswith("it broke\nTraceback")
    assert "ZeroDivisionError" in record["message"]
    handler.close()


def test_emqp_sends_the_same() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    handler = LogHandler(f"127.0.0.1:{port}", node="probe", dialect="emqp")
    handler.handle(logging.makeLogRecord({"levelno": 20, "msg": "hello"}))
    assert router.poll(WAIT_MS)
    frames = router.recv_multipart()
    assert b"log/info/probe" in frames
    assert json.loads(frames[-1])["message"] == "hello"
    handler.close()
    router.close(0)
    context.term()


def test_what_has_no_room_is_counted_and_told(taker: Taker) -> None:
    logger, handler = make(taker, queue=5)
    for number in range(20):
        logger.info("%d", number)
    assert handler.dropped == 15
    taker.begin()
    assert taker.messages(5) == ["0", "1", "2", "3", "4"]
    topic, note = taker.take()
    assert topic == "log/warning/probe"
    assert note["extra"] == {"dropped": 15}
    assert note["message"] == "15 log records were dropped: the queue was full"
    logger.info("after")
    assert taker.messages(1) == ["after"]
    handler.close()


def test_bytes_that_wait_are_limited(taker: Taker) -> None:
    logger, handler = make(taker, flush_s=0.0)
    for _ in range(5000):
        logger.info("x" * 9000)
    assert 2900 < handler.dropped < 3100
    handler.close()


def test_it_survives_brokers(taker: Taker) -> None:
    taker.begin()
    logger, handler = make(taker)
    logger.info("one")
    assert taker.messages(1) == ["one"]
    taker.end()
    # It is told that nobody listens; what is logged from then on waits.
    until(lambda: not handler._sender._is_wanted)  # type: ignore[union-attr]
    for number in range(100):
        logger.info("%d", number)
    taker.begin()
    assert taker.messages(100) == [str(number) for number in range(100)]
    assert handler.dropped == 0
    handler.close()


def test_the_end_is_bounded_without_a_broker(taker: Taker) -> None:
    logger, handler = make(taker, flush_s=0.2)
    logger.info("nobody will read this")
    began = time.monotonic()
    # As `logging.shutdown` does it.
    handler.flush()
    handler.close()
    assert time.monotonic() - began < patient(5.0)
    logger.info("too late, but nothing happens")


def test_what_waits_is_sent_at_the_end(taker: Taker) -> None:
    taker.begin()
    logger, handler = make(taker, flush_s=20.0)
    logger.info("first")
    assert taker.messages(1) == ["first"]
    for number in range(1500):
        logger.info("%d", number)
    handler.close()
    assert taker.messages(1500) == [str(number) for number in range(1500)]


class Sour:
    def __repr__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("extra", "sent"),
    [
        ({"thing": Sour()}, {"unreadable": "thing"}),
        ({"thing": {(1, 2): 3}}, {"thing": {"(1, 2)": 3}}),
        ({"thing": "x" * 10_000}, {"too_large": "thing"}),
        ({"thing": object}, {"thing": "<class 'object'>"}),
        ({"thing": "\ud800"}, {"unreadable": "thing"}),
    ],
)
def test_extras_of_all_kinds(extra: dict[str, Any], sent: Any) -> None:
    handler = LogHandler("127.0.0.1:9", node="probe")
    record = logging.makeLogRecord({"msg": "m", **extra})
    assert json.loads(handler.body(record, "info"))["extra"] == sent


def test_messages_of_all_kinds() -> None:
    handler = LogHandler("127.0.0.1:9", node="probe")

    def message(text: str) -> str:
        found: str = json.loads(handler.body(logging.makeLogRecord({"msg": text}), "info"))["message"]
        return found

    assert message("\ud800") == "\\ud800"
    assert len(message("x" * 100_000)) == 8192
    handler.setFormatter(logging.Formatter("<%(message)s>"))
    assert message("m") == "<m>"


def test_a_message_that_cannot_be_made_is_python_s_affair(
    taker: Taker, capsys: pytest.CaptureFixture[str]
) -> None:
    logger, handler = make(taker)
    logger.info("%d", "no number")
    assert "no number" in capsys.readouterr().err
    handler.close()


def test_a_child_process_has_a_queue_of_its_own(taker: Taker) -> None:
    logger, handler = make(taker, flush_s=20.0)
    logger.info("parent")
    child = os.fork()
    if not child:
        logger.info("child")
        handler.close()
        os._exit(0)
    taker.begin()
    assert sorted(taker.messages(2)) == ["child", "parent"]
    assert os.waitpid(child, 0)[1] == 0
    logger.info("more")
    assert taker.messages(1) == ["more"]
    handler.close()


def test_names() -> None:
    assert [level_name(number) for number in (0, 10, 20, 25, 30, 40, 50, 99)] == [
        "debug",
        "debug",
        "info",
        "info",
        "warning",
        "error",
        "critical",
        "critical",
    ]
    assert clean_node("a b\n") == "a b?"
    assert clean_node("") == "unknown"
    assert len(clean_node("ü" * 1000).encode()) == 242
    assert "@" in default_node()


def test_wrong_use() -> None:
    with pytest.raises(LocalProtocolError):
        LogHandler(dialect="mdr")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        LogHandler(queue=0)
    with pytest.raises(ConfigError):
        LogHandler("tcp://nowhere")
