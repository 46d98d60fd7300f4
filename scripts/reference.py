"""Writes docs/reference/ from the code: commands, settings, and what `polybus` exports.

The code is the truth: `--check` fails if a page is not what it says, and `make docs-check` runs it.  Nothing
here depends on the terminal, the environment or what was compiled: help texts, comments and docstrings are
taken as they stand in the sources.
"""

from __future__ import annotations

import os
import sys

# Compiled modules have no signatures to read; the sources do.
os.environ["POLYBUS_PLAIN"] = "1"

import ast
import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec
import typer
from reference_python import python
from reference_text import MADE, Undocumented, cell, paragraphs, table

from polybus import config
from polybus.cli.main import app
from polybus.cli.serve import reloaded
from polybus.cli.settings import flatten
from polybus.config import sections
from polybus.core import model

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "docs" / "reference"


# -- commands -------------------------------------------------------------------------------------


def cli() -> str:
    root: Any = typer.main.get_command(app)
    lines = [
        "# Commands",
        "",
        f"{MADE} `polybus COMMAND --help` says the same in the terminal.",
        "",
        "Every command ends with 0 if it did what it was asked, 1 if not, 2 if it was not understood,",
        "130 after Ctrl-C.",
        "",
    ]
    panels: dict[str, list[tuple[str, Any]]] = {}
    for name, command in root.commands.items():
        if not command.hidden:
            panels.setdefault(str(command.rich_help_panel), []).append((name, command))
    for panel, commands in panels.items():
        lines += [f"**{panel}**", "", *table("command", "what it does")]
        lines += [f"| {_linked(name)} | {_first(command.help)} |" for name, command in commands] + [""]
    for commands in panels.values():
        for name, command in commands:
            lines += _command(name, command)
    return "\n".join(lines)


def _linked(name: str) -> str:
    words = f"polybus {name}"
    return f"[`{words}`](#{words.replace(' ', '-')})"


def _first(text: str | None) -> str:
    return cell((text or "").split("\n\n")[0])


def _command(name: str, command: Any) -> Iterator[str]:
    if not command.help:
        raise Undocumented(f"polybus {name} has no help")
    yield from (f"## polybus {name}", "", *paragraphs(command.help))
    verbs = getattr(command, "commands", {})
    if verbs:
        yield from table("command", "what it does")
        yield from (f"| {_linked(f'{name} {verb}')} | {_first(one.help)} |" for verb, one in verbs.items())
        yield ""
    else:
        yield from (f"```text\n{_usage(name, command)}\n```", "")
    for title, kind in (("argument", "argument"), ("option", "option")):
        found = [p for p in command.params if p.param_type_name == kind and p.name != "help" and not p.hidden]
        if found:
            yield from table(title, "default", "meaning")
            yield from (_parameter(name, parameter) for parameter in found)
            yield ""
    shown = [line for line in (command.epilog or "").split("\n\n") if "[bold]" not in line]
    if shown:
        yield from ("```sh", *shown, "```", "")
    for verb, one in verbs.items():
        yield from _command(f"{name} {verb}", one)


def _usage(name: str, command: Any) -> str:
    words = [f"polybus {name}"]
    if any(parameter.param_type_name == "option" for parameter in command.params):
        words.append("[OPTIONS]")
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            word = (parameter.metavar or parameter.name).upper() + ("…" if parameter.nargs != 1 else "")
            words.append(word if parameter.required else f"[{word}]")
    return " ".join(words)


def _parameter(command: str, parameter: Any) -> str:
    if not parameter.help:
        raise Undocumented(f"polybus {command}: {parameter.name} has no help")
    if parameter.param_type_name == "argument":
        names = f"`{(parameter.metavar or parameter.name).upper()}`"
    else:
        names = ", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))
        if not parameter.is_flag:
            names += f" {cell(parameter.metavar or _kind(parameter))}"
    default = parameter.default
    if isinstance(default, Enum):
        default = default.value
    empty = default is None or default is False or default == "" or callable(default)
    shown = "required" if parameter.required else "" if empty else f"`{default}`"
    where = f" Environment: `{parameter.envvar}`." if parameter.envvar else ""
    return f"| {names} | {shown} | {cell(parameter.help)}{where} |"


def _kind(parameter: Any) -> str:
    text = str(getattr(parameter.type_descriptor, "annotation", str))
    known = {"int": "NUMBER", "float": "NUMBER", "Path": "PATH"}
    return next((word for kind, word in known.items() if kind in text), "TEXT")


# -- settings -------------------------------------------------------------------------------------


