"""Which tests execute a line, the nearest and quickest first.

The tests run once under coverage on an unmutated copy of the sources.  The result is kept for each test file
in `.mutants/coverage` and is made again for a file that has changed, or for all of them after a change of the
sources.  A test that fails on unmutated sources is left out: it would catch every mutant.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
# Tests in this process. Those that start others are too slow to be asked about every mutant; see LIVE.
FOLDERS = ("unit", "property", "simulation")
LEFT_OUT = ("tests/unit/spark/", "tests/unit/web/", "tests/unit/runtime/", "tests/unit/cli/")
SLOW = ("tests/unit/store/test_faults.py", "tests/unit/client/", "tests/unit/telemetry/")
ALSO = ("tests/interop/test_recorded.py", "tests/conformance/test_peers.py")
# Asked last: tests with processes of their own, which run from the mutated sources too. By package, or for a
# dialect by the beginning of the module's name.
LIVE = {
    "journal": ("tests/e2e/test_journal.py", "tests/e2e/test_journal_tools.py"),
    "store": ("tests/e2e/test_jobs_api.py",),
    "ebus": ("tests/conformance/test_live_ebus.py",),
    "emqp": ("tests/conformance/test_live_emqp.py", "tests/conformance/test_live_schedules.py"),
    "dbp": ("tests/conformance/test_live_dbp.py", "tests/e2e/test_leases.py"),
    "mdp1": ("tests/conformance/test_live_majordomo.py",),
    "mdp2": ("tests/conformance/test_live_majordomo.py",),
    "mdr": ("tests/conformance/test_live_majordomo.py",),
    "majordomo": ("tests/conformance/test_live_majordomo.py",),
}
# Files in one run under coverage: few enough for a moving progress bar, enough to share the start of pytest.
BATCH = 12


def test_files(quick: bool) -> list[str]:
    folders, left_out, also = (("unit",), (*LEFT_OUT, *SLOW), ()) if quick else (FOLDERS, LEFT_OUT, ALSO)
    found = [path for folder in folders for path in (TESTS / folder).rglob("test_*.py")]
    names = [str(path.relative_to(ROOT)) for path in sorted(found)]
    return [*(name for name in names if not name.startswith(left_out)), *also]


def live_files(file: str) -> tuple[str, ...]:
    package, _, name = file.partition("/")
    stem = name.removesuffix(".py").split("_")[0]
    return LIVE.get(stem if package in ("wire", "dialects") else package, ())


def digest(paths: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def sources_digest() -> str:
    return digest(sorted((ROOT / "src" / "polybus").rglob("*.py")))


def tests_digest() -> str:
    own = TESTS / "mutation"
    return digest(sorted(path for path in TESTS.rglob("*.py") if not path.is_relative_to(own)))


def environment(tree: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Everything that starts from here imports polybus from `tree`, where nothing is compiled."""
    paths = os.pathsep.join([str(tree), str(TESTS)])
    return {**os.environ, "PYTHONPATH": paths, "POLYBUS_PLAIN": "1", **more}


def pytest_command(tree: Path, *arguments: str) -> list[str]:
    return [
        *(
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--no-header",
            "--tb=no",
            "-rfE",
            "-p",
            "no:cacheprovider",
        ),
        *("-p", "no:xdist", "-p", "mutation.plugin", "-o", f"pythonpath={tree} {TESTS}", "-m", "not long"),
        *arguments,
    ]


