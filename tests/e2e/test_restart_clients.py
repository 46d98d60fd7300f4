"""A broker that is killed and started again gives answers to whom they are for, and to nobody else.

libzmq makes up the identity of a peer that chooses none, and begins with the same number in every process:
the clients of the next broker get the identities of other clients of the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

import pytest

from conformance.dbp_node import NOW
from support.emqp_component import TAG, Component
from support.live import LiveBroker, Peer, wait_for
from support.patience import patient

Frames = list[bytes]
SERVICE: Final = b"till"
SAME_ID: Final = b"1"
STRANGERS: Final = 3

CLIENTS: Final[dict[str, tuple[str, Callable[[bytes, bytes], Frames]]]] = {
    "ebus": ("ebus.frontend", lambda name, body: [b"", b"EBC01", b"REQ", SERVICE, name, body]),
    "emqp": (
        "emqp.clients",
        lambda name, body: [b"", TAG, b"REQUEST", name, SERVICE, b"reply-requested", body],
    ),
    "mdp1": ("majordomo.clients", lambda _, body: [b"", b"MDPC01", SERVICE, body]),
    "mdp2": ("majordomo.clients", lambda _, body: [b"MDPC02", b"\x01", SERVICE, body]),
    "mdr": ("majordomo.clients", lambda name, body: [b"MDRC01", b"\x01", SERVICE, name, body]),
    "dbp": ("dbp.port", lambda _, body: [b"", b"u_U", NOW, SERVICE, body]),
}


@pytest.fixture(params=CLIENTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def answers(peer: Peer, count: int) -> list[bytes]:
    """The bodies of the next answers; receipts are passed over, and nothing may follow."""
    found: list[bytes] = []
    while len(found) < count:
        found += [frame for frame in peer.recv(patient(10)) if frame.startswith(b"did ")]
    return found


def serve(broker: LiveBroker, stack: ExitStack, orders: int) -> list[bytes]:
    """Do so many jobs, and return what they were."""
    worker = stack.enter_context(Component(broker, "workers"))
    worker.serve(SERVICE, orders)
    done = []
    for _ in range(orders):
        token, body = worker.take(patient(10))
        worker.say(b"REPLY", b"a-1", b"did " + body, token)
        done.append(body)
    return done


def wait_until_queued(broker: LiveBroker, count: int) -> None:
    def is_queued() -> bool:
        views = [view for view in broker.ask("services") if view["service"] == SERVICE.decode()]
        return [view["queued"] for view in views] == [count]

    wait_for(is_queued)


def nothing_follows(broker: LiveBroker, peers: Sequence[Peer]) -> None:
    """The broker has sent what it had to send when it answers a later question."""
    broker.ask("ping")
    for peer in peers:
        while (found := peer.get(0.05)) is not None:
            assert not any(frame.startswith(b"did ") for frame in found), found


@pytest.mark.conforms("EBUS-12", "EMQP-31", "MDR-4", "DBP-4")
def test_answers_go_to_who_asked_and_to_no_other_client(dialect: str) -> None:
    port, request = CLIENTS[dialect]
    with LiveBroker(arguments=["--set", f"queues.{SERVICE.decode()}.guarantee=true"]) as broker:
        with Peer(broker[port]) as nobody, Peer(broker[port], identity=b"own") as own:
            nobody.send(*request(SAME_ID, b"nobody"))
            wait_until_queued(broker, 1)
            own.send(*request(b"own-1", b"own before"))
            wait_until_queued(broker, 2)
        broker.restart()
        with ExitStack() as stack:
            # They get the identities of the last broker's clients, and use the same ids.
            strangers = [stack.enter_context(Peer(broker[port])) for _ in range(STRANGERS)]
            for number, stranger in enumerate(strangers):
                stranger.send(*request(SAME_ID, b"stranger %d" % number))
            again = stack.enter_context(Peer(broker[port], identity=b"own"))
            again.send(*request(b"own-2", b"own after"))
            wait_until_queued(broker, 2 + STRANGERS + 1)
            done = serve(broker, stack, 2 + STRANGERS + 1)
            wanted = [b"nobody", b"own before", b"own after", *(b"stranger %d" % n for n in range(STRANGERS))]
            assert sorted(done) == sorted(wanted)
            for number, stranger in enumerate(strangers):
                assert answers(stranger, 1) == [b"did stranger %d" % number]
            assert sorted(answers(again, 2)) == [b"did own after", b"did own before"]
            nothing_follows(broker, [*strangers, again])
        assert not broker.crashes(), broker.crashes()


@pytest.mark.conforms("EMQP-31")
@pytest.mark.parametrize("dialect", ["ebus", "emqp", "mdr"])
def test_an_id_that_another_client_used_before_the_restart_is_free(dialect: str) -> None:
    port, request = CLIENTS[dialect]
    with LiveBroker(arguments=["--set", f"queues.{SERVICE.decode()}.guarantee=true"]) as broker:
        with ExitStack() as stack:
            first = stack.enter_context(Peer(broker[port]))
            first.send(*request(SAME_ID, b"pay 10"))
            assert serve(broker, stack, 1) == [b"pay 10"]
            assert answers(first, 1) == [b"did pay 10"]
        broker.restart()
        with ExitStack() as stack:
            second = stack.enter_context(Peer(broker[port]))
            second.send(*request(SAME_ID, b"pay 99"))
            wait_until_queued(broker, 1)
            assert serve(broker, stack, 1) == [b"pay 99"]
            assert answers(second, 1) == [b"did pay 99"]


@pytest.mark.parametrize("dialect", ["ebus", "emqp", "mdr"])
def test_a_client_with_an_identity_of_its_own_gets_the_answer_of_before_the_restart(dialect: str) -> None:
    port, request = CLIENTS[dialect]
    with LiveBroker(arguments=["--set", f"queues.{SERVICE.decode()}.guarantee=true"]) as broker:
        with ExitStack() as stack:
            client = stack.enter_context(Peer(broker[port], identity=b"own"))
            client.send(*request(SAME_ID, b"pay 10"))
            assert serve(broker, stack, 1) == [b"pay 10"]
            assert answers(client, 1) == [b"did pay 10"]
        broker.restart()
        with Peer(broker[port], identity=b"own") as client:
            client.send(*request(SAME_ID, b"pay 10"))
            assert answers(client, 1) == [b"did pay 10"]
