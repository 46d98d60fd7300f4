"""Lines on standard error: for people, or one JSON object each (`--log-format json`).

    {"at": "2026-05-03T08:15:00.123456Z", "level": "info", "logger": "polybus.broker", "message": "…",
     "fields": {…}, "trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331"}

`fields` and the ids are there if there are any.  In JSON the `logging` of a process goes the same way, with
what was given as `extra` among the fields.  The choice is in the environment, so children make the same.
A line is written in one go: several processes share the place, and signal handlers write there, too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from typing import Any, Final, Literal

import msgspec

Format = Literal["text", "json"]
VARIABLE: Final = "POLYBUS_LOG_FORMAT"
# A line is no file: what is longer is cut.
MAX_TEXT: Final = 64 * 1024

# What every record has; anything else was given as `extra`.
_USUAL: Final = frozenset(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {"message", "asctime"}
_LEVELS: Final = {"WARN": "warning", "FATAL": "critical"}


def is_json() -> bool:
    return os.environ.get(VARIABLE) == "json"


def use(chosen: str, capture_logging: bool = True) -> None:
    """Write lines like this from now on, in this process and those that it starts; empty: as it was."""
    if chosen:
        os.environ[VARIABLE] = chosen
    if capture_logging and is_json():
        handle_logging()


def handle_logging() -> None:
    """Let `logging` write JSON, unless the program has set up something of its own."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(JsonHandler())
        root.setLevel(logging.INFO)


def log(
    text: str,
    level: str = "info",
    logger: str = "polybus.broker",
    error: BaseException | None = None,
    **fields: Any,
) -> None:
    """One line, with the traceback of an error. A closed standard error is no reason to stop."""
    if is_json():
        if error is not None:
            fields["exception"] = _traceback(error)
        _write(json_line(time.time(), level, logger, text, fields))
        return
    who = logger.replace(".", " ") if logger not in _MAIN else "polybus"
    told = f"{time.strftime('%H:%M:%S')} {who}: {text}\n"
    _write((told + _traceback(error) if error is not None else told).encode("utf-8", "replace"))


class Rare:
    """Warnings that anybody on the network can cause: one in `every_s` is written, the others are counted."""

    def __init__(
        self,
        every_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str, str], None] = log,
    ) -> None:
        self._every_s = every_s
        self._clock = clock
        self._write = write
        self._next_at = -inf
        self._untold = 0

    def __call__(self, text: str) -> None:
        now = self._clock()
        if now < self._next_at:
            self._untold += 1
            return
        before = f" ({self._untold} others like this were not logged)" if self._untold else ""
        self._next_at, self._untold = now + self._every_s, 0
        self._write(f"{text}{before}", "warning")


# The main program of its process, which people know by the name of them all.
_MAIN: Final = frozenset({"polybus.broker", "polybus.worker", "polybus.web", "polybus.scheduler"})


def json_line(at: float, level: str, logger: str, text: str, fields: dict[str, Any]) -> bytes:
    line: dict[str, Any] = {"at": _time(at), "level": level, "logger": logger, "message": text[:MAX_TEXT]}
    if fields:
        line["fields"] = fields
    line |= _trace_ids()
    try:
        return msgspec.json.encode(line, enc_hook=str) + b"\n"
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        # Keys that are no text, endless structures, lone surrogates: told as Python tells them.
        line["message"] = line["message"].encode("utf-8", "replace").decode()
        line["fields"] = {"repr": repr(fields).encode("utf-8", "replace").decode()[:MAX_TEXT]}
        return msgspec.json.encode(line) + b"\n"


class JsonHandler(logging.Handler):
    """Records as lines."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = {key: value for key, value in record.__dict__.items() if key not in _USUAL}
            if record.exc_info and record.exc_info[1] is not None:
                fields["exception"] = _traceback(record.exc_info[1])
            level = _LEVELS.get(record.levelname, record.levelname.lower())
            _write(json_line(record.created, level, record.name, record.getMessage(), fields))
        except Exception:
            self.handleError(record)


def _time(at: float) -> str:
    """RFC 3339, in UTC and with microseconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _trace_ids() -> dict[str, str]:
    """The current span, if this program makes any."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": format(context.trace_id, "032x"), "span_id": format(context.span_id, "016x")}


def _write(line: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(2, line)
