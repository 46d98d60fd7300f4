"""Play seeded worlds.

python tests/simulation/run.py --seeds 1000     # as many, only failures are told
python tests/simulation/run.py --seed 7         # one, with everything that happens if it fails
python tests/simulation/run.py --jobs --seed 7  # the same for worlds of guaranteed jobs
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

from simulation.job_world import JobWorld  # noqa: E402 (the path comes first)
from simulation.world import World  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how many worlds")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the first one")
    parser.add_argument("--trace", action="store_true", help="print what happens, also if all is well")
    parser.add_argument("--jobs", action="store_true", help="worlds of guaranteed jobs, with crashes")
    options = parser.parse_args()
    make = JobWorld if options.jobs else World
    started = time.monotonic()
    broken = 0
    for seed in range(options.seed, options.seed + options.seeds):
        world = make(seed, trace=options.trace or options.seeds == 1)
        try:
            world.run()
        except Exception:
            broken += 1
            print("\n".join(world.trace))
            traceback.print_exc()
            jobs = " --jobs" if options.jobs else ""
            print(
                f"seed {seed} is broken; replay it with: python tests/simulation/run.py{jobs} --seed {seed}"
            )
            continue
        if options.trace:
            print("\n".join(world.trace))
    took_s = time.monotonic() - started
    print(f"{options.seeds} worlds in {took_s:.1f} s, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
