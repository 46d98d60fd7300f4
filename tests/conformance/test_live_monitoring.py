"""DBP's monitoring and its collection of logs, in DBP's own frames."""

from __future__ import annotations

import json
from typing import Any

import pytest
import zmq

from conformance.test_live_dbp import Node
from support.live import LiveBroker, Peer, wait_for
from support.patience import patient


def ask(broker: LiveBroker, name: bytes, *body: bytes) -> dict[str, Any]:
    """The answer to one info request."""
    with Node(broker) as client:
        client.say(b"u_U", name, *body)
        command, text = client.hear(patient(20.0))
        assert command == b"o_O"
        answer: dict[str, Any] = json.loads(text)
        return answer


@pytest.mark.conforms("DBP-33")
def test_liveness_of_every_service(hasty: LiveBroker, service: bytes) -> None:
    """Services of DBP and of other dialects, alive, late and gone."""
    name, other = service.decode(), f"{service.decode()}-mdp"
    with Node(hasty) as node, Peer(hasty["majordomo.workers"]) as worker:
        node.register(service, 60.0)
        worker.send(b"", b"MDPW01", b"\x01", other.encode())

        def is_served() -> dict[str, Any]:
            if [b"", b"MDPW01", b"\x05"] in iter(lambda: worker.get(0), None):
                # This machine stalled, and it was lost before anybody looked.
                worker.send(b"", b"MDPW01", b"\x01", other.encode())
            worker.send(b"", b"MDPW01", b"\x04")
            found = ask(hasty, b"polybus.monitor")
            return found if found["services"].get(other, {}).get("workers") else {}

        found = wait_for(is_served)
        assert found["services"][name]["state"] == "alive"
        assert found["services"][name]["dialects"] == ["dbp"]
        assert found["services"][other]["dialects"] == ["mdp1"]
        assert found["services"][name]["up_s"] >= 0
        (entry,) = [entry for entry in found["nodes"] if entry["node"] == name]
        assert (entry["state"], entry["missed_beats"], entry["heartbeat_s"]) == ("alive", 0, 60.0)
        # The other sends no more heartbeats: it is late, and then nobody serves it.
        wait_for(lambda: ask(hasty, b"polybus.monitor")["services"][other]["state"] in ("late", "unserved"))
        wait_for(lambda: ask(hasty, b"polybus.monitor")["services"][other]["state"] == "unserved")
        assert ask(hasty, b"polybus.monitor")["services"][name]["state"] == "alive"


@pytest.mark.conforms("DBP-33")
def test_listening_in_on_request(broker: LiveBroker, service: bytes) -> None:
    """A client asks to listen in on a service, and is told what passes, as far as that is allowed."""
    with Node(broker) as node, Node(broker) as client:
        node.register(service, 60.0)
        question = {"service": service.decode(), "wait_s": 0}
        tap = ask(broker, b"polybus.tap", json.dumps(question).encode())["tap"]
        client.say(b"u_U", service, b"a question")
        command, _, *rest = node.hear()
        assert (command, rest) == (b"u_U", [b"a question"])
        node.say(b"o_O", b"an answer")
        assert client.hear() == [b"o_O", b"an answer"]
        heard = ask(broker, b"polybus.tap", json.dumps({"tap": tap, "stop": True}).encode())
        assert [record["what"] for record in heard["records"]] == ["accepted", "dispatched", "replied"]
        assert {record["client_dialect"] for record in heard["records"]} == {"dbp"}
        # The content belongs to those who talk, unless the broker's settings say otherwise.
        refused = ask(broker, b"polybus.tap", json.dumps({**question, "bodies": True}).encode())
        assert refused["Error"] == "rejected"
        assert "monitor.tap" in json.dumps(refused)


@pytest.mark.conforms("DBP-33")
@pytest.mark.parametrize("port", ["ebus.subscribe", "emqp.subscribe"])
def test_changes_are_told_to_subscribers(broker: LiveBroker, service: bytes, port: str) -> None:
    with Peer(broker[port], kind=zmq.SUB) as listener:
        listener.socket.setsockopt(zmq.UNSUBSCRIBE, b"")
        listener.socket.setsockopt(zmq.SUBSCRIBE, b"polybus/monitor/")
        listener.recv_until(lambda frames: frames[0] == b"polybus/monitor/summary")
        with Node(broker) as node:
            node.register(service, 0.2)
            for event in ("node_up", "node_late", "node_down"):
                topic, body = listener.recv_until(
                    lambda frames: frames[0].startswith(b"polybus/monitor/node_") and service in frames[1]
                )
                assert topic.decode() == f"polybus/monitor/{event}"
                assert json.loads(body)["node"] == service.decode()


@pytest.mark.conforms("DBP-36")
def test_warnings_of_nodes_are_collected(broker: LiveBroker, service: bytes) -> None:
    """A node writes by a request of its own dialect, or publishes; anybody reads, live or later."""
    name = service.decode()
    with Peer(broker["emqp.subscribe"], kind=zmq.SUB) as listener:
        record = {"message": "too hot", "level": "warning", "node": name, "logger": "probe"}

        def is_heard() -> bool:
            assert ask(broker, b"polybus.logs", json.dumps(record).encode()) == {"written": True}
            frames = listener.get(0.1)
            while frames is not None and frames[0] != b"log/warning/" + service:
                frames = listener.get(0.1)
            return frames is not None and json.loads(frames[1])["message"] == "too hot"

        wait_for(is_heard)
    with Peer(broker["ebus.publish"], kind=zmq.PUB) as publisher:

        def is_there() -> bool:
            publisher.send(b"log/error/" + service, b"broken")
            question = {"level": "error", "node": name}
            records = ask(broker, b"polybus.logs", json.dumps(question).encode())["records"]
            return [one["message"] for one in records][:1] == ["broken"]

        wait_for(is_there)
    found = ask(broker, b"polybus.logs", json.dumps({"level": "warning", "node": name}).encode())["records"]
    assert {(one["level"], one["message"]) for one in found} == {("warning", "too hot"), ("error", "broken")}
