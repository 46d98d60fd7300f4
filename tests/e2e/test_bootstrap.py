"""`scripts/bootstrap.sh` says what it is at; its installer waits for the test instead of compiling."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.patience import patient

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bootstrap.sh"
# Does what uv does, as far as the script can see; the editable installation waits until it may end.
UV = f"""#!/bin/bash
case "$*" in
    venv*) mkdir -p .venv/bin && ln -s "{sys.executable}" .venv/bin/python ;;
    *--editable*) for _ in $(seq 1000); do [ -e may-end ] && break; sleep 0.02; done
        touch .venv/bin/polybus && chmod +x .venv/bin/polybus ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin" / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    return tmp_path


def environment(folder: Path, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("CC", "POLYBUS_NO_EXTENSION")}
    return {**clean, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHON": sys.executable, **more}


def said(folder: Path, **more: str) -> list[str]:
    (folder / "may-end").touch()
    done = subprocess.run(
        [folder / "scripts" / "bootstrap.sh"],
        env=environment(folder, **more),
        stderr=subprocess.PIPE,
        timeout=patient(30),
        check=True,
        text=True,
    )
    return done.stderr.splitlines()


def test_what_takes_long_is_told_before_and_how_to_go_without(folder: Path) -> None:
    compiler = folder / "bin" / "mycc"
    compiler.touch()
    compiler.chmod(0o755)
    lines = said(folder, CC="mycc -m64")
    assert "setup: compiling polybus: one to two minutes on two processors, less on more" in lines
    assert any("POLYBUS_NO_EXTENSION=1 make setup goes without" in line for line in lines)
    # A log gets lines, and few of them.
    assert [line for line in lines if not line.startswith("setup: ") or "\r" in line] == []
    assert len(lines) <= 6


def test_nothing_is_compiled_if_that_is_wanted(folder: Path) -> None:
    lines = said(folder, POLYBUS_NO_EXTENSION="1")
    assert not any("compiling" in line for line in lines)
    assert any("because POLYBUS_NO_EXTENSION is set" in line for line in lines)


def test_a_terminal_sees_the_seconds_pass(folder: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [folder / "scripts" / "bootstrap.sh"], env=environment(folder), stderr=slave, stdin=subprocess.DEVNULL
    )
    os.close(slave)
    try:
        seen = ""
        for text in reading(master):
            seen += text
            if "polybus, 1 s so far" in seen:
                (folder / "may-end").touch()
        assert process.wait(patient(30)) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert "\r\x1b[Ksetup: " in seen
    # The line is gone when there is more to say.
    assert seen.rpartition("so far")[2].startswith("\r\x1b[K")
    assert "setup: ready" in seen


def reading(master: int) -> Iterator[str]:
    """What the terminal gets, until its other side is closed."""
    while True:
        try:
            more = os.read(master, 65536)
        except OSError:
            return
        if not more:
            return
        yield more.decode()
