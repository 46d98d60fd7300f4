"""Every error polybus raises on purpose, under one root.

A mistake of ours (or of the caller) is a `LocalProtocolError`; a mistake of the peer
is a `RemoteProtocolError`.  Any other exception that leaves a decoder is a bug.
Messages say what happened and what to do next.
"""

from __future__ import annotations

from typing import Final


class PolybusError(Exception):
    """The root of all polybus errors."""


class ProtocolError(PolybusError):
    """A message breaks the rules of its dialect."""


class LocalProtocolError(ProtocolError):
    """We were asked to send something that the dialect does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the dialect does not allow.

    `reason` is a short, stable word that is counted and journaled; the text explains it.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason: Final = reason


class ConfigError(PolybusError):
    """A setting is wrong; the text names it and says what it takes."""


class RequestFailed(PolybusError):
    """The bus answered a request with a failure.

    `code` is the short machine word (`expired`, `queue_full`, `rejected`, `failed`, …),
    `detail` the sentence for people, `body` what the worker sent, if it sent anything.
    """

    def __init__(self, code: str, detail: str = "", body: bytes = b"") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code: Final = code
        self.detail: Final = detail
        self.body: Final = body


class RequestTimeout(PolybusError):
    """No answer came in the time the caller allowed. The request may still run."""


class ConnectionLost(PolybusError):
    """The broker could not be reached or went away and did not come back in time."""


class WorkerRejected(PolybusError):
    """Raised by a handler to refuse a request: it is answered, never retried."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: Final = reason
