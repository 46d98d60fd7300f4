"""The peers run as they were published: every file of theirs has the checksum that came with it."""

from __future__ import annotations

import base64
import csv
import hashlib
from pathlib import Path

import pytest

from support import interop_env
from support.interop_env import PeerUnavailable, environment, make, peer


@pytest.mark.parametrize(("name", "package"), [("eventmq", "eventmq"), ("hermes", "Hermes")])
def test_peers_are_unmodified(name: str, package: str) -> None:
    (packages,) = peer(name).glob("lib/python*/site-packages")
    (record,) = packages.glob(f"{package}*.dist-info/RECORD")
    checked = 0
    for file, digest, _ in csv.reader(record.read_text().splitlines()):
        if file.startswith(f"{package}/") and file.endswith(".py"):
            found = hashlib.sha256((packages / file).read_bytes()).digest()
            assert digest == "sha256=" + base64.urlsafe_b64encode(found).rstrip(b"=").decode(), file
            checked += 1
    assert checked >= 10


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A peer whose only file is not there, so that no index is asked. Returns the folder of environments."""
    monkeypatch.setattr(interop_env, "LOCKS", tmp_path)
    monkeypatch.setattr(interop_env, "CACHE", tmp_path / "cache")
    wheel = tmp_path / "nobody-1.0-py3-none-any.whl"
    (tmp_path / "requirements-nobody.lock").write_text(f"nobody @ file://{wheel}\n")
    return tmp_path / "cache"


def test_an_environment_that_cannot_be_made_says_so(nobody: Path) -> None:
    with pytest.raises(PeerUnavailable, match="'nobody' could not be made"):
        make("nobody")
    assert list(nobody.glob("nobody-*")) == []


def test_a_test_installs_nothing(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop_env, "_run", lambda *command: pytest.fail(f"a test ran {command}"))
    with pytest.raises(PeerUnavailable, match="run 'make setup'"):
        environment("nobody")
    assert not nobody.exists()


@pytest.mark.parametrize(
    ("ci", "outcome"),
    [("", pytest.skip.Exception), ("false", pytest.skip.Exception), ("true", pytest.fail.Exception)],
)
def test_a_missing_peer_fails_in_ci_only(
    nobody: Path, ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="run 'make setup'"):
        peer("nobody")


def test_setup_fails_for_a_missing_peer_in_ci_only(
    nobody: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(interop_env, "PEERS", ("nobody",))
    monkeypatch.setenv("CI", "")
    assert interop_env.main() == 0
    assert "the interop tests with nobody will be skipped" in capsys.readouterr().err
    monkeypatch.setenv("CI", "true")
    assert interop_env.main() == 1
