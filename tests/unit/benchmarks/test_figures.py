"""The record of runs and the block made from it: all runs, their medians, spread, goals and mishaps."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
GOAL = "MDR at 64 B, share of the proxy: at least 0.40"


@pytest.fixture(scope="module")
def modules() -> Iterator[tuple[ModuleType, ModuleType]]:
    """`_figures` and `figures`, which live with the benchmarks and not in a package."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("_figures"), importlib.import_module("figures")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture
def pure(modules: tuple[ModuleType, ModuleType]) -> ModuleType:
    return modules[0]


@pytest.fixture
def command(modules: tuple[ModuleType, ModuleType]) -> ModuleType:
    return modules[1]


def run(pure: ModuleType, **changes: Any) -> Any:
    facts: dict[str, Any] = {
        "day": "2026-11-02",
        "at": "2026-11-02T10:00:00+00:00",
        "benchmark": "broker",
        "revision": "abc1234",
        "cores": 2,
        "cpu": "A Processor",
        "memory_gib": 7.8,
        "load": 0.5,
        "exit": 0,
    }
    return pure.Run(**{**facts, **changes})


def measured(pure: ModuleType, rate: float, share: float, **changes: Any) -> Any:
    goal = {"text": GOAL, "value": share, "met": share >= 0.4}
    return run(pure, figures={"mdr64": rate, "mdr64_of_proxy": share}, goals=[goal], **changes)


def failed(pure: ModuleType, why: str = "the broker did not get ready", **changes: Any) -> Any:
    return run(pure, exit=1, error=why, **changes)


def row(block: str, title: str) -> str:
    found = [line for line in block.splitlines() if line.startswith(f"| {title} |")]
    assert len(found) == 1, block
    return found[0]


# -- the record ---------------------------------------------------------------------------------


def test_a_run_is_one_line_and_comes_back_from_it(pure: ModuleType) -> None:
    runs = [measured(pure, 100_000, 0.41), failed(pure, 'a "quoted"\nerror')]
    text = "".join(each.as_line() for each in runs)
    assert text.count("\n") == 2
    assert pure.read(text) == runs


def test_a_line_that_is_no_run_is_named(pure: ModuleType) -> None:
    good = measured(pure, 1, 1).as_line()
    for bad in ("{", "[]", '{"day": "2026-11-02"}'):
        with pytest.raises(pure.BadRecord, match="line 2"):
            pure.read(good + bad + "\n")


# -- medians and spread -------------------------------------------------------------------------


def test_a_figure_is_the_median_with_lowest_highest_and_the_number_of_runs(pure: ModuleType) -> None:
    shares = (0.38, 0.45, 0.41, 0.52, 0.39)
    rates = (82_000, 104_000, 99_000, 119_000, 90_000)
    block = pure.render([measured(pure, rate, share) for rate, share in zip(rates, shares, strict=True)])
    assert row(block, "MDR, 64 B") == "| MDR, 64 B | 99,000 (82,000–119,000) | 0.41 (0.38–0.52) | 5 |"


def test_the_order_of_runs_changes_nothing_but_the_median_of_two_is_their_middle(pure: ModuleType) -> None:
    runs = [measured(pure, 100, 0.3), measured(pure, 300, 0.5)]
    assert row(pure.render(runs), "MDR, 64 B") == row(pure.render(runs[::-1]), "MDR, 64 B")
    assert "| 200 (100–300) | 0.40 (0.30–0.50) | 2 |" in pure.render(runs)


def test_units_and_negative_values(pure: ModuleType) -> None:
    assert pure.spread([330.0, 340.0, 410.0], ",.0f µs") == "340 (330–410) µs"
    assert pure.spread([-0.005, 0.015, 0.02], ".1%") == "1.5% (-0.5% to 2.0%)"
    assert pure.spread([], ",.0f") == "–"


