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
    """`section.name` → value."""
    return {
        f"{section}.{name}": value
        for section, part in msgspec.structs.asdict(settings).items()
        for name, value in msgspec.structs.asdict(part).items()
    }


def names() -> list[str]:
    return list(flatten(config.Settings()))


def show(path: Path | None, overrides: Mapping[str, str], as_json: bool) -> None:
    path = config_path(path)
    default = flatten(config.Settings())
    from_file = flatten(config.load(path, environ={}))
    in_force = flatten(config.load(path, overrides))
    rows = []
    for name, value in in_force.items():
        variable = config.variable(name)
        if name in overrides:
            origin = "--set"
        elif variable in os.environ:
            origin = "environment"
        else:
            origin = "default" if from_file[name] == default[name] else str(path or config.FILE_NAME)
        rows.append({"setting": name, "value": value, "from": origin, "variable": variable})
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("setting", "value", "from", "environment variable"), (list(row.values()) for row in rows)
        )
