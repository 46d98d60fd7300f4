"""The documents do not lie: sessions run, scripts work, and every command and setting they name exists."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from polybus import config
from polybus.cli.main import app
from polybus.cli.settings import names
from polybus.client.admin import AdminClient
from polybus.errors import PolybusError
from support.commands import Served
from support.documents import ROOT, Reader, blocks, documents, has_sessions

# A name that is called is a method of something that happens to be called like a section.
SETTING = re.compile(rf"\b((?:{'|'.join(config.SECTIONS)})\.[a-z_]+)\b(?!\()")
COMMAND = re.compile(r"(?:`|^\$ )polybus ([a-z]+)", re.MULTILINE)
# Words that look like settings and are files.
FILES = ("py", "md", "toml", "json", "log")
# What newcomers read.
FIRST = ("README.md", "docs/quickstart.md")

everywhere = pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.close()


def sessions() -> Iterator[Any]:
    for document in filter(has_sessions, documents()):
        name = str(document.relative_to(ROOT))
        yield pytest.param(document, id=name, marks=() if name in FIRST else pytest.mark.long)


@pytest.mark.parametrize("document", list(sessions()))
@pytest.mark.timeout(180)
def test_sessions_run(document: Path, reader: Reader) -> None:
    reader.follow(document)


@functools.cache
def command_tree() -> Any:
    return typer.main.get_command(app)


def wrong_options(line: str) -> set[str]:
    """The options that a command line uses and its command does not have."""
    words = shlex.split(line, comments=True)
    command = command_tree()
    for word in words[1:]:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
    return used - known - {"--help"}


@everywhere
def test_options_exist(document: Path) -> None:
    """Also those of commands that are only shown."""
    lines = [
        line.removeprefix("$ ")
        for block in blocks(document)
        if block.language in ("", "sh", "console")
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    wrong = {line: wrong_options(line) for line in lines if line.startswith("polybus ")}
    assert {line: options for line, options in wrong.items() if options} == {}


# What newcomers read first is run, all of it, but for these.
ONLY_SHOWN = {
    "make demo": "run by test_demo.py",
    "make test": "runs this test",
    "make setup": "was run before any test",
    "polybus serve --config": "needs a file; the flags of it are run by test_cli.py",
    "polybus trace": "run by docs/journal.md, on a request of its own",
    "polybus journal": "run by docs/journal.md",
    "polybus pipeline": "needs Spark; run by tests/spark, test_demo.py and `make pipeline-check`",
    "polybus jobs retry --from-table": "needs Spark; run by tests/spark/test_closing_the_loop.py",
    "polybus up": "needs Spark; run without it by docs/quickstart.md",
}


@pytest.mark.parametrize("name", FIRST)
def test_what_newcomers_read_is_run(name: str) -> None:
    """Nothing that looks like a command is outside a session, but for what has a reason."""
    commands = re.compile(r"(?:polybus|make|python|pip) ")
    left = [
        line
        for block in blocks(ROOT / name)
        if block.language in ("", "sh", "bash", "text")
        for line in block.text.splitlines()
        if commands.match(line) and not any(line.startswith(known) for known in ONLY_SHOWN)
    ]
    assert left == []
    sessions = [block for block in blocks(ROOT / name) if block.language == "console"]
    assert sum(line.startswith("$ ") for block in sessions for line in block.text.splitlines()) > 5


def test_a_session_whose_output_changed_is_noticed(tmp_path: Path, reader: Reader) -> None:
    """The test above can fail: a wrong line, and a wrong command."""
    page = tmp_path / "page.md"
    page.write_text("```console\n$ polybus --version\npolybus 0.0.0\n```\n")
    reader.follow(page)
    for wrong in ("$ polybus --version\npolybos 0.0.0", "$ polybus --versoin"):
        page.write_text(f"```console\n{wrong}\n```\n")
        with pytest.raises(AssertionError):
            reader.follow(page)


def test_the_table_of_contents_is_complete() -> None:
    docs = ROOT / "docs"
    text = (docs / "README.md").read_text(encoding="utf-8")
    pages = [str(page.relative_to(docs)) for page in docs.rglob("*.md") if page.parent.name != "adr"]
    assert [page for page in pages if page != "README.md" and f"({page}" not in text] == []


def test_every_question_to_the_admin_socket_is_described(tmp_path: Path) -> None:
    broker = Served(tmp_path)
    try:
        with AdminClient(broker.endpoints["admin.port"]) as admin, pytest.raises(PolybusError) as refused:
            admin.ask("what there is")
    finally:
        broker.close()
    known = set(str(refused.value).partition("known: ")[2].rstrip(".").split(", "))
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    assert len(known) > 20
    assert known - {word for row in rows for word in re.findall(r"`([a-z_]+)`", row)} == set()


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
