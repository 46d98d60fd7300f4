"""What the structs of a module mean where a field is left out."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec


def defaults_of(module: ModuleType) -> dict[str, Any]:
    """`module.Struct.field` → default, for every struct that the module declares."""
    found: dict[str, Any] = {}
    short = module.__name__.rpartition(".")[2]
    for name, kind in vars(module).items():
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__:
            values = kind.__struct_defaults__
            fields = kind.__struct_fields__[len(kind.__struct_fields__) - len(values) :]
            for field, value in zip(fields, values, strict=True):
                if value is not msgspec.NODEFAULT:
                    found[f"{short}.{name}.{field}"] = value.factory() if hasattr(value, "factory") else value
    return found


def check_defaults(modules: tuple[ModuleType, ...], meanings: dict[str, object]) -> None:
    """A field that is left out says nothing (empty, zero, false or None), unless its meaning is listed."""
    found = {field: value for module in modules for field, value in defaults_of(module).items()}
    assert {field: value for field, value in found.items() if value} == meanings
