"""`make mutants`: does a test fail when the code is wrong?

Takes a random sample of all small changes (`operators`) of `wire`, `core`, `dialects`, `store` and `journal`,
makes each of them alone in a copy of the sources, and runs the tests that execute the changed line, the
nearest and quickest first, until one fails.  A mutant is

    caught      a test failed, or did not end in time
    survived    all tests passed, or none executes the line
    equivalent  a person decided, with a reason in `equivalent.toml`, that no test could notice

Nothing compiled is used: the copies hold sources only, for the tests and for the processes that they start.
The state is in `.mutants/`: who runs it again with the same sample goes on where the last run stopped, and
asks again only about survivors if a test has changed since, and about mutants of files that have changed.
The report with the diff of every survivor is `.mutants/report.md`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402

from mutation.forked import NOT_APPLIED, Forks, limit_memory  # noqa: E402
from mutation.operators import Mutant, apply, mutants_of  # noqa: E402
from mutation.plugin import PACKAGES  # noqa: E402
from mutation.tests_by_line import (  # noqa: E402
    ROOT,
    TestsByLine,
    digest,
    environment,
    learn,
    live_files,
    pytest_command,
    test_files,
    tests_digest,
)

SOURCES = ROOT / "src"
HOME = ROOT / ".mutants"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
CAUGHT, SURVIVED, EQUAL = "caught", "survived", "equivalent"
# The first run has the tests of a few files: most mutants end there, and few modules are imported for it.
FIRST_FILES = 3
FIRST_S = 4.0
# A run may take this many times what it took unmutated, and this long in any case.
PATIENCE = 8
PATIENCE_S = 40.0
LIVE_S = 300.0
SAVED_EVERY_S = 1.0
# Where there is no terminal for a bar, a line tells how far it got this often.
TOLD_EVERY_S = 30.0
# Tests in forks take milliseconds, and a few seconds at most.
TEST_S = 60
# Tests without sockets and processes: the same every time.
PURE = (
    *(f"tests/unit/{package}/" for package in PACKAGES),
    "tests/property/",
    "tests/simulation/",
)
# Names have spaces in their parameters; what follows the dash is why it failed.
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    what: str
    by: str
    seconds: float


def population(only: str | None) -> list[tuple[str, Mutant]]:
    """Every mutant with its name: the key, and a number if several have the same."""
    found: list[tuple[str, Mutant]] = []
    for package in PACKAGES:
        for path in sorted((SOURCES / "polybus" / package).rglob("*.py")):
            file = str(path.relative_to(SOURCES / "polybus"))
            if only and not file.startswith(only):
                continue
            seen: Counter[str] = Counter()
            for mutant in mutants_of(file, path.read_bytes()):
                seen[mutant.key] += 1
                times = seen[mutant.key]
                found.append((mutant.key if times == 1 else f"{mutant.key}-{times}", mutant))
    return found


def choose(found: list[tuple[str, Mutant]], sample: int, seed: int) -> list[tuple[str, Mutant]]:
    """A random sample of those that are programs.

    Each has its place by a hash of the seed and its name, so a change of the code changes the sample only
    where it changes a statement: verdicts, survivors and equivalents of the rest stay what they were.
    """
    places = {name: hashlib.sha256(f"{seed} {name}".encode()).digest() for name, _ in found}
    chosen: list[tuple[str, Mutant]] = []
    for name, mutant in sorted(found, key=lambda one: places[one[0]]):
        if len(chosen) == sample:
            break
        if apply((SOURCES / "polybus" / mutant.file).read_bytes(), mutant) is not None:
            chosen.append((name, mutant))
    return chosen


class Trees:
    """Copies of the sources without anything compiled, one for each mutant that is tried at a time."""

    def __init__(self, folder: Path, count: int) -> None:
        self.all = [copy_sources(folder / f"tree-{number}") for number in range(count)]
        self._free: queue.Queue[Path] = queue.Queue()
        for tree in self.all:
            self._free.put(tree)

    @contextlib.contextmanager
    def one(self) -> Iterator[Path]:
        tree = self._free.get()
        try:
            yield tree
        finally:
            self._free.put(tree)


def copy_sources(tree: Path) -> Path:
    shutil.copytree(SOURCES, tree, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(tree)], check=True)
    return tree


@contextlib.contextmanager
def mutated(tree: Path, mutant: Mutant) -> Iterator[None]:
    path = tree / "polybus" / mutant.file
    source = path.read_bytes()
    times = path.stat()
    changed = apply(source, mutant)
    assert changed is not None
    path.write_bytes(changed)
    # Another time than the compiled form's, which would be imported in its place otherwise.
    os.utime(path, (times.st_atime, times.st_mtime + 10))
    try:
        yield
    finally:
        path.write_bytes(source)
        os.utime(path, (times.st_atime, times.st_mtime))


def run_tests(tree: Path, arguments: list[str], names: list[str] | None, limit_s: float) -> str | None:
    """What caught the mutant, or None if all tests passed."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        more = {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": folder}
        if names is not None:
            listed = Path(folder) / "tests.json"
            listed.write_text(json.dumps(names))
            more["MUTANTS_TESTS"] = str(listed)
        process = subprocess.Popen(
            pytest_command(tree, *arguments),
            cwd=ROOT,
            env=environment(tree, more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            preexec_fn=limit_memory,
        )
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return "timeout"
        finally:
            # Brokers and workers that a test left behind are in its session.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode == 0:
        return None
    if process.returncode in (4, 5):
        raise RuntimeError(f"pytest found no tests: {said[-2000:]}")
    failed = FAILED.search(said)
    return failed.group(1) if failed else f"exit code {process.returncode}"


def judge_in_fork(forks: Forks, mutant: Mutant, tests: TestsByLine) -> Verdict | None:
    """What the tests say in a fork; None if the change cannot be made there."""
    began = time.monotonic()
    names = tests.of(mutant.file, mutant.lines)
    if not names or tests.runs_on_import(mutant.file, mutant.lines):
        return None
    source = (SOURCES / "polybus" / mutant.file).read_bytes()
    by = forks.try_mutant(source, mutant, names, sum(tests.seconds[name] for name in names))
    if by == NOT_APPLIED:
        return None
    if by is not None and "::" in by and not by.startswith(PURE):
        # A test of sockets or processes may also fail because the machine is busy: it has to fail again.
        by = by if forks.try_mutant(source, mutant, [by], tests.seconds[by]) else None
    seconds = time.monotonic() - began
    return (
        Verdict(SURVIVED, f"{len(names)} tests passed", seconds)
        if by is None
        else Verdict(CAUGHT, by, seconds)
    )


def judge(tree: Path, mutant: Mutant, tests: TestsByLine, quick: bool) -> Verdict:
    began = time.monotonic()
    names = tests.of(mutant.file, mutant.lines)
    with mutated(tree, mutant):
        waiting = parts(names, tests)
        while waiting:
            part = waiting.pop(0)
            limit_s = PATIENCE_S + PATIENCE * sum(tests.seconds[name] for name in part)
            by = run_tests(tree, files_of(part), part, limit_s)
            if by is not None and is_confirmed(tree, by):
                return Verdict(CAUGHT, by, time.monotonic() - began)
            rest = [name for name in part if name != by]
            if by is not None and 0 < len(rest) < len(part):
                waiting.insert(0, rest)
        for file in () if quick else live_files(mutant.file):
            by = run_tests(tree, [file], None, LIVE_S)
            if by is not None and is_confirmed(tree, by):
                return Verdict(CAUGHT, by, time.monotonic() - began)
    by = f"{len(names)} tests passed" if names else "no test executes the line"
    return Verdict(SURVIVED, by, time.monotonic() - began)


def files_of(names: list[str]) -> list[str]:
    return list(dict.fromkeys(name.split("::")[0] for name in names))


def is_confirmed(tree: Path, by: str) -> bool:
    """A test of sockets or processes may also fail because the machine is busy: it has to fail again."""
    if by.startswith(PURE) or "::" not in by:
        return True
    return run_tests(tree, files_of([by]), [by], LIVE_S) is not None


def parts(names: list[str], tests: TestsByLine) -> list[list[str]]:
    """The first tests of the first few files, and then the rest."""
    first: list[str] = []
    files: set[str] = set()
    seconds = 0.0
    for name in names:
        files.add(name.split("::")[0])
        seconds += tests.seconds[name]
        if len(files) > FIRST_FILES or (seconds > FIRST_S and first):
            break
        first.append(name)
    rest = names[len(first) :]
    return [part for part in (first, rest) if part]


class State:
    """The verdicts so far, in a file that is never more than a second behind."""

    def __init__(self, path: Path, fresh: bool) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._tests = tests_digest()
        self._sources: dict[str, str] = {}
        self._saved_at = 0.0
        self._known: dict[str, dict[str, Any]] = {}
        if path.exists() and not fresh:
            self._known = json.loads(path.read_text())

    def verdict(self, name: str, mutant: Mutant) -> Verdict | None:
        known = self._known.get(name)
        if known is None or known["source"] != self._source(mutant):
            return None
        if known["what"] == SURVIVED and known["tests"] != self._tests:
            return None
        return Verdict(known["what"], known["by"], known["seconds"])

    def note(self, name: str, mutant: Mutant, verdict: Verdict) -> None:
        facts = {"what": verdict.what, "by": verdict.by, "seconds": round(verdict.seconds, 2)}
        with self._lock:
            self._known[name] = {**facts, "source": self._source(mutant), "tests": self._tests}
            if time.monotonic() >= self._saved_at + SAVED_EVERY_S:
                self.save()

    def save(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._known, indent=1))
        new.replace(self._path)
        self._saved_at = time.monotonic()

    def _source(self, mutant: Mutant) -> str:
        if mutant.file not in self._sources:
            self._sources[mutant.file] = digest([SOURCES / "polybus" / mutant.file])
        return self._sources[mutant.file]


