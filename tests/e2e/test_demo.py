"""`polybus demo` ends by itself, shows every pair of dialects, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest

from polybus.client.addresses import DIALECTS
from support.commands import Running, closing, polybus, wait_until

# The broker and six workers; tests have no archiver unless they ask for one.
PARTS = 7


def children(running: Running) -> list[psutil.Process]:
    return psutil.Process(running.process.pid).children(recursive=True)


def all_gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != "zombie" for process in processes)


@pytest.fixture
def staying(tmp_path: Path) -> Running:
    return Running("demo", "--stay", "--no-tables", cwd=tmp_path, env={"TMPDIR": str(tmp_path)})


def test_every_client_reaches_every_worker(tmp_path: Path) -> None:
    done = polybus("demo", "--json", "--no-tables", cwd=tmp_path, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done
    result = json.loads(done.stdout)
    assert result["ok"]
    assert {(c["client"], c["worker"]) for c in result["calls"]} == {
        (a, b) for a in DIALECTS for b in DIALECTS
    }
    assert all(call["ok"] and call["ms"] > 0 for call in result["calls"])
    assert [(p["publisher"], p["subscriber"], p["ok"]) for p in result["publications"]] == [
        ("ebus", "emqp", True),
        ("emqp", "ebus", True),
    ]
    assert list(tmp_path.iterdir()) == []


def test_it_shows_a_table_and_a_summary(tmp_path: Path) -> None:
    done = polybus("demo", "--no-tables", cwd=tmp_path)
    text = done.stdout.decode()
    assert done.returncode == 0, done
    assert "36 of 36 calls" in text
    assert "2 of 2 publications" in text
    assert "✗" not in text


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_it_stays_until_it_is_ended_and_takes_everything_along(
    staying: Running, tmp_path: Path, number: int, status: int
) -> None:
    with closing(staying):
        staying.wait_for(staying.output, "Try in another terminal")
        data_dir = staying.wait_for(staying.output, "polybus services").split()[-1]
        staying.wait_for(staying.output, "polybus publish")
        parts = children(staying)
        assert len(parts) == PARTS
        called = polybus(
            "call", "greet-dbp", "you", "--dialect", "ebus", "--data-dir", data_dir, cwd=tmp_path
        )
        assert called.stdout == b"hello you, from a worker that speaks dbp\n"
        assert staying.end(number) == status
        # Killed, it cannot wait for them: they find out by themselves.
        wait_until(lambda: all_gone(parts))
        assert number == signal.SIGKILL or not Path(data_dir).exists()


def test_ctrl_c_at_the_start_takes_everything_along(staying: Running) -> None:
    with closing(staying):
        staying.wait_for(staying.output, "a broker listens")
        wait_until(lambda: len(children(staying)) == PARTS)
        parts = children(staying)
        assert staying.end(signal.SIGINT) == 130
        assert all_gone(parts)
        assert not any("Traceback" in line for line in staying.errors)


def test_a_part_that_dies_ends_the_demo_with_a_sentence(staying: Running) -> None:
    with closing(staying):
        staying.wait_for(staying.output, "polybus publish")
        parts = children(staying)
        parts[-1].kill()
        assert staying.end() == 1
        assert "worker ended with status" in staying.errors[-1]
        assert all_gone(parts)
