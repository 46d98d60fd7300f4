"""`make conformance`: every statement of the protocol documents, the tests that prove it, and the result.

A statement passes if at least one test of it passed and none failed.  One without a test fails, unless its
feature is on the list of what is still to come (`ids.PENDING`): that is said as it is, `pending`.
Further arguments go to pytest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from conformance.ids import PENDING, STATEMENTS  # noqa: E402

PASS, PENDING_WORD, FAIL, NO_TEST = "pass", "pending", "fail", "NO TEST"
COLOURS = {PASS: "green", PENDING_WORD: "yellow", FAIL: "bold red", NO_TEST: "bold red"}
# More tests than this are counted, not named.
NAMED = 3
WIDTH = 160

Outcomes = dict[str, dict[str, str]]


def run_tests(arguments: list[str]) -> tuple[int, Outcomes]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcomes.json"
        paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "pytest", "-n", "2", "-q", "--no-header", "-p", "conformance.plugin"]
        run = subprocess.run(
            [*command, "--conformance-out", str(out), *arguments],
            cwd=TESTS.parent,
            env={**os.environ, "PYTHONPATH": paths},
        )
        return run.returncode, json.loads(out.read_text()) if out.exists() else {}


def judge(ident: str, tests: dict[str, str]) -> str:
    outcomes = set(tests.values())
    if "failed" in outcomes:
        return FAIL
    if ident in PENDING:
        return PENDING_WORD
    if "passed" in outcomes:
        return PASS
    return FAIL if outcomes else NO_TEST


def names_of(tests: dict[str, str]) -> str:
    """The tests without their parameters, the failed ones first."""
    names: dict[str, None] = {}
    for nodeid in sorted(tests, key=lambda nodeid: (tests[nodeid] != "failed", nodeid)):
        path, _, name = nodeid.partition("::")
        names[f"{path.removeprefix('tests/')}::{name.partition('[')[0]}"] = None
    shown = list(names)[:NAMED]
    if len(names) > NAMED:
        shown.append(f"and {len(names) - NAMED} more")
    return "\n".join(shown)


def main() -> int:
    code, outcomes = run_tests(sys.argv[1:])
    table = Table(box=None, pad_edge=False, width=WIDTH)
    table.add_column("id", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("statement", ratio=2)
    table.add_column("tests", ratio=3, overflow="fold")
    table.add_column("result", no_wrap=True)
    results: Counter[str] = Counter()
    for ident, statement in STATEMENTS.items():
        tests = outcomes.get(ident, {})
        result = judge(ident, tests)
        results[result] += 1
        text = statement.text
        if result == PENDING_WORD:
            text += f" ({PENDING[ident]})"
        colour = COLOURS[result]
        table.add_row(ident, statement.level, text, names_of(tests), f"[{colour}]{result}[/{colour}]")
    Console(width=WIDTH).print(table)
    # A test of a statement that is in no document proves nothing, and is mostly a slip of the pen.
    unknown = sorted(outcomes.keys() - STATEMENTS.keys())
    for ident in unknown:
        print(f"conformance: no document has {ident}, named by {names_of(outcomes[ident])}")
    failed = results[FAIL] + results[NO_TEST] + len(unknown)
    if code not in (0, 1):
        print(f"conformance: the tests did not run (pytest ended with {code})", file=sys.stderr)
    print(f"conformance: {results[PASS]} pass, {results[PENDING_WORD]} pending, {failed} fail")
    return 1 if failed or code else 0


if __name__ == "__main__":
    sys.exit(main())
