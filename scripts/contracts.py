"""Checks every import in src/polybus against the list of what its layer may import.

import-linter (see pyproject.toml) forbids; this script allows: an import that is not on the list of
its layer is a violation, wherever it stands in the file. It reads the source and imports nothing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"

# What a pure layer must get as an argument or hand out as a value instead: the network, the disk,
# other threads, the clock, and chance, because the simulation replays runs from a seed.
# fmt: off
IMPURE = frozenset({
    "asyncio", "concurrent", "ctypes", "fcntl", "glob", "http", "logging", "mmap", "multiprocessing", "os",
    "pathlib", "queue", "random", "secrets", "select", "selectors", "shutil", "signal", "socket",
    "socketserver", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time", "uuid",
})
# fmt: on

ANY = frozenset({"*"})
PUMP = frozenset({"server.pump", "server.pump_twin", "server._pump"})


@dataclass(frozen=True)
class Layer:
    internal: frozenset[str]  # modules below polybus, or packages of it
    external: frozenset[str] = frozenset()
    pure: bool = False


def layer(internal: str = "", external: str = "", *, pure: bool = False) -> Layer:
    return Layer(frozenset(internal.split()), frozenset(external.split()), pure)


# A package that is not here is reported: add it first.
LAYERS = {
    "errors": layer(pure=True),
    "wire": layer("errors", "msgspec", pure=True),
    # cronsim is pure computation: it reads cron texts and knows the calendar.
    "core": layer("errors", "msgspec cronsim", pure=True),
    "config": layer("errors core", "msgspec"),
    "dialects": layer("errors wire core", "msgspec"),
    "store": layer("errors core", "msgspec"),
    "journal": layer("errors core telemetry", "msgspec pyarrow"),
    "telemetry": layer("errors wire", "msgspec opentelemetry"),
    "server": layer("errors config wire core dialects store journal telemetry", "msgspec zmq"),
    "client": Layer(
        frozenset({"errors", "config", "wire", "telemetry"}) | PUMP, frozenset({"msgspec", "zmq"})
    ),
    "runtime": layer("errors config wire client telemetry", "msgspec zmq"),
    "spark": layer("errors config journal client", "msgspec pyspark py4j pyarrow numpy pandas deltalake"),
    "testing": layer("errors config wire core dialects store journal server client runtime", "msgspec zmq"),
    "__init__": layer("errors config wire core dialects store journal server client testing"),
    "__main__": Layer(ANY, ANY),
    "cli": Layer(ANY, ANY),
    "web": Layer(ANY, ANY),
}


def imports(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Every (line, full name) that the file imports; `from a import b` gives `a.b`."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for name in node.names:
                yield node.lineno, f"{base}.{name.name}"


def within(name: str, allowed: frozenset[str]) -> bool:
    return any(name == entry or name.startswith(entry + ".") for entry in allowed)


def refusal(own: str, name: str) -> str | None:
    """Why a module of the layer `own` may not import `name`, or None if it may."""
    rule = LAYERS[own]
    top, _, rest = name.partition(".")
    if top == "__future__":
        return None
    if top == "polybus":
        allowed = rule.internal | {own}
        if allowed >= ANY or within(rest, allowed):
            return None
        return f"{own} may import of polybus only: {', '.join(sorted(allowed))}"
    if top in sys.stdlib_module_names:
        if rule.pure and top in IMPURE:
            return f"{own} is pure: {top} belongs to the shells, pass its values in"
        return None
    if rule.external >= ANY or top in rule.external:
        return None
    return f"{own} may import from outside only: {', '.join(sorted(rule.external)) or 'nothing'}"


def check() -> list[str]:
    problems = []
    for path in sorted((SOURCE / "polybus").rglob("*.py*")):
        if path.suffix not in {".py", ".pyi"}:
            continue
        parts = path.relative_to(SOURCE).with_suffix("").parts
        own = parts[1]
        where = path.relative_to(ROOT)
        if own not in LAYERS:
            problems.append(f"{where}: {own} is not in the table of layers in scripts/contracts.py")
            continue
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for line, name in imports(path, module):
            if why := refusal(own, name):
                problems.append(f"{where}:{line}: imports {name}: {why}")
    return problems


def main() -> int:
    problems = check()
    for problem in problems:
        print(problem)
    print(f"import contracts: {len(problems)} violations" if problems else "import contracts: kept")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
