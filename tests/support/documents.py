"""What the documents show, as things that can be run and checked.

A document is read from top to bottom.  These blocks mean something:

- ```console: a session.  Lines that begin with `$ ` are commands, the lines below are what they print,
  possibly among other things.  A command that ends in `&` goes on in the background; `polybus serve`,
  `polybus up` and `polybus web` get free ports.  `kill %1` ends the first of those, as in a shell, and it
  must end well.
- ```python whose first line is a comment with a file's name: saved under that name.
- other ```python blocks between the comments `script:begin` and `script:end`: together one script.

Output is compared loosely: numbers stand for any number, `…` for anything.  The broker's default
ports, wherever they are written, stand for those that it really has.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from polybus import config
from support.commands import WAIT_S, environment, wait_until
from support.programs import Program, peer_places

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "script.py"
DASHBOARD = "127.0.0.1:5280"

_BLOCK = re.compile(r"^```([a-z]*)\n(.*?)^```$|^<!-- (script:(?:begin|end)) -->$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")


class Block(NamedTuple):
    """A fenced block with its language, or (without content) a comment."""

    language: str
    text: str = ""


def documents() -> list[Path]:
    return sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def blocks(path: Path) -> Iterator[Block]:
    for found in _BLOCK.finditer(path.read_text(encoding="utf-8")):
        yield Block(found[3]) if found[3] else Block(found[1], found[2])


def has_sessions(path: Path) -> bool:
    return any(block.language == "console" for block in blocks(path))


def commands(session: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a session, each with the lines shown below it."""
    command = ""
    shown: list[str] = []
    for line in session.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], []
        elif line.strip():
            shown.append(line)
    if command:
        yield command, shown


def pattern(line: str) -> re.Pattern[str]:
    """What a printed line must look like to be the one that a document shows."""
    text = re.sub(r"\d+(\\\.\d+)?", r"\\d+(\\.\\d+)?", re.escape(line.strip()))
    # How long something took depends on the machine, and so does the unit.
    text = re.sub(r"(\)\?)\\ (?:ms|µs|s)(?=\\ |$)", r"\1\\ (?:µs|ms|s|min)", text)
    return re.compile(re.sub(r"(\\ )+", r"\\s+", re.sub("─+", "─+", text.replace("…", ".*"))))


class Reader:
    """Somebody who does what a document says, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = f"{Path(sys.executable).parent}:{environment()['PATH']}"
        self._env = environment({"PATH": path, "POLYBUS_ANY_PORT": "1", "POLYBUS_WEB_PORT": "0"})
        self._places: dict[str, str] = {}
        self._background: list[Program] = []
        self._workers: list[Program] = []
        self._script: list[str] | None = None

    def follow(self, document: Path) -> None:
        for block in blocks(document):
            named = _FILE.match(block.text)
            if block.language == "script:begin":
                self._script = []
            elif block.language == "script:end":
                self._save(SCRIPT, "\n".join(self._script or []))
                self._script = None
                self._do(f"python {SCRIPT}", [])
            elif block.language == "console":
                for command, shown in commands(block.text):
                    self._do(command, shown)
            elif block.language == "python" and named is not None:
                self._save(named[1], block.text)
            elif block.language == "python" and self._script is not None:
                self._script.append(block.text)
        for program in self._background:
            # A worker prints what its jobs raise, and documents show jobs that fail.
            if program not in self._workers:
                assert not any("Traceback" in line for line in program.lines), program.lines

    def _save(self, name: str, text: str) -> None:
        (self._folder / name).write_text(self._here(text))

    def _do(self, command: str, shown: list[str]) -> None:
        if command.startswith("kill %"):
            program = self._background[int(command.removeprefix("kill %")) - 1]
            program.ask_to_end()
            assert program.end(WAIT_S * 2) == 0, (command, program.lines)
            self._expect(shown, program.lines)
            return
        stays = command.endswith("&")
        program = Program(shlex.split(self._here(command.removesuffix("&"))), self._folder, self._env)
        if stays:
            self._background.append(program)
            if command.startswith("polybus worker"):
                self._workers.append(program)
                program.wait_for(lambda line: line.startswith("ready "))
            if command.startswith("polybus serve"):
                ready = program.wait_for(lambda line: line.startswith("ready "))
                self._find_broker(dict(word.split("=", 1) for word in ready.split()[1:]))
            if command.startswith("polybus web"):
                ready = program.wait_for(lambda line: line.startswith("ready "))
                self._places[DASHBOARD] = ready.partition("//")[2].partition("/")[0]
            if command.startswith("polybus up"):
                program.wait_for(lambda line: line.startswith("ready "))
                written = json.loads((self._folder / "var" / "endpoints.json").read_text())
                self._find_broker(written["endpoints"])
            self._expect(shown, [])
            return
        with program:
            assert program.end(WAIT_S * 2) == 0, (command, program.lines)
            self._expect(shown, program.lines)

    def _expect(self, shown: list[str], printed: list[str]) -> None:
        for line in shown:
            wanted = pattern(line)

            def found(wanted: re.Pattern[str] = wanted) -> bool:
                lines = [*printed, *(line for program in self._background for line in list(program.lines))]
                return any(wanted.fullmatch(line.strip()) for line in lines)

            try:
                # What still runs may still say it; what has ended has said all.
                wait_until(found, WAIT_S if self._background else 0.0)
            except AssertionError:
                others = [program.lines for program in self._background]
                raise AssertionError(f"not printed: {line!r}; printed: {printed}, {others}") from None

    def _find_broker(self, endpoints: dict[str, str]) -> None:
        defaults = config.Settings()
        self._places = {
            str(config.endpoint(defaults, name)).removeprefix("tcp://"): endpoint.removeprefix("tcp://")
            for name, endpoint in endpoints.items()
        }
        self._env |= peer_places(endpoints)

    def _here(self, text: str) -> str:
        """The same text, with the ports of this broker."""
        return re.sub(r"127\.0\.0\.1:\d+", lambda found: self._places.get(found[0], found[0]), text)

    def close(self) -> None:
        for program in reversed(self._background):
            program.close()
