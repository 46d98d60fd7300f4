"""A Hermes service or client, told what to do by JSON lines.

    hermes_node.py service NAME     registers, then serves; `u_U` is answered with what was sent, reversed
    hermes_node.py client

Hermes' client imports a type variable that newer pyzmq does not have any more, so it is put there first.
"""

import json
import logging
import sys
import threading
import typing

import zmq.sugar.context

if not hasattr(zmq.sugar.context, "T"):
    zmq.sugar.context.T = typing.TypeVar("T")

from Hermes.Client import Client
from Hermes.DBP import commands
from Hermes.Service import Service

# Hermes prints what it gets; the answers to the test go where it does not print.
answers = sys.stdout
sys.stdout = sys.stderr


def say(value):
    print(json.dumps(value), file=answers, flush=True)


def reverse(message):
    """A call as polybus hands it over: the service's name, then the body."""
    name, body = message.body
    if body == b"fail":
        message.send(command=commands["Info_Rep"], body={"Error": "asked to fail"})
    else:
        message.send(command=commands["Info_Rep"], body=name + b":" + body[::-1])


def run_service(name):
    service = Service(name, log_level=logging.INFO)
    service.loop.add_msg_handler(commands["Info_Req"], reverse)
    say({"registered": service.register(), "interfaces": service.loop.interfaces})

    def obey():
        for line in sys.stdin:
            question = json.loads(line)
            if question["do"] == "update":
                say(service.update_config(question["config"]))

    threading.Thread(target=obey, daemon=True).start()
    service.loop.start()


def run_client():
    client = Client(log_level=logging.INFO)
    say({"connected": client.connected})
    for line in sys.stdin:
        question = json.loads(line)
        if question["do"] == "services":
            say(client.get_services(question["name"]))
        elif question["do"] == "ping":
            say([frame.decode() for frame in client.request_from_service(name=question["name"])])


if sys.argv[1] == "service":
    run_service(sys.argv[2])
else:
    run_client()
