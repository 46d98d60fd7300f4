"""`make mutants` itself: which changes it makes, which tests it asks, and what it concludes."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mutation import run
from mutation.forked import NOT_APPLIED, Forks
from mutation.operators import Mutant, apply, mutants_of
from mutation.tests_by_line import ROOT, TestsByLine, environment, pytest_command

TestsByLine.__test__ = False  # type: ignore[attr-defined]


def changed(source: str) -> set[str]:
    """Every program that one change makes of this one."""
    text = source.encode()
    found = (apply(text, mutant) for mutant in mutants_of("core/x.py", text))
    return {program.decode() for program in found if program is not None}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(a < b)", {"f(a <= b)", "f(a >= b)", "pass"}),
        ("x = a == b", {"x = a != b"}),
        ("x = a is not None", {"x = a is None"}),
        ("x = a not in b", {"x = a in b"}),
        ("x = a and b", {"x = a or b"}),
        ("x = not a", {"x = a"}),
        ("x = a + b", {"x = a - b"}),
        ("x = 5", {"x = 6", "x = 4"}),
        ("x = 0", {"x = 1"}),
        ("x = -y", {"x = y"}),
        ("x = True", {"x = False"}),
        ("x = b'a'", {"x = b'XXa'"}),
        ("self.x = y", {"pass"}),
        ("x += y", {"pass", "x -= y"}),
        ("del x[y]", {"pass"}),
        ("raise Wrong('words', x)", {"pass"}),
        ("if a:\n    b", {"if True:\n    b", "if False:\n    b"}),
        ("while a:\n    break", {"while False:\n    break", "while a:\n    continue"}),
        ("x = {a: b, c: d}", {"x = {c: d}", "x = {a: b}"}),
        ("x = a if b else c", {"x = a if True else c", "x = a if False else c"}),
        ("def f(a=1):\n    return a", {"def f(a=2):\n    return a", "def f(a=0):\n    return a"}
            | {"def f(a=1):\n    return None"}),
    ],
)  # fmt: skip
def test_changes(before: str, after: set[str]) -> None:
    assert changed(before) == after


@pytest.mark.parametrize(
    "source",
    [
        '"""Words."""',
        "import a",
        "assert a < b",
        "if TYPE_CHECKING:\n    import a",
        "x = f'{a} is {5}'",
        "x: Literal[5]",
        "Event = Ready | Lost",
        "T = TypeVar('T')",
        "__all__ = ['a']",
        "x = read_name(frame, 'service name')",
        "x = Gone(peer, why='it disconnected')",
        "x = wrong_length('SLOTS', frames)",
    ],
)
def test_what_no_test_could_notice_is_left_alone(source: str) -> None:
    assert changed(source) == set()


def test_a_change_is_of_one_place_and_the_rest_keeps_its_form() -> None:
    source = "x = f(  # ä\n    a,\n    b < 1,\n)\n".encode()
    for mutant in mutants_of("core/x.py", source):
        program = apply(source, mutant)
        assert program is not None
        assert program.startswith("x = f(  # ä\n    a,\n".encode())
        ast.parse(program)


def mutant_in(source: str, operator: str = "comparison") -> Mutant:
    return next(one for one in mutants_of("core/x.py", source.encode()) if one.operator == operator)


def test_a_key_survives_lines_that_move_and_not_another_statement() -> None:
    here = mutant_in("def f(a):\n    return a < 1\n")
    moved = mutant_in("# A comment.\n\ndef f(a):\n    b = 2\n    return a < 1\n")
    assert here.key == moved.key
    assert here.key != mutant_in("def f(a):\n    return a < 2\n").key
    assert here.key != mutant_in("def g(a):\n    return a < 1\n").key


def test_the_nearest_and_quickest_tests_of_a_line_come_first() -> None:
    tests = TestsByLine(
        {
            "tests/property/test_a.py::far": {"seconds": 0.1, "lines": {"core/x.py": [2, 3]}},
            "tests/unit/core/test_y.py::slow": {"seconds": 2.0, "lines": {"core/x.py": [2]}},
            "tests/unit/core/test_y.py::quick": {"seconds": 0.5, "lines": {"core/x.py": [2]}},
            "tests/unit/core/test_x.py::own": {"seconds": 9.0, "lines": {"core/x.py": [2]}},
            "tests/unit/core/test_x.py::other": {"seconds": 0.1, "lines": {"core/x.py": [9]}},
        }
    )
    names = [name.split("::")[1] for name in tests.of("core/x.py", (2, 2))]
    assert names == ["own", "quick", "slow", "far"]
    assert tests.of("core/x.py", (5, 6)) == []


def test_the_sample_depends_on_the_seed_alone() -> None:
    everything = run.population("core/pace")  # Nothing of this name.
    assert everything == []
    everything = run.population("wire/frames.py")
    one, again, other = (run.choose(everything, 20, seed) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert len({name for name, _ in everything}) == len(everything)


def test_the_sample_stays_when_other_code_changes() -> None:
    everything = run.population("wire/frames.py")
    before = {name for name, _ in run.choose(everything, 20, 1)}
    rest = everything[30:]
    less = {name for name, _ in run.choose(rest, 20, 1)}
    assert before != less
    assert before & {name for name, _ in rest} <= less


def test_the_score_leaves_equivalents_out() -> None:
    counts = Counter({run.CAUGHT: 19, run.SURVIVED: 1, run.EQUAL: 5})
    assert run.summary(counts) == "mutants: sample=25 caught=19 survived=1 equivalent=5 score=95.0%"


def test_every_equivalent_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(len(reason) > 20 for reason in run.equivalents(run.population(None)).values())
    bad = tmp_path / "equivalent.toml"
    bad.write_text('[[mutant]]\nkey = "0123"\nreason = " "\n')
    monkeypatch.setattr(run, "EQUIVALENT", bad)
    with pytest.raises(SystemExit, match="0123 has no reason"):
        run.equivalents([])


def test_a_constant_for_tuning_is_named_once_for_all_of_its_mutants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "equivalent.toml"
    entry = '[[tuning]]\nfile = "journal/writer.py"\nconstant = "{}"\nreason = "A pause."\n'
    listed.write_text(entry.format("RETRY_S"))
    monkeypatch.setattr(run, "EQUIVALENT", listed)
    everything = run.population("journal/")
    found = run.equivalents(everything)
    assert {(mutant.file, mutant.before) for name, mutant in everything if name in found} == {
        ("journal/writer.py", "RETRY_S: Final = 1.0")
    }
    listed.write_text(entry.format("NO_SUCH_S"))
    with pytest.raises(SystemExit, match="NO_SUCH_S"):
        run.equivalents(everything)


@pytest.mark.parametrize(
    ("line", "equal"),
    [
        ("PAUSE_S = 1.0", {"PAUSE_S = 2.0"}),
        ("PAUSE_S = 0.02", set()),
        ("PAUSE_S = 0", set()),
        ("PAUSE_S = True", set()),
        ("PAUSE_S = 'word'", set()),
        ("PAUSE_S = 1000", {"PAUSE_S = 1001", "PAUSE_S = 999"}),
        ("PAUSE_S = 2 * 8", {"PAUSE_S = 3 * 8", "PAUSE_S = 1 * 8", "PAUSE_S = 2 * 9", "PAUSE_S = 2 * 7"}),
        ("PAUSE_S = max(16, ask('IOV_MAX'))", {f"PAUSE_S = max({n}, ask('IOV_MAX'))" for n in (15, 17)}),
    ],
)
def test_of_a_constant_for_tuning_only_small_changes_of_its_number_are_equivalent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, equal: set[str]
) -> None:
    source = tmp_path / "polybus" / "core" / "x.py"
    source.parent.mkdir(parents=True)
    source.write_text(line)
    monkeypatch.setattr(run, "SOURCES", tmp_path)
    monkeypatch.setattr(run, "EQUIVALENT", tmp_path / "equivalent.toml")
    run.EQUIVALENT.write_text('[[tuning]]\nfile = "core/x.py"\nconstant = "PAUSE_S"\nreason = "A pause."\n')
    everything = run.population(None)
    found = run.equivalents(everything)
    assert everything
    assert {mutant.after.strip() for name, mutant in everything if name in found} == equal


def test_verdicts_are_kept_until_the_code_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "polybus" / "core" / "x.py"
    source.parent.mkdir(parents=True)
    source.write_text("x = a < b\n")
    monkeypatch.setattr(run, "SOURCES", tmp_path)
    monkeypatch.setattr(run, "tests_digest", lambda: "tests of today")
    mutant = mutant_in("x = a < b\n")
    state = run.State(tmp_path / "state.json", fresh=False)
    state.note("caught", mutant, run.Verdict(run.CAUGHT, "test_x", 1.0))
    state.note("survived", mutant, run.Verdict(run.SURVIVED, "5 tests passed", 1.0))
    state.save()

    def known() -> list[bool]:
        later = run.State(tmp_path / "state.json", fresh=False)
        return [later.verdict(name, mutant) is not None for name in ("caught", "survived")]

    assert known() == [True, True]
    monkeypatch.setattr(run, "tests_digest", lambda: "tests of tomorrow")
    assert known() == [True, False]
    source.write_text("x = a < b + 1\n")
    assert known() == [False, False]


def test_what_a_program_may_read_is_changed() -> None:
    assert changed("x = f('word')") == {"x = f('XXword')"}
    assert changed("x = f(' ')") == {"x = f('XX ')"}
    assert changed("x = f(b'two words')") == {"x = f(b'XXtwo words')"}
    assert changed("x = 'two words'") == {"x = 'XXtwo words'"}
    assert changed("x = db.execute('BEGIN IMMEDIATE')") == {"x = db.execute('XXBEGIN IMMEDIATE')"}
    assert changed("x = at.strftime('%d %H')") == {"x = at.strftime('XX%d %H')"}
    assert changed("x = f('two words', 0)") == {"x = f('two words', 1)"}


# -- forks ------------------------------------------------------------------------------------------

LATENCY = "tests/unit/core/test_latency.py"


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks(pytest_command(run.SOURCES, LATENCY), environment(run.SOURCES, {}), ROOT) as found:
        yield found


def mutants_in(function: str) -> tuple[bytes, list[Mutant]]:
    source = (run.SOURCES / "polybus" / "core" / "latency.py").read_bytes()
    return source, [one for one in mutants_of("core/latency.py", source) if one.function == function]


def test_a_fork_changes_a_method_and_its_tests_notice(forks: Forks) -> None:
    source, mutants = mutants_in("Times.clear")
    name = f"{LATENCY}::test_percentiles"
    assert [forks.try_mutant(source, one, [name], 1.0) for one in mutants] == [name]
    assert (
        forks.try_mutant(source, mutants[0], [f"{LATENCY}::test_a_class_is_close_to_what_is_in_it"], 1.0)
        is None
    )


def test_a_fork_changes_only_itself(forks: Forks) -> None:
    source, mutants = mutants_in("seconds_at")
    names = [f"{LATENCY}::test_a_class_is_close_to_what_is_in_it", f"{LATENCY}::test_percentiles"]
    caught = [forks.try_mutant(source, one, names, 1.0) for one in mutants]
    assert names[0] in caught
    _, unrelated = mutants_in("Times.looked_at")
    assert [forks.try_mutant(source, one, names, 1.0) for one in unrelated] == [None] * len(unrelated)


def test_what_runs_on_import_is_not_for_a_fork(forks: Forks) -> None:
    source, mutants = mutants_in("")
    names = [f"{LATENCY}::test_percentiles"]
    assert {forks.try_mutant(source, one, names, 1.0) for one in mutants} == {NOT_APPLIED}


def test_a_test_that_fails_without_a_mutant_is_not_believed(
    forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, mutants = mutants_in("Times.clear")
    names = [f"{LATENCY}::test_percentiles"]
    monkeypatch.setitem(forks._trusted, names[0], False)
    assert forks.try_mutant(source, mutants[0], names, 1.0) is None


def test_a_mistake_in_the_fork_catches_nothing(forks: Forks) -> None:
    source, mutants = mutants_in("Times.clear")
    assert forks.try_mutant(source, mutants[0], [f"{LATENCY}::test_that_is_not_there"], 1.0) == NOT_APPLIED


def test_lines_that_an_import_runs_are_known() -> None:
    tests = TestsByLine({}, {"core/x.py": {10, 11}})
    assert tests.runs_on_import("core/x.py", (0, 0))
    assert tests.runs_on_import("core/x.py", (11, 12))
    assert not tests.runs_on_import("core/x.py", (12, 20))
    assert not tests.runs_on_import("core/y.py", (10, 11))
