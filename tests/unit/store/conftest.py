"""Stores sync their files all the time: these tests use folders in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.folders import quick_folder, small_file_system


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def small_disk() -> Iterator[Path]:
    with small_file_system() as disk:
        yield disk
