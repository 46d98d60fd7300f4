"""`make crash`: guaranteed jobs in every dialect, while the broker and the workers are killed at random.

    python tests/crash/run.py [--kills 200] [--faults] [--seed N] [--rate 12] [--keep]

Producers of all dialects submit guaranteed jobs, by `polybus.submit` and by eMQP's header, for as long as
the killing lasts; workers of all dialects and the pool of `polybus worker` run them.  Victims get SIGKILL,
at a time that a seeded random number decides, and come back on the same ports and the same data.  With
`--faults` they are stopped for a few seconds instead (SIGSTOP), like a machine that swaps or a virtual one
that is moved.

Then everything comes to rest, and the books are compared: see `verdict.py`.  On a failure the folder is
kept, and the lives of some of the jobs concerned are printed.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import psutil  # noqa: E402
from life import life  # noqa: E402
from plant import Plant, Process  # noqa: E402
from verdict import Verdict, judge  # noqa: E402

from polybus import Client, PolybusError, RequestFailed  # noqa: E402
from support.waiting import until  # noqa: E402

# Of three victims about one is the broker: it is what the promises are about.
BROKER_SHARE: Final = 0.35
# How long until the next kill, and how long a victim stays away.
PAUSE_S: Final = (0.05, 1.3)
AWAY_S: Final = (0.0, 0.4)
# Up to longer than any worker may be silent (see `plant.SETTINGS`).
STOPPED_S: Final = (0.5, 8.0)
# How often a broker is killed again while it starts, at any moment up to a little after it is ready.
AGAIN_SHARE: Final = 0.2
AGAIN_S: Final = (0.0, 0.9)
# A worker that has just started has nothing to lose yet; one that cannot even start may say so and end.
YOUNG_S: Final = 1.5
SETTLE_S: Final = 120.0
# Children whose parent was killed have this long to notice.
LEFTOVERS_S: Final = 10.0
SHOWN: Final = 5


class Killer:
    """Chooses victims and brings them back."""

    def __init__(self, plant: Plant, most: int, seed: int, faults: bool) -> None:
        self.plant = plant
        self.most = most
        self.kills = 0
        self.victims: dict[str, int] = {}
        # Those who ended although nobody had killed them.
        self.fallen: list[str] = []
        self._random = random.Random(seed)
        self._faults = faults

    def strike(self) -> None:
        """One kill, or one stop; the victim is back afterwards."""
        chance = self._random
        _wait(chance.uniform(*PAUSE_S))
        grown = [worker for worker in self.plant.workers if _is_grown(worker)]
        if chance.random() < BROKER_SHARE or not grown:
            victim = self.plant.broker
        else:
            victim = chance.choice(grown)
        if self._faults:
            self._stop(victim)
        elif victim is self.plant.broker:
            self._kill_broker()
        else:
            self._kill_worker(victim)

    def raise_fallen(self) -> None:
        """Start those again who ended by themselves: the run goes on, but it is not a good one."""
        for process in [self.plant.broker, *self.plant.workers]:
            if not process.is_alive:
                assert process.popen is not None
                self.fallen.append(f"{process.log.name}: it ended by itself, with {process.popen.returncode}")
                process.start()

    def _count(self, what: str) -> None:
        self.kills += 1
        self.victims[what] = self.victims.get(what, 0) + 1

    def _kill_broker(self) -> None:
        broker = self.plant.broker
        self._count("broker")
        broker.kill()
        _wait(self._random.uniform(*AWAY_S))
        broker.start()
        if self._random.random() < AGAIN_SHARE and self.kills < self.most:
            _wait(self._random.uniform(*AGAIN_S))
            self._count("broker, starting")
            broker.kill()
            broker.start()
        broker.wait_for("ready")

    def _kill_worker(self, victim: Process) -> None:
        """All of its processes, only the first, or only one that it started."""
        family = victim.family()
        how = self._random.choice(("all", "parent", "child")) if len(family) > 1 else "all"
        if how == "child":
            # The pool must notice and replace it.
            self._count("pool, a child")
            with contextlib.suppress(psutil.NoSuchProcess):
                self._random.choice(family[1:]).kill()
            return
        if how == "parent":
            # Its children must notice and end.
            self._count("pool, the parent")
        else:
            self._count("pool" if len(family) > 1 else "plain worker")
        victim.kill(only_first=how == "parent")
        _wait(self._random.uniform(*AWAY_S))
        victim.start()

    def _stop(self, victim: Process) -> None:
        family = victim.family()
        one = len(family) > 1 and self._random.random() < 0.5
        stopped = [self._random.choice(family)] if one else family
        self._count(f"{victim.name}{', one process' if one else ''}")
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            if number is signal.SIGSTOP:
                _wait(self._random.uniform(*STOPPED_S))


def _is_grown(worker: Process) -> bool:
    return time.monotonic() - worker.started_at > YOUNG_S and worker.said("ready")


def _wait(seconds: float) -> None:
    # The moments of the kills are the experiment: there is no condition to wait for.
    time.sleep(seconds)


# -- coming to rest -------------------------------------------------------------------------------


def settle(plant: Plant) -> None:
    """Wait until every job that was asked for has ended, as far as the broker knows."""
    for process in plant.all:
        assert process.is_alive, f"{process.name} has ended by itself; see {process.log}"
    plant.stop_producers(SETTLE_S)
    until(lambda: not plant.ask("jobs", limit=5), "all jobs have ended", SETTLE_S)


def check_outcomes(plant: Plant, verdict: Verdict) -> None:
    """Ask the broker for every job by its name: each has ended, and well."""
    # Jobs by header have no name that another client could ask for.
    named = sorted(job for job in verdict.acked if not job.startswith("header-"))
    with Client(plant.endpoints["majordomo.clients"], "mdr") as client:
        bodies = (job.encode() for job in named)
        answers = client.call_many("polybus.job", bodies, timeout_s=SETTLE_S, return_errors=True)
        for job, answer in zip(named, answers, strict=True):
            if isinstance(answer, RequestFailed):
                verdict.unsettled[job] = str(answer)
            elif b'"done"' not in answer:
                verdict.unsettled[job] = answer.decode(errors="replace")
    for dead in plant.ask("dead", limit=SHOWN):
        verdict.problems.append(f"a dead letter: {dead}")


def check_processes(plant: Plant, verdict: Verdict) -> None:
    status = plant.ask("status")
    if status["internal_errors"]:
        verdict.problems.append(f"the broker counted {status['internal_errors']} internal errors")
    for path in sorted((plant.folder / "logs").iterdir()):
        text = path.read_text(errors="replace")
        if "Traceback" in text:
            # Its last lines say what it was.
            verdict.problems.append(
                f"{path.name} has a traceback:\n{text[text.rindex('Traceback') :][-1500:]}"
            )
    with contextlib.suppress(AssertionError):
        until(lambda: not any(process.leftovers() for process in plant.workers), timeout_s=LEFTOVERS_S)
    for process in plant.workers:
        if left := process.leftovers():
            verdict.problems.append(f"{process.name} was killed and left processes behind: {left}")


# -- telling --------------------------------------------------------------------------------------


def report(verdict: Verdict, killer: Killer, folder: Path, seconds: float) -> None:
    victims = ", ".join(f"{count} × {what}" for what, count in sorted(killer.victims.items()))
    print(f"victims: {victims}; {seconds:.0f} s")
    print(
        f"jobs: {len(verdict.submitted)} submitted, {len(verdict.acked)} acked, "
        f"{verdict.repeated} asked for again, {verdict.results} results, {verdict.runs} executions"
    )
    for what, counts in (("refused", verdict.refused), ("failed", verdict.failed)):
        if counts:
            print(f"{what}: {', '.join(f'{count} × {reason}' for reason, count in counts.most_common())}")
    for problem in verdict.problems[: SHOWN * 2]:
        print(f"wrong: {problem}")
    for job, what in verdict.doubles[:SHOWN]:
        print(f"double: {job}: {what}")
    for job, what in list(verdict.unsettled.items())[:SHOWN]:
        print(f"unsettled: {job}: {what}")
    concerned = [
        *verdict.lost[:SHOWN],
        *list(verdict.unsettled)[:SHOWN],
        *(job for job, _ in verdict.doubles[:SHOWN]),
    ]
    for job in dict.fromkeys(filter(None, concerned)):
        for line in life(folder, job):
            print(line)


def run(folder: Path, options: argparse.Namespace) -> tuple[Verdict, Killer]:
    began = time.monotonic()
    plant = Plant(folder, options.seed, options.rate, options.pools)
    killer = Killer(plant, options.kills, options.seed, options.faults)
    verdict = Verdict()
    try:
        plant.open()
        while killer.kills < killer.most:
            killer.strike()
            killer.raise_fallen()
            show_progress(killer.kills, options.kills)
        trouble = []
        try:
            settle(plant)
        except (AssertionError, PolybusError) as error:
            trouble.append(str(error))
        verdict = judge(folder)
        verdict.problems[:0] = [*trouble, *killer.fallen]
        check_outcomes(plant, verdict)
        check_processes(plant, verdict)
    except (AssertionError, PolybusError) as error:
        verdict.problems.append(str(error))
    finally:
        plant.close()
    report(verdict, killer, folder, time.monotonic() - began)
    return verdict, killer


def show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {total}", end="\n" if done >= total else "", file=sys.stderr, flush=True)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Guaranteed jobs, while broker and workers are killed.")
    parser.add_argument("--kills", type=int, default=200, help="how many (200)")
    parser.add_argument(
        "--faults", action="store_true", help="stop processes for seconds instead of killing them"
    )
    parser.add_argument("--seed", type=int, default=None, help="the same seed chooses the same victims")
    parser.add_argument(
        "--rate", type=float, default=12.0, help="jobs a second of each of the 14 producers (12)"
    )
    parser.add_argument("--pools", type=int, default=2, help="how many `polybus worker` there are (2)")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the run in any case")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000)
    return options


def main() -> int:
    options = parse()
    # So that everything that was started is ended.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="polybus-crash-"))
    print(f"seed {options.seed}, {options.kills} {'stops' if options.faults else 'kills'}", flush=True)
    keep = True
    try:
        verdict, killer = run(folder, options)
        keep = options.keep or not verdict.is_good
    finally:
        if keep:
            print(f"the folder of the run: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    what: dict[str, Any] = {
        "faults" if options.faults else "kills": killer.kills,
        "acked": len(verdict.acked),
        "lost": len(verdict.lost),
        "double_finals": len(verdict.doubles),
        "executions_per_job": f"{verdict.per_job:.2f}",
    }
    print("crash: " + " ".join(f"{name}={value}" for name, value in what.items()))
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
