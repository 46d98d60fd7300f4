"""Ports that the system may give away, and the command that keeps it from doing so."""

from __future__ import annotations

from pathlib import Path

import pytest

from polybus import config
from polybus.cli import doctor, port_range
from polybus.cli.port_range import given_away, reserving, write_ranges

EMQP = [47290, 47291, 47293, 47298, 47299]


def system(folder: Path, ports: str = "32768\t60999\n", reserved: str = "\n") -> Path:
    (folder / port_range.RANGE).write_text(ports)
    (folder / port_range.RESERVED).write_text(reserved)
    return folder


def test_which_ports_may_be_gone_after_a_restart(tmp_path: Path) -> None:
    ports = [5555, 32767, 32768, 60999, 61000, *EMQP]
    assert given_away(ports, system(tmp_path)) == [32768, *EMQP, 60999]
    assert given_away(ports, system(tmp_path, reserved="47290-47299,60999\n")) == [32768]
    assert given_away(ports, system(tmp_path, "50000 60000")) == []


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert given_away(EMQP, tmp_path) == []
    assert given_away(EMQP, system(tmp_path, "nonsense")) == []
    assert reserving(EMQP, tmp_path / "nowhere").endswith("=47290-47299")


def test_the_command_keeps_what_is_reserved(tmp_path: Path) -> None:
    command = "sysctl -w net.ipv4.ip_local_reserved_ports="
    assert reserving(EMQP, system(tmp_path)) == f"{command}47290-47299"
    assert (
        reserving(EMQP, system(tmp_path, reserved="8080,9000-9010\n"))
        == f"{command}8080,9000-9010,47290-47299"
    )


def test_ranges_as_the_kernel_writes_them() -> None:
    assert write_ranges([]) == ""
    assert write_ranges([7, 1, 2, 3, 3]) == "1-3,7"
    assert write_ranges(EMQP) == "47290-47291,47293,47298-47299"


def test_the_doctor_warns_of_the_usual_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system(tmp_path)
    monkeypatch.setattr(doctor, "given_away", lambda ports: given_away(ports, tmp_path))
    monkeypatch.setattr(doctor, "reserving", lambda ports: reserving(ports, tmp_path))
    (finding,) = doctor.check_port_range(config.Settings())
    assert finding.mark == doctor.WARN
    assert "emqp.clients" in finding.found
    assert "sysctl -w net.ipv4.ip_local_reserved_ports=47290-47299" in finding.advice
    system(tmp_path, reserved="47000-48000\n")
    assert list(doctor.check_port_range(config.Settings())) == []
    free = config.load(None, config.any_free_ports(), {})
    system(tmp_path, "1 65535")
    assert list(doctor.check_port_range(free)) == []
