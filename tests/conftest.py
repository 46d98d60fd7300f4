"""What holds for all tests: the sources under test are the ones that are imported."""

from __future__ import annotations

import signal
import threading

import pytest

from support import plain

if plain.is_wanted():
    plain.use_plain_sources()

# Whoever runs the tests in the background has SIGINT ignored, and so would every command that we start.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    stale = [] if plain.is_wanted() else list(plain.stale_modules())
    if stale:
        pytest.exit(f"compiled modules are older than their sources, run 'make setup': {', '.join(stale)}", 3)