def settings() -> str:
    comments = {**_comments(sections), **_comments(model)}
    live = _reloadable()
    defaults = flatten(config.Settings())
    lines = [
        "# Settings",
        "",
        f"{MADE} `polybus settings` shows their values here and now, and where each comes from.",
        "",
        "Flag (`--set section.name=value`) before environment before file before default; see",
        "[operations](../operations.md#settings). In the environment and in flags a list has commas.",
        "*live*: SIGHUP makes a running broker take the new value; all others need a restart.",
        "",
    ]
    for section in config.SECTIONS:
        kind = type(getattr(config.Settings(), section))
        lines += [f"## {section}", "", *table("setting", "takes", "default", "meaning", "environment")]
        for name, hint in get_type_hints(kind, include_extras=True).items():
            full = f"{section}.{name}"
            meaning = _meaning(comments, kind.__name__, name) + (" *live*" if full in live else "")
            variable = config.variable(full)
            lines.append(
                f"| `{full}` | {_takes(hint, full)} | {_value(defaults[full])} | {meaning} | `{variable}` |"
            )
        lines.append("")
    lines += [
        "## queues",
        "",
        'One table for each pattern, `[queues."mail.*"]`; the first that fits a queue\'s name holds for it.',
        "On the command line it is `--set queues.NAME.OPTION=value`; there are no environment variables.",
        "All of them are *live*.",
        "",
        *table("option", "takes", "default", "meaning"),
    ]
    usual = config.QueueSettings()
    for name, hint in get_type_hints(config.QueueSettings, include_extras=True).items():
        meaning = _meaning(comments, config.QueueSettings.__name__, name)
        lines.append(f"| `{name}` | {_takes(hint, '')} | {_value(getattr(usual, name))} | {meaning} |")
    return "\n".join([*lines, ""])


def _reloadable() -> set[str]:
    """Asked of the code that does it: which settings a reload changes, if all of them are different."""
    old = config.Settings()
    other: dict[str, dict[str, Any]] = {}
    for name, value in flatten(old).items():
        section, _, option = name.partition(".")
        other.setdefault(section, {})[option] = _another(value)
    new = config.Settings(
        **{section: type(getattr(old, section))(**options) for section, options in other.items()}
    )
    # It tells people what changed; here nobody is to hear that.
    said = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            after = flatten(reloaded(old, lambda: new))
        finally:
            os.dup2(said, 2)
            os.close(said)
    return {name for name, value in flatten(old).items() if after[name] != value}


def _another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return ("other",) if isinstance(value, tuple) else f"{value}?" if isinstance(value, str) else value + 1


def _comments(module: Any) -> dict[str, dict[str, str]]:
    """Class → field → the comment above it; a field without one belongs to that of the field before it."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        above = ""
        owner = ""
        for field in node.body:
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            said: list[str] = []
            number = field.lineno - 2
            while lines[number].strip().startswith("#"):
                said.insert(0, lines[number].strip().removeprefix("#").strip())
                number -= 1
            if said:
                above, owner = " ".join(said), field.target.id
            shared = above and owner != field.target.id
            found.setdefault(node.name, {})[field.target.id] = f"See `{owner}`." if shared else above
    return found


def _meaning(comments: dict[str, dict[str, str]], kind: str, name: str) -> str:
    text = comments.get(kind, {}).get(name, "")
    if not text:
        raise Undocumented(f"{kind}.{name} has no comment that says what it is")
    return cell(text)


def _takes(hint: Any, name: str) -> str:
    if name in config.PORTS:
        return "port, endpoint, 0 or -1"
    schema = msgspec.json.schema(hint)
    words = [_schema_words(one) for one in schema.get("anyOf", [schema])]
    return " or ".join(words)


def _schema_words(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f'"{value}"' for value in sorted(schema["enum"]))
    kinds = {
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
        "string": "text",
        "array": "list of texts",
        "null": "nothing",
    }
    bounds = [
        f"{sign} {_number(schema[key])}"
        for key, sign in (("exclusiveMinimum", ">"), ("minimum", "≥"), ("maximum", "≤"))
        if key in schema
    ]
    if "maxLength" in schema:
        bounds.append(f"at most {schema['maxLength']} characters")
    return kinds[schema["type"]] + (f", {', '.join(bounds)}" if bounds else "")


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def _value(value: Any) -> str:
    if value is None or value == "" or value == ():
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return _number(value) if abs(value) >= 100_000 else f"{value:g}"
    return f"`{', '.join(value) if isinstance(value, tuple) else value}`"


PAGES: Final = {"cli.md": cli, "settings.md": settings, "python.md": python}


def main() -> int:
    check = "--check" in sys.argv
    stale = []
    for name, make in PAGES.items():
        try:
            page = make()
        except Undocumented as error:
            print(f"docs/reference/{name}: {error}")
            return 1
        place = FOLDER / name
        if place.exists() and place.read_text(encoding="utf-8") == page:
            continue
        stale.append(f"docs/reference/{name}")
        if not check:
            FOLDER.mkdir(parents=True, exist_ok=True)
            place.write_text(page, encoding="utf-8")
    if check and stale:
        print(f"{', '.join(stale)}: not what the code says; run 'make reference' and commit it")
        return 1
    print(f"docs/reference: {'current' if check or not stale else 'wrote ' + ', '.join(stale)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
