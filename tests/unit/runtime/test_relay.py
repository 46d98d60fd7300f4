"""What children print, with their number in front."""

from __future__ import annotations

import os

import pytest

from polybus.runtime.relay import MAX_LINE, Relay, _Source
from support.waiting import until


def test_lines_are_labelled_whole() -> None:
    source = _Source("[1] ", 1)
    assert source.lines(b"one\ntwo\nthr") == b"[1] one\n[1] two\n"
    assert source.lines(b"ee\n") == b"[1] three\n"
    assert source.lines(b"rest") == b""
    assert source.last() == b"[1] rest\n"
    assert source.last() == b""


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    source = _Source("[1] ", 1)
    assert len(source.lines(b"x" * (MAX_LINE + 1))) == MAX_LINE + 1 + len("[1] \n")
    assert source.rest == b""


def test_both_outputs_go_through(capfd: pytest.CaptureFixture[str]) -> None:
    relay = Relay()
    out, err = relay.add(3)
    os.write(out, b"hello\n")
    os.write(err, b"trouble")
    os.close(out)
    os.close(err)
    seen = ["", ""]

    def both() -> bool:
        captured = capfd.readouterr()
        seen[0] += captured.out
        seen[1] += captured.err
        return all(seen)

    until(both)
    relay.close()
    assert seen == ["[3] hello\n", "[3] trouble\n"]
    assert not relay._thread.is_alive()
