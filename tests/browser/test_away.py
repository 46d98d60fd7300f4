"""The broker goes away and returns, and so does the dashboard's own process: a page says so and recovers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from polybus import Worker
from support.browsing import Sight
from support.dashboard import Dashboard
from support.job_broker import JobBroker
from support.patience import patient
from support.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def connection(sight: Sight) -> str:
    return str(sight.page.locator("#connection").get_attribute("data-connection"))


def test_a_broker_that_dies_is_unmistakable_and_its_return_is_seen(browser: Any, tmp_path: Path) -> None:
    with (
        JobBroker(tmp_path) as broker,
        Dashboard(tmp_path, broker.endpoints["admin.port"]) as dashboard,
        Sight(browser, dashboard.address) as sight,
    ):
        alarm = sight.page.locator("#alarm")
        until(lambda: connection(sight) == "up", "a live page")
        assert not alarm.is_visible()
        sight.open("services")

        broker.kill()
        until(lambda: connection(sight) == "down", "word that the broker is away")
        assert "The broker does not answer." in alarm.inner_text()
        assert alarm.is_visible()
        assert sight.page.locator("#connection").inner_text() == "broker down"
        sight.open("overview")
        assert sight.page.locator("[data-verdict]").get_attribute("data-verdict") == "bad"
        assert "The broker is down" in sight.page.locator("[data-verdict]").inner_text()

        broker.start()
        worker = Worker({"again": lambda _: b""}, broker.endpoints["ebus.backend"], "ebus")
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            until(lambda: connection(sight) == "up", "the broker's return")
            assert not alarm.is_visible()
            sight.open("services")
            # Not only a word: what is new is seen.
            sight.row("again").wait_for()
        finally:
            worker.stop()
            thread.join(patient(20))
        assert not sight.foreign()


def test_the_dashboards_own_process_may_go_and_return(browser: Any, tmp_path: Path) -> None:
    with (
        JobBroker(tmp_path) as broker,
        Dashboard(tmp_path, broker.endpoints["admin.port"]) as dashboard,
        Sight(browser, dashboard.address) as sight,
    ):
        until(lambda: connection(sight) == "up", "a live page")
        dashboard.close()
        until(lambda: connection(sight) == "lost", "word that the dashboard is away")
        assert "The dashboard's own process does not answer." in sight.page.locator("#alarm").inner_text()
        dashboard.start()
        until(lambda: connection(sight) == "up", "its return")
        assert not sight.page.locator("#alarm").is_visible()
