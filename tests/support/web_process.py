"""`polybus web` as a process, and questions to it as a browser asks them.

with closing(Dashboard(folder, "--admin", endpoint)) as web:
    assert web.get("/api/services").json == []
    with web.stream("/api/stream") as events:
        name, data = events.next()
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from support.commands import Running
from support.patience import patient

ANSWER_S = patient(20.0)


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Events:
    """Server-sent events, one after the other."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def next(self) -> tuple[str, Any]:
        """Name and data of the next event; an empty name if the stream has ended."""
        name, data = "", ""
        while line := self._response.readline():
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text[7:]
            elif text.startswith("data: "):
                data = text[6:]
            elif not text and name:
                return name, json.loads(data)
        return "", None

    def until(self, name: str) -> Any:
        """The data of the next event with this name."""
        while True:
            found, data = self.next()
            assert found, f"the stream ended before {name!r}"
            if found == name:
                return data


class Dashboard(Running):
    """The process, on a free port of the loopback unless told otherwise."""

    def __init__(self, folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        super().__init__("web", "--port", "0", *arguments, cwd=folder, env=env)
        try:
            ready = self.wait_for(self.output, "ready dashboard=")
        except BaseException:
            self.close()
            raise
        address = urlsplit(ready.partition("=")[2])
        self.port = address.port or 0
        self.host = address.hostname or ""
        self.token = address.query.removeprefix("token=")

    @property
    def authorized(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=ANSWER_S)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("GET", path, headers)

    def post(self, path: str, value: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """An order, with the token unless other headers are given."""
        body = None if value is None else json.dumps(value).encode()
        return self.ask("POST", path, self.authorized if headers is None else headers, body)

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str] | None = None) -> Iterator[Events]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=ANSWER_S)
        try:
            connection.request("GET", path, headers=dict(headers or {}))
            response = connection.getresponse()
            assert response.status == 200, response.read()
            yield Events(response)
        finally:
            connection.close()
