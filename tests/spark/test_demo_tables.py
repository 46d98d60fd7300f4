"""The whole demo, as a newcomer sees it: the tables at its end are those of what it did."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from polybus.client.addresses import DIALECTS


def test_the_demo_ends_with_its_tables(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "polybus", "demo"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=230,
        check=False,
    )
    text = done.stdout.decode()
    assert done.returncode == 0, done
    pairs = len(DIALECTS) ** 2
    assert re.search(rf"traces +│ +{pairs * 6} ", text), text
    assert re.search(rf"calls +│ +{pairs} ", text) is None, "clients that nobody named are one"
    assert "greet-mdr" in text
    assert re.search(r"polybus trace \S+", text)
    assert "accepted" in text
    assert "all of it is in the tables" in " ".join(text.split())
    assert list(tmp_path.iterdir()) == []
