"""Where the answer of a replayed request differs from the one in the journal."""

from __future__ import annotations

import pytest

from polybus.journal.replay import _first_difference


@pytest.mark.parametrize(
    ("was", "now", "text"),
    [
        ([b"same"], [b"same"], ""),
        ([], [], ""),
        ([b"a"], [b"a", b"b"], "the reply had 1 frames, now 2"),
        ([b"abc"], [b"abX"], "the reply differs: byte 2 of 3, now 3"),
        ([b"abc"], [b"ab"], "the reply differs: byte 2 of 3, now 2"),
        ([b"ab"], [b"abc"], "the reply differs: byte 2 of 2, now 3"),
        ([b"a", b"b"], [b"a", b"c"], "the reply differs: frame 2, byte 0 of 1, now 1"),
        ([b"a", b"b"], [b"x", b"y"], "the reply differs: frame 1, byte 0 of 1, now 1"),
    ],
)
def test_the_first_difference_is_named(was: list[bytes], now: list[bytes], text: str) -> None:
    assert _first_difference(was, now) == text
