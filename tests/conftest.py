"""What holds for all tests: the sources under test are the ones that are imported."""

from __future__ import annotations

import pytest

from support import plain

if plain.is_wanted():
    plain.use_plain_sources()


def pytest_sessionstart(session: pytest.Session) -> None:
    stale = [] if plain.is_wanted() else list(plain.stale_modules())
    if stale:
        pytest.exit(f"compiled modules are older than their sources, run 'make setup': {', '.join(stale)}", 3)