def test_a_figure_without_a_title_is_shown_under_its_own_name(pure: ModuleType) -> None:
    block = pure.render([run(pure, figures={"mdr64": 5, "new_case": 7.25})])
    assert row(block, "`new_case`") == "| `new_case` | 7.25 (7.25–7.25) | 1 |"


# -- no run is chosen ---------------------------------------------------------------------------


def test_one_good_run_and_four_bad_ones_are_all_shown(pure: ModuleType) -> None:
    block = pure.render([measured(pure, 120_000, 0.50), *(measured(pure, 60_000, 0.25) for _ in range(4))])
    assert "5 runs on 2026-11-02, none of them failed" in block
    assert row(block, "MDR, 64 B") == "| MDR, 64 B | 60,000 (60,000–120,000) | 0.25 (0.25–0.50) | 5 |"
    assert row(block, GOAL) == f"| {GOAL} | 0.25 (0.25–0.5) | 1 of 5 |"


def test_one_good_run_and_four_that_failed_are_all_shown(pure: ModuleType) -> None:
    block = pure.render([measured(pure, 120_000, 0.50), *(failed(pure, f"reason {n}") for n in range(4))])
    assert "5 runs on 2026-11-02, 4 of them failed" in block
    assert row(block, "MDR, 64 B").endswith("| 1 |")
    assert row(block, GOAL).endswith("| 1 of 5 (4 without a result) |")
    for number in range(4):
        assert f"A run failed: `reason {number}`" in block


def test_a_goal_is_met_in_so_many_of_all_runs(pure: ModuleType) -> None:
    block = pure.render([measured(pure, 1, share) for share in (0.40, 0.41, 0.39, 0.42, 0.43)])
    assert row(block, GOAL).endswith("| 4 of 5 |")


def test_a_benchmark_of_which_every_run_failed_is_not_left_out(pure: ModuleType) -> None:
    block = pure.render([failed(pure), failed(pure)])
    assert "2 runs on 2026-11-02, 2 of them failed" in block
    assert block.count("A run failed: `the broker did not get ready`") == 2
    assert "No run came to its end." in block


def test_the_text_of_a_failure_is_no_markup(pure: ModuleType) -> None:
    block = pure.render([failed(pure, "<!-- figures:end --> `x`")])
    readme = f"a\n{pure.BEGIN}\n{pure.END}\nz"
    assert "`<!" in block
    assert pure.replace(readme, block).endswith("z")
    assert pure.is_current(pure.replace(readme, block), [failed(pure, "<!-- figures:end --> `x`")])


# -- what was lost ------------------------------------------------------------------------------


def test_mishaps_are_added_up_and_say_in_how_many_runs(pure: ModuleType) -> None:
    runs = [
        measured(pure, 1, 1, mishaps={"answers_lost": 2, "late": 1}),
        measured(pure, 1, 1),
        measured(pure, 1, 1, mishaps={"answers_lost": 3}),
    ]
    block = pure.render(runs)
    assert "broker: `answers_lost` 5, in 2 of 3 runs; broker: `late` 1, in 1 of 3 runs." in block


def test_no_mishaps_are_told_with_the_number_of_runs_that_have_figures(pure: ModuleType) -> None:
    block = pure.render([measured(pure, 1, 1), measured(pure, 1, 1), failed(pure)])
    assert "Nothing was lost, late, repeated or refused, by all counters, in 2 runs with figures." in block


def test_what_was_skipped_is_told(pure: ModuleType) -> None:
    skipped = {"celery": "there is no redis-server"}
    block = pure.render([run(pure, benchmark="jobs", figures={"polybus": 1}, skipped=skipped)] * 2)
    assert "Not measured in 2 runs: celery. `there is no redis-server`" in block


# -- which runs ---------------------------------------------------------------------------------


def test_only_the_newest_day_counts_and_all_of_it(pure: ModuleType) -> None:
    old = [measured(pure, 900_000, 0.9, day="2026-11-01") for _ in range(3)]
    new = [measured(pure, rate, 0.4, revision=rev) for rate, rev in ((100, "aaa"), (200, "bbb+"))]
    block = pure.render([old[0], *new, *old[1:]])
    assert "2 runs on 2026-11-02" in block
    assert "revision aaa, bbb+." in block
    assert "900,000" not in block


