"""The modules that may be compiled, as plain Python: for running the same tests on both forms.

With POLYBUS_PLAIN=1 the sources of `polybus` are imported even where a compiled form lies beside them.
Otherwise a compiled form that is older than its source is an error: it would test yesterday's code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

SOURCES = Path(__file__).resolve().parents[2] / "src" / "polybus"


class PlainFinder(MetaPathFinder):
    """Finds modules of polybus by their source alone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("polybus.") or path is None:
            return None
        for folder in path:
            source = Path(folder) / f"{fullname.rpartition('.')[2]}.py"
            if source.exists():
                return spec_from_file_location(fullname, source)
        return None


def use_plain_sources() -> None:
    sys.meta_path.insert(0, PlainFinder())


def stale_modules() -> Iterable[str]:
    """Compiled modules that are older than what they are made from."""
    for declarations in SOURCES.rglob("*.pxd"):
        source = declarations.with_suffix(".py")
        for suffix in EXTENSION_SUFFIXES:
            compiled = source.with_suffix(suffix)
            if compiled.exists() and compiled.stat().st_mtime < source.stat().st_mtime:
                yield str(source.relative_to(SOURCES))


def is_wanted() -> bool:
    return os.environ.get("POLYBUS_PLAIN", "") not in ("", "0")
