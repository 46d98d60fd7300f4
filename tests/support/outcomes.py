"""A pytest plugin that writes down which tests failed, and can run only some: for `scripts/flaky.py`.

`FLAKY_OUT` names the file for the result; `FLAKY_ONLY` a file with the tests to run, as JSON.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # With `-n` the processes that run the tests report to the one that started them.
    if not hasattr(config, "workerinput") and os.environ.get("FLAKY_OUT"):
        config.pluginmanager.register(_Outcomes(Path(os.environ["FLAKY_OUT"])), "flaky-outcomes")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    only = os.environ.get("FLAKY_ONLY")
    if only:
        wanted = set(json.loads(Path(only).read_text()))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]


class _Outcomes:
    def __init__(self, out: Path) -> None:
        self._out = out
        self._failed: set[str] = set()
        self._passed: set[str] = set()
        self._broken: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.passed and report.when == "call":
            self._passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._broken.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        passed = self._passed - self._failed
        found = {"failed": sorted(self._failed), "passed": sorted(passed), "broken": sorted(self._broken)}
        self._out.write_text(json.dumps(found))