def test_a_benchmark_that_did_not_run_on_the_newest_day_keeps_its_own_newest(pure: ModuleType) -> None:
    runs = [measured(pure, 100, 0.4, day="2026-11-01"), run(pure, benchmark="jobs", figures={"polybus": 7})]
    block = pure.render(runs)
    assert "1 run on 2026-11-01" in block
    assert "1 run on 2026-11-02" in block


def test_every_machine_is_named(pure: ModuleType) -> None:
    block = pure.render([measured(pure, 1, 1), measured(pure, 2, 1, cores=8, cpu="Another", memory_gib=32)])
    assert "2 cores (A Processor, 7.8 GiB) and on 8 cores (Another, 32 GiB)" in block


# -- jobs: like with like -----------------------------------------------------------------------


def test_jobs_show_one_call_per_job_and_batches_apart_and_how_each_side_sends(pure: ModuleType) -> None:
    figures = {"polybus": 20_000, "polybus_single": 200, "celery": 500, "dramatiq": 2_000}
    ratios = {"polybus_to_celery": 40.0, "polybus_single_to_celery": 0.4}
    block = pure.render([run(pure, benchmark="jobs", figures={**figures, **ratios})])
    single = row(block, "polybus, one call per job")
    batches = row(block, "polybus, in batches")
    assert "| 0.40 (0.40–0.40) |" in single
    assert "| 40.00 (40.00–40.00) |" in batches
    assert block.index(single) < block.index(batches)
    assert "sent one by one" in block
    for words in ("one `job.delay()` call per job", "one `bus.send_many` call for all jobs"):
        assert words in block
    for words in ("synced to disk", "in Redis' memory", "synced once a second"):
        assert words in block


def test_the_last_line_of_bench_jobs_has_both(modules: tuple[ModuleType, ModuleType]) -> None:
    jobs = importlib.import_module("jobs")
    rates = {"polybus": 20_000.0, "polybus_single": 200.0, "celery": 500.0, "dramatiq": 2_000.0}
    results = {name: jobs.Figures(rates=[rate]) for name, rate in rates.items()}
    assert jobs.summary(results) == (
        "bench-jobs: polybus=20000 celery=500 dramatiq=2000 ratio=40.00 single=200 single_ratio=0.40"
    )
    assert jobs.summary({}) == "bench-jobs: polybus=- celery=- dramatiq=- ratio=- single=- single_ratio=-"
    assert jobs.flat(results)["polybus_single_to_dramatiq"] == 0.1
    assert [(goal.value, goal.met) for goal in jobs.goals(results)] == [(40.0, True), (10.0, True)]
    assert all("in batches" in goal.text for goal in jobs.goals(results))


# -- the README ---------------------------------------------------------------------------------


def test_the_block_is_replaced_and_nothing_else(pure: ModuleType) -> None:
    readme = f"before\n{pure.BEGIN}\nold\n{pure.END}\nafter\n"
    runs = [measured(pure, 1, 1)]
    written = pure.replace(readme, pure.render(runs))
    assert written.startswith(f"before\n{pure.BEGIN}\n")
    assert written.endswith(f"\n{pure.END}\nafter\n")
    assert "old" not in written
    assert pure.is_current(written, runs)
    assert not pure.is_current(written, [*runs, measured(pure, 3, 1)])
    assert not pure.is_current(readme, runs)


def test_an_empty_record_allows_no_figures(pure: ModuleType) -> None:
    assert pure.render([]) == "No runs recorded yet."
    whatever = f"{pure.BEGIN}\nwhatever\n{pure.END}"
    assert not pure.is_current(whatever, [])
    assert pure.is_current(pure.replace(whatever, pure.render([])), [])


