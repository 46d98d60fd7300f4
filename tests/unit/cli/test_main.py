"""The command line as a whole: help, version, usage errors, and how commands end."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from polybus.cli import main
from polybus.cli.options import ACT, FIRST, LOOK, TALK, WORK
from polybus.errors import ConfigError, PolybusError
from support.patience import patient

COMMANDS = [info.name or "" for info in main.app.registered_commands]
GROUPS = {group.name: group.typer_instance for group in main.app.registered_groups}
# A command of a group is two words.
ALL_COMMANDS = [
    *COMMANDS,
    *(f"{name} {info.name}" for name, group in GROUPS.items() if group for info in group.registered_commands),
]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    return CliRunner()


def test_help_groups_the_commands(runner: CliRunner) -> None:
    result = runner.invoke(main.app, ["--help"])
    assert result.exit_code == 0
    places = [result.output.index(panel) for panel in (FIRST, TALK, WORK, LOOK, ACT)]
    assert places == sorted(places)
    assert all(name in result.output for name in (*COMMANDS, *GROUPS))


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_every_command_teaches_with_an_example_and_has_json(runner: CliRunner, name: str) -> None:
    result = runner.invoke(main.app, [*name.split(), "--help"])
    assert result.exit_code == 0
    assert "--json" in result.output
    assert "Example" in result.output
    assert f"polybus {name}" in result.output.partition("Example")[2]


def test_flags_of_serve_show_their_environment_variables(runner: CliRunner) -> None:
    output = runner.invoke(main.app, ["serve", "--help"]).output
    for variable in ("DATA_DIR", "HOST", "PUMP", "NAME"):
        assert f"POLYBUS_BROKER_{variable}" in output
    for variable in ("POLYBUS_CONFIG", "POLYBUS_ANY_PORT", "POLYBUS_SECTION_NAME"):
        assert variable in output


def test_a_wrong_choice_is_told_with_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["call", "hello", "--dialect", "http"]) == 2
    assert capsys.readouterr().err.startswith(
        "polybus: Invalid value for '--dialect': 'http' is not one of 'mdr', 'mdp1', "
    )


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"polybus {version('polybus')}\n"


def test_without_arguments_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 0
    assert "Start here" in capsys.readouterr().out


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_alone_helps(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([group]) == 0
    assert f"Usage: polybus {group} [OPTIONS] COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nonsense"], 2, "No such command"),
        (["jobs", "nonsense"], 2, "'polybus jobs --help'"),
        (["call"], 2, "'polybus call --help'"),
        (["call", "x", "--dialect", "latin"], 2, "latin"),
        (["call", "x", "--timeout", "0"], 2, "--timeout"),
        (["publish", "x", "--dialect", "mdr"], 2, "mdr"),
        (["tap", "--count", "-1"], 2, "--count"),
        (["serve", "--set", "ebus.frontend"], 2, "section.name=value"),
        (["serve", "--set", "ebus.fronted=1"], 2, "did you mean 'ebus.frontend'?"),
        (["serve", "--set", "queues.mail.retires=1"], 2, "queues.NAME.OPTION"),
        (["serve", "--set", "broker.drain_s=long"], 1, "drain_s"),
        (["serve", "--pump", "magic"], 2, "compiled"),
        (["serve", "--config", "no/such.toml"], 1, "no/such.toml"),
        (["send", "x", "--dialect", "dbp", "--guarantee"], 2, "--dialect emqp"),
        (["call", "x", "--address", "a b"], 1, "host:port"),
        (["services", "--admin", "70000"], 1, "65535"),
        (["services", "--data-dir", "no/such"], 1, "polybus serve --data-dir no/such"),
        (["jobs", "ls", "--state", "asleep"], 2, "queued"),
        (["jobs", "ls", "--limit", "0"], 2, "--limit"),
        (["jobs", "retry"], 2, "which jobs?"),
        (["jobs", "retry", "a", "--all"], 2, "not both"),
        (["jobs", "retry", "a", "--queue", "q"], 2, "--queue goes with --all"),
        (["jobs", "dead", "a"], 2, "polybus jobs show"),
        (["jobs", "dead", "--drop"], 2, "which jobs?"),
        (["schedule", "add", "q", "m"], 2, "either --every 60s or --cron"),
        (["schedule", "add", "q", "m", "--every", "1s", "--cron", "* * * * *"], 2, "either"),
        (["schedule", "add", "q", "m", "--every", "often"], 2, "no time span"),
        (["schedule", "add", "q", "m", "--every", "0s"], 2, "more than 0"),
        (["schedule", "add", "q", "m", "--every", "1s", "--tz", "UTC"], 2, "--tz goes with --cron"),
        (["schedule", "add", "q", "m", "--cron", "* * * * *", "--now"], 2, "--now goes with --every"),
        (["schedule", "add", "q", "m", "--every", "1s", "--missed", "twice"], 2, "late"),
    ],
)
def test_mistakes_are_one_sentence_with_the_next_step(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("polybus: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (ConfigError("it is wrong"), 1, "polybus: it is wrong.\n"),
        (PolybusError("is it wrong?"), 1, "polybus: is it wrong?\n"),
        (PermissionError(13, "Permission denied", "/a/file"), 1, "polybus: /a/file: Permission denied; "),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_how_commands_end(
    error: BaseException,
    status: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("polybus.cli.settings.show", fail)
    assert main.run(["settings"]) == status
    captured = capsys.readouterr().err
    assert captured.startswith(words)
    assert words or not captured.strip()


def test_an_error_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("polybus.cli.settings.show", fail)
    with pytest.raises(ZeroDivisionError):
        main.run(["settings"])


def test_help_does_not_wait_for_heavy_imports() -> None:
    program = "import sys, polybus.cli.main; print({'zmq', 'msgspec', 'rich'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patient(30), check=True
    )
    assert done.stdout == "set()\n"
