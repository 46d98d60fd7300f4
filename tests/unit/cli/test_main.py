"""The command line as a whole: help, version, usage errors, and how commands end."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from polybus.cli import main
from polybus.cli.options import ACT, FIRST, LOOK, TALK
from polybus.errors import ConfigError, PolybusError

COMMANDS = [info.name or "" for info in main.app.registered_commands]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    return CliRunner()


def test_help_groups_the_commands(runner: CliRunner) -> None:
    result = runner.invoke(main.app, ["--help"])
    assert result.exit_code == 0
    places = [result.output.index(panel) for panel in (FIRST, TALK, LOOK, ACT)]
    assert places == sorted(places)
    assert all(name in result.output for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_with_an_example_and_has_json(runner: CliRunner, name: str) -> None:
    result = runner.invoke(main.app, [name, "--help"])
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


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"polybus {version('polybus')}\n"


def test_without_arguments_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 0
    assert "Start here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "No such command"),
        (["call"], "'polybus call --help'"),
        (["call", "x", "--dialect", "latin"], "latin"),
        (["call", "x", "--timeout", "0"], "--timeout"),
        (["publish", "x", "--dialect", "mdr"], "mdr"),
        (["tap", "--count", "-1"], "--count"),
        (["serve", "--set", "ebus.frontend"], "section.name=value"),
        (["serve", "--set", "ebus.fronted=1"], "did you mean 'ebus.frontend'?"),
        (["serve", "--set", "broker.drain_s=long"], "drain_s"),
        (["serve", "--pump", "magic"], "compiled"),
        (["serve", "--config", "no/such.toml"], "no/such.toml"),
        (["send", "x", "--dialect", "dbp", "--guarantee"], "--dialect emqp"),
        (["call", "x", "--address", "a b"], "host:port"),
        (["services", "--admin", "70000"], "65535"),
        (["services", "--data-dir", "no/such"], "polybus serve --data-dir no/such"),
    ],
)
def test_mistakes_are_one_sentence_with_the_next_step(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 1
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
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "set()\n"
