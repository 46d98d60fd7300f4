"""A broker that is killed and started again takes the answers of workers that were busy meanwhile.

The workers are those of the documents, which do not know that the broker is another one: they answer on the
connection that ZeroMQ makes anew.  (DBP's answers do not say what they answer.)
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from conformance.live_settings import BEAT_S
from polybus import Client, Options
from support.live import LiveBroker, Peer, wait_for
from support.patience import patient
from support.silent_workers import Frames, talks

DIALECTS = ("ebus", "emqp", "mdp1", "mdp2", "mdr")


# In the time of grace, and after it: then the jobs wait in their queues for a worker.
@pytest.mark.parametrize("is_in_time", [True, False])
def test_what_a_busy_worker_answers_after_a_kill_is_not_run_again(is_in_time: bool) -> None:
    spoken = talks(BEAT_S)
    orders: dict[str, tuple[bytes, Frames]] = {}
    with LiveBroker({"limits.orphan_grace_s": patient(60) if is_in_time else BEAT_S}) as broker:
        with ExitStack() as stack:
            client = stack.enter_context(Client(broker["emqp.clients"], "emqp", timeout_s=patient(20)))
            for dialect in DIALECTS:
                talk = spoken[dialect]
                worker = stack.enter_context(Peer(broker[talk.port]))
                for frames in talk.hello(dialect.encode()):
                    worker.send(*frames)
                wait_for(lambda name=dialect: broker.has_workers(name))  # type: ignore[misc]
                job = client.submit(dialect, b"work", options=Options(guarantee=True), wants_reply=False)
                job.result()
                while dialect not in orders:
                    found = talk.request(worker.recv())
                    if found is not None:
                        # The envelope begins with the token in all of them.
                        orders[dialect] = (found[0][0], found[0])
            broker.kill()
        broker.restart()
        if not is_in_time:
            wait_for(lambda: all(state_of(broker, token) == "queued" for token, _ in orders.values()))
        for dialect, (token, envelope) in orders.items():
            # (On a slow machine the one of EBUS was silent for too long before the kill.)
            assert state_of(broker, token) in ("running", "queued"), dialect
            with Peer(broker[spoken[dialect].port]) as worker:
                worker.send(*spoken[dialect].reply(envelope, b'"done"')[0])
                wait_for(lambda name=token: state_of(broker, name) == "done")  # type: ignore[misc]
        status = broker.ask("status")
        assert (status["replied"], status["late"], status["dispatched"]) == (len(DIALECTS), 0, 0)


def state_of(broker: LiveBroker, token: bytes) -> str:
    return str(broker.ask("job", job=token.decode())["state"])