def test_a_readme_without_markers_is_an_error(pure: ModuleType) -> None:
    for readme in ("nothing", pure.BEGIN, pure.END):
        with pytest.raises(pure.BadRecord, match="figures:begin"):
            pure.replace(readme, "block")


# -- running ------------------------------------------------------------------------------------


def test_figures_count_even_if_the_benchmark_ends_with_an_error(command: ModuleType) -> None:
    out = json.dumps({"figures": {"a": 1}, "goals": [], "mishaps": {"late": 2}, "cores": 2})
    found = command.outcome("broker", 1, out, "the broker counted what should not have happened")
    assert found == {"exit": 1, "figures": {"a": 1}, "goals": [], "mishaps": {"late": 2}, "skipped": {}}


def test_a_run_without_figures_has_failed_and_says_why(command: ModuleType) -> None:
    err = (
        "progress\nbench-broker: something is broken: /home/me/x/.venv/bin/polybus serve\nhas ended with 1\n"
    )
    found = command.outcome("broker", 1, "", err)
    assert found == {"exit": 1, "error": "something is broken: polybus serve has ended with 1"}
    assert command.outcome("broker", -9, "", "")["error"] == "broker ended with -9 and said nothing"


def test_the_record_has_no_addresses_of_the_machine(command: ModuleType) -> None:
    assert command.clean("see https://index.example/simple\nand /opt/a/b.py") == "see … and b.py"
    assert len(command.clean("x" * 5000)) == command.ERROR_CHARS


@pytest.fixture
def scripted(command: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Benchmarks that are scripts of the test, and a record of its own."""
    monkeypatch.setattr(command, "HERE", tmp_path)
    good = {"figures": {"mdr64": 1}, "goals": [{"text": "g", "value": 1, "met": False}], "mishaps": {}}
    (tmp_path / "broker.py").write_text(f"print({json.dumps(good)!r})")
    (tmp_path / "jobs.py").write_text("raise SystemExit('bench-jobs: something is broken: no disk')")
    (tmp_path / "fanout.py").write_text("import threading; threading.Event().wait()")
    return tmp_path / "runs.jsonl"


def test_every_run_is_recorded_in_turns_also_those_that_fail_or_miss_a_goal(
    command: ModuleType, pure: ModuleType, scripted: Path
) -> None:
    console = command.Console(file=(scripted.parent / "said").open("w"))
    assert command.measure(["broker", "jobs"], 2, False, scripted, console) == 2
    console.file.close()
    runs = pure.read(scripted.read_text())
    assert [each.benchmark for each in runs] == ["broker", "jobs", "broker", "jobs"]
    assert [each.error for each in runs] == ["", "something is broken: no disk"] * 2
    assert len({each.day for each in runs}) == 1
    assert all(each.cores and each.cpu and each.memory_gib and each.revision for each in runs)
    said = (scripted.parent / "said").read_text()
    assert "run 2 of 2, broker" in said
    assert "0 of 1 goals met" in said
    assert "FAILED: something is broken: no disk" in said


def test_a_run_that_takes_too_long_is_ended_and_recorded(
    command: ModuleType, pure: ModuleType, scripted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "LIMIT_S", 0.2)
    command.recorded("fanout", "2026-11-02", False, scripted)
    (only,) = pure.read(scripted.read_text())
    assert only.error == "did not end within 0 s"


def test_a_run_that_is_interrupted_is_recorded(
    command: ModuleType, pure: ModuleType, scripted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_one", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command.recorded("broker", "2026-11-02", False, scripted)
    (only,) = pure.read(scripted.read_text())
    assert only.error == "interrupted"


def test_the_committed_record_can_be_read_and_the_readme_shows_it(pure: ModuleType) -> None:
    runs = pure.read((ROOT / "benchmarks" / "runs.jsonl").read_text())
    assert pure.is_current((ROOT / "README.md").read_text(), runs)
    assert all(dataclasses.asdict(each)["benchmark"] in pure.SECTIONS for each in runs)