class TestsByLine:
    """The tests that may notice a change of a line."""

    def __init__(
        self, tests: Mapping[str, Mapping[str, Any]], on_import: Mapping[str, set[int]] | None = None
    ) -> None:
        self._on_import = on_import or {}
        self.seconds = {name: float(test["seconds"]) for name, test in tests.items()}
        self._files = {name.split("::")[0] for name in tests}
        self._named: dict[str, set[str]] = {}
        self._by_line: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for name, test in tests.items():
            for file, lines in test["lines"].items():
                for line in lines:
                    self._by_line[file][line].add(name)

    def of(self, file: str, lines: tuple[int, int]) -> list[str]:
        """The tests to run, in their order. Empty: no test executes the line."""
        first, last = lines
        known = self._by_line[file]
        if first:
            found = {name for line in range(first, last + 1) for name in known.get(line, ())}
        else:
            # No test executes what runs on import. It belongs to the tests that execute the module's code
            # and to those whose files import it; if there are none, to all.
            found = set().union(*known.values()) | self._naming(file) or set(self.seconds)
        return sorted(found, key=lambda name: (_distance(file, name), self.seconds[name]))

    def runs_on_import(self, file: str, lines: tuple[int, int]) -> bool:
        """Whether the lines run, or may run, before the first test does."""
        first, last = lines
        return not first or not self._on_import.get(file, set()).isdisjoint(range(first, last + 1))

    def _naming(self, file: str) -> set[str]:
        """The tests in files that import the module."""
        package, _, name = file.removesuffix(".py").partition("/")
        module = rf"polybus\.{package}(\.{name}\b| import (\([^)]*|[^\n(]*)\b{name}\b)"
        if file not in self._named:
            self._named[file] = {path for path in self._files if re.search(module, (ROOT / path).read_text())}
        return {test for test in self.seconds if test.split("::")[0] in self._named[file]}


def _distance(file: str, test: str) -> int:
    package, _, name = file.partition("/")
    stem = name.removesuffix(".py")
    if test.startswith(f"tests/unit/{package}/test_{stem}.py"):
        return 0
    if test.startswith(f"tests/unit/{package}/"):
        return 1
    return 2


def learn(
    cache: Path, tree: Path, jobs: int, quick: bool, tell: Callable[[int, int], None]
) -> tuple[TestsByLine, list[str]]:
    """Run what is not known yet under coverage. Returns the map and the tests that fail unmutated."""
    cache.mkdir(parents=True, exist_ok=True)
    # The part of these tools that writes the cache belongs to its stamp.
    world = digest([Path(__file__), Path(__file__).with_name("plugin.py")]) + sources_digest()
    wanted = {name: f"{world}-{digest([ROOT / name])}" for name in test_files(quick)}
    missing = [name for name, stamp in wanted.items() if not _is_current(_home(cache, name), stamp)]
    batches = (
        [missing[at :: -(-len(missing) // BATCH)] for at in range(-(-len(missing) // BATCH))]
        if missing
        else []
    )
    tell(0, len(batches))

    def cover(batch: list[str]) -> None:
        out = cache / f"batch-{hashlib.sha256(batch[0].encode()).hexdigest()[:8]}.json"
        out.unlink(missing_ok=True)
        more = {"MUTANTS_COVER": str(out), "MUTANTS_TREE": str(tree)}
        command = [word for word in pytest_command(tree, *batch) if word != "-x"]
        run = subprocess.run(command, cwd=ROOT, env=environment(tree, more), capture_output=True, text=True)
        if run.returncode not in (0, 1) or not out.exists():
            raise RuntimeError(f"the tests do not run on unmutated sources: {run.stdout[-2000:]}{run.stderr}")
        found = json.loads(out.read_text())
        for name in batch:
            own = {test: facts for test, facts in found["tests"].items() if test.split("::")[0] == name}
            bad = [test for test in found["unusable"] if test.split("::")[0] == name]
            facts = {"tests": own, "unusable": bad, "on_import": found["on_import"]}
            text = json.dumps({"stamp": wanted[name], **facts})
            _home(cache, name).write_text(text)
        out.unlink()

    with ThreadPoolExecutor(jobs) as pool:
        for done, _ in enumerate(pool.map(cover, batches), 1):
            tell(done, len(batches))
    tests: dict[str, Any] = {}
    unusable: list[str] = []
    on_import: dict[str, set[int]] = defaultdict(set)
    for name in wanted:
        known = json.loads(_home(cache, name).read_text())
        tests.update(known["tests"])
        unusable += known["unusable"]
        for file, lines in known["on_import"].items():
            on_import[file].update(lines)
    return TestsByLine(tests, on_import), unusable


def _home(cache: Path, test_file: str) -> Path:
    return cache / (test_file.replace("/", ".") + ".json")


def _is_current(home: Path, stamp: str) -> bool:
    if not home.exists():
        return False
    with home.open() as file:
        return file.read(len(stamp) + 12) == f'{{"stamp": "{stamp}"'[: len(stamp) + 12]
