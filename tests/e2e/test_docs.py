"""The documents do not lie: sessions run, scripts work, and every command and setting they name exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from polybus import config
from polybus.cli.main import app
from polybus.cli.settings import names
from support.documents import ROOT, Reader, blocks, documents, has_sessions

# A name that is called is a method of something that happens to be called like a section.
SETTING = re.compile(rf"\b((?:{'|'.join(config.SECTIONS)})\.[a-z_]+)\b(?!\()")
COMMAND = re.compile(r"(?:`|^\$ )polybus ([a-z]+)", re.MULTILINE)
# Words that look like settings and are files.
FILES = ("py", "md", "toml", "json")

everywhere = pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.close()


@pytest.mark.parametrize(
    "document", list(filter(has_sessions, documents())), ids=lambda path: str(path.relative_to(ROOT))
)
@pytest.mark.timeout(180)
def test_sessions_run(document: Path, reader: Reader) -> None:
    reader.follow(document)


@everywhere
def test_commands_exist(document: Path) -> None:
    known = {entry.name for entry in (*app.registered_commands, *app.registered_groups)}
    assert set(COMMAND.findall(document.read_text(encoding="utf-8"))) <= known


@everywhere
def test_settings_exist(document: Path) -> None:
    found = set(SETTING.findall(document.read_text(encoding="utf-8")))
    assert {name for name in found if name.split(".")[1] not in FILES} <= set(names())


@everywhere
def test_blocks_can_be_read(document: Path, tmp_path: Path) -> None:
    for block in blocks(document):
        if block.language == "python":
            compile(block.text, str(document), "exec")
        elif block.language == "toml":
            path = tmp_path / "polybus.toml"
            path.write_text(block.text)
            config.load(path, environ={})
