"""Seeded worlds of guaranteed jobs with crashes and failing disks; a broken one says how to replay it."""

from __future__ import annotations

import pytest

from simulation.job_world import JobWorld

SEEDS = 200
PER_TEST = 20


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_worlds_of_jobs(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        try:
            JobWorld(seed).run()
        except Exception as error:
            replay = f"python tests/simulation/run.py --jobs --seed {seed}"
            raise AssertionError(f"seed {seed}: {error}; replay it with: {replay}") from error


def test_a_seed_is_played_the_same_way_every_time() -> None:
    traces = []
    for _ in range(2):
        world = JobWorld(3, trace=True)
        world.run()
        traces.append(world.trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 20
