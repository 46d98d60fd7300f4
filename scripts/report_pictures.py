"""Makes the pictures of `polybus pipeline report` in the documents: `report_pictures.py [--minutes 12]`.

What they show has happened: a broker runs for some minutes, with a shop's services and clients in all
dialects (`support.shop_traffic`).  The journal of that becomes tables, these a report, and chromium takes the
pictures.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.live import POLYBUS
from support.pictures import IMAGES, shop_folder, shrink
from support.shop_traffic import Shop

# To the end of the call graph.
SIZE: Final = "1200,2440"


def take(page: Path, image: Path, dark: bool, size: str) -> None:
    """A picture of a page."""
    with tempfile.TemporaryDirectory(prefix="polybus-chromium-") as profile:
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
        command += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
        command += ["--disable-sync", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND"]
        command += [f"--user-data-dir={profile}"]
        command += [f"--screenshot={image}", f"--window-size={size}"]
        command += ["--blink-settings=preferredColorScheme=" + ("0" if dark else "1")]
        subprocess.run([*command, page.as_uri()], check=True, timeout=120, capture_output=True)
    shrink(image)


def main() -> int:
    parser = argparse.ArgumentParser(description="The pictures of the report in the documents.")
    parser.add_argument("--minutes", type=float, default=12.0, help="how long the shop is open (12)")
    parser.add_argument("--folder", type=Path, help="where its data go, to be kept")
    parser.add_argument("--again", action="store_true", help="only the pictures, of the data in --folder")
    options = parser.parse_args()
    with shop_folder(options.folder) as folder:
        data = folder / "data"
        if not options.again:
            with Shop(folder, options.minutes * 60) as shop:
                shop.wait_out()
            # Another life of the broker closes the log of the last one.
            shop.broker.restart()
            shop.broker.kill()
            archive = [str(POLYBUS), "archive", "--data-dir", str(data), "--once"]
            subprocess.run(archive, check=True, timeout=900)
            build = [str(POLYBUS), "pipeline", "build", "--data-dir", str(data), "--master", "local[2]"]
            subprocess.run(build, check=True, timeout=900)
        page = folder / "report.html"
        command = [str(POLYBUS), "pipeline", "report", "--data-dir", str(data), "--out", str(page)]
        subprocess.run(command, check=True, timeout=120)
        IMAGES.mkdir(parents=True, exist_ok=True)
        for name, dark in (("report.png", False), ("report-dark.png", True)):
            take(page, IMAGES / name, dark, SIZE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
