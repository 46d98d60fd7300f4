"""Whatever happens in whatever order: a subscriber gets the current values of what it asked for, then every
publication once and in order; and if it does not read, what it misses is counted exactly.

The model is simple: a subscription adds the current values that are not covered yet, a publication adds
itself if it is wanted.  Pipes become full and empty again at any time; turns end at any time.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from polybus.server import subscribers
from support.studio import EBUS, EMQP, Peer, Studio
from support.zmtp import GREETING, ready

TOPICS = [b"a", b"ab", b"abc", b"b", b"ba"]
PREFIXES = [b"", b"a", b"ab", b"abc", b"b", b"x"]


class Listener:
    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.wanted: set[bytes] = set()
        # What it is to get, and what it got.
        self.due: list[tuple[bytes, bytes]] = []
        self.got: list[tuple[bytes, bytes]] = []

    def wants(self, topic: bytes) -> bool:
        return topic.startswith(tuple(self.wanted))

    def hear(self) -> None:
        for topic, *body in self.peer.messages():
            self.got.append((topic, b"".join(body)))


class SubscriberMachine(RuleBasedStateMachine):
    listeners = Bundle("listeners")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.values: dict[bytes, bytes] = {}
        self.all: list[Listener] = []
        self.studio = Studio()
        # Subscriptions that wait unread would make the model as complicated as what it describes.
        self.patch = mock.patch.object(subscribers, "OWED_BYTES", 1 << 40)
        self.patch.start()

    def teardown(self) -> None:
        self.patch.stop()

    @initialize(pipe=st.sampled_from([(1000, 10_000_000), (3, 10_000_000), (1000, 400)]))
    def open(self, pipe: tuple[int, int]) -> None:
        self.studio = Studio(pipe_messages=pipe[0], pipe_bytes=pipe[1])
        self.lossy = pipe != (1000, 10_000_000)

    @rule(target=listeners, link=st.sampled_from([EBUS, EMQP]), turn=st.booleans())
    def join(self, link: int, turn: bool) -> Listener:
        listener = Listener(self.studio.join(link=link) if turn else self._in_a_hurry(link))
        self.all.append(listener)
        return listener

    def _in_a_hurry(self, link: int) -> Peer:
        peer = self.studio.connect(link)
        peer.send(GREETING + ready(b"SUB"))
        return peer

    @rule(listener=listeners, prefix=st.sampled_from(PREFIXES))
    def subscribe(self, listener: Listener, prefix: bytes) -> None:
        new = [(t, v) for t, v in sorted(self.values.items()) if t.startswith(prefix)]
        if prefix not in listener.wanted:
            listener.due += [(topic, value) for topic, value in new if not listener.wants(topic)]
            listener.wanted.add(prefix)
        listener.peer.subscribe(prefix)

    @rule(listener=listeners, prefix=st.sampled_from(PREFIXES))
    def cancel(self, listener: Listener, prefix: bytes) -> None:
        listener.wanted.discard(prefix)
        listener.peer.cancel(prefix)

    @rule(topic=st.sampled_from(TOPICS), size=st.sampled_from([0, 0, 0, 300, 70_000]))
    def publish(self, topic: bytes, size: int) -> None:
        self.count += 1
        body = b"%d " % self.count + b"x" * size
        self.values[topic] = body
        for listener in self.all:
            if listener.wants(topic):
                listener.due.append((topic, body))
        self.studio.publish(topic, body)

    @rule(topic=st.sampled_from(TOPICS))
    def drop(self, topic: bytes) -> None:
        self.values.pop(topic, None)
        self.studio.bus.last.remove(topic)

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.01, 0.1]))
    def turn(self, seconds: float) -> None:
        self.studio.turn(seconds)

    @rule(listener=listeners)
    def stop_reading(self, listener: Listener) -> None:
        self.studio.pump.full.add(listener.peer.identity)

    @rule(listener=listeners, times=st.integers(1, 4))
    def hesitate(self, listener: Listener, times: int) -> None:
        self.studio.pump.refuse_next[listener.peer.identity] = times

    @rule(listener=listeners)
    def read_again(self, listener: Listener) -> None:
        self.studio.pump.full.discard(listener.peer.identity)

    @rule(listener=consumes(listeners), politely=st.booleans())
    def leave(self, listener: Listener, politely: bool) -> None:
        self.all.remove(listener)
        self.studio.pump.gone.add(listener.peer.identity)
        self.studio.pump.full.discard(listener.peer.identity)
        if politely:
            listener.peer.hang_up()

    @rule()
    def everyone_reads(self) -> None:
        self.studio.pump.full.clear()
        self.studio.until_quiet()
        views = {view["subscriber"]: view for view in self.studio.subscribers.views(self.studio.now)}
        for listener in self.all:
            listener.hear()
            view = views[f"{listener.peer.link}:{listener.peer.identity.hex()}"]
            assert view["waiting"] == view["waiting_bytes"] == 0
            if view["dropped"]:
                assert self.lossy
                assert len(listener.got) == len(listener.due) - view["dropped"]
            else:
                assert listener.got == listener.due

    @invariant()
    def what_came_is_part_of_what_was_due_in_order(self) -> None:
        for listener in self.all:
            listener.hear()
            rest = iter(listener.due)
            assert all(message in rest for message in listener.got)

    @invariant()
    def subscriptions_are_counted(self) -> None:
        counts: dict[int, dict[bytes, int]] = {}
        for listener in self.all:
            for prefix in listener.wanted:
                of_link = counts.setdefault(listener.peer.link, {})
                of_link[prefix] = of_link.get(prefix, 0) + 1
        known = {link: found for link, found in self.studio.bus.subscriptions.items() if found}
        # Some may have gone without a word, and then are known until something is sent to them.
        for link, prefixes in counts.items():
            assert all(known[link][prefix] >= count for prefix, count in prefixes.items())


TestSubscribers: Any = SubscriberMachine.TestCase
TestSubscribers.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
