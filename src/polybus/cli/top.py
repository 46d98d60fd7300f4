"""`polybus top`: the broker live in the terminal, one look at the admin socket a second."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer

from polybus.cli.options import Admin, DataDir, Json, WrongUse, examples

TOP_EXAMPLES = examples("polybus top", "polybus top --sort queue", "polybus top --once --json")

EVERY_S: Final = 1.0
# A broker that does not answer for this long is shown as away; keys wait no longer either.
PATIENCE_S: Final = 2.0
LISTED: Final = 200
# Keys that change the order of services.
SORTS: Final = {"r": "rate", "w": "queue", "u": "running", "f": "failed", "n": "name"}
KEYS: Final = "q quit   s next order   r rate   w waiting   u running   f failed   n name"


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one screen, measured over a second.")] = False,
    sort: Annotated[
        str, typer.Option("--sort", metavar="ORDER", help=f"Order of services: {', '.join(SORTS.values())}.")
    ] = "rate",
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Watch the broker live: rates, latency, queues, workers and nodes, once a second.

    q ends it; s, or r, w, u, f and n, change the order of the services. Without a terminal it is printed
    once; with --json it is a line of JSON a second.
    """
    from polybus.cli.find import admin_endpoint
    from polybus.client.admin import AdminClient

    if sort not in SORTS.values():
        raise WrongUse(f"--sort is {sort!r}; it takes {', '.join(SORTS.values())}")
    with AdminClient(admin_endpoint(admin, data_dir), PATIENCE_S) as client:
        if json_:
            stream(client, sort, once)
        elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            print_once(client, sort)
        else:
            Live(client, sort).run()


def stream(client: Any, sort: str, once: bool) -> None:
    from polybus.cli.output import print_json
    from polybus.cli.screen import compare

    before = client.ask("top", sort=sort, limit=LISTED)
    while True:
        time.sleep(EVERY_S)
        now = client.ask("top", sort=sort, limit=LISTED)
        print_json(compare(before, now))
        if once:
            return
        before = now


def print_once(client: Any, sort: str) -> None:
    from rich.console import Console

    from polybus.cli.screen import compare, draw

    before = client.ask("top", sort=sort, limit=LISTED)
    time.sleep(EVERY_S)
    look = compare(before, client.ask("top", sort=sort, limit=LISTED))
    console = Console(highlight=False)
    # Nothing scrolls away on paper: all rows are printed.
    console.print(draw(look, sort, console.width, 3 * LISTED))


class Live:
    """Screens, one after the other, until somebody wants no more."""

    def __init__(self, client: Any, sort: str) -> None:
        self._client = client
        self.sort = sort
        self._before: dict[str, Any] | None = None
        self._look: dict[str, Any] | None = None
        self._trouble = ""

    def run(self) -> None:
        from rich.console import Console
        from rich.live import Live as Screen

        console = Console(highlight=False)
        with keys() as read, Screen(console=console, screen=True, auto_refresh=False) as screen:
            wants_more = True
            while wants_more:
                self.ask()
                screen.update(self.draw(console.width, console.height), refresh=True)
                until = time.monotonic() + EVERY_S
                while wants_more and (left_s := until - time.monotonic()) > 0:
                    for key in read(left_s):
                        wants_more = wants_more and self.press(key)
                        screen.update(self.draw(console.width, console.height), refresh=True)

    def ask(self) -> None:
        from polybus.cli.screen import compare
        from polybus.errors import ConnectionLost

        try:
            now = self._client.ask("top", sort=self.sort, limit=LISTED)
        except ConnectionLost as error:
            # It may come back; what was seen last stays until then.
            self._trouble = f"{error}; still trying"
            return
        self._trouble = ""
        self._look, self._before = compare(self._before, now), now

    def press(self, key: str) -> bool:
        """Do what a key asks for; False if it ends all."""
        if key in ("q", "Q", "\x03", "\x04"):
            return False
        if key == "s":
            orders = list(SORTS.values())
            self.sort = orders[(orders.index(self.sort) + 1) % len(orders)]
        else:
            self.sort = SORTS.get(key, self.sort)
        return True

    def draw(self, width: int, height: int) -> Any:
        from rich.console import Group
        from rich.text import Text

        from polybus.cli.screen import draw

        help_line = Text(KEYS, style="dim", no_wrap=True, overflow="ellipsis")
        if self._look is None:
            return Group(Text(self._trouble or "…", style="bold"), help_line)
        return Group(draw(self._look, self.sort, width, height - 1, self._trouble), help_line)


@contextmanager
def keys() -> Iterator[Any]:
    """Gives a function that waits so long for keys; meanwhile they come one by one and are not shown."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def read(wait_s: float) -> str:
        ready, _, _ = select.select([terminal], [], [], wait_s)
        if not ready:
            return ""
        found = os.read(terminal, 64).decode(errors="replace")
        # The end of input ends the command.
        return found or "q"

    try:
        tty.setcbreak(terminal)
        yield read
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
