"""The data directory belongs to one broker at a time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from polybus.errors import ConfigError
from polybus.server.data_dir import ENDPOINTS_FILE, DataDir


def test_one_broker_at_a_time(tmp_path: Path) -> None:
    first = DataDir(tmp_path / "made" / "on demand")
    first.tell({"admin.port": "tcp://127.0.0.1:1"})
    with pytest.raises(ConfigError, match=f"process {os.getpid()}.*--data-dir"):
        DataDir(first.path)
    # The one who was refused has taken nothing away.
    told = json.loads((first.path / ENDPOINTS_FILE).read_text())
    assert told == {"pid": os.getpid(), "endpoints": {"admin.port": "tcp://127.0.0.1:1"}}
    first.release()
    assert not (first.path / ENDPOINTS_FILE).exists()
    DataDir(first.path).release()


def test_a_place_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Choose another with --data-dir"):
        DataDir(tmp_path / "file" / "below")
