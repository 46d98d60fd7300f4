"""The settings as a table: value, origin, environment variable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from polybus import config
from polybus.cli.find import config_path
from polybus.cli.output import print_json, print_table


def flatten(settings: config.Settings) -> dict[str, Any]:
    """`section.name` → value; `queues.pattern.name` for queues, of which there are as many as were set."""
    parts = {section: getattr(settings, section) for section in config.SECTIONS}
    parts |= {f"{config.QUEUES}.{pattern}": queue for pattern, queue in settings.queues.items()}
    return {
        f"{section}.{name}": value
        for section, part in parts.items()
        for name, value in msgspec.structs.asdict(part).items()
    }


def names() -> list[str]:
    return list(flatten(config.Settings()))


def show(path: Path | None, overrides: Mapping[str, str], as_json: bool) -> None:
    path = config_path(path)
    default = flatten(config.Settings())
    from_file = flatten(config.load(path, environ={}))
    in_force = flatten(config.load(path, overrides, origins=dict.fromkeys(overrides, "the option --set")))
    rows = []
    for name, value in in_force.items():
        is_queue = name.startswith(f"{config.QUEUES}.")
        variable = "" if is_queue else config.variable(name)
        usual = default[name] if name in default else getattr(config.QueueSettings(), name.rpartition(".")[2])
        if name in overrides:
            origin = "--set"
        elif variable in os.environ:
            origin = "environment"
        else:
            origin = "default" if from_file.get(name, usual) == usual else str(path or config.FILE_NAME)
        rows.append({"setting": name, "value": value, "from": origin, "variable": variable})
    if as_json:
        print_json(rows)
    else:
        columns = ("setting", "value", "from", "environment variable")
        print_table(columns, (["–" if value is None else value for value in row.values()] for row in rows))
