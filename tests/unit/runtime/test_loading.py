"""Loading an application: every mistake is named, with what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polybus.client.app import Bus
from polybus.errors import ConfigError
from polybus.runtime.loading import facts_of, load, loaded_files

WHOLE = """
import polybus
bus = polybus.Bus("tcp://broker:5555")

@bus.job(queue="email")
def send(to: str) -> None: ...

@bus.job
def clean() -> None: ...

@bus.service("hello", weight=7)
def hello(body: bytes) -> bytes:
    return body
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of an application's own, as if 'polybus worker' were started there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("wapp"):
            del sys.modules[name]


def write(folder: Path, text: str, name: str = "wapp.py") -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def wrong(name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(name)
    return str(caught.value)


def test_the_working_directory_is_searched(folder: Path) -> None:
    write(folder, WHOLE)
    bus = load("wapp:bus")
    facts = facts_of(bus)
    assert facts.queues == {"email": None, "default": None, "hello": 7}
    assert (facts.jobs, facts.services, facts.address) == (2, 1, "tcp://broker:5555")
    assert facts.files.count(str((folder / "wapp.py").resolve())) == 1


def test_a_program_that_serves_when_it_is_run_is_an_application_as_well(folder: Path) -> None:
    write(folder, WHOLE + "\nbus.run()\nafter = True\n")
    bus = load("wapp:bus")
    assert list(bus.services) == ["hello"]
    assert sys.modules["wapp"].after
    assert not Bus.is_loading


def test_a_bus_in_a_package_or_in_an_object(folder: Path) -> None:
    write(folder, "", "wapp/__init__.py")
    write(folder, WHOLE + "\nclass Holder:\n    bus = bus\n", "wapp/app.py")
    assert load("wapp.app:bus") is load("wapp.app:Holder.bus")


@pytest.mark.parametrize("name", ["wapp", "wapp:", ":bus", ""])
def test_no_application_named(name: str) -> None:
    assert "module:attribute" in wrong(name)


def test_no_such_module(folder: Path) -> None:
    text = wrong("wapp_missing:bus")
    assert "there is no module wapp_missing" in text
    assert str(folder) in text
    assert "PYTHONPATH" in text
    write(folder, "", "wapp/__init__.py")
    assert "there is no module wapp.app" in wrong("wapp.app:bus")


def test_a_module_that_needs_another(folder: Path) -> None:
    write(folder, "import wapp_needed")
    text = wrong("wapp:bus")
    assert "because wapp_needed is not installed" in text
    assert "wapp.py, line 1" in text


def test_a_module_that_raises(folder: Path) -> None:
    write(folder, "x = 1\nraise RuntimeError('no database')")
    text = wrong("wapp:bus")
    assert "raised RuntimeError: no database" in text
    assert "wapp.py, line 2" in text


def test_a_module_with_a_typing_error(folder: Path) -> None:
    write(folder, "x = 1\ndef (:\n")
    text = wrong("wapp:bus")
    assert "SyntaxError" in text
    assert "wapp.py, line 2" in text


def test_no_such_attribute(folder: Path) -> None:
    write(folder, WHOLE)
    assert wrong("wapp:buss").endswith("wapp has no buss; did you mean wapp:bus?")
    write(folder, "x = 1", "wapp2.py")
    assert "make one with 'bus = polybus.Bus()'" in wrong("wapp2:bus")


def test_not_a_bus(folder: Path) -> None:
    write(folder, WHOLE + "\nnumber = 5\n")
    text = wrong("wapp:number")
    assert text == "wapp:number is a int, not a polybus.Bus; name the bus itself; did you mean wapp:bus?"


def test_an_empty_bus(folder: Path) -> None:
    write(folder, "import polybus\nbus = polybus.Bus()")
    assert "no jobs and no services; decorate functions with @bus.job" in wrong("wapp:bus")


def test_patterns_alone_serve_the_default_queue(folder: Path) -> None:
    write(folder, "import polybus\nbus = polybus.Bus()\nbus.allow('shop.*')")
    assert facts_of(load("wapp:bus")).queues == {"default": None}


def test_only_the_applications_own_files_are_watched() -> None:
    files = loaded_files()
    assert not [file for file in files if "site-packages" in file or file.endswith("/json/__init__.py")]
    assert not [file for file in files if "/polybus/" in file and "/src/" in file]