def equivalents(everything: list[tuple[str, Mutant]]) -> dict[str, str]:
    """What people decided about, with the reason: single mutants, small changes of constants for tuning."""
    found: dict[str, str] = {}
    decided = tomllib.loads(EQUIVALENT.read_text())
    for entry in decided.get("mutant", []):
        found[entry["key"]] = reason_of(entry, entry["key"])
    constants = {}
    for entry in decided.get("tuning", []):
        where = (entry["file"], entry["constant"])
        constants[where] = reason_of(entry, " ".join(where))
    unused = set(constants)
    for name, mutant in everything:
        where = (mutant.file, re.split(r"\W", mutant.before, maxsplit=1)[0])
        if not mutant.function and where in constants:
            unused.discard(where)
            if is_small_change(mutant):
                found[name] = constants[where]
    files = {mutant.file for _, mutant in everything}
    for file, constant in sorted(unused):
        if file in files or not (SOURCES / "polybus" / file).exists():
            raise SystemExit(f"{EQUIVALENT.name}: there is no {constant} in {file}; remove its entry")
    return found


def is_small_change(mutant: Mutant) -> bool:
    """Whether a number became another one that is at most twice and at least half as large. Nothing else is
    tuning: not `128 + 1024` for `128 * 1024`, a pause of 1.02 s for 0.02 s, or another word."""
    if mutant.operator != "constant":
        return False
    source = (SOURCES / "polybus" / mutant.file).read_bytes()
    old, new = (
        ast.literal_eval(text) for text in (source[mutant.start : mutant.end].decode(), mutant.replacement)
    )
    return isinstance(old, int | float) and old > 0 and 0.5 <= new / old <= 2.0


