"""What `polybus up` is made of, without its processes: parts, what their lines mean, logs, tables."""

from __future__ import annotations

import io
import socket
from pathlib import Path

import pytest
from rich.console import Console

from polybus import config
from polybus.cli import up_parts
from polybus.cli.free_ports import steady_ports
from polybus.cli.kept_log import KeptLog
from polybus.cli.up import hints
from polybus.cli.up_parts import Heard, Kind, PipelineReader, Wanted, last_words, plan, port_taken
from polybus.cli.up_screen import Screen
from polybus.cli.where import common_host, endpoints_table
from polybus.errors import ConfigError

ENDPOINTS = {
    "admin.port": "tcp://127.0.0.1:5240",
    "ebus.frontend": "tcp://127.0.0.1:5000",
    "ebus.backend": "tcp://127.0.0.1:5001",
    "ebus.publish": "tcp://127.0.0.1:5002",
    "ebus.subscribe": "tcp://127.0.0.1:5003",
    "emqp.clients": "tcp://127.0.0.1:47291",
    "emqp.workers": "tcp://10.0.0.7:47290",
    "majordomo.clients": "ipc:///tmp/bus",
    "dbp.port": "tcp://127.0.0.1:5010",
    "dbp.udp": "udp://127.0.0.1:5010",
}


def arguments(wanted: Wanted) -> dict[str, list[str]]:
    return {part.name: part.arguments for part in plan(wanted).components}


def test_all_parts_by_default_in_the_order_of_their_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up_parts, "why_no_pipeline", lambda: "")
    monkeypatch.setattr(up_parts, "why_no_dashboard", lambda: "")
    found = arguments(Wanted(tmp_path))
    assert list(found) == ["broker", "workers", "pipeline", "dashboard"]
    assert found["broker"] == ["serve", "--data-dir", str(tmp_path)]
    assert found["workers"][:2] == ["worker", up_parts.EXAMPLE_APP]


def test_an_app_a_number_of_workers_and_what_is_not_wanted(tmp_path: Path) -> None:
    found = arguments(Wanted(tmp_path, "shop:bus", 4, has_pipeline=False, has_dashboard=False))
    assert list(found) == ["broker", "workers"]
    assert found["workers"] == ["worker", "shop:bus", "--data-dir", str(tmp_path), "-c", "4"]
    assert list(arguments(Wanted(tmp_path, "", 0, has_pipeline=False, has_dashboard=False))) == ["broker"]


def test_any_port_sets_every_port_to_one_that_a_restart_finds_again(tmp_path: Path) -> None:
    settings = arguments(Wanted(tmp_path, any_port=True))["broker"]
    ports = dict(text.split("=") for text in settings if "=" in text)
    assert set(ports) == {*config.PORTS, "beacon.enabled"}
    assert "0" not in ports.values()


def test_what_is_missing_is_said_with_what_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise ConfigError("the dashboard needs uvicorn, which is not installed: pip install 'polybus[web]'")

    monkeypatch.setattr("polybus.cli.web.require_web", none)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pyspark" else object())
    made = plan(Wanted(tmp_path))
    assert [part.name for part in made.components] == ["broker", "workers"]
    assert "pip install 'polybus[web]'" in made.missing["dashboard"]
    assert "polybus top" in made.missing["dashboard"]
    assert made.missing["pipeline"].startswith("it needs pyspark, which is not installed")
    assert "do without" in made.missing["pipeline"]


def test_the_token_of_the_dashboard_is_in_no_argument_and_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up_parts, "why_no_dashboard", lambda: "")
    (part,) = (part for part in plan(Wanted(tmp_path)).components if part.name == "dashboard")
    token = part.environment[up_parts.TOKEN_VARIABLE]
    assert len(token) > 20
    assert token not in " ".join(part.arguments)
    assert part.without_secrets(f"ready dashboard=x?token={token}") == "ready dashboard=x?token=…"


# -- lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "line", "heard"),
    [
        ("read_broker", "ready a=tcp://x:1 b=tcp://x:2", Heard(Kind.READY, "a=tcp://x:1 b=tcp://x:2")),
        ("read_broker", "10:00:01 polybus: broker 'x' is up, process 1, compiled pump", Kind.NOTED),
        ("read_broker", "10:00:01 polybus: reload: nothing", Heard(Kind.SAID, "reload: nothing")),
        (
            "read_workers",
            "ready email hello processes=2 broker=tcp://127.0.0.1:1",
            Heard(Kind.READY, "2 processes serve email, hello"),
        ),
        ("read_workers", "ready hello processes=1", Heard(Kind.READY, "1 process serves hello")),
        ("read_workers", "something that a job printed", Kind.SAID),
        (
            "read_dashboard",
            "ready dashboard=http://127.0.0.1:5280/?token=x",
            Heard(Kind.READY, "http://127.0.0.1:5280/?token=x"),
        ),
        ("read_dashboard", "polybus: cannot listen.", Heard(Kind.SAID, "cannot listen.")),
        ("read_broker", '{"at": "x", "level": "info", "message": "reload"}', Heard(Kind.SAID, "reload")),
        ("read_broker", '{"a": 1}', Heard(Kind.SAID, '{"a": 1}')),
    ],
)
def test_what_a_line_means(read: str, line: str, heard: Heard | Kind) -> None:
    found = getattr(up_parts, read)(line)
    assert (found.kind if isinstance(heard, Kind) else found) == heard


