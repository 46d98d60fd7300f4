"""What reaches a terminal, and what programs read."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.cli.output import body_fields, one_line, print_table, printable, span, write_body
from polybus.cli.tap import line


def test_a_terminal_obeys_nothing_from_the_network() -> None:
    assert printable("a\x1b[2J\nb\u202e") == "a\\x1b[2J\\nb\\u202e"
    assert one_line(b"\xff\x00ok") == "\\xff\\x00ok"
    assert one_line(b"x" * 500, 10) == "xxxxxxxxxx… (500 bytes)"


def test_markup_in_names_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", ">count"), [("[red]x[/red]\x1b", 3)])
    output = capsys.readouterr().out
    assert "[red]x[/red]\\x1b" in output
    assert "count" in output
    assert ">count" not in output


def test_bodies_in_json() -> None:
    assert body_fields("ü".encode()) == {"body": "ü"}
    assert body_fields(b"\xff") == {"body_base64": "/w=="}


@pytest.mark.parametrize(
    ("body", "raw", "written"), [(b"a", False, "a\n"), (b"a\n", False, "a\n"), (b"a", True, "a")]
)
def test_bodies_end_a_line(body: bytes, raw: bool, written: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_body(body, raw)
    assert capsys.readouterr().out == written


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.0421, "42 ms"), (1.25, "1.2 s"), (300, "5 min"), (7200, "2 h")],
)
def test_spans(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


def record(**more: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(
        ("token", "service", "client", "client_dialect", "worker", "worker_dialect", "reason", "detail"), ""
    )
    return {"at": 0.5, "what": "replied", **nothing, "attempt": 0, "bytes": 0, **more}


def test_a_tapped_request_is_one_line() -> None:
    text = line(
        record(
            service="hel\nlo",
            client="c1",
            client_dialect="ebus",
            worker="w1",
            worker_dialect="mdr",
            token="t-1",
            attempt=2,
            age_s=0.0015,
            reason="failed",
            detail="it\tbroke",
            bytes=3,
            body_base64=["aGk="],
            missed_before=4,
        )
    ).plain
    assert text[8:].startswith(".500 replied")
    assert " ".join(text.partition("replied")[2].split()) == (
        "hel\\nlo from c1 (ebus) to w1 (mdr) t-1 attempt 2 1.5 ms failed: it\\tbroke 3 B hi "
        "(4 before this were missed)"
    )


def test_a_tapped_event_without_anything_is_one_line() -> None:
    assert line(record(what="unheard_of")).plain.split()[1:] == ["unheard_of"]
