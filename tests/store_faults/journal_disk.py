"""The disk under a journal: what is recorded while it is written, and what a power cut leaves of it.

The journal's files are written from Python alone, so no library has to be loaded into the process: while a
`Recorder` is active, the functions of `os` and `io` that change files of its folder also note what they did.
A `Disk` replays these operations and knows two states of each file and of each folder: what was synced, and
what was done since.  After a power cut what was synced is there.  Of the rest nothing is certain: contents
may be lost, kept, torn or kept in part, and so may names, each folder for itself and in the order in which
its names were changed.
"""

from __future__ import annotations

import fcntl
import io
import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from unittest.mock import patch

from store_faults.power_cuts import File, applied, torn

# The note that a sync was left out.
IGNORED = "ignored a sync"
# What is kept of names, then of contents, of all that was not synced.
VARIANTS = {
    "nothing": ("none", "none"),
    "everything": ("all", "all"),
    "torn": ("all", "torn"),
    "names only": ("all", "none"),
    "contents only": ("none", "all"),
    # What was removed is gone, what was made elsewhere is not there yet.
    "removals": ("removals", "none"),
    "some": ("some", "some"),
    "others": ("some", "some"),
}


@dataclass(frozen=True)
class Operation:
    """One change of the disk. Paths are relative to the folder that is recorded; its own path is empty."""

    # create, mkdir, write, truncate, sync, unlink, rmdir, rename; or note, which changes nothing.
    kind: str
    path: str
    # Where it writes, or how long a file becomes; of a note its value.
    number: int = 0
    data: bytes = b""
    # The new path of a rename.
    target: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.path or '.'}" + (f" to {self.target}" if self.target else "")


# -- recording ------------------------------------------------------------------------------------


