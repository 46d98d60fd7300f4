"""`polybus web` beside the broker of a test, as a browser sees it: an address, and a port that it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from support import web_process

TOKEN: Final = "a-token-for-tests"


class Dashboard:
    """The process; `address` has the token in it, `root` does not. It can be killed and started again."""

    def __init__(self, folder: Path, admin: str, *more: str) -> None:
        self._folder = folder
        self._arguments = ("--admin", admin, "--data-dir", str(folder / "data"), "--token", TOKEN, *more)
        self._port = 0
        self.start()

    def start(self) -> None:
        """Start it; again at the port that it had."""
        self._process = web_process.Dashboard(self._folder, *self._arguments, "--port", str(self._port))
        self._port = self._process.port
        self.root = f"http://{self._process.host}:{self._port}/"
        self.address = f"{self.root}?token={TOKEN}"

    def said(self) -> str:
        """What it wrote to standard error."""
        return "\n".join(self._process.errors)

    def close(self) -> None:
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
