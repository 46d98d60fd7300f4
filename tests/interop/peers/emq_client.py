"""A program that uses EventMQ's own client, told what to do by JSON lines. EMQ_BROKER_ADDR is the broker."""

import json
import os
import sys

import emq_jobs
import zmq
from eventmq.client import jobs, messages
from eventmq.poller import POLLIN, Poller
from eventmq.sender import Sender

BROKER = os.environ["EMQ_BROKER_ADDR"]


class Client:
    def __init__(self):
        self.socket = Sender()
        self.socket.connect(BROKER)
        self.poller = Poller()
        self.poller.register(self.socket, POLLIN)
        self.publisher = None
        self.subscriber = None

    def defer(self, func, **details):
        return messages.defer_job(self.socket, func, **details)

    def request(self, message, **details):
        return messages.send_request(self.socket, message, **details)

    def receive(self, within_s):
        """The next message of the broker; EventMQ's own client never looks for one."""
        if self.socket in self.poller.poll(within_s * 1000):
            return self.socket.recv_multipart()
        return None

    def delay(self, function, args):
        return getattr(emq_jobs, function).delay(*args)

    def schedule(self, func, args, **details):
        return jobs.schedule(func, args=args, **details)

    def unschedule(self, func, args):
        # jobs.unschedule connects its socket twice and fails in EventMQ itself; this is what it calls.
        return messages.schedule(self.socket, func, args=args, unschedule=True)

    def publish(self, address, topic, message):
        if self.publisher is None:
            self.publisher = Sender()
            self.publisher.connect(address)
        return messages.send_publish_request(self.publisher, topic, message)

    def subscribe(self, address, topic):
        # As eventmq/subscriber.py does it.
        self.subscriber = zmq.Context.instance().socket(zmq.SUB)
        self.subscriber.linger = 0
        self.subscriber.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self.subscriber.connect(address)

    def publication(self, within_s):
        if self.subscriber.poll(int(within_s * 1000)):
            return [frame.decode() for frame in self.subscriber.recv_multipart()]
        return None


client = Client()
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    print(json.dumps(getattr(client, question.pop("do"))(**question)), flush=True)
# What was sent goes out; what was never sent because nobody listened does not keep us.
zmq.Context.instance().destroy(linger=500)
