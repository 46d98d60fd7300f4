"""Runs benchmarks several times, records every run, and writes the README's figures from the record.

    python benchmarks/figures.py [broker jobs …] [--runs 5] [--quick]
    python benchmarks/figures.py --render     write the README's block from the record, run nothing
    python benchmarks/figures.py --check      say whether the README's block is what the record gives

The benchmarks take turns, as their cases do: a machine changes its speed from hour to hour.  Each run becomes
one line of `runs.jsonl`, whatever comes out: a run that fails, is interrupted or misses a goal as well.  The
block shows all runs of the newest day (`_figures.py`).  Runs with `--quick` are too short to be figures: they
go into a record of their own in `.cache/`, and their block is printed instead of written.

The exit status is 1 if a run failed, not if it was slow.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import _figures
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
RECORD: Final = HERE / "runs.jsonl"
QUICK_RECORD: Final = ROOT / ".cache" / "benchmarks" / "quick-runs.jsonl"
README: Final = ROOT / "README.md"
USUAL: Final = ("broker", "jobs", "fanout", "pipeline", "dashboard", "idle_workers")
# The longest takes about ten minutes on two cores.
LIMIT_S: Final = 3600.0
# A benchmark that is told to end stops everything that it has started.
ENDING_S: Final = 60.0
ERROR_CHARS: Final = 400


# -- one run ------------------------------------------------------------------------------------


class Ended(Exception):
    """A benchmark did not come to its end."""


def run_one(name: str, quick: bool) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a benchmark."""
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", *(["--quick"] if quick else [])]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # A session of its own, so that Ctrl-C reaches it once, from here.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=ROOT, start_new_session=True
        )
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Ended(f"did not end within {LIMIT_S:.0f} s") from None
        finally:
            end(process)
        for file in (out, err):
            file.seek(0)
        return process.returncode, out.read().decode(errors="replace"), err.read().decode(errors="replace")


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def outcome(name: str, code: int, out: str, err: str) -> dict[str, Any]:
    """What a run gave: its figures, or why there are none."""
    try:
        found = json.loads(out)
        figures, goals, mishaps = found["figures"], found["goals"], found["mishaps"]
    except (ValueError, KeyError, TypeError):
        return {"exit": code, "error": clean(last_words(err)) or f"{name} ended with {code} and said nothing"}
    skipped = {what: clean(why) for what, why in found.get("skipped", {}).items()}
    return {"exit": code, "figures": figures, "goals": goals, "mishaps": mishaps, "skipped": skipped}


def last_words(err: str) -> str:
    """The error of a benchmark, or the last line of whatever it wrote."""
    for mark in ("something is broken", "bench-pipeline: "):
        if mark in err:
            return err[err.index(mark) :]
    return next((line for line in reversed(err.splitlines()) if line.strip()), "")


def clean(text: str) -> str:
    """In one line, and without paths and addresses of this machine: the record is public."""
    text = re.sub(r"\w+://\S+", "…", " ".join(text.split()))
    text = re.sub(r"(?:/[\w.+@-]+)+/([\w.+@-]+)", r"\1", text)
    return text if len(text) <= ERROR_CHARS else text[: ERROR_CHARS - 1] + "…"


# -- what is recorded beside the figures --------------------------------------------------------


def machine() -> dict[str, Any]:
    cpu = memory = ""
    with contextlib.suppress(OSError):
        cpu = field_of(Path("/proc/cpuinfo").read_text(), "model name")
        memory = field_of(Path("/proc/meminfo").read_text(), "MemTotal").removesuffix(" kB")
    return {
        "cores": os.cpu_count() or 1,
        "cpu": cpu or platform.machine(),
        "memory_gib": round(int(memory or 0) / 2**20, 1),
    }


