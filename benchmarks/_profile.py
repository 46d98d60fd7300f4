"""Where the broker spends its time while MDR requests of 64 bytes go through it.

With py-spy, which samples from outside and costs nothing, if it is installed and allowed to; else with
cProfile, which makes every call slower and so shows small functions as dearer than they are.
"""

from __future__ import annotations

import pstats
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import _parts as parts
from _cases import CASES
from rich.console import Console
from rich.table import Table

SHOWN = 25


def profile(console: Console, generator: parts.Generator, seconds: float) -> None:
    sampler = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    with tempfile.TemporaryDirectory(prefix="polybus-profile-") as folder:
        out = Path(folder) / "profile"
        if sampler is not None and _sample(console, generator, seconds, sampler, out):
            return
        command = [sys.executable, __file__, str(out), *parts.broker_command("data")[1:]]
        with parts.started(command, parts.broker_environment()) as running:
            found = _load(generator, running, seconds).communicate(timeout=seconds + parts.PATIENCE_S)
            running.check()
        if not out.exists():
            raise parts.Broken(f"the broker left no profile; the generator said {found}")
        _show_calls(console, out)


def _load(generator: parts.Generator, running: parts.Running, seconds: float) -> subprocess.Popen[str]:
    case = CASES["mdr64"]
    endpoints = [running.endpoints[name] for name in ("majordomo.clients", "majordomo.workers")]
    numbers = [case.size, case.window, seconds, 0.3, case.credit, case.workers]
    command = [*generator.command, case.kind, *endpoints, *map(str, numbers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _sample(console: Console, generator: parts.Generator, seconds: float, sampler: str, out: Path) -> bool:
    with parts.broker() as running:
        load = _load(generator, running, seconds)
        options = ["--duration", str(max(1, int(seconds))), "--rate", "500", "--format", "raw", "--output"]
        done = subprocess.run(
            [sampler, "record", "--pid", str(running.pid), *options, str(out)], capture_output=True, text=True
        )
        load.communicate(timeout=seconds + parts.PATIENCE_S)
    if done.returncode or not out.exists():
        why = done.stderr.strip().rpartition("\n")[2]
        console.print(f"py-spy cannot ({why}); cProfile instead", markup=False)
        return False
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for line in out.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        # A frame is `name (file:line)`: a function is wanted, not each of its lines.
        frames = [re.sub(r":\d+\)$", ")", frame) for frame in stack.split(";")]
        own[frames[-1]] += int(count)
        within.update(dict.fromkeys(frames, int(count)))
    total = own.total() or 1
    table = Table(title="py-spy: share of samples", title_justify="left")
    for name in ("own", "with callees"):
        table.add_column(name, justify="right")
    table.add_column("function")
    for name, samples in own.most_common(SHOWN):
        table.add_row(f"{samples / total:.1%}", f"{within[name] / total:.1%}", name)
    console.print(table)
    return True


def _serve_profiled() -> None:
    """Be the broker, and write down what its loop did; starting it is of no interest."""
    import cProfile

    from polybus.cli.main import main
    from polybus.server.broker import Broker

    out = sys.argv.pop(1)
    run, profiler = Broker.run, cProfile.Profile()

    def profiled(broker: Broker) -> None:
        try:
            profiler.runcall(run, broker)
        finally:
            profiler.dump_stats(out)

    setattr(Broker, "run", profiled)  # noqa: B010
    main()


def _show_calls(console: Console, out: Path) -> None:
    found: Any = pstats.Stats(str(out))
    rows = sorted(found.stats.items(), key=lambda item: -item[1][2])
    total = found.total_tt
    table = Table(title=f"cProfile: {total:.2f} s in the main thread, by own time", title_justify="left")
    for name in ("own s", "share", "with callees s", "calls"):
        table.add_column(name, justify="right")
    table.add_column("function")
    for (file, line, name), (_, calls, own, whole, _) in rows[:SHOWN]:
        where = f"{Path(file).parent.name}/{Path(file).name}:{line} " if line else ""
        cells = f"{own:.3f}", f"{own / total:.1%}", f"{whole:.3f}", f"{calls:,}", f"{where}{name}"
        table.add_row(*cells)
    console.print(table)


if __name__ == "__main__":
    _serve_profiled()
