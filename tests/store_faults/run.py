"""`make store-faults`: power cuts at every boundary, ten thousand flipped bits, and every page lost in turn.

    python tests/store_faults/run.py [--flips 10000] [--steps 60] [--seed 1]

The exit status is 0 if the store and the journal lost nothing that they promised, and served nothing that was
not written.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from store_faults.bit_flips import flip_many  # noqa: E402
from store_faults.journal_cuts import cut_journal_everywhere  # noqa: E402
from store_faults.lost_writes import lose_each_page  # noqa: E402
from store_faults.power_cuts import cut_everywhere, has_compiler  # noqa: E402
from support.folders import quick_folder  # noqa: E402

# Only the first faults are told; the others are usually the same.
TOLD = 20
# A journal that has lived for less is not compacted yet, and judging what is left of one takes long.
JOURNAL_STEPS = 12


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=60, help="transactions in the lives that are cut")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    faults: list[str] = []
    began = time.monotonic()
    if has_compiler():
        with quick_folder() as folder:
            cuts = cut_everywhere(folder, options.seed, options.steps)
        print(f"power cuts: {cuts} ({time.monotonic() - began:.0f} s)", flush=True)
        faults += cuts.faults
    else:
        print("power cuts: not tried, because they need Linux and a C compiler (cc)", flush=True)
    began = time.monotonic()
    with quick_folder() as folder:
        flips = flip_many(folder, options.seed, options.flips)
    print(f"bit flips: {flips} ({time.monotonic() - began:.0f} s)", flush=True)
    faults += flips.faults
    with quick_folder() as folder:
        lost = lose_each_page(folder, options.seed)
    print(f"lost writes: {lost}", flush=True)
    faults += lost.faults
    began = time.monotonic()
    with quick_folder() as folder:
        journal = cut_journal_everywhere(folder, options.seed, max(JOURNAL_STEPS, options.steps // 2))
    print(f"power cuts of the journal: {journal} ({time.monotonic() - began:.0f} s)")
    faults += journal.faults
    for fault in faults[:TOLD]:
        print(f"  {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
