"""The part of `make mutants` that runs inside pytest.

With `MUTANTS_COVER` it writes which test executes which line of the mutated packages, and how long it takes.
With `MUTANTS_TESTS` it runs the tests that a file lists, in the order of that file, and no others.
With `MUTANTS_SERVE` it collects the tests and tries mutants in forks (`forked`).
Either way Hypothesis makes the same examples every time and remembers none: a failing example of one mutant
must not decide about the next.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mutation.forked import Server

PACKAGES = ("wire", "core", "dialects", "store", "journal")


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile(
        "mutants", derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile("mutants")
    if "MUTANTS_COVER" in os.environ:
        config.pluginmanager.register(_Recorder(Path(os.environ["MUTANTS_COVER"])), "mutants-recorder")
    if "MUTANTS_SERVE" in os.environ:
        requests, answers = map(int, os.environ.pop("MUTANTS_SERVE").split())
        config.pluginmanager.register(Server(requests, answers), "mutants-server")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    listed = os.environ.get("MUTANTS_TESTS")
    if listed is None:
        return
    order = {name: place for place, name in enumerate(json.loads(Path(listed).read_text()))}
    items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


class _Recorder:
    """Lines by test, with coverage's own contexts."""

    def __init__(self, out: Path) -> None:
        import coverage

        self._out = out
        source = Path(os.environ["MUTANTS_TREE"]) / "polybus"
        self._cover = coverage.Coverage(
            data_file=None, config_file=False, include=[str(source / package / "*") for package in PACKAGES]
        )
        self._source = source
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._skipped: set[str] = set()
        self._cover.start()
        self._cover.switch_context("")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._cover.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._cover.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.outcome == "failed":
            self._failed.add(report.nodeid)
        elif report.outcome == "skipped":
            self._skipped.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._cover.stop()
        data = self._cover.get_data()
        lines: dict[str, dict[str, list[int]]] = {name: {} for name in self._seconds}
        on_import: dict[str, list[int]] = {}
        for path in data.measured_files():
            file = str(Path(path).relative_to(self._source))
            for line, contexts in data.contexts_by_lineno(path).items():
                for context in contexts:
                    if context in lines:
                        lines[context].setdefault(file, []).append(line)
                    elif not context:
                        on_import.setdefault(file, []).append(line)
        tests = {
            name: {"seconds": round(seconds, 4), "lines": lines[name]}
            for name, seconds in self._seconds.items()
            if name not in self._failed | self._skipped
        }
        self._out.write_text(
            json.dumps({"tests": tests, "unusable": sorted(self._failed), "on_import": on_import})
        )
