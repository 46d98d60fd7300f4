"""Runs a make target of tests; runs the tests that fail a second time; accepts no flaky test in silence.

    scripts/flaky.py test

A test that fails both times is broken. One that passes the second time, with the machine to itself, is flaky:
the run fails all the same unless `tests/known_flaky.toml` lists the test with a reason. Entries of that file
whose test no longer exists are an error too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# pytest's exit code for tests that failed. Any other than 0 means that the tests could not run.
TESTS_FAILED = 1


class BadList(Exception):
    """The list of known flaky tests cannot be used."""


@dataclass(frozen=True)
class Outcomes:
    failed: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What two runs say about the tests that failed in the first."""

    broken: tuple[str, ...]
    known: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def is_accepted(self) -> bool:
        return not self.broken and not self.unknown


def read_list(path: Path, root: Path) -> dict[str, str]:
    """The known flaky tests, each with its reason. A test without parameters stands for all of them."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("test", [])
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BadList(f"{path.name}: {error}") from None
    found: dict[str, str] = {}
    for entry in entries:
        name, reason = str(entry.get("id", "")), str(entry.get("reason", "")).strip()
        file, _, rest = name.partition("::")
        function = rest.rpartition("::")[2].partition("[")[0]
        if not reason:
            raise BadList(f"{path.name}: {name or 'an entry without an id'} has no reason")
        source = root / file
        if not rest or not source.is_file() or f"def {function}(" not in source.read_text(encoding="utf-8"):
            raise BadList(f"{path.name}: there is no test {name}; remove its entry")
        found[name] = reason
    return found


def judge(first: Outcomes, second: Outcomes, known: dict[str, str]) -> Verdict:
    """Only a test that the second run saw pass is flaky: one that did not run again counts as broken."""
    flaky = [name for name in first.failed if name in second.passed]
    broken = [name for name in first.failed if name not in second.passed]
    listed = [name for name in flaky if name in known or name.partition("[")[0] in known]
    return Verdict(tuple(broken), tuple(listed), tuple(name for name in flaky if name not in listed))


def run(target: str, *arguments: str, only: tuple[str, ...] = ()) -> tuple[int, Outcomes]:
    with tempfile.TemporaryDirectory(prefix="flaky-") as folder:
        out, listed = Path(folder) / "outcomes.json", Path(folder) / "only.json"
        paths = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
        more = {"PYTHONPATH": paths, "FLAKY_OUT": str(out)}
        if only:
            listed.write_text(json.dumps(only))
            more["FLAKY_ONLY"] = str(listed)
        words = " ".join(["-p support.outcomes", *arguments])
        code = subprocess.run(["make", target, f"ARGS={words}"], env={**os.environ, **more}).returncode
        if not out.exists():
            return code, Outcomes()
        return code, Outcomes(**{name: tuple(tests) for name, tests in json.loads(out.read_text()).items()})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", help="the make target: test, test-long, browser")
    parser.add_argument("--known", type=Path, default=ROOT / "tests" / "known_flaky.toml")
    arguments = parser.parse_args()
    target = arguments.target
    try:
        known = read_list(arguments.known, Path.cwd())
    except BadList as error:
        print(error)
        return 1
    code, first = run(target)
    if code == 0:
        return 0
    if not first.failed or first.broken:
        print(f"make {target}: the tests could not run; nothing is tried again")
        return code
    _, second = run(target, "-n 0", only=first.failed)
    verdict = judge(first, second, known)
    return tell(target, arguments.known, verdict)


def tell(target: str, path: Path, verdict: Verdict) -> int:
    print(f"\nmake {target}: {len(verdict.broken)} tests failed twice")
    for name in verdict.broken:
        print(f"  broken  {name}")
    print(f"make {target}: {len(verdict.known) + len(verdict.unknown)} tests failed first and passed then")
    for name in verdict.known:
        print(f"  flaky   {name}  (listed)")
    for name in verdict.unknown:
        print(f"  flaky   {name}  NOT LISTED")
    if verdict.unknown:
        print(f"Repair what is flaky. If that is impossible now, list it with a reason in {path.name}.")
    sys.stdout.flush()
    return 0 if verdict.is_accepted else 1


if __name__ == "__main__":
    sys.exit(main())
