"""Every page under live traffic: it opens, says what the command line says, and harms nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from browser.scene import HOSTILE, SCHEDULES, WORKERS, Scene
from support.browsing import DESK, PHONE, Sight
from support.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

# View → what must be seen in it, as CSS.
VIEWS: dict[str, str] = {
    "overview": '[data-tile="workers"]:not([data-value=""])',
    "services": "tbody tr",
    "service/echo.mdr": '[data-fact="workers"]',
    "workers": "tbody tr",
    "nodes": "tbody tr",
    "queues": "tbody tr",
    "jobs": "tbody tr",
    "dead": "tbody tr",
    "schedules": "tbody tr",
    "topics": "tbody tr",
    "logs": ".feed li",
    "tap": ".feed li",
    "trace": "tbody tr",
    "calls": "svg path.edge",
    "pipeline": "tbody tr",
}


def opened(sight: Sight, view: str) -> Any:
    name, _, parameter = view.partition("/")
    root = sight.open(name, parameter)
    sight.page.locator(VIEWS[view]).first.wait_for()
    return root


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_opens_under_traffic(sight: Sight, view: str) -> None:
    root = opened(sight, view)
    assert root.locator("h1").count() == 1
    assert root.locator(".trouble").count() == 0, root.locator(".trouble").all_inner_texts()
    assert sight.page.title().endswith("· polybus")
    sight.check()


def test_details_open_from_their_lists(sight: Sight, scene: Scene) -> None:
    opened(sight, "jobs")
    token = scene.says("jobs", "ls")[0]["token"]
    sight.row(token).get_by_role("link", name=token).click()
    sight.page.locator('[data-view="job"] [data-fact="token"]').wait_for()
    assert '"for": "later"' in sight.page.locator("pre").first.inner_text()
    opened(sight, "services")
    sight.row("echo.dbp").get_by_role("link").first.click()
    sight.page.locator('[data-view="service"] h1:text-is("echo.dbp")').wait_for()
    sight.check()


# -- as the command line says ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "caption", "command", "key"),
    [
        ("services", "Services", ("services",), "service"),
        ("workers", "Workers", ("workers",), "worker"),
        ("nodes", "Nodes", ("nodes",), "node"),
        ("queues", "Queues", ("queues",), "service"),
        ("jobs", "Jobs that have not ended", ("jobs", "ls"), "token"),
        ("dead", "Dead letters", ("jobs", "dead"), "token"),
        ("schedules", "Schedules", ("schedule", "ls"), "key"),
        ("topics", "Topics", ("last", "--prefix", ""), "topic"),
    ],
)
def test_a_list_has_the_rows_of_the_command_line(
    sight: Sight, scene: Scene, view: str, caption: str, command: tuple[str, ...], key: str
) -> None:
    opened(sight, view)
    told = {row[key] for row in scene.says(*command)}
    assert told
    until(lambda: sight.keys(caption) == told, f"{view} as {command} says: {told}, not {sight.keys(caption)}")


def check_counts(
    sight: Sight, scene: Scene, command: tuple[str, ...], key: str, columns: tuple[str, str]
) -> None:
    """What only grows lies between what the command line says before and after; `columns`: here and there."""
    here, there = columns
    before = {row[key]: row[there] for row in scene.says(*command)}
    for name, count in before.items():
        until(lambda n=name, c=count: int(sight.value(n, here)) >= c, f"{here} of {name}: {count}")
    shown = {name: int(sight.value(name, here)) for name in before}
    after = {row[key]: row[there] for row in scene.says(*command)}
    for name, count in shown.items():
        assert before[name] <= count <= after[name], (name, here)


def test_services_have_the_values_of_the_command_line(sight: Sight, scene: Scene) -> None:
    opened(sight, "services")

    def agree() -> bool:
        """Page and command line look at different moments, and what they see may change in between."""
        told = {
            row["service"]: (row["state"], str(row["workers"]), ", ".join(row["dialects"]))
            for row in scene.says("services")
        }
        columns = ("state", "workers", "dialects")
        shown = {service: tuple(sight.value(service, column) for column in columns) for service in told}
        return shown == told

    until(agree, "the states, workers and dialects of the command line")
    check_counts(sight, scene, ("services",), "service", ("failed", "failed"))


def test_workers_and_nodes_beat_as_the_command_line_says(sight: Sight, scene: Scene) -> None:
    opened(sight, "workers")
    for row in scene.says("workers"):
        assert sight.value(row["worker"], "dialect") == row["dialect"]
        assert sight.value(row["worker"], "credit") == str(row["credit"])
        assert float(sight.value(row["worker"], "silent")) < row["dead_after_s"]
    check_counts(sight, scene, ("workers",), "worker", ("missed", "missed_beats"))
    opened(sight, "nodes")

    def are_alive() -> bool:
        rows = scene.says("nodes")
        return all(sight.value(row["node"], "state") == row["state"] == "alive" for row in rows)

    until(are_alive, "nodes that are alive, as the command line says")
    for row in scene.says("nodes"):
        assert sight.value(row["node"], "address") == row["address"]


def test_the_overview_counts_what_the_command_line_counts(sight: Sight, scene: Scene) -> None:
    opened(sight, "overview")

    def tile(name: str) -> int:
        return int(sight.page.locator(f'[data-tile="{name}"]').get_attribute("data-value") or -1)

    before = scene.says("status")
    until(lambda: tile("requests") > before["accepted"], "a count that goes on")
    seen = tile("requests"), tile("published")
    after = scene.says("status")
    assert before["accepted"] <= seen[0] <= after["accepted"]
    assert seen[1] <= after["published"]
    assert tile("workers") == after["workers"] == len(WORKERS) + 1
    # A rate and a time are shown, and a line is drawn.
    until(lambda: sight.page.locator('[data-tile="requests"] b').inner_text() not in ("–", "0"), "a rate")
    until(lambda: sight.page.locator('[data-tile="latency"] b').inner_text().endswith("s"), "a latency")
    line = sight.page.locator('[data-tile="requests"] .spark .line')
    until(lambda: "L" in (line.get_attribute("d") or ""), "a line of two points")


def test_the_overview_says_what_needs_attention(sight: Sight) -> None:
    opened(sight, "overview")
    verdict = sight.page.locator("[data-verdict]")
    until(lambda: "nobody: 1 request and nobody to serve" in verdict.inner_text(), "the unserved service")
    assert verdict.get_attribute("data-verdict") == "bad"
    until(lambda: "dead letter" in verdict.inner_text(), "the dead letter")
    verdict.get_by_role("link", name="nobody").click()
    sight.page.locator('[data-view="service"] h1:text-is("nobody")').wait_for()


def test_a_trace_has_the_steps_of_the_command_line(sight: Sight, scene: Scene) -> None:
    token = scene.dead_letter()
    command = ("trace", token, "--data-dir", str(scene.folder / "data"))

    def traced() -> Any:
        told = scene.local(*command)["requests"][0]
        return told if told["outcome"] == "failed" else None

    told = until(traced, "the end in the journal")
    sight.open("trace", token)
    steps = sight.page.locator(f'[data-request="{token}"] .steps li[data-what]')
    steps.first.wait_for()
    seen = steps.evaluate_all("steps => steps.map(step => step.dataset.what)")
    assert seen == [step["what"] for step in told["steps"]]
    assert seen.count("dispatched") == 2
    text = sight.page.locator(f'[data-request="{token}"]').inner_text()
    assert told["told"] in text
    assert "the other side is down" in text
    assert sight.page.locator(f'[data-request="{token}"] rect.work').count() == 2
    sight.check()


def test_a_trace_of_nothing_says_what_to_do(sight: Sight) -> None:
    sight.open("trace", "no-such-token")
    sight.page.locator(".trouble").wait_for()
    assert "no-such-token" in sight.page.locator(".trouble").inner_text()


def test_history_is_that_of_the_tables(sight: Sight, scene: Scene) -> None:
    opened(sight, "calls")
    assert sight.page.locator("path.edge:not(.bad)").count() == 4
    rows = sight.page.locator("table tbody tr")
    told = {
        (row["client"], row["service"]): row["requests"]
        for row in scene.local("pipeline", "show", "calls", "--data-dir", str(scene.folder / "data"))
    }
    seen = rows.evaluate_all(
        "rows => rows.map(row => ['client', 'service', 'requests']"
        ".map(name => row.querySelector(`[data-col=${name}]`).dataset.value))"
    )
    assert {(client, service): int(count) for client, service, count in seen} == told
    sight.open("service", "echo.ebus")
    charts = sight.page.locator(".charts[data-value]")
    charts.wait_for()
    assert int(charts.get_attribute("data-value")) == 180
    words = sight.page.locator('svg[aria-label^="echo.ebus: time of service"]').get_attribute("aria-label")
    # 90 of a hundred took 2 ms, 9 took 9 ms, and one took 40 ms.
    assert "p99 9 ms, p95 9 ms, p50 2 ms" in words, words
    opened(sight, "pipeline")
    assert sight.value("calls", "rows") == "4"
    assert sight.value("service_metrics", "rows") == str(180 * len(WORKERS))
    sight.check()


# -- what is live ---------------------------------------------------------------------------------


def test_logs_come_by_themselves_and_are_filtered(sight: Sight) -> None:
    opened(sight, "logs")
    items = sight.page.locator(".feed li")
    count = items.count()
    until(lambda: items.count() > count, "another record")
    sight.page.get_by_label("Level").select_option("error")
    until(lambda: items.count() == 0, "no errors")
    sight.page.get_by_label("Level").select_option("warning")
    until(lambda: items.count() > 0, "warnings")
    sight.check()


def test_a_tap_is_filtered_and_paused(sight: Sight) -> None:
    opened(sight, "tap")
    sight.page.locator("[data-view=tap] select").select_option("replied")
    sight.page.get_by_label("Service or topic").fill("echo.ebus")
    sight.page.get_by_label("Service or topic").press("Enter")
    items = sight.page.locator(".feed li[data-what]")
    until(lambda: items.count() >= 3, "three replies")
    assert set(sight.page.locator(".feed .who").all_inner_texts()) == {"echo.ebus"}
    assert set(items.evaluate_all("items => items.map(item => item.dataset.what)")) == {"replied"}
    sight.page.get_by_role("button", name="Pause").click()
    count = items.count()
    note = sight.page.get_by_text("came meanwhile")
    until(lambda: int(note.inner_text().split("; ")[1].split()[0]) >= 2, "some that are held back")
    assert items.count() == count
    sight.page.get_by_role("button", name="Go on").click()
    until(lambda: items.count() > count, "them")
    sight.check()


def test_tables_sort_and_filter_and_keep_the_focus(sight: Sight) -> None:
    opened(sight, "services")
    names = sight.page.locator("tbody th")
    sight.page.get_by_role("button", name="service").click()
    shown = names.all_inner_texts()
    assert shown == sorted(shown, key=str.casefold, reverse=True)
    link = sight.row("echo.mdr").get_by_role("link").first
    link.focus()
    rate = sight.row("echo.mdr").locator(".spark path.line")
    drawn = rate.get_attribute("d")
    until(lambda: rate.get_attribute("d") != drawn, "another look")
    assert link.evaluate("link => link === document.activeElement")
    sight.page.keyboard.press("/")
    sight.page.keyboard.type("echo.mdr")
    until(lambda: names.all_inner_texts() == ["echo.mdr"], "one service")
    sight.page.keyboard.type("zzz")
    sight.page.get_by_text("fits the filter").wait_for()


def test_topics_show_their_values(sight: Sight) -> None:
    opened(sight, "topics")
    until(lambda: sight.value("price/gold", "value") == '{"eur": 1842.5}', "a value")
    sight.row("raw/bytes").get_by_role("button", name="Show").click()
    sight.page.locator("pre", has_text="000000  00 01 02 03").wait_for()
    sight.page.get_by_label("Topics that begin with").fill("price/")
    until(lambda: sight.keys("Topics") == {"price/gold"}, "one topic")
    sight.check()


# -- whoever looks --------------------------------------------------------------------------------


def test_hostile_names_are_shown_as_text(sight: Sight, scene: Scene) -> None:
    token = scene.dead_letter()
    places: list[tuple[str, str]] = [(view.partition("/")[0], view.partition("/")[2]) for view in VIEWS]
    for view, parameter in [*places, ("service", HOSTILE), ("job", token), ("trace", HOSTILE)]:
        root = sight.open(view, parameter)
        if view in ("services", "queues", "schedules", "topics", "logs", "calls") or parameter == HOSTILE:
            root.get_by_text(HOSTILE).first.wait_for()
        assert sight.page.evaluate("window.hacked") is None, view
        assert sight.page.locator("img").count() == 0, view
    assert HOSTILE in SCHEDULES
    assert not sight.foreign()


@pytest.mark.parametrize("view", VIEWS)
def test_a_phone_needs_no_horizontal_scrolling(look: Callable[..., Sight], view: str) -> None:
    sight = look(PHONE)
    opened(sight, view)
    width = sight.page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE[0], f"{view} is {width} px wide"
    sight.page.get_by_role("button", name="Menu").click()
    sight.page.get_by_role("navigation", name="Views").get_by_role("link", name="Overview").click()
    sight.page.locator('[data-view="overview"]').wait_for()


def test_light_and_dark_by_the_system_and_by_choice(look: Callable[..., Sight]) -> None:
    def paper(sight: Sight) -> str:
        return str(sight.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light, dark = look(DESK, "light"), look(DESK, "dark")
    assert paper(light) != paper(dark)
    switch = light.page.get_by_role("button", name="Theme")
    switch.click()
    switch.click()
    assert light.page.get_by_role("button", name="Theme: dark").count() == 1
    assert paper(light) == paper(dark)
    light.page.reload()
    assert paper(light) == paper(dark)
    for sight in (light, dark):
        sight.check()


def test_the_keyboard_is_enough(sight: Sight) -> None:
    page = sight.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.locator('[data-view="services"]').wait_for()
    assert page.evaluate("document.activeElement.tagName") == "H1"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.placeholder") == "Filter services"


@pytest.mark.parametrize(("theme", "size"), [("light", DESK), ("dark", DESK), ("light", PHONE)])
def test_axe_finds_no_serious_fault(
    look: Callable[..., Sight], scene: Scene, theme: str, size: tuple[int, int]
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    axe = Axe()
    sight = look(size, theme)
    token = scene.says("jobs", "dead")[0]["token"]
    faults = []
    for view in [*VIEWS, f"job/{token}", f"trace/{token}"]:
        name, _, parameter = view.partition("/")
        sight.open(name, parameter)
        sight.page.locator(VIEWS.get(view, ".card")).first.wait_for()
        found = axe.run(sight.page).response["violations"]
        faults += [
            (view, fault["id"], node["target"], node["failureSummary"])
            for fault in found
            if fault["impact"] in ("serious", "critical")
            for node in fault["nodes"]
        ]
    sight.page.keyboard.press("?")
    sight.page.get_by_role("dialog").wait_for()
    found = axe.run(sight.page).response["violations"]
    faults += [("help", fault["id"]) for fault in found if fault["impact"] in ("serious", "critical")]
    assert not faults, faults
