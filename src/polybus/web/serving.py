"""One process that listens, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn
from starlette.applications import Starlette

from polybus.errors import ConfigError

# What is still being answered when the process is to end has so long.
END_S: Final = 2
# All streams together, and as many again; a process that opens more is no browser. Beyond it: 503.
MAX_CONNECTIONS: Final = 300


class Server(uvicorn.Server):
    """Leaves signals to us: uvicorn would raise them again at the end, and die of them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raises `ConfigError` with what to do if it cannot."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror}; check --host") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; --port 0 takes any free port"
        ) from None
    return listener


def serve(app: Starlette, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Answer until SIGINT or SIGTERM."""
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    asyncio.run(_serve(app, listener, on_ready))


async def _serve(app: Starlette, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        # Who is at the other end is never decided by a header.
        proxy_headers=False,
        ws="none",
        lifespan="on",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=END_S,
    )
    server = Server(config)

    def end() -> None:
        server.should_exit = True
        if server.started:
            app.state.polybus.closing.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    serving = loop.create_task(server.serve([listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    if server.started:
        on_ready()
    await serving
