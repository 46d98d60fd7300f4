"""What holds for all tests: the sources under test are the ones that are imported."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support import plain
from support.patience import patient

# Tests that share what takes long to start, and some of which build on what others did.
TOGETHER = (
    "tests/spark/",
    "tests/e2e/test_observability.py",
    "tests/e2e/test_traces.py",
    "tests/e2e/test_web.py",
)

if plain.is_wanted():
    plain.use_plain_sources()

# How long an example takes, or how long it takes to make one, depends on the machine: while somebody else
# uses it, Hypothesis would report a slow test where nothing is wrong.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

# Whoever runs the tests in the background has SIGINT ignored, and so would every command that we start.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    stale = [] if plain.is_wanted() else list(plain.stale_modules())
    if stale:
        pytest.exit(f"compiled modules are older than their sources, run 'make setup': {', '.join(stale)}", 3)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test's limit, its own or that of all, is one for a machine that does nothing else."""
    if config.getoption("timeout", None) is not None:
        return
    usual_s = float(config.getini("timeout"))
    for item in items:
        own = item.get_closest_marker("timeout")
        limit_s = usual_s if own is None else float(own.args[0])
        item.add_marker(pytest.mark.timeout(patient(limit_s)), append=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`, tests that belong together go to one process; the others go anywhere.

    Not with pytest-xdist's own groups: pytest 9.2 does not let it put them into the names of tests.
    """
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class SomeTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)

    return SomeTogether(config, log)
