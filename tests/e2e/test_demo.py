"""`polybus demo` tells its story, checks what it shows, ends by itself, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

import psutil
import pytest

from polybus.cli.demo import CHAPTERS
from polybus.client.addresses import DIALECTS
from support.commands import Running, closing, polybus, wait_until

# The broker and six workers; tests have no archiver unless they ask for one.
FIRST_PARTS = 7
NARROW = {"COLUMNS": "80"}


def children(running: Running) -> list[psutil.Process]:
    return psutil.Process(running.process.pid).children(recursive=True)


def lives(process: psutil.Process) -> bool:
    # It may be gone between the two questions.
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def all_gone(processes: list[psutil.Process]) -> bool:
    return not any(map(lives, processes))


@pytest.fixture
def staying(tmp_path: Path) -> Running:
    return Running("demo", "--stay", "--no-pipeline", cwd=tmp_path, env={"TMPDIR": str(tmp_path)})


def test_the_whole_story_without_spark(tmp_path: Path) -> None:
    # With --json the story itself goes to standard error: one run shows both.
    env = {"TMPDIR": str(tmp_path), **NARROW}
    with closing(Running("demo", "--json", "--quick", cwd=tmp_path, env=env)) as running:
        # One after the other: each has its time, also on a busy machine.
        for words in ("3. A worker dies", "4. A schedule", "7. The tables"):
            running.wait_for(running.errors, words)
        assert running.end() == 0, running.errors
    result = json.loads(running.output[-1])
    assert result["ok"]
    assert {(c["client"], c["worker"]) for c in result["calls"]} == {
        (a, b) for a in DIALECTS for b in DIALECTS
    }
    assert all(call["ok"] and call["ms"] > 0 for call in result["calls"])
    assert [(p["publisher"], p["subscriber"], p["ok"]) for p in result["publications"]] == [
        ("ebus", "emqp", True),
        ("emqp", "ebus", True),
    ]
    assert result["schedule_runs"] == 3
    assert result["dashboard"]
    assert [chapter["title"] for chapter in result["chapters"]] == [chapter.title for chapter in CHAPTERS]
    # Only Spark's chapter was left out.
    assert [c["title"] for c in result["chapters"] if not c["checks"]] == ["The tables"]
    text = "\n".join(running.errors)
    for number, chapter in enumerate(CHAPTERS, 1):
        assert f"{number}. {chapter.title}" in text
    assert "36 of 36 pairs" in text
    assert "killed with SIGKILL" in text
    assert f"polybus trace {result['job']}" in text
    assert "✗" not in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_it_stays_and_everything_goes_with_it_however_it_ends(staying: Running, tmp_path: Path) -> None:
    with closing(staying):
        staying.wait_for(staying.output, "Try in another terminal")
        data_dir = staying.wait_for(staying.output, "polybus services").split()[-1]
        staying.wait_for(staying.output, "Dashboard: http://127.0.0.1:")
        parts = children(staying)
        called = polybus(
            "call", "greet-dbp", "you", "--dialect", "ebus", "--data-dir", data_dir, cwd=tmp_path
        )
        assert called.stdout == b"hello you, from a worker that speaks dbp\n"
        assert staying.end(signal.SIGKILL) == -signal.SIGKILL
        # Killed, it cannot wait for them: they find out by themselves.
        wait_until(lambda: all_gone(parts))


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "status", "words"),
    [(signal.SIGINT, 130, "a broker listens"), (signal.SIGTERM, 143, "3. A worker dies")],
)
def test_whoever_has_seen_enough_is_left_with_nothing(
    staying: Running, tmp_path: Path, number: int, status: int, words: str
) -> None:
    with closing(staying):
        staying.wait_for(staying.output, words)
        wait_until(lambda: len(children(staying)) >= FIRST_PARTS)
        parts = children(staying)
        assert staying.end(number) == status
        wait_until(lambda: all_gone(parts))
        assert not any("Traceback" in line for line in (*staying.output, *staying.errors))
        assert list(tmp_path.iterdir()) == []