def reason_of(entry: dict[str, str], what: str) -> str:
    reason = entry.get("reason", "").strip()
    if not reason:
        raise SystemExit(f"{EQUIVALENT.name}: {what} has no reason")
    return reason


def diff(mutant: Mutant) -> str:
    source = (SOURCES / "polybus" / mutant.file).read_bytes()
    changed = apply(source, mutant)
    assert changed is not None
    lines = difflib.unified_diff(
        source.decode().splitlines(),
        changed.decode().splitlines(),
        f"a/{mutant.file}",
        f"b/{mutant.file}",
        "",
        "",
        2,
        "",
    )
    return "\n".join(lines)


def score(counts: Counter[str]) -> float:
    judged = counts[CAUGHT] + counts[SURVIVED]
    return 100.0 * counts[CAUGHT] / judged if judged else 100.0


def summary(counts: Counter[str]) -> str:
    total = sum(counts.values())
    return (
        f"mutants: sample={total} caught={counts[CAUGHT]} survived={counts[SURVIVED]} "
        f"equivalent={counts[EQUAL]} score={score(counts):.1f}%"
    )


def report(
    chosen: list[tuple[str, Mutant]], verdicts: dict[str, Verdict], reasons: dict[str, str], seed: int
) -> str:
    counts = Counter(verdict.what for verdict in verdicts.values())
    packages = sorted({mutant.file.split("/")[0] for _, mutant in chosen})
    out = ["# Mutants", "", f"Seed {seed}. {summary(counts)}", ""]
    out += ["| package | caught | survived | equivalent |", "|---|---|---|---|"]
    for package in packages:
        own = Counter(verdicts[name].what for name, one in chosen if one.file.startswith(f"{package}/"))
        out.append(f"| {package} | {own[CAUGHT]} | {own[SURVIVED]} | {own[EQUAL]} |")
    for title, what in (("Survived", SURVIVED), ("Equivalent", EQUAL)):
        out += ["", f"## {title}"]
        for name, mutant in chosen:
            if verdicts[name].what == what:
                out += [
                    "",
                    f"### `{name}` {mutant.file}:{mutant.line} {mutant.function}: {mutant.operator}",
                    "",
                ]
                out += [reasons.get(name, verdicts[name].by), "", "```diff", diff(mutant), "```"]
    out += ["", "## Caught", "", "| mutant | where | change | by | seconds |", "|---|---|---|---|---|"]
    for name, mutant in chosen:
        verdict = verdicts[name]
        if verdict.what == CAUGHT:
            where = f"{mutant.file}:{mutant.line}"
            out.append(f"| `{name}` | {where} | {mutant.operator} | {verdict.by} | {verdict.seconds:.1f} |")
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Change the code at random and look whether a test fails.")
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--module", help="only files that begin so: core/, wire/mdr.py")
    parser.add_argument("--fresh", action="store_true", help="forget the verdicts of earlier runs")
    parser.add_argument("--at-least", type=float, default=95.0, help="the score that is demanded, in percent")
    parser.add_argument("--quick", action="store_true", help="ask the unit tests alone, in forks")
    parser.add_argument(
        "--sweep", action="store_true", help="all mutants that a fork can try, against the unit tests alone"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", metavar="KEY", help="print the diff of one mutant and end")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    everything = population(arguments.module)
    if arguments.show:
        shown = dict(everything).get(arguments.show)
        if shown is None:
            parser.error(f"no mutant is called {arguments.show!r}; .mutants/report.md names them")
        print(diff(shown))
        return 0
    if arguments.sweep:
        arguments.quick, arguments.sample = True, len(everything)
    chosen = choose(everything, arguments.sample, arguments.seed)
    HOME.mkdir(exist_ok=True)
    # Who asks fewer tests gets other verdicts.
    state = State(HOME / ("state-quick.json" if arguments.quick else "state.json"), arguments.fresh)
    reasons = equivalents(everything)
    verdicts = {name: Verdict(EQUAL, "", 0.0) for name, _ in chosen if name in reasons}
    for name, mutant in chosen:
        known = state.verdict(name, mutant)
        if name not in verdicts and known is not None:
            verdicts[name] = known
    left = [(name, mutant) for name, mutant in chosen if name not in verdicts]
    console.print(
        f"{len(everything)} mutants, {len(chosen)} chosen with seed {arguments.seed}, {len(left)} to try"
    )
    if left:
        verdicts.update(try_all(left, state, arguments, console))
    chosen = [(name, mutant) for name, mutant in chosen if name in verdicts]
    text = report(chosen, verdicts, reasons, arguments.seed)
    (HOME / "report.md").write_text(text)
    for name, mutant in chosen:
        if verdicts[name].what == SURVIVED:
            console.print(
                f"survived {name} {mutant.file}:{mutant.line} {mutant.function}: {verdicts[name].by}"
            )
            console.print(diff(mutant), markup=False, highlight=False)
    counts = Counter(verdict.what for verdict in verdicts.values())
    console.print("the report is .mutants/report.md")
    print(summary(counts), flush=True)
    return 0 if score(counts) >= arguments.at_least else 1


def try_all(
    left: list[tuple[str, Mutant]], state: State, arguments: argparse.Namespace, console: Console
) -> dict[str, Verdict]:
    """The verdicts; a sweep has none about what cannot be tried in a fork."""
    jobs, quick, sweep = arguments.jobs, arguments.quick, arguments.sweep
    verdicts: dict[str, Verdict] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="polybus-mutants-") as folder,
        Progress(*columns, console=console) as progress,
    ):
        trees = Trees(Path(folder), jobs)
        learning = progress.add_task("tests by line", total=None)

        def tell(done: int, total: int) -> None:
            progress.update(learning, completed=done, total=total)

        with trees.one() as tree:
            tests, unusable = learn(HOME / "coverage", tree, jobs, quick, tell)
        for name in unusable:
            console.print(f"left out, not passed on unmutated sources: {name}", markup=False, highlight=False)
        trying = progress.add_task("mutants", total=len(left))
        told_at = time.monotonic()

        # Forks import from a tree that is never mutated.
        pristine = copy_sources(Path(folder) / "pristine")
        # A mutant that never ends costs one test its time, and not all tests of the line theirs.
        command = pytest_command(pristine, f"--timeout={TEST_S}", *test_files(quick))
        with ExitStack() as servers:
            forks = {
                tree: servers.enter_context(Forks(command, environment(pristine, {}), ROOT))
                for tree in trees.all
            }

            def try_one(mutant: Mutant) -> Verdict | None:
                with trees.one() as tree:
                    found = judge_in_fork(forks[tree], mutant, tests)
                    if not sweep and (found is None or (found.what == SURVIVED and not quick)):
                        # A process that a test starts has the change only if it is in the sources.
                        found = judge(tree, mutant, tests, quick)
                    return found

            pool = servers.enter_context(ThreadPoolExecutor(jobs))
            waiting = {pool.submit(try_one, mutant): (name, mutant) for name, mutant in left}
            try:
                for done in as_completed(waiting):
                    name, mutant = waiting[done]
                    verdict = done.result()
                    if verdict is not None:
                        verdicts[name] = verdict
                        state.note(name, mutant, verdict)
                    progress.advance(trying)
                    if not console.is_terminal and time.monotonic() >= told_at + TOLD_EVERY_S:
                        told_at = time.monotonic()
                        done_so_far = int(progress.tasks[trying].completed)
                        caught = sum(verdict.what == CAUGHT for verdict in verdicts.values())
                        console.print(f"{done_so_far} of {len(left)} tried, {caught} caught")
            except BaseException:
                pool.shutdown(cancel_futures=True, wait=False)
                raise
            finally:
                state.save()
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
