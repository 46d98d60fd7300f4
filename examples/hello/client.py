"""Calls the service of `examples/hello/service.py`, in any dialect, whatever dialect the service speaks.

    python examples/hello/client.py
    python examples/hello/client.py --dialect emqp Ada Grace

Where the broker is: POLYBUS_MDR_CLIENT (POLYBUS_EMQP_CLIENT, …), else the dialect's default port on this
machine.
"""

from __future__ import annotations

import argparse

from polybus import Client, RequestFailed, RequestTimeout


def main() -> None:
    parser = argparse.ArgumentParser(description="Calls hello.")
    parser.add_argument("--dialect", default="mdr", help="mdr, mdp1, mdp2, ebus, emqp or dbp")
    parser.add_argument("names", nargs="*", default=["world"])
    arguments = parser.parse_args()
    with Client(dialect=arguments.dialect, timeout_s=10) as client:
        try:
            # All at once, as far as the dialect allows; the answers come in order.
            for answer in client.call_many("hello", [name.encode() for name in arguments.names]):
                print(answer.decode())
            # A refusal is an exception with a word for programs and a sentence for people.
            client.call("hello", b"")
        except RequestFailed as failure:
            print(f"refused: {failure.code}, {failure.detail}")
        except RequestTimeout as failure:
            print(f"{failure} Start examples/hello/service.py.")


if __name__ == "__main__":
    main()
