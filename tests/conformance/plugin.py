"""A pytest plugin: run only tests that are marked `conforms`, and note what became of each.

    pytest -p conformance.plugin --conformance-out FILE

A marker takes one or more ids.  They travel in the report of the test, so this works with parallel processes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

# Outcomes of one test, the worst last.
RANK = ("passed", "skipped", "failed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--conformance-out", default="", help="where to write the outcomes, as JSON")


def ids_of(item: pytest.Item) -> list[str]:
    return sorted({ident for mark in item.iter_markers("conforms") for ident in mark.args})


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = []
    for item in items:
        ids = ids_of(item)
        if ids:
            item.user_properties.append(("conforms", ids))
            kept.append(item)
    items[:] = kept


class Outcomes:
    """Collected where the run is steered from, not in the processes that run the tests."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, dict[str, str]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        ids = dict(report.user_properties).get("conforms", [])
        if report.when != "call" and report.outcome == "passed":
            return
        # A test that is known to fail is reported as skipped, which proves nothing either.
        for ident in ids if isinstance(ids, list) else ():
            tests = self._outcomes[ident]
            before = tests.get(report.nodeid, "passed")
            tests[report.nodeid] = max(before, report.outcome, key=RANK.index)

    def pytest_sessionfinish(self, session: Any) -> None:
        self._path.write_text(json.dumps(self._outcomes))


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--conformance-out")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(path)))
