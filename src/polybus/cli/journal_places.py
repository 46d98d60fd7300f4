"""Where a journal is, whether its broker runs, and what its store has; and times as people write them."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from polybus.cli.options import WrongUse

if TYPE_CHECKING:
    from polybus.client.admin import AdminClient

Journal = Annotated[
    Path | None,
    typer.Option(
        "--journal",
        metavar="DIR",
        help="The journal to read: its folder, or the data directory that it is in. Without it --data-dir, "
        "else the data directory of the settings.",
    ),
]
Since = Annotated[
    str,
    typer.Option(
        "--since", metavar="TIME", help="Not before this: 10m, 2h, 08:30, 2026-05-01, 2026-05-01T08:30."
    ),
]
Until = Annotated[str, typer.Option("--until", metavar="TIME", help="Before this; written like --since.")]

_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")


def journal_place(journal: Path | None, data_dir: Path | None) -> Path:
    """The folder of the journal; raises if there is none."""
    from polybus import config
    from polybus.cli.find import config_path
    from polybus.journal.reader import find_journal

    place = journal or data_dir
    if place is None:
        place = Path(config.load(config_path()).broker.data_dir)
    return find_journal(place)


def read_time(text: str, option: str, now: datetime | None = None) -> datetime | None:
    """A time as people write it: a while ago, a time of today or a date, by the clock that is used here."""
    if not text:
        return None
    now = now or datetime.now(UTC)
    span = _SPAN.fullmatch(text.strip().lower())
    if span is not None:
        return now - timedelta(seconds=float(span[1]) * _UNITS[span[2] or "s"])
    try:
        if _CLOCK.fullmatch(text):
            here = now.astimezone()
            parts = [int(part) for part in text.split(":")]
            return here.replace(hour=parts[0], minute=parts[1], second=(*parts, 0)[2], microsecond=0)
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise WrongUse(
            f"{option} is {text!r}; write 10m, 2h, 08:30, 2026-05-01 or 2026-05-01T08:30"
        ) from None


def is_running(journal: Path) -> bool:
    """Whether the broker that writes this journal runs on this machine."""
    from polybus.client.places import ENDPOINTS_FILE

    try:
        pid = json.loads((journal.parent / ENDPOINTS_FILE).read_text())["pid"]
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


@contextmanager
def store_beside(journal: Path, broker_runs: bool) -> Iterator[Callable[[str], str | None] | None]:
    """Asks the store of the journal's broker for a token: is it open, or has it ended? None without a store.

    A broker that runs has the store for itself and is asked; else a copy is looked into, so that nothing
    of it changes."""
    from polybus.errors import PolybusError

    if broker_runs:
        from polybus.cli.find import admin_place
        from polybus.client.admin import AdminClient

        try:
            client = AdminClient(admin_place(None, journal.parent))
        except PolybusError:
            yield None
            return
        with client:
            yield lambda token: _ask(client, token)
        return
    with tempfile.TemporaryDirectory(prefix="polybus-verify-") as folder:
        yield _look_into(journal.parent / "store", Path(folder))


def _ask(client: AdminClient, token: str) -> str | None:
    from polybus.client.admin import QuestionRefused

    try:
        state = client.ask("job", job=token)["state"]
    except QuestionRefused:
        return None
    return "open" if state in ("queued", "running", "waiting") else "ended"


def _look_into(store: Path, copy: Path) -> Callable[[str], str | None] | None:
    from polybus.errors import StoreError
    from polybus.store.sqlite import SqliteStore

    if not store.is_dir():
        return None
    shutil.copytree(store, copy, dirs_exist_ok=True)
    copied = SqliteStore(copy)
    try:
        contents = copied.load()
    except StoreError:
        # The broker will not start with it either, and says more about it.
        return None
    known = {entry.token: "open" for entry in contents.jobs}
    known |= {outcome.token: "ended" for outcome in contents.outcomes}

    def look(token: str) -> str | None:
        name = token.encode()
        return known.get(name) or ("ended" if copied.dead_letter(name) is not None else None)

    return look
