"""Makes the pictures of `polybus web` in the documents: `dashboard_pictures.py [--minutes 10]`.

What they show has happened: a shop's bus runs for some minutes (`support.shop_traffic`), with failing
payments, mail that is down for a while and slow invoices.  Pages are open all the time, as somebody has them
who watches; in the middle of the trouble the first pictures are taken, the others when the pipeline has made
tables of the journal.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from polybus.client.admin import AdminClient
from support.browsing import DESK, PHONE, Sight, chromium
from support.dashboard import Dashboard
from support.live import POLYBUS
from support.pictures import IMAGES, shop_folder, shrink
from support.shop_traffic import Shop
from support.waiting import until

# When the first pictures are taken, of the shop's time: mail was down until 0.6, and from 0.55 to
# 0.75 invoices are slow. The others need tables, which are made after that.
TAKEN_AT: Final = 0.68
MOST_BYTES: Final = 250_000
BUILD_S: Final = 900.0
TRACE_PX: Final = 780
SCHEDULES: Final = (("newsletter", "mail", 60.0), ("stocktaking", "stock", 30.0))


def main() -> int:
    parser = argparse.ArgumentParser(description="The pictures of the dashboard in the documents.")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the shop is open (10)")
    parser.add_argument("--folder", type=Path, help="where its data go, to be kept")
    options = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    with shop_folder(options.folder) as folder:
        settings = {"journal.archive": True}
        with Shop(folder, options.minutes * 60, settings) as shop, chromium() as browser:
            admin = shop.broker.endpoints["admin.port"]
            plan(admin)
            with Dashboard(folder, admin) as dashboard:
                watch(browser, dashboard, shop, folder, options.minutes * 60)
    return check()


def plan(admin: str) -> None:
    with AdminClient(admin) as client:
        for key, queue, every_s in SCHEDULES:
            client.ask("schedule_add", key=key, queue=queue, message="{}", every_s=every_s)


def watch(browser: Any, dashboard: Dashboard, shop: Shop, folder: Path, length_s: float) -> None:
    with (
        Sight(browser, dashboard.address) as desk,
        Sight(browser, dashboard.address, PHONE, scale=2) as phone,
    ):
        until(lambda: look_on(desk, shop.phase >= TAKEN_AT), "the middle of the trouble", length_s)
        shot(phone, "phone", whole=False)
        shot(desk, "overview")
        desk.page.emulate_media(color_scheme="dark")
        shot(desk, "overview-dark")
        desk.page.emulate_media(color_scheme="light")
        desk.open("trace", dead_mail(shop.broker.endpoints["admin.port"]))
        desk.page.locator("[data-request] .lane").first.wait_for()
        shot(desk, "trace", whole=False, height=TRACE_PX)

        command = [str(POLYBUS), "pipeline", "build", "--data-dir", str(folder / "data")]
        with subprocess.Popen([*command, "--master", "local[1]"]) as build:
            until(lambda: look_on(desk, build.poll() is not None), "the tables", BUILD_S)
        assert build.returncode == 0, build.returncode
        desk.page.set_viewport_size({"width": DESK[0], "height": DESK[1]})
        desk.open("calls")
        desk.page.locator("path.edge").first.wait_for()
        shot(desk, "calls", whole=False)
        desk.open("service", "invoice.pdf")
        desk.page.locator(".charts[data-value]").wait_for()
        shot(desk, "service")


def look_on(sight: Sight, is_enough: bool) -> bool:
    """Let a page draw for a moment: it only does while somebody waits in it."""
    sight.page.wait_for_timeout(200)
    return is_enough


def dead_mail(admin: str) -> str:
    """A mail that was tried twice and given up."""
    with AdminClient(admin) as client:
        letters = client.ask("dead", service="mail", limit=1000)
    tried = [letter["token"] for letter in letters if letter["attempts"] > 1]
    return str(tried[-1])


def shot(sight: Sight, name: str, whole: bool = True, height: int = 0) -> None:
    # A second of traffic in the new view.
    sight.page.wait_for_timeout(1500)
    image = IMAGES / f"dashboard-{name}.png"
    if height:
        sight.page.set_viewport_size({"width": DESK[0], "height": height})
    sight.page.screenshot(path=image, full_page=whole)
    shrink(image)


def check() -> int:
    large = [image.name for image in IMAGES.glob("dashboard-*.png") if image.stat().st_size > MOST_BYTES]
    if large:
        print(f"larger than {MOST_BYTES} bytes: {', '.join(large)}; install pngquant", file=sys.stderr)
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
