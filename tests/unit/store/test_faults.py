"""Power cuts, flipped bits and lost pages, in their short form; `make store-faults` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_faults import power_cuts
from store_faults.bit_flips import flip_many
from store_faults.lost_writes import lose_each_page
from store_faults.power_cuts import cut_everywhere

needs_compiler = pytest.mark.skipif(
    not power_cuts.has_compiler(), reason="recording writes needs Linux and a C compiler (cc)"
)


@needs_compiler
def test_a_power_cut_loses_nothing_that_was_promised(tmp_path: Path) -> None:
    count = cut_everywhere(tmp_path, seed=1, steps=8, every=3)
    assert count.faults == []
    assert count.opened > 200
    assert count.ahead > 0


@needs_compiler
def test_the_cuts_would_find_a_store_that_does_not_sync(tmp_path: Path) -> None:
    count = cut_everywhere(tmp_path, seed=1, steps=4, every=7, pragma="synchronous = NORMAL")
    assert any("transactions" in fault or "lost" in fault for fault in count.faults)


def test_a_flipped_bit_is_found_or_does_not_matter(tmp_path: Path) -> None:
    count = flip_many(tmp_path, seed=2, flips=500, old=60)
    assert count.faults == []
    assert count.damaged + count.identical == 500
    assert count.damaged > 250


def test_a_lost_page_is_found_or_does_not_matter(tmp_path: Path) -> None:
    count = lose_each_page(tmp_path, seed=3)
    assert count.faults == []
    assert count.damaged > 20