def field_of(text: str, name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def revision() -> str:
    """The commit, with a `+` if files have changed since, other than those written here."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        ours = [f":!{path.relative_to(ROOT)}" for path in (README, RECORD)]
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *ours)
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def append(record: Path, run: _figures.Run) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("a", encoding="utf-8") as file:
        file.write(run.as_line())


# -- a series -----------------------------------------------------------------------------------


def measure(names: Sequence[str], runs: int, quick: bool, record: Path, console: Console) -> int:
    """Run all benchmarks in turn, and record each run; how many failed."""
    day = today()
    failed = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=runs * len(names))
        for number in range(1, runs + 1):
            for name in names:
                title = f"run {number} of {runs}, {name}"
                progress.update(task, description=title)
                began = time.monotonic()
                run = recorded(name, day, quick, record)
                failed += run.failed
                console.print(
                    f"{title}: {time.monotonic() - began:.0f} s, {told(run)}", highlight=False, markup=False
                )
                progress.advance(task)
    return failed


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def recorded(name: str, day: str, quick: bool, record: Path) -> _figures.Run:
    """One run, which is in the record whatever happens."""
    facts: Mapping[str, Any] = {
        "day": day,
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "benchmark": name,
        "revision": revision(),
        **machine(),
        "load": round(os.getloadavg()[0], 2),
    }
    found: dict[str, Any] = {"exit": -1, "error": "interrupted"}
    try:
        found = outcome(name, *run_one(name, quick))
    except Ended as error:
        found = {"exit": -1, "error": str(error)}
    finally:
        run = _figures.Run(**facts, **found)
        append(record, run)
    return run


def told(run: _figures.Run) -> str:
    if run.failed:
        return f"FAILED: {run.error}"
    met = sum(bool(goal["met"]) for goal in run.goals)
    wrong = f", went wrong: {dict(run.mishaps)}" if run.mishaps else ""
    skipped = f", skipped: {', '.join(run.skipped)}" if run.skipped else ""
    return f"{met} of {len(run.goals)} goals met{wrong}{skipped}"


# -- the command --------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Run benchmarks, record every run, write the README's figures."
    )
    parser.add_argument("names", nargs="*", metavar="BENCHMARK", help=f"which ({' '.join(USUAL)})")
    parser.add_argument("--runs", type=int, default=5, help="how often each is run (5)")
    parser.add_argument(
        "--quick", action="store_true", help="short runs, for a try: not recorded with the others"
    )
    parser.add_argument("--render", action="store_true", help="only write the README's block from the record")
    parser.add_argument("--check", action="store_true", help="only say whether the README's block is current")
    options = parser.parse_args(arguments)
    options.names = options.names or list(USUAL)
    unknown = [name for name in options.names if name not in _figures.SECTIONS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}: there are {', '.join(_figures.SECTIONS)}")
    if options.runs < 1:
        parser.error("--runs is more than 0")
    return options


def load(record: Path) -> list[_figures.Run]:
    return _figures.read(record.read_text(encoding="utf-8")) if record.exists() else []


def check() -> int:
    runs = load(RECORD)
    if not _figures.is_current(README.read_text(encoding="utf-8"), runs):
        print("figures: README.md does not show what the record gives; run `make figures ARGS=--render`")
        return 1
    print(
        f"figures: {len(runs)} runs recorded, README.md is current"
        if runs
        else "figures: no runs recorded yet"
    )
    return 0


def write() -> None:
    runs = load(RECORD)
    README.write_text(
        _figures.replace(README.read_text(encoding="utf-8"), _figures.render(runs)), encoding="utf-8"
    )
    print(f"figures: README.md is written from {len(runs)} recorded runs")


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 140)
    try:
        if options.check:
            return check()
        if options.render:
            write()
            return 0
        # A record that cannot be read is found before hours of runs and not after.
        record = QUICK_RECORD if options.quick else RECORD
        load(record)
        failed = measure(options.names, options.runs, options.quick, record, console)
        if options.quick:
            print(_figures.render(load(record)))
        else:
            write()
    except _figures.BadRecord as error:
        print(f"figures: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("figures: interrupted; the run is recorded as failed", file=sys.stderr)
        if not options.quick:
            write()
        return 130
    if failed:
        print(
            f"figures: {_figures.times(failed, 'run')} failed and stand in the record as such",
            file=sys.stderr,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
