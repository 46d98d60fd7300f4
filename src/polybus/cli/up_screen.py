"""What `polybus up` shows: a line for each change of a part, the endpoints when it is ready, and on a
terminal one line at the bottom with what is going on."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.status import Status
from rich.text import Text

from polybus.cli.output import printable
from polybus.cli.up_parts import BROKER, DASHBOARD, WORKERS, Heard, Kind
from polybus.cli.where import endpoints_table

STYLES: Final = {BROKER: "green", WORKERS: "cyan", DASHBOARD: "blue"}
OTHER_STYLE: Final = "magenta"


class PatientConsole(Console):
    """A console that goes on when nobody reads it any more; rich's own ends the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # Nothing may be flushed to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


class Screen:
    """Lines for people; for programs these go to standard error, and one object says where everything is."""

    def __init__(
        self, data_dir: Path, hints: list[str], console: Console | None = None, as_json: bool = False
    ) -> None:
        self._console = console or PatientConsole(highlight=False, soft_wrap=True, stderr=as_json)
        self._as_json = as_json
        self._data_dir = data_dir
        self._hints = hints
        self._began = time.monotonic()
        self._endpoints: dict[str, str] = {}
        self._dashboard = ""
        self._status: Status | None = None
        self._is_ready = False

    def begin(self, missing: dict[str, str]) -> None:
        self._print(Text(f"polybus up: data in {self._data_dir}, logs in {self._data_dir / 'logs'}", "bold"))
        for name, why in missing.items():
            self.tell(name, f"off: {why}", True)

    def heard_ready(self, name: str, text: str) -> str:
        """What a part says when it is ready, as it is told to people."""
        if name == DASHBOARD:
            self._dashboard = text
        if name != BROKER:
            return text
        self._endpoints = dict(word.split("=", 1) for word in text.split() if "=" in word)
        return f"it listens on {len(self._endpoints)} ports"

    def heard(self, name: str, heard: Heard) -> None:
        if heard.kind is Kind.PROGRESS:
            self._progress(name, heard.text)
        elif heard.kind is not Kind.NOTED:
            self.tell(name, heard.text, said=heard.kind is Kind.SAID)

    def tell(self, name: str, text: str, is_bad: bool = False, said: bool = False) -> None:
        """One line about a part; what it says itself stands after a bar."""
        line = Text()
        line.append(time.strftime("%H:%M:%S "), "dim")
        line.append(f"{name:<9}", STYLES.get(name, OTHER_STYLE))
        line.append(" | " if said else "   ", "dim")
        line.append(printable(text), "yellow" if is_bad else "")
        self._print(line)

    def ready(self) -> None:
        """Once: everything that is waited for is up."""
        self._is_ready = True
        if self._as_json:
            facts = {"endpoints": self._endpoints, "dashboard": self._dashboard or None}
            print(json.dumps({**facts, "data_dir": str(self._data_dir)}), flush=True)
        self._print("")
        self._print(endpoints_table(self._endpoints))
        if self._dashboard:
            self._print(Text(f"Dashboard: {self._dashboard}"))
        for hint in self._hints:
            self._print(Text(f"Try:       {hint}"))
        self._print("")
        took_s = time.monotonic() - self._began
        self._print(Text(f"ready after {took_s:.1f} s; Ctrl-C stops everything", "bold"))

    def stopping(self, names: list[str]) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        order = ", then ".join(names)
        self._print(Text(f"stopping: {order}; a second Ctrl-C stops at once", "bold"))

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()

    def _progress(self, name: str, text: str) -> None:
        if not self._console.is_terminal:
            # Without a line that can be written again, only what is the first of its kind is shown.
            if not text.startswith("batch "):
                self.tell(name, text)
            return
        if self._status is None:
            self._status = self._console.status("")
            self._status.start()
        self._status.update(Text(f"{name}: {printable(text)}"))

    def _print(self, what: Any) -> None:
        self._console.print(what)
