"""`polybus web` as its own process, beside the broker of a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from support.commands import Running

TOKEN: Final = "a-token-for-tests"


class Dashboard:
    """The process; `address` has the token in it, `root` does not."""

    def __init__(self, folder: Path, admin: str, *more: str, env: Mapping[str, str] | None = None) -> None:
        self._arguments = (
            "web",
            "--admin",
            admin,
            "--data-dir",
            str(folder / "data"),
            "--token",
            TOKEN,
            *more,
        )
        self._folder = folder
        self._env = env
        self._port = 0
        self.start()

    def start(self) -> None:
        """Start it; again at the port that it had."""
        self._process = Running(*self._arguments, "--port", str(self._port), cwd=self._folder, env=self._env)
        try:
            line = self._process.wait_for(self._process.output, "ready dashboard=")
        except BaseException:
            self._process.close()
            raise
        self.address = line.partition("dashboard=")[2].strip()
        parts = urlsplit(self.address)
        self.root = f"{parts.scheme}://{parts.netloc}/"
        self._port = parts.port or 0

    def kill(self) -> None:
        self._process.close()

    def said(self) -> str:
        """What it wrote to standard error."""
        return "\n".join(self._process.errors)

    def close(self) -> None:
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
