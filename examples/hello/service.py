"""A service that greets. Runs until Ctrl-C, or until `--requests` were handled.

    python examples/hello/service.py
    python examples/hello/service.py --dialect ebus

Where the broker is: POLYBUS_MDR_WORKER (POLYBUS_EBUS_WORKER, …), else the dialect's default port on this
machine.
"""

from __future__ import annotations

import argparse
import contextlib

from polybus import Bus, WorkerRejected


def main() -> None:
    parser = argparse.ArgumentParser(description="A service that greets.")
    parser.add_argument("--dialect", default="mdr", help="mdr, mdp1, mdp2, ebus, emqp or dbp")
    parser.add_argument("--requests", type=int, default=0, help="stop after so many; 0: never")
    arguments = parser.parse_args()
    bus = Bus(dialect=arguments.dialect)
    handled = 0

    @bus.service("hello")
    def hello(body: bytes) -> bytes:
        nonlocal handled
        handled += 1
        if handled == arguments.requests:
            # The request at hand is still answered.
            bus.stop()
        if not body:
            raise WorkerRejected("whom shall I greet?")
        print("greeting", body.decode(errors="replace"), flush=True)
        return b"hello " + body

    print("serving hello", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        bus.run()
    print("handled", handled, flush=True)


if __name__ == "__main__":
    main()
