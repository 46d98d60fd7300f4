"""`polybus doctor --salvage DIR`: what is whole of a damaged store, in a data directory of its own."""

from __future__ import annotations

from pathlib import Path

import msgspec

from polybus.cli.output import print_json, say
from polybus.server.data_dir import DataDir
from polybus.server.keeping import FOLDER


def save(data_dir: Path, target: Path, as_json: bool) -> bool:
    """Copy what can be read and say what was lost; True if nothing was."""
    from polybus.store.salvage import salvage

    # A broker that runs would write while we read, and this one cannot be started meanwhile either.
    lock = DataDir(data_dir)
    try:
        report = salvage(data_dir / FOLDER, target / FOLDER)
    finally:
        lock.release()
    if as_json:
        print_json({**msgspec.to_builtins(report), "is_whole": report.is_whole})
    else:
        print("\n".join(report.lines()))
        say(f"'polybus serve --data-dir {target}' goes on with what was saved.")
    return report.is_whole
