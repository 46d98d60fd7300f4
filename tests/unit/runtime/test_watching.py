"""Files that change."""

from __future__ import annotations

import os
from pathlib import Path

from polybus.runtime.watching import Watcher


def test_a_changed_file_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text("one")
    watcher = Watcher()
    watcher.add([str(path)])
    assert watcher.changed() == []
    path.write_text("three")
    assert watcher.changed() == [str(path)]
    assert watcher.changed() == []
    # Adding it again does not make it look new.
    watcher.add([str(path)])
    assert watcher.changed() == []


def test_the_time_alone_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text("one")
    watcher = Watcher()
    watcher.add([str(path)])
    os.utime(path, ns=(1, 1))
    assert watcher.changed() == [str(path)]


def test_a_file_that_is_away_for_a_moment_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text("one")
    watcher = Watcher()
    watcher.add([str(path)])
    path.rename(tmp_path / "app.py~")
    assert watcher.changed() == []
    (tmp_path / "app.py~").rename(path)
    assert watcher.changed() == []
    path.write_text("another")
    assert watcher.changed() == [str(path)]
