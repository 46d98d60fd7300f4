"""A real browser, and a page that is watched: what it asks for, and what it complains about.

with chromium() as browser, Sight(browser, dashboard.address) as sight:
    sight.open("services")
    sight.page.locator("[data-key=orders]").wait_for()
    sight.check()                        # no foreign host was asked, and nothing went wrong
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any, Final, Literal, Self
from urllib.parse import quote, urlsplit

from support.patience import patient

ARGUMENTS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESK: Final = (1280, 900)
PHONE: Final = (360, 740)
# A busy machine draws slowly; patience costs nothing while things go well.
PATIENCE_MS: Final = int(patient(20_000))
Theme = Literal["light", "dark"]


class BrowserMissing(Exception):
    """There is no browser to test with."""


def find_chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        raise BrowserMissing("no chromium is installed; 'apt-get install chromium' does that on Debian")
    return found


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class Sight:
    """One page in a browser of its own, as if nobody had been there before."""

    def __init__(
        self,
        browser: Any,
        address: str,
        size: tuple[int, int] = DESK,
        theme: Theme = "light",
        scale: float = 1,
    ) -> None:
        self._address = address
        self._context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=theme,
            device_scale_factor=scale,
            reduced_motion="reduce",
        )
        self.page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} ({message.location.get('url', '')})")

    def open(self, view: str, parameter: str = "") -> Any:
        """Go to a view; its root, when it is there."""
        place = f"#/{view}" + (f"/{quote(parameter, safe='')}" if parameter else "")
        self.page.evaluate("place => { location.hash = place; }", place)
        root = self.page.locator(f'[data-view="{view}"]')
        root.wait_for()
        if parameter:
            # From one page of a kind to another of it.
            self.page.wait_for_function("place => location.hash === place", arg=place)
        return root

    def row(self, key: str) -> Any:
        """The row of a table with this key."""
        return self.page.locator(f"tr[data-key={_quoted(key)}]")

    def keys(self, table: str) -> set[str]:
        """The keys of all rows of the table with this caption."""
        rows = self.page.locator(f"table:has(caption:text-is({_quoted(table)})) tbody tr")
        return set(rows.evaluate_all("rows => rows.map(row => row.dataset.key)"))

    def value(self, key: str, column: str) -> str:
        """What a cell stands for."""
        return str(self.row(key).locator(f"[data-col={column}]").get_attribute("data-value"))

    def foreign(self) -> list[str]:
        """What was asked of other hosts than the page's own."""
        own = urlsplit(self._address).netloc
        return [
            url
            for url in self.asked
            if not url.startswith(("data:", "blob:")) and urlsplit(url).netloc != own
        ]

    def check(self) -> None:
        assert not self.foreign(), self.foreign()
        assert not self.complaints, self.complaints

    def close(self) -> None:
        self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _quoted(text: str) -> str:
    """A text as a string of CSS."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\a ") + '"'