class Recorder:
    """Notes what this process does to the files of one folder."""

    def __init__(self, folder: Path, ignored: str = "") -> None:
        self._folder = str(folder)
        # Syncs of paths that match this pattern are left out: that is how tests get a careless journal.
        self._ignored = re.compile(ignored)
        self._paths: dict[int, str] = {}
        # The journal's writer has a thread of its own.
        self._lock = threading.RLock()
        self.operations: list[Operation] = []

    def note(self, name: str, value: int) -> None:
        """Tell whoever judges what is left that this was true at this moment."""
        with self._lock:
            self.operations.append(Operation("note", name, value))

    @contextmanager
    def active(self) -> Iterator[None]:
        recorded = [(os, name, self._recorded(name, getattr(os, name))) for name in _CHANGES]
        recorded.append((io, "open", self._file_opener(io.open)))
        with ExitStack() as stack:
            for module, name, function in recorded:
                stack.enter_context(patch.object(module, name, function))
            yield

    def _inside(self, place: Any) -> str | None:
        """The path of a file, or of an open file, within the folder; None if it is elsewhere."""
        if isinstance(place, int):
            return self._paths.get(place)
        path = os.path.abspath(os.fspath(place))
        if path == self._folder:
            return ""
        return path[len(self._folder) + 1 :] if path.startswith(self._folder + os.sep) else None

    def _recorded(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def change(place: Any, *arguments: Any, **more: Any) -> Any:
            path = self._inside(place)
            if path is None:
                return real(place, *arguments, **more)
            with self._lock:
                before = _CHANGES[name](place)
                result = real(place, *arguments, **more)
                self._note_change(name, path, before, result, arguments)
                return result

        return change

    def _note_change(self, name: str, path: str, before: int, result: Any, arguments: Any) -> None:
        done = self.operations.append
        match name:
            case "open":
                self._paths[result] = path
                if not before:
                    done(Operation("create", path))
                if arguments[0] & os.O_TRUNC:
                    done(Operation("truncate", path))
            case "close":
                # The number may be used again for a file elsewhere.
                del self._paths[before]
            case "write":
                done(Operation("write", path, before, bytes(arguments[0])[:result]))
            case "writev":
                done(Operation("write", path, before, b"".join(arguments[0])[:result]))
            case "ftruncate":
                done(Operation("truncate", path, arguments[0]))
            case "fsync" | "fdatasync":
                if self._ignored.fullmatch(path) and self._ignored.pattern:
                    done(Operation("note", IGNORED, 1))
                else:
                    done(Operation("sync", path))
            case "rename" | "replace":
                target = self._inside(arguments[0])
                assert target is not None, arguments[0]
                done(Operation("rename", path, target=target))
            case _:
                done(Operation(name, path))

    def _file_opener(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def open_file(place: Any, mode: str = "r", *arguments: Any, **more: Any) -> Any:
            if mode != "wb" or isinstance(place, int) or self._inside(place) is None:
                return real(place, mode, *arguments, **more)
            return io.BufferedWriter(_RecordedFile(place))

        return open_file


def _position(file: int) -> int:
    """Where the next write goes."""
    if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_APPEND:
        return os.fstat(file).st_size
    return os.lseek(file, 0, os.SEEK_CUR)


def _nothing(_place: Any) -> int:
    return 0


# The functions that change files, and what has to be known of the file before they do.
_CHANGES: dict[str, Callable[[Any], int]] = {
    "open": os.path.exists,
    "close": int,
    "write": _position,
    "writev": _position,
    "ftruncate": _nothing,
    "fsync": _nothing,
    "fdatasync": _nothing,
    "rename": _nothing,
    "replace": _nothing,
    "unlink": _nothing,
    "mkdir": _nothing,
    "rmdir": _nothing,
}


class _RecordedFile(io.RawIOBase):
    """A file that is written through the functions of `os`, where the recorder sees it."""

    def __init__(self, path: Any) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def fileno(self) -> int:
        return self._file

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._file, offset, whence)

    def write(self, data: Any) -> int:
        return os.write(self._file, data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._file)


# -- replaying ------------------------------------------------------------------------------------


@dataclass
class Folder:
    """The names that are in a folder for sure, those that are there now, and the changes in between."""

    synced: dict[str, File | Folder] = field(default_factory=dict)
    names: dict[str, File | Folder] = field(default_factory=dict)
    since: list[tuple[Operation, File | Folder]] = field(default_factory=list)

    def sync(self) -> None:
        self.synced, self.since = dict(self.names), []

    def change(self, operation: Operation, new: File | Folder) -> None:
        self.since.append((operation, new))
        _apply(self.names, operation, new)

    def left(self, kept: str, chance: random.Random) -> dict[str, File | Folder]:
        steps = len(self.since)
        match kept:
            case "none":
                steps = 0
            case "some":
                steps = chance.randint(0, steps)
            case "removals" if not any(operation.kind == "unlink" for operation, _ in self.since):
                steps = 0
        names = dict(self.synced)
        for operation, new in self.since[:steps]:
            _apply(names, operation, new)
        return names


def _apply(names: dict[str, File | Folder], operation: Operation, new: File | Folder) -> None:
    name = PurePosixPath(operation.path).name
    match operation.kind:
        case "create" | "mkdir":
            names[name] = new
        case "unlink" | "rmdir":
            names.pop(name, None)
        case "rename":
            names[PurePosixPath(operation.target).name] = names.pop(name)


class Disk:
    """What operations made of a folder."""

    def __init__(self) -> None:
        self.root = Folder()
        self.notes: dict[str, int] = {}

    def do(self, operation: Operation) -> None:
        match operation.kind:
            case "note":
                self.notes[operation.path] = operation.number
            case "write":
                self._file(operation.path).since.append((operation.number, operation.data))
            case "truncate":
                self._file(operation.path).since.append(operation.number)
            case "sync":
                self._find(operation.path).sync()
            case kind:
                parent = self._find(str(PurePosixPath(operation.path).parent))
                assert isinstance(parent, Folder)
                if operation.target:
                    # A rename from folder to folder would be two changes that the power may cut apart.
                    assert PurePosixPath(operation.target).parent == PurePosixPath(operation.path).parent
                parent.change(operation, Folder() if kind == "mkdir" else File())

    def _find(self, path: str) -> File | Folder:
        found: File | Folder = self.root
        for name in PurePosixPath(path).parts:
            assert isinstance(found, Folder)
            found = found.names[name]
        return found

    def _file(self, path: str) -> File:
        found = self._find(path)
        assert isinstance(found, File), path
        return found

    def now(self, path: str) -> bytes:
        """The content of a file, as a process would read it now."""
        file = self._file(path)
        return applied(file.synced, file.since)

    def after_a_cut(self, variant: str, chance: random.Random) -> dict[str, bytes | None]:
        """What is found when the power is back: contents by path; a folder has none."""
        names, contents = VARIANTS[variant]
        left: dict[str, bytes | None] = {}

        def walk(folder: Folder, at: str) -> None:
            for name, one in sorted(folder.left(names, chance).items()):
                if isinstance(one, File):
                    left[at + name] = _kept(one, contents, chance)
                else:
                    left[at + name] = None
                    walk(one, f"{at}{name}/")

        walk(self.root, "")
        return left


def _kept(file: File, kept: str, chance: random.Random) -> bytes:
    match kept:
        case "none":
            return file.synced
        case "all":
            return applied(file.synced, file.since)
        case "torn":
            return applied(file.synced, torn(file.since))
        case _:
            return applied(file.synced, [change for change in file.since if chance.random() < 0.5])
