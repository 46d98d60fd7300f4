"""A ground station: three instruments register, beat and publish; somebody comes late; one falls silent.

    python examples/ground_station/station.py

What passed is in the broker's journal.  `polybus pipeline build` makes tables of it, and `tables.py` beside
this file shows the telemetry in them.
"""

from __future__ import annotations

import json
import os
import time

import zmq
from instrument import CATALOG, Instrument, now

from polybus import Client, RequestFailed

SUBSCRIBE = os.environ.get("POLYBUS_EBUS_SUBSCRIBE", "tcp://127.0.0.1:5003")
INSTRUMENTS = {
    "antenna": "points at the satellite",
    "receiver": "listens at 437 MHz",
    "weather": "measures wind and temperature",
}
PATIENCE_S = 20.0


def ask(context: zmq.Context[zmq.Socket[bytes]], *frames: bytes) -> bytes:
    """A DBP client: one question, one answer."""
    with context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.connect(CATALOG)
        socket.send_multipart([b"u_U", now(), *frames])
        if not socket.poll(10_000):
            raise SystemExit(f"no answer from {CATALOG} within 10 s")
        return socket.recv_multipart()[2]


def catalog(context: zmq.Context[zmq.Socket[bytes]]) -> set[str]:
    return set(json.loads(ask(context, b""))) & set(INSTRUMENTS)


def pass_over(instruments: list[Instrument]) -> None:
    """A satellite from horizon to horizon, in forty steps."""
    antenna, receiver, weather = instruments
    for step in range(41):
        antenna.publish(azimuth=4.5 * step, elevation=90.0 - abs(90.0 - 4.5 * step))
        receiver.publish(snr_db=round(20.0 - abs(20 - step) * 0.8, 1))
        if step % 10 == 0:
            weather.publish(wind_ms=4.0 + step / 10, celsius=18.5)


def late_subscriber(context: zmq.Context[zmq.Socket[bytes]]) -> dict[str, bytes]:
    """Comes when all is over, and gets the newest value of every topic."""
    found: dict[str, bytes] = {}
    with context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.subscribe(b"telemetry.")
        socket.connect(SUBSCRIBE)
        while len(found) < len(INSTRUMENTS) and socket.poll(10_000):
            topic, body = socket.recv_multipart()
            found[topic.decode()] = body
    return found


def await_last(client: Client) -> None:
    """Publications have no receipt; the last value of each topic tells that all of them are there."""
    last = {"antenna": ("azimuth", 180.0), "receiver": ("snr_db", 4.0), "weather": ("wind_ms", 8.0)}
    until = time.monotonic() + PATIENCE_S
    while last and time.monotonic() < until:
        name, (quantity, value) = next(iter(last.items()))
        try:
            if json.loads(client.call("lvc", f"telemetry.{name}".encode()))[quantity] == value:
                last.pop(name)
        except RequestFailed:
            # Nothing has arrived under this topic yet.
            time.sleep(0.01)


def main() -> None:
    with zmq.Context() as context:
        instruments = [Instrument(context, name, function) for name, function in INSTRUMENTS.items()]
        for instrument in instruments:
            instrument.start()
            print(f"{instrument.name}: {'registered' if instrument.approved else 'denied'}")
        print("in the catalog:", ", ".join(sorted(catalog(context))))

        with Client(dialect="mdr", timeout_s=10) as client:
            pass_over(instruments)
            await_last(client)

        for topic, body in sorted(late_subscriber(context).items()):
            values = {name: value for name, value in json.loads(body).items() if name != "at"}
            print("late subscriber:", topic, values)
        # Nodes without topics ask the cache by a call.
        print("over DBP:", json.loads(ask(context, b"lvc", b"telemetry.antenna"))["azimuth"])

        antenna, receiver, weather = instruments
        weather.leave()
        receiver.die()
        until = time.monotonic() + PATIENCE_S
        while catalog(context) != {"antenna"} and time.monotonic() < until:
            time.sleep(0.05)
        print("after one left and one fell silent:", ", ".join(sorted(catalog(context))))
        antenna.leave()


if __name__ == "__main__":
    main()
