"""CI accepts a test that passes only the second time if it is listed with a reason, and not otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import patient

ROOT = Path(__file__).resolve().parents[2]
# Fails in the first run and passes in the second.
FLAKY = """
import pathlib, pytest

@pytest.mark.parametrize("name", ["a", "b c"])
def test_flaky(name):
    mark = pathlib.Path(__file__).with_name(f"ran-{name}")
    ran = mark.exists()
    mark.touch()
    assert ran
"""
GOOD = "\ndef test_good():\n    pass\n"
BROKEN = "\ndef test_broken():\n    assert False\n"
LISTED = '[[test]]\nid = "test_it.py::test_flaky"\nreason = "its server is slow"\n'


class Project:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        command = f"{sys.executable} -m pytest -p xdist -n $(JOBS) -q -p no:cacheprovider $(ARGS)"
        (folder / "Makefile").write_text(f"test:\n\t{command}\n")
        (folder / "pytest.ini").write_text("[pytest]\n")

    def run(self, tests: str, listed: str = "", jobs: int = 0) -> tuple[int, str]:
        (self._folder / "test_it.py").write_text(tests)
        known = self._folder / "known.toml"
        known.write_text(listed)
        command = [sys.executable, str(ROOT / "scripts" / "flaky.py"), "test", "--known", str(known)]
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))
        }
        env = {**clean, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "JOBS": str(jobs)}
        run = subprocess.run(
            command,
            cwd=self._folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=patient(50),
            check=False,
        )
        return run.returncode, run.stdout


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_what_passes_at_once_is_run_once(project: Project) -> None:
    code, said = project.run(GOOD)
    assert code == 0
    assert said.count("1 passed") == 1
    assert "failed" not in said


def test_a_flaky_test_that_is_not_listed_fails_the_run(project: Project) -> None:
    code, said = project.run(FLAKY + GOOD, jobs=2)
    assert code == 1
    assert "test: 0 tests failed twice" in said
    assert "flaky   test_it.py::test_flaky[a]  NOT LISTED" in said
    assert "flaky   test_it.py::test_flaky[b c]  NOT LISTED" in said
    # The second run has only what failed in the first.
    assert "2 passed" in said


def test_a_flaky_test_that_is_listed_is_named_and_accepted(project: Project) -> None:
    code, said = project.run(FLAKY + GOOD, LISTED)
    assert code == 0
    assert "flaky   test_it.py::test_flaky[a]  (listed)" in said


def test_a_broken_test_fails_the_run_also_if_it_is_listed(project: Project) -> None:
    code, said = project.run(BROKEN + FLAKY, LISTED + LISTED.replace("test_flaky", "test_broken"))
    assert code == 1
    assert "broken  test_it.py::test_broken" in said
    assert "flaky   test_it.py::test_flaky[a]  (listed)" in said


def test_tests_that_cannot_run_are_not_tried_again(project: Project) -> None:
    code, said = project.run("import nothing_of_this_name\n")
    assert code != 0
    assert "could not run" in said


@pytest.mark.parametrize(
    ("listed", "complaint"),
    [
        (LISTED.replace("its server is slow", " "), "has no reason"),
        (LISTED.replace("test_flaky", "test_gone"), "there is no test test_it.py::test_gone"),
        (LISTED.replace("test_it.py", "test_away.py"), "there is no test test_away.py::test_flaky"),
        ("[[test", "known.toml: "),
    ],
)
def test_the_list_must_be_true(project: Project, listed: str, complaint: str) -> None:
    code, said = project.run(FLAKY, listed)
    assert code == 1
    assert complaint in said
    assert "passed" not in said


def test_the_list_of_this_repository_is_true() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import flaky

        flaky.read_list(ROOT / "tests" / "known_flaky.toml", ROOT)
    finally:
        sys.path.remove(str(ROOT / "scripts"))
