"""What the chapters of the demo share: the processes, the terminal, and what was found out.

A chapter shows something and checks it.  Checks are collected: the summary and the exit status are made of
them, so nothing is claimed that was not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polybus.cli.output import printable
from polybus.cli.processes import Processes
from polybus.client.addresses import DIALECTS
from polybus.errors import ConnectionLost, PolybusError

if TYPE_CHECKING:
    from polybus.cli.demo_tables import PipelineRun
    from polybus.client.admin import AdminClient

NAMES: Final = {
    "ebus": "EBUS 1.0",
    "emqp": "eMQP/1.0",
    "mdp1": "MDP/0.1",
    "mdp2": "MDP/0.2",
    "mdr": "MDR",
    "dbp": "DBP",
}
# Calls of each pair of dialects, with the first one, which connects and is not timed.
CALLS: Final = 6
# All calls of one of the services, in the whole demo.
CALLS_OF_A_SERVICE: Final = CALLS * len(DIALECTS)
LOOK_S: Final = 0.02


class Check(Struct):
    """One thing that was looked at; `why` if it is not as it should be."""

    text: str
    why: str = ""

    @property
    def is_good(self) -> bool:
        return not self.why


class Told(Struct):
    """One chapter, as it went."""

    title: str
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    # Why something of it was left out, which is no failure.
    notes: list[str] = field(default_factory=list)


class Outcome(Struct):
    """What came of one call or publication: milliseconds, or why not."""

    ms: float = 0.0
    error: str = ""


class KilledJob(Struct):
    """The job whose worker was killed: its id, who had it first, who finished it."""

    id: str
    killed: str
    finished_by: str


class Stage:
    """Everything that a chapter may need."""

    def __init__(self, console: Console, processes: Processes, data_dir: Path) -> None:
        self.console: Final = console
        self.processes: Final = processes
        self.data_dir: Final = data_dir
        self.began: Final = time.perf_counter()
        self.endpoints: dict[str, str] = {}
        self.told: list[Told] = []
        # (client dialect, worker dialect), and (publisher, subscriber).
        self.calls: dict[tuple[str, str], Outcome] = {}
        self.topics: dict[tuple[str, str], Outcome] = {}
        self.job: KilledJob | None = None
        # Runs of the schedule.
        self.runs = 0
        self.pipeline: PipelineRun | None = None
        # Why there are no tables.
        self.no_tables = "not asked for"
        self.has_tables = False
        self.dashboard = ""
        self._admin: AdminClient | None = None

    @property
    def admin(self) -> AdminClient:
        from polybus.client.admin import AdminClient

        if self._admin is None:
            self._admin = AdminClient(self.endpoints["admin.port"])
        return self._admin

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    @property
    def is_good(self) -> bool:
        return all(check.is_good for chapter in self.told for check in chapter.checks)

    def tell(self, title: str, sentence: str, play: Callable[[Stage], None]) -> None:
        """One chapter; what goes wrong in it is one more thing that is not as it should be."""
        chapter = Told(title)
        self.told.append(chapter)
        began = time.perf_counter()
        self.console.print()
        self.console.print(Text(f"{len(self.told)}. {title}", "bold cyan"))
        self.console.print(Text(sentence))
        try:
            play(self)
        except PolybusError as error:
            self.check("it went to its end", str(error))
        chapter.seconds = time.perf_counter() - began

    def check(self, text: str, why: str = "") -> bool:
        """Write down, and show, that something is so; or why it is not."""
        check = Check(text, why)
        self.told[-1].checks.append(check)
        self.console.print(check_line(check))
        return check.is_good

    def note(self, text: str) -> None:
        """What is left out, or slower, and why."""
        self.told[-1].notes.append(text)
        self.console.print(marked("–", text, "yellow"))

    def say(self, text: str) -> None:
        self.console.print(marked("", text))

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()


def check_line(check: Check) -> Table:
    if check.is_good:
        return marked("✓", check.text, "green", "")
    return marked("✗", f"{check.text}: {check.why}", "red")


def marked(mark: str, text: str, style: str = "", text_style: str | None = None) -> Table:
    """A line with a mark before it; if it is too long, the rest stands below its beginning."""
    line = Table.grid(padding=(0, 1))
    line.add_row(" ", Text(mark, style), Text(printable(text), style if text_style is None else text_style))
    return line


def wait_until(condition: Callable[[], Any], timeout_s: float, failure: str) -> Any:
    """The first true value of a condition."""
    until = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise ConnectionLost(f"{failure} within {timeout_s:g} s; is this machine very busy? Try again")
        time.sleep(LOOK_S)
