"""Topics across dialects: what is published in one arrives in the other.

    python examples/ebus/topics.py

A subscriber gets what is published after it has joined, and nothing tells a publisher when that was.  So this
program publishes until the first message has arrived.  A program that must not miss anything asks a service
for the present state first.
"""

from __future__ import annotations

from polybus import Client

PATIENCE = 200


def publish_until_heard(publishing: str, subscribing: str) -> str:
    topic = f"weather.{publishing}"
    with (
        Client(dialect=subscribing) as listener,
        Client(dialect=publishing) as speaker,
        # A subscription matches the beginning of a topic.
        listener.subscribe(f"weather.{publishing}") as subscription,
    ):
        for _ in range(PATIENCE):
            speaker.publish(topic, b"sunny")
            heard = subscription.get(timeout_s=0.05)
            if heard is not None:
                return f"{publishing} to {subscribing}: {heard[0]} {heard[1].decode()}"
    return f"{publishing} to {subscribing}: nothing arrived"


def main() -> None:
    print(publish_until_heard("ebus", "emqp"))
    print(publish_until_heard("emqp", "ebus"))


if __name__ == "__main__":
    main()