def test_of_many_batches_the_first_is_news_and_the_rest_progress() -> None:
    read = PipelineReader()
    kinds = [
        read(line).kind
        for line in (
            "starting Spark (local[*]); journal a, tables b",
            "Spark 4.0.1 is up",
            "batch 0: 12 rows in 8.1 s (1 a second), 9.0 s behind",
            "batch 1: 3 rows in 1.1 s (3 a second), 2.0 s behind",
            "10:00:00 spark ERROR Executor: lost",
        )
    ]
    assert kinds == [Kind.PROGRESS, Kind.READY, Kind.NEWS, Kind.PROGRESS, Kind.SAID]


def test_why_a_process_ended() -> None:
    assert last_words(-9, "10:00:01 polybus: what it said before") == "killed by signal 9"
    assert last_words(1, "polybus: no such module.") == "ended with status 1: no such module"
    assert last_words(0, "bye") == "ended with status 0"
    assert "--any-port" in port_taken("tcp://127.0.0.1:5000 is in use")
    assert "--any-port" not in port_taken("no such module")


# -- what is shown --------------------------------------------------------------------------------


def shown(width: int = 80) -> tuple[Screen, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, width=width, highlight=False, soft_wrap=True)
    return Screen(Path("var"), ["polybus call hello you"], console), text


def test_the_table_of_endpoints_fits_into_80_columns() -> None:
    text = io.StringIO()
    Console(file=text, width=80).print(
        endpoints_table({**ENDPOINTS, "majordomo.clients": "tcp://127.0.0.1:5555"})
    )
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split() == ["EBUS", "1.0", "5000", "5001", "5002", "5003"] for line in lines)
    assert any("10.0.0.7:47290" in line for line in lines)
    assert "admin socket: 5240" in text.getvalue()


def test_the_host_that_most_share_is_said_once() -> None:
    assert common_host(ENDPOINTS) == "127.0.0.1"
    assert common_host({"a": "ipc:///tmp/x"}) == ""


def test_the_screen_shows_endpoints_dashboard_and_what_to_try() -> None:
    screen, text = shown()
    words = " ".join(f"{name}={endpoint}" for name, endpoint in ENDPOINTS.items())
    assert screen.heard_ready("broker", words) == "it listens on 10 ports"
    screen.heard_ready("dashboard", "http://127.0.0.1:5280/?token=x")
    screen.ready()
    found = text.getvalue()
    assert "Dashboard: http://127.0.0.1:5280/?token=x" in found
    assert "polybus call hello you" in found
    assert "\x1b" not in found


def test_what_a_part_says_cannot_command_the_terminal() -> None:
    screen, text = shown()
    screen.heard("workers", Heard(Kind.SAID, "[red]a\x1b[2Jb"))
    assert "[red]a\\x1b[2Jb" in text.getvalue()


def test_without_a_terminal_only_the_first_progress_is_shown() -> None:
    screen, text = shown()
    screen.heard("pipeline", Heard(Kind.PROGRESS, "Spark is starting; nothing waits for it"))
    screen.heard("pipeline", Heard(Kind.PROGRESS, "batch 7: 1 row"))
    assert "Spark is starting" in text.getvalue()
    assert "batch" not in text.getvalue()


def test_hints_name_what_there_is(tmp_path: Path) -> None:
    assert hints(Wanted(Path("var"))) == ["polybus call hello you", "polybus services"]
    assert hints(Wanted(Path("x"), "shop:bus", any_port=True)) == ["polybus services --data-dir x"]


# -- logs and ports -------------------------------------------------------------------------------


def test_a_log_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    log = KeptLog(tmp_path / "broker.log", max_bytes=1000, clock=lambda: 0.0)
    for number in range(500):
        log.write(f"line {number}")
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["broker.log", "broker.log.1"]
    assert sum(file.stat().st_size for file in files) <= 2000
    assert files[0].read_text().splitlines()[-1].endswith(" line 499")


def test_a_log_goes_on_where_the_last_run_ended(tmp_path: Path) -> None:
    for word in ("one", "two"):
        log = KeptLog(tmp_path / "broker.log")
        log.write(word)
        log.close()
    assert [line.split()[-1] for line in (tmp_path / "broker.log").read_text().splitlines()] == ["one", "two"]


def test_ports_are_free_and_not_among_those_that_the_system_lends() -> None:
    ports = steady_ports(["a", "b", "c"])
    assert len(set(ports.values())) == 3
    for port in ports.values():
        with socket.create_server(("127.0.0.1", port)):
            assert port < 60_000
