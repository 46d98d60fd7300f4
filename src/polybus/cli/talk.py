"""The commands that talk to services and topics, as a client of any dialect would."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polybus.cli.options import (
    Address,
    DataDir,
    Dialect,
    Json,
    Tag,
    Timeout,
    TopicDialect,
    WrongUse,
    dialect_option,
    examples,
)
from polybus.errors import RequestFailed, RequestTimeout

# How long libzmq may take to hand over what was sent.
LINGER_S = 2.0

Service = Annotated[str, typer.Argument(help="The service (eMQP: queue) to ask.")]
Topic = Annotated[str, typer.Argument(help="The topic (EBUS: channel) to publish under.")]
Body = Annotated[str, typer.Argument(help="What to send; - reads it from standard input.")]

CALL_EXAMPLES = examples(
    "polybus call hello world",
    "polybus call hello - --dialect ebus < question.json",
    "polybus call count 10 --stream --address tcp://127.0.0.1:5555",
)


def call(
    service: Service,
    body: Body = "",
    dialect: Annotated[Dialect, dialect_option("to ask in")] = Dialect.mdr,
    address: Address = None,
    data_dir: DataDir = None,
    tag: Tag = None,
    timeout: Timeout = 30.0,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print each piece of the answer as it comes, a line each.")
    ] = False,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Print the bytes of the answer and nothing else, no line end either."),
    ] = False,
    json_: Json = False,
) -> None:
    """Ask a service, whatever dialect its workers speak, and print the answer.

    A call that gives up, or is interrupted, takes its request back.
    """
    import time

    from polybus.cli.giving_up import Asked, ended_by_sigterm
    from polybus.cli.output import body_fields, print_json, write_body
    from polybus.client.base import new_identity
    from polybus.client.client import Client

    content = _read(body)
    endpoint = _place(dialect, "client", address, data_dir)
    identity = new_identity()
    asked = Asked(endpoint, dialect.value, identity, data_dir)
    with (
        ended_by_sigterm(),
        Client(endpoint, dialect.value, timeout_s=timeout, identity=identity, tag=tag) as client,
    ):
        began = time.perf_counter()
        try:
            if stream:
                for piece in client.stream(service, content):
                    if json_:
                        print_json(body_fields(piece))
                    else:
                        write_body(piece, raw)
                return
            frames = client.call_multipart(service, content)
        except RequestTimeout:
            raise RequestTimeout(asked.unanswered(service, timeout)) from None
        except RequestFailed as error:
            detail = error.detail or f"{service!r} gave no answer"
            raise RequestFailed(error.code, asked.refused(service, detail)) from None
        except (KeyboardInterrupt, SystemExit, BrokenPipeError):
            asked.interrupted()
            raise
        took_ms = (time.perf_counter() - began) * 1000
    if json_:
        answer = body_fields(frames[0]) if len(frames) == 1 else {"frames": [body_fields(f) for f in frames]}
        print_json({"service": service, "dialect": dialect.value, "ms": round(took_ms, 3), **answer})
        return
    for frame in frames:
        write_body(frame, raw)


SEND_EXAMPLES = examples(
    'polybus send email \'{"to": "ada"}\' --guarantee --retries 3',
    "polybus send cleanup --dialect mdr",
)


def send(
    service: Service,
    body: Body = "",
    dialect: Annotated[Dialect, dialect_option("to ask in (only emqp has options of jobs)")] = Dialect.emqp,
    guarantee: Annotated[
        bool,
        typer.Option(
            "--guarantee",
            help="The job completes even if broker or worker dies: it is on disk before it is confirmed "
            "(emqp).",
        ),
    ] = False,
    retries: Annotated[
        int,
        typer.Option(
            min=0,
            help="Try so often again after a failure, with growing pauses; then it is a dead letter (emqp).",
        ),
    ] = 0,
    time_limit: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="End a run that takes longer; 0: never (emqp).")
    ] = 0,
    address: Address = None,
    data_dir: DataDir = None,
    tag: Tag = None,
    timeout: Timeout = 10.0,
    json_: Json = False,
) -> None:
    """Have something run, do not wait for what comes of it, and print the request's id.

    In eMQP the id is printed as soon as the broker has confirmed that it has the job, with --guarantee on
    disk. 'polybus jobs show' tells what became of it. The settings of a queue may guarantee and retry its
    jobs without being asked.
    """
    from polybus.cli.output import print_json
    from polybus.client.client import Client
    from polybus.client.sessions.port import Options

    options = Options(guarantee, retries, time_limit)
    if dialect is not Dialect.emqp and options != Options():
        raise WrongUse(
            f"{dialect.value} has no words for --guarantee, --retries and --time-limit; use --dialect emqp"
        )
    content = _read(body)
    endpoint = _place(dialect, "client", address, data_dir)
    with Client(endpoint, dialect.value, timeout_s=timeout, tag=tag) as client:
        if dialect is Dialect.emqp:
            job = client.submit(service, content, timeout, options=options, wants_reply=False)
            try:
                job.result(timeout)
            except RequestTimeout:
                raise RequestTimeout(
                    f"{client.endpoint} did not confirm the job within {timeout:g} s; it may run all the same"
                ) from None
            request_id = job.request_id
        else:
            request_id = client.send(service, content)
    name = request_id.decode()
    if json_:
        print_json({"request_id": name, "service": service, "dialect": dialect.value})
    else:
        print(name)


PUBLISH_EXAMPLES = examples(
    "polybus publish weather.rome sunny", "polybus publish weather.rome - --dialect emqp < report.json"
)


def publish(
    topic: Topic,
    body: Body = "",
    dialect: Annotated[TopicDialect, dialect_option("to publish in", TopicDialect)] = TopicDialect.ebus,
    address: Address = None,
    data_dir: DataDir = None,
    timeout: Timeout = 5.0,
    json_: Json = False,
) -> None:
    """Tell everybody who subscribed to a beginning of the topic, in either dialect."""
    import os

    import zmq

    from polybus.cli.output import print_json
    from polybus.client.pubsub import Publisher, write_publication
    from polybus.client.sessions.port import service_name

    content = _read(body)
    message = write_publication(dialect.value, os.urandom(8).hex().encode(), service_name(topic), [content])
    endpoint = _place(dialect, "publish", address, data_dir)
    with zmq.Context() as context:
        publisher = Publisher(dialect.value, endpoint, context)
        try:
            publisher.join(timeout)
            publisher.send(message, timeout)
        finally:
            publisher.close(LINGER_S)
    if json_:
        print_json({"topic": topic, "dialect": dialect.value, "bytes": len(content)})


SUBSCRIBE_EXAMPLES = examples(
    "polybus subscribe weather.", "polybus subscribe a. b. --dialect emqp --count 1 --json"
)


def subscribe(
    prefixes: Annotated[
        list[str] | None,
        typer.Argument(metavar="PREFIX...", help="How the topics begin; without any: everything."),
    ] = None,
    dialect: Annotated[TopicDialect, dialect_option("to subscribe in", TopicDialect)] = TopicDialect.ebus,
    count: Annotated[
        int, typer.Option("--count", min=0, help="Stop after so many; 0 goes on until Ctrl-C.")
    ] = 0,
    address: Address = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Print the newest message of each topic, then what is published from now on: topic, a tab, body."""
    import zmq

    from polybus.cli.output import body_fields, one_line, print_json, printable, say
    from polybus.client.pubsub import Subscription

    endpoint = _place(dialect, "subscribe", address, data_dir)
    # Not in a with: ending a context waits for what is sent, and nothing is.
    subscription = Subscription(dialect.value, tuple(prefixes or ()), endpoint, zmq.Context.instance())
    with subscription:
        say(f"subscribed at {endpoint}; Ctrl-C ends it")
        for number, (topic, content) in enumerate(subscription, 1):
            if json_:
                print_json({"topic": topic, **body_fields(content)})
            else:
                print(f"{printable(topic)}\t{one_line(content, limit=len(content) * 10)}", flush=True)
            if number == count:
                return


def _place(dialect: Dialect | TopicDialect, role: str, address: str | None, data_dir: Path | None) -> str:
    from polybus.cli.find import peer_endpoint

    return peer_endpoint(dialect.value, role, address, data_dir)


def _read(body: str) -> bytes:
    import os
    import sys

    return sys.stdin.buffer.read() if body == "-" else os.fsencode(body)
