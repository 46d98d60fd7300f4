"""Settings from the command line, shown and reloaded; and who may connect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polybus import config
from polybus.cli import serve, start
from polybus.cli.main import run
from polybus.cli.options import WrongUse
from polybus.cli.settings import flatten, names
from polybus.cli.start import read_assignments
from polybus.errors import ConfigError


def test_every_setting_can_be_assigned() -> None:
    assert set(config.PORTS) <= set(names())
    assert read_assignments(["ebus.frontend=ipc://a=b", " dbp.enabled = false"]) == {
        "ebus.frontend": "ipc://a=b",
        "dbp.enabled": "false",
    }
    assert read_assignments(["queues.mail.*.retries=3"]) == {"queues.mail.*.retries": "3"}


@pytest.mark.parametrize(
    "text",
    [
        "ebus",
        "ebus.frontend",
        "=1",
        "no.such=1",
        "broker=1",
        "queues=1",
        "queues.retries=1",
        "queues.mail=1",
        "queues.a.b=1",
    ],
)
def test_what_cannot_be_assigned(text: str) -> None:
    with pytest.raises(WrongUse):
        read_assignments([text])


def test_everything_that_cannot_be_assigned_is_told_at_once() -> None:
    with pytest.raises(WrongUse) as caught:
        read_assignments(["a.b=1", "ebus.frontned=2", "dbp.port=3", "queues.x=4", "plain"])
    for words in (
        "'a.b'",
        "did you mean 'ebus.frontend'?",
        "'queues.x' is no setting of a queue",
        "not 'plain'",
    ):
        assert words in str(caught.value)
    assert "dbp.port" not in str(caught.value)


def test_settings_say_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYBUS_DBP_PORT", "7001")
    (tmp_path / "polybus.toml").write_text("[ebus]\nfrontend = 7000\n[dbp]\nport = 6999\n")
    assert run(["settings", "--json", "--set", "admin.port=7002"]) == 0
    rows = {row["setting"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == names()
    origins = {name: (row["value"], row["from"]) for name, row in rows.items()}
    assert origins["ebus.frontend"] == (7000, "polybus.toml")
    assert origins["dbp.port"][1] == "environment"
    assert origins["admin.port"][1] == "--set"
    assert origins["ebus.backend"] == (5001, "default")
    assert rows["ebus.backend"]["variable"] == "POLYBUS_EBUS_BACKEND"
    assert run(["settings"]) == 0
    assert "POLYBUS_EBUS_BACKEND" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        (["settings", "--set", "emqp.disconnect=never"], "the option --set"),
        (["serve", "--set", "emqp.disconnect=never"], "the option --set"),
        (["serve", "--any-port", "--set", "emqp.disconnect=never"], "the option --set"),
        (["serve"], "the environment variable POLYBUS_EMQP_DISCONNECT"),
    ],
)
def test_a_wrong_value_is_told_with_its_source(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    source: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if len(arguments) == 1:
        monkeypatch.setenv("POLYBUS_EMQP_DISCONNECT", "never")
    assert run(arguments) == 1
    said = " ".join(capfd.readouterr().err.split())
    assert f'emqp.disconnect = "never", from {source}, is not allowed: it takes "admin" or "any".' in said


def test_the_source_of_an_option_may_be_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYBUS_BROKER_HOST", "here")
    assert start._origin("broker.host", "here") == "the environment variable POLYBUS_BROKER_HOST"
    assert start._origin("broker.host", "there") == "the option --host"
    assert start._origin("broker.data_dir", "there") == "the option --data-dir"


def test_settings_of_queues_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "polybus.toml").write_text('[queues."mail.*"]\nretries = 3\n')
    assert run(["settings", "--json", "--set", "queues.mail.*.weight=7", "--set", "queues.x.weight=8"]) == 0
    rows = {row["setting"]: row for row in json.loads(capsys.readouterr().out)}
    origins = {name: (row["value"], row["from"]) for name, row in rows.items()}
    assert origins["queues.mail.*.retries"] == (3, "polybus.toml")
    assert origins["queues.mail.*.weight"] == (7, "--set")
    assert origins["queues.mail.*.guarantee"] == (False, "default")
    assert origins["queues.x.weight"] == (8, "--set")
    assert rows["queues.x.weight"]["variable"] == ""
    assert run(["settings"]) == 0
    assert "queues.mail.*.retries" in capsys.readouterr().out


def test_a_reload_changes_queues(capfd: pytest.CaptureFixture[str]) -> None:
    old = config.load(overrides={"queues.a.weight": 1, "queues.b.weight": 1}, environ={})
    new = config.load(overrides={"queues.b.weight": 2, "queues.c.retries": 3}, environ={})
    assert serve.reloaded(old, lambda: new) == new
    said = capfd.readouterr().err
    assert "queues.a.weight 1 → unset" in said
    assert "queues.b.weight 1 → 2" in said
    assert "queues.c.retries unset → 3" in said
    # The options that nobody set did not change.
    assert said.count("→") == 3


def test_a_reload_names_the_two_changes_that_were_made_and_no_others(
    capfd: pytest.CaptureFixture[str],
) -> None:
    new = config.load(overrides={"limits.queue_length": 7, "queues.mail.*.retries": 3}, environ={})
    serve.reloaded(config.Settings(), lambda: new)
    said = capfd.readouterr().err
    assert "reload: changed limits.queue_length 250000 → 7, queues.mail.*.retries unset → 3\n" in said


def test_a_reload_names_queues_that_count_by_their_place_alone(capfd: pytest.CaptureFixture[str]) -> None:
    old = config.Settings(queues={"a": config.QueueSettings(weight=1), "b": config.QueueSettings(weight=2)})
    new = config.Settings(queues={"c": config.QueueSettings(), **dict(reversed(old.queues.items()))})
    serve.reloaded(old, lambda: new)
    said = capfd.readouterr().err
    assert 'changed queues."c" added, with no options, the order of queues a, b → b, a\n' in said
    assert serve.differences(new, new) == []


def test_a_reload_changes_jobs_but_not_whether_there_is_a_store(capfd: pytest.CaptureFixture[str]) -> None:
    new = config.load(overrides={"jobs.backoff_s": 2, "jobs.store": False}, environ={})
    merged = serve.reloaded(config.Settings(), lambda: new)
    assert (merged.jobs.backoff_s, merged.jobs.store) == (2.0, True)
    said = capfd.readouterr().err
    assert "changed jobs.backoff_s 1.0 → 2.0" in said
    assert "needs a restart: jobs.store true → false" in said


def test_a_reload_changes_limits_and_nothing_that_is_built_in(capfd: pytest.CaptureFixture[str]) -> None:
    old = config.Settings()
    wanted = config.load(
        overrides={"limits.queue_length": 7, "broker.drain_s": 1, "ebus.frontend": 6000}, environ={}
    )
    merged = serve.reloaded(old, lambda: wanted)
    before, after = flatten(old), flatten(merged)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"limits.queue_length", "broker.drain_s"}
    said = capfd.readouterr().err
    assert "limits.queue_length 250000 → 7" in said
    assert "needs a restart: ebus.frontend 5000 → 6000" in said
    assert serve.reloaded(merged, lambda: merged) == merged
    assert "nothing to change" in capfd.readouterr().err


def test_a_reload_of_wrong_settings_changes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    def load() -> config.Settings:
        raise ConfigError("it is wrong")

    old = config.Settings()
    assert serve.reloaded(old, load) is old
    assert "nothing was changed, because it is wrong" in capfd.readouterr().err


@pytest.mark.parametrize(
    "endpoints",
    [["tcp://127.0.0.1:1", "tcp://[::1]:2"], ["tcp://localhost:1"], ["ipc://a"], ["inproc://a"], []],
)
def test_loopback_is_said_to_be_closed(endpoints: list[str]) -> None:
    assert "loopback only" in serve.exposure(endpoints)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "[::]", "somewhere.example"])
def test_what_is_open_is_said_to_be_open(host: str) -> None:
    said = serve.exposure(["tcp://127.0.0.1:1", f"tcp://{host}:2"])
    assert host.strip("[]") in said
    assert "127.0.0.1:1" not in said
    assert "anyone" in said
