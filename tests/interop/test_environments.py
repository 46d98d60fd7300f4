"""The peers run as they were published: every file of theirs has the checksum that came with it."""

from __future__ import annotations

import base64
import csv
import hashlib
from pathlib import Path

import pytest

from support import interop_env
from support.interop_env import PeerUnavailable, environment


@pytest.mark.parametrize(("peer", "package"), [("eventmq", "eventmq"), ("hermes", "Hermes")])
def test_peers_are_unmodified(peer: str, package: str) -> None:
    (packages,) = environment(peer).glob("lib/python*/site-packages")
    (record,) = packages.glob(f"{package}*.dist-info/RECORD")
    checked = 0
    for name, digest, _ in csv.reader(record.read_text().splitlines()):
        if name.startswith(f"{package}/") and name.endswith(".py"):
            found = hashlib.sha256((packages / name).read_bytes()).digest()
            assert digest == "sha256=" + base64.urlsafe_b64encode(found).rstrip(b"=").decode(), name
            checked += 1
    assert checked >= 10


def test_an_environment_that_cannot_be_made_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop_env, "LOCKS", tmp_path)
    monkeypatch.setattr(interop_env, "CACHE", tmp_path / "cache")
    # No index is asked for a file that is not there.
    wheel = tmp_path / "nobody-1.0-py3-none-any.whl"
    (tmp_path / "requirements-nobody.lock").write_text(f"nobody @ file://{wheel}\n")
    with pytest.raises(PeerUnavailable, match="'nobody' could not be made"):
        environment("nobody")
    assert list((tmp_path / "cache").glob("nobody-*")) == []
