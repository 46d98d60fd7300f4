"""`polybus tap`: which kinds of events it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from polybus.cli.main import run
from polybus.cli.tap import chosen
from polybus.client.admin import AdminClient


def test_a_wrong_word_is_an_error_with_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    # Nobody has to be asked for this.
    assert run(["tap", "--what", "repleid", "--admin", "tcp://127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert "--what repleid: nothing that happens is called 'repleid'; did you mean 'replied'?" in said
    assert "There are accepted, dispatched, partial, replied, failed" in said


@pytest.mark.parametrize("text", ["", " ", ","])
def test_no_word_at_all_is_an_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tap", "--what", text, "--admin", "tcp://127.0.0.1:1"]) == 2
    assert "--what names nothing; it takes one or more of accepted," in capsys.readouterr().err


def test_several_words_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def tap(self: AdminClient, service: str, what: str, bodies: bool) -> Iterator[dict[str, Any]]:
        asked.append(what)
        yield {}

    monkeypatch.setattr(AdminClient, "tap", tap)
    monkeypatch.setattr("polybus.cli.find.admin_endpoint", lambda *facts: "tcp://127.0.0.1:1")
    assert run(["tap", "--what", "failed", "--what", "expired, accepted"]) == 0
    assert run(["tap"]) == 0
    assert asked == ["accepted,failed,expired", ""]
    assert chosen(["failed", "failed"]) == "failed"
