"""A DBP broker without sockets, with the connections that it dials.

net = Network()
net.send(DBP, b"peer", b"", b"u_U", TIME, b"")      # a peer that came to the broker's socket
net.dialled                                         # identity → endpoint of what the broker dialled
net.send(OUT, identity, b"", b"o_O", TIME, b"…")    # what comes back from there
"""

from __future__ import annotations

import json
import struct
from typing import Any

from polybus.core import actions as act
from polybus.core.model import Limits, Reason
from polybus.dialects.dbp import Dbp
from polybus.dialects.mdp2 import Mdp2
from polybus.dialects.port import RouterEar
from polybus.errors import LocalProtocolError
from support.exchange import Exchange, Sent

OUT, DBP, MDP = 0, 1, 2
WALL_S = 1_700_000_000.5
# The original's form of the time, and what the document's readers may use instead.
FLOAT = struct.pack("<f", WALL_S)
DOUBLE = struct.pack("<d", WALL_S)
TEXT = b"1700000000.500000"


class Network(Exchange):
    def __init__(self, limits: Limits | None = None, **options: Any) -> None:
        super().__init__(limits)
        options.setdefault("outbound_link", OUT)
        dialect = Dbp(self.bus, lambda: WALL_S, broker=b"Amon Din", **options)
        self.dialled: dict[bytes, str] = {}
        self.hung_up: list[str] = []
        self.forgotten: list[bytes] = []
        self.listen(OUT, dialect.outbound_ear)
        self.listen(DBP, dialect.ear)
        self.listen(MDP, RouterEar(self.bus, "majordomo", Mdp2(self.bus).tags))

    def say(self, peer: bytes, command: bytes, *frames: bytes, time: bytes = FLOAT) -> None:
        self.send(DBP, peer, b"", command, time, *frames)

    def register(self, peer: bytes, time: bytes = FLOAT, **info: Any) -> Sent:
        """Register and return the answer, from the command on."""
        self.say(peer, b"UwU", json.dumps(info).encode(), time=time)
        return self.reply(peer)

    def serve(self, peer: bytes, name: str, heartbeat: float = 1.0, **more: Any) -> None:
        """Register as the document has it, on a socket that is kept."""
        info = {"ip": "10.0.0.7", "port": 5247, "function": "echoes", "heartbeat": heartbeat}
        answer = self.register(peer, name=name, **{**info, **more})
        assert answer[0] == b"OwO", answer

    def original(self, peer: bytes, name: str, port: int = 5247, **more: Any) -> bytes:
        """Register as the original does, and return the identity under which the broker dialled it."""
        known = set(self.dialled)
        interfaces = {"router": {"ip": "127.0.0.1", "port": port}}
        info = {"interfaces": interfaces, "reg_time": "Tue Nov 14", "topics": None}
        answer = self.register(peer, name=name, **{**info, **more})
        assert answer[0] == b"OwO", answer
        (identity,) = set(self.dialled) - known
        return identity

    def replies(self, peer: bytes) -> list[Sent]:
        """What a peer got, from the command on; the empty first frame must be there."""
        messages = self.got(DBP, peer)
        assert all(message[0] == b"" for message in messages)
        return [message[1:] for message in messages]

    def reply(self, peer: bytes) -> Sent:
        messages = self.replies(peer)
        assert len(messages) == 1, messages
        return messages[0]

    def info(self, name: bytes = b"") -> Any:
        """What a client is told about one service, or all."""
        self.say(b"curious", b"u_U", name)
        command, time, text = self.reply(b"curious")
        assert (command, time) == (b"o_O", FLOAT)
        return json.loads(text)

    def _carry_out(self, action: Any) -> None:
        match action:
            case act.Approve() | act.Deny() | act.Acknowledge():
                self._post(action.node[0], self._speak(action.voice, action))
            case act.Dial(identity, endpoint):
                assert identity not in self.dialled
                self.dialled[identity] = endpoint
            case act.HangUp(_, endpoint):
                # As a socket does: all connections to the endpoint are closed.
                self.hung_up.append(endpoint)
                self.dialled = {key: value for key, value in self.dialled.items() if value != endpoint}
            case act.Forget(entry, _):
                self.forgotten.append(entry.name)
            case act.Answer():
                try:
                    super()._carry_out(action)
                except LocalProtocolError as error:
                    self._carry_out(
                        act.Refuse(
                            action.client,
                            action.voice,
                            action.service,
                            action.request_id,
                            Reason.UNDELIVERABLE,
                            str(error),
                            [],
                        )
                    )
            case _:
                super()._carry_out(action)
