"""One bus with traffic, one `polybus web` and one browser for all tests in here; each test has its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from browser.scene import Scene
from support.browsing import BrowserMissing, Sight, chromium, find_chromium
from support.dashboard import Dashboard
from support.waiting import until


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: drives the dashboard with a real browser (make browser)")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    try:
        find_chromium()
    except BrowserMissing as error:
        pytest.fail(str(error), pytrace=False)
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("scene")) as found:
        yield found


@pytest.fixture(scope="session")
def dashboard(scene: Scene) -> Iterator[Dashboard]:
    with Dashboard(scene.folder, scene.admin_endpoint) as found:
        yield found
        assert "Traceback" not in found.said(), found.said()


@pytest.fixture
def look(browser: Any, dashboard: Dashboard) -> Iterator[Callable[..., Sight]]:
    """Opens pages that are closed after the test."""
    opened: list[Sight] = []

    def make(*arguments: Any, address: str = "", **more: Any) -> Sight:
        opened.append(Sight(browser, address or dashboard.address, *arguments, **more))
        return opened[-1]

    yield make
    for sight in opened:
        sight.close()


@pytest.fixture
def sight(look: Callable[..., Sight]) -> Sight:
    """A page that is connected and knows the broker."""
    found = look()
    until(lambda: found.page.locator("#connection").get_attribute("data-connection") == "up", "a live page")
    return found
