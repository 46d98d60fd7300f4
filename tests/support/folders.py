"""Folders in memory, for tests that sync files thousands of times; and disks that are soon full."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A new folder, in memory where there is such a place, and gone afterwards."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        yield Path(name)


@contextmanager
def small_file_system(size: str = "3m") -> Iterator[Path]:
    """A real file system with little room. Skips the test where we may not mount one."""
    with quick_folder() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "polybus-test", str(folder)]
        if shutil.which("mount") is None:
            pytest.skip("needs the command mount for a small disk")
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("only root may mount a small disk; PRAGMA max_page_count stands in for it elsewhere")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)
