"""Calls the service of `examples/hello/service.py`, in any dialect, whatever dialect the service speaks.

    python examples/hello/client.py
    python examples/hello/client.py --dialect emqp Ada Grace
    python examples/hello/client.py ""              # is refused: status 1, and why

Where the broker is: POLYBUS_MDR_CLIENT (POLYBUS_EMQP_CLIENT, …), else the dialect's default port on this
machine.
"""

from __future__ import annotations

import argparse
import sys

from polybus import Client, PolybusError, RequestFailed, RequestTimeout


def main() -> None:
    parser = argparse.ArgumentParser(description="Calls hello.")
    parser.add_argument("--dialect", default="mdr", help="mdr, mdp1, mdp2, ebus, emqp or dbp")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("names", nargs="*", default=["world"])
    arguments = parser.parse_args()
    try:
        with Client(dialect=arguments.dialect, timeout_s=arguments.timeout) as client:
            # All at once, as far as the dialect allows; the answers come in order.
            for answer in client.call_many("hello", [name.encode() for name in arguments.names]):
                print(answer.decode())
    except RequestFailed as failure:
        # A refusal is an exception with a word for programs and a sentence for people.
        sys.exit(f"refused: {failure.code}, {failure.detail}")
    except RequestTimeout:
        sys.exit(f"hello gave no answer within {arguments.timeout:g} s; start examples/hello/service.py")
    except PolybusError as failure:
        # No broker, or no such dialect: the exception says what to do.
        sys.exit(str(failure))


if __name__ == "__main__":
    main()
