"""What the scripts that take pictures for the documents share."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
COLOURS: Final = "128"


@contextlib.contextmanager
def shop_folder(given: Path | None) -> Iterator[Path]:
    """The folder of a shop's data: one that is kept, or one that goes."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="polybus-shop-") as folder:
        yield Path(folder)


def shrink(image: Path) -> None:
    """Fewer colours need fewer bytes, if there is a program for that."""
    if shutil.which("pngquant"):
        smaller = ["pngquant", "--force", "--strip", "--speed=1", f"--output={image}", COLOURS, str(image)]
        subprocess.run(smaller, check=True, timeout=120)
