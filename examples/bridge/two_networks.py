"""Two brokers, one bridge: a client of the one calls a worker of the other, and a topic crosses.

    python examples/bridge/two_networks.py

starts both from the files beside it, on free ports. The worker speaks EBUS to the laboratory, the client MDR
to the office; neither knows that there are two brokers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from polybus import Client, Request, RequestFailed, Worker

HERE = Path(__file__).resolve().parent


class Broker:
    """`polybus serve` with one of the files beside this one."""

    def __init__(self, name: str, folder: str, **settings: str) -> None:
        command = [sys.executable, "-m", "polybus", "serve", "--config", str(HERE / f"{name}.toml")]
        command += ["--any-port", "--data-dir", str(Path(folder, name))]
        for option, value in settings.items():
            command += ["--set", f"bridge.{option}={value}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        self.places = dict(word.split("=", 1) for word in words[1:])

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def measure(request: Request) -> bytes:
    return b"21.5 degrees in " + request.body


def call(client: Client, service: str, body: bytes) -> str:
    """As soon as the office has heard of the service, the call goes to the laboratory."""
    try:
        return client.call(service, body, timeout_s=10).decode()
    except RequestFailed as error:
        return f"refused: {error.code}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        laboratory = Broker("laboratory", folder)
        office = Broker("office", folder, peers=laboratory.places["bridge.port"])
        try:
            talk(laboratory.places, office.places)
        finally:
            office.close()
            laboratory.close()


def talk(laboratory: dict[str, str], office: dict[str, str]) -> None:
    worker = Worker({"instrument.temperature": measure}, laboratory["ebus.backend"], "ebus")
    threading.Thread(target=worker.run, daemon=True).start()
    with Client(office["majordomo.clients"], "mdr") as client:
        print("office to laboratory:", call(client, "instrument.temperature", b"Rome"))
    with (
        Client(laboratory["emqp.clients"], "emqp") as speaker,
        Client(office["emqp.clients"], "emqp", subscribe_address=office["emqp.subscribe"]) as listener,
    ):
        # Nobody in the office listens yet: the value crosses, and waits there.
        speaker.publish("measured.rome", b"21.5")
        with listener.subscribe("measured.") as subscription:
            heard = subscription.get(timeout_s=10)
            print("laboratory to office:", heard and f"{heard[0]} {heard[1].decode()}")


if __name__ == "__main__":
    main()
