"""What changes something: clicked in a browser, seen at the broker; and only with the token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from browser.scene import Scene
from support.browsing import Sight
from support.dashboard import TOKEN, Dashboard
from support.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def dead_tokens(scene: Scene) -> set[str]:
    return {row["token"] for row in scene.ask("dead", limit=1000)}


def said(sight: Sight, words: str) -> None:
    sight.page.locator(".toast", has_text=words).first.wait_for()


def yes(sight: Sight, button: str) -> None:
    sight.page.get_by_role("dialog").get_by_role("button", name=button, exact=True).click()


def test_a_dead_letter_is_retried_and_done(sight: Sight, scene: Scene) -> None:
    token, other = scene.dead_letter(), scene.dead_letter()
    sight.open("dead")
    sight.row(token).get_by_role("checkbox").check()
    scene.broken.clear()
    try:
        sight.page.get_by_role("button", name="Retry selected").click()
        yes(sight, "Retry")
        said(sight, "Put back into their queues: 1")
        until(lambda: scene.ask("job", job=token)["state"] == "done", "the end of the job")
    finally:
        scene.broken.set()
    assert token not in dead_tokens(scene)
    assert other in dead_tokens(scene)
    sight.row(token).wait_for(state="detached")
    assert sight.row(other).count() == 1
    sight.check()


def test_a_dead_letter_is_shown_and_dropped(sight: Sight, scene: Scene) -> None:
    token = scene.dead_letter()
    sight.open("dead")
    sight.row(token).get_by_role("link", name=token).click()
    page = sight.page.locator('[data-view="job"]')
    attempts = page.locator('table:has(caption:text-is("Attempts that failed")) tbody tr')
    until(lambda: attempts.count() == 2, "the reasons of both attempts")
    assert "the other side is down" in attempts.last.inner_text()
    page.locator("pre").first.wait_for()
    page.get_by_role("button", name="hex").first.click()
    assert page.locator("pre").first.inner_text().startswith("000000  3c 69 6d 67")
    page.get_by_role("button", name="Drop").click()
    yes(sight, "No, leave it")
    assert token in dead_tokens(scene)
    page.get_by_role("button", name="Drop").click()
    yes(sight, "Drop it")
    said(sight, "Dropped 1")
    assert token not in dead_tokens(scene)
    sight.page.locator('[data-view="dead"]').wait_for()
    sight.check()


def test_a_job_is_cancelled(sight: Sight, scene: Scene) -> None:
    token = scene.job("nobody-else", b"never")
    sight.open("job", token)
    sight.page.get_by_role("button", name="Cancel").click()
    yes(sight, "Cancel the job")
    said(sight, f"Cancelled {token}")
    until(lambda: not scene.ask("jobs", service="nobody-else"), "the end of the job")
    sight.page.locator('[data-fact="state"][data-value="cancelled"]').wait_for()


def test_an_unanswered_request_is_cancelled(sight: Sight, scene: Scene) -> None:
    token = scene.job("nobody-at-all", b"never")
    sight.open("queues")
    sight.row(token).get_by_role("button", name="Cancel").click()
    yes(sight, "Cancel the request")
    said(sight, f"Cancelled {token}")
    assert token not in {row["token"] for row in scene.ask("requests")}
    sight.row(token).wait_for(state="detached")


def test_a_schedule_is_removed(sight: Sight, scene: Scene) -> None:
    scene.ask("schedule_add", key="night/ly", queue="echo.mdr", message="x", cron="0 3 * * *")
    sight.open("schedules")
    sight.row("night/ly").get_by_role("button", name="Runs").click()
    sight.page.get_by_role("heading", name="Runs of night/ly").wait_for()
    sight.row("night/ly").get_by_role("button", name="Remove").click()
    yes(sight, "Remove it")
    said(sight, "Removed night/ly")
    assert "night/ly" not in {row["key"] for row in scene.ask("schedules")}
    sight.row("night/ly").wait_for(state="detached")
    sight.check()


# -- the token ------------------------------------------------------------------------------------


def test_the_token_leaves_the_address_at_once(sight: Sight, dashboard: Dashboard) -> None:
    assert f"token={TOKEN}" in dashboard.address
    assert "token" not in sight.page.url
    assert sight.page.evaluate("sessionStorage.getItem('polybus-token')") == TOKEN
    # Nor is it in the address of anything that was asked for later.
    assert [url for url in sight.asked if TOKEN in url] == [dashboard.address]


def test_a_broken_token_is_refused_and_a_right_one_taken(
    look: Callable[..., Sight], scene: Scene, dashboard: Dashboard
) -> None:
    token = scene.job("nobody-yet", b"never")
    sight = look(address=dashboard.root + "?token=broken")
    sight.open("job", token)
    sight.page.get_by_role("button", name="Cancel").click()
    yes(sight, "Cancel the job")
    dialog = sight.page.get_by_role("dialog", name="This needs the token")
    dialog.wait_for()
    words = dialog.inner_text()
    assert "token" in dialog.locator("[data-reason]").inner_text()
    assert "'polybus web' prints it when it starts" in words
    assert scene.ask("job", job=token)["state"] == "queued"

    # A second wrong one is refused as well, and so is none.
    dialog.get_by_label("Token").fill("wrong again")
    dialog.get_by_role("button", name="Use this token").click()
    again: Any = sight.page.get_by_role("dialog", name="This needs the token")
    until(
        lambda: again.count() == 1 and again.get_by_label("Token").input_value() == "", "the question again"
    )
    assert scene.ask("job", job=token)["state"] == "queued"
    again.get_by_role("button", name="Not now").click()
    sight.page.locator(".toast.bad").wait_for()
    assert scene.ask("job", job=token)["state"] == "queued"

    sight.page.get_by_role("button", name="Cancel").click()
    yes(sight, "Cancel the job")
    again.get_by_label("Token").fill(TOKEN)
    again.get_by_role("button", name="Use this token").click()
    said(sight, f"Cancelled {token}")
    until(lambda: not scene.ask("jobs", service="nobody-yet"), "the end of the job")


def test_looking_needs_no_token(look: Callable[..., Sight], dashboard: Dashboard) -> None:
    sight = look(address=dashboard.root)
    sight.open("services")
    sight.row("echo.mdr").wait_for()
    sight.check()


def test_where_looking_needs_the_token_it_is_asked_for_once(browser: Any, scene: Scene) -> None:
    with (
        Dashboard(scene.folder, scene.admin_endpoint, "--allow-host", "bus.example") as dashboard,
        Sight(browser, dashboard.root) as sight,
    ):
        dialog: Any = sight.page.get_by_role("dialog", name="This needs the token")
        dialog.get_by_role("button", name="Not now").click()
        connection = sight.page.locator("#connection")
        until(lambda: connection.get_attribute("data-connection") == "locked", "word of the token")
        assert "Looking needs the token" in sight.page.locator("#alarm").inner_text()
        sight.open("services")
        assert dialog.count() == 0
        # The address that was printed opens it.
        sight.page.goto(dashboard.address)
        until(lambda: connection.get_attribute("data-connection") == "up", "a live page")
        sight.open("services")
        sight.row("echo.mdr").wait_for()
        assert [url for url in sight.asked if TOKEN in url] == [dashboard.address]
