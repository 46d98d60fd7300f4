"""What a worker may run: the jobs of its application, what `allow` let in, and nothing else.

A message names a callable by text, and text comes from the network.  So the list is asked before anything is
imported, and a pattern lets in only what a module defines itself: public functions, and public methods of
classes where the pattern says so.  A name that a module has merely imported (`from os import system`) is not
its own.

    shop.mail.send       one function
    shop.mail.*          all functions of modules below shop.mail, and of shop.mail
    shop.mail:send       the same as the first, with the module told from the name
    shop.mail:*          all functions of this one module
    shop.mail:Mailer.*   all methods of a class, which is made with class_args and class_kwargs
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec
from msgspec import Struct

from polybus.client.jobs import Job
from polybus.errors import WorkerRejected

# A path is a module's name; nobody nests packages deeper than this.
MAX_NAME: Final = 255
# Targets that have been found are kept; a hostile sender must not fill the memory with others.
MAX_FOUND: Final = 10_000

_MODULE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z]\w*", re.ASCII)


class Call(Struct, gc=False):
    """What a job message asks for, in EventMQ's words."""

    path: str
    callable: str
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    class_args: list[Any] | None = None
    class_kwargs: dict[str, Any] | None = None


_MESSAGE: Final = msgspec.json.Decoder(tuple[str, Call])


def read_call(body: bytes) -> Call:
    """The call in a job message; `WorkerRejected` if it is none."""
    try:
        word, call = _MESSAGE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WorkerRejected(
            f'this is no job message: {error}; it takes ["run", {{"path": "module", "callable": "name", …}}]'
        ) from None
    if word != "run":
        raise WorkerRejected(f'a job message begins with "run", not with {word[:40]!r}')
    return call


class Target(Struct):
    """Something that may be run."""

    name: str
    call: Callable[[Call], Any]
    is_async: bool


class Gate:
    """The list of one application."""

    def __init__(self, jobs: Mapping[str, Any], patterns: Sequence[str] = ()) -> None:
        self._jobs: Final = jobs
        self._patterns: Final = [_split(pattern) for pattern in patterns]
        self._found: dict[tuple[str, str], Target] = {}

    def find(self, call: Call) -> Target:
        """What a message wants to run; `WorkerRejected` if it may not, or if it is not there."""
        key = (call.path, call.callable)
        target = self._found.get(key)
        if target is None:
            target = self._look(*key)
            if len(self._found) < MAX_FOUND:
                self._found[key] = target
        return target

    def _look(self, path: str, name: str) -> Target:
        if len(path) > MAX_NAME or len(name) > MAX_NAME:
            raise WorkerRejected(f"a name is longer than the {MAX_NAME} characters that are allowed")
        job = self._jobs.get(f"{path}.{name}")
        if job is not None:
            return _target_of(f"{path}.{name}", job)
        module, _, cls = path.partition(":")
        shown = f"{path}.{name}"
        names = (cls, name) if cls else (name,)
        if not _MODULE.fullmatch(module) or not all(_NAME.fullmatch(part) for part in names):
            raise WorkerRejected(f"{shown!r} is no name of a public function or method")
        if not any(_matches(pattern, module, names) for pattern in self._patterns):
            raise WorkerRejected(
                f"{shown} is not a job of this worker's application; decorate it with @bus.job, "
                f'or let it in with bus.allow("{module}:{".".join(names)}")'
            )
        return self._import(module, names)

    def _import(self, module: str, names: tuple[str, ...]) -> Target:
        """Only for what a pattern has let in."""
        shown = f"{module}:{'.'.join(names)}"
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise WorkerRejected(f"{shown} cannot be run: there is no module {error.name}") from None
        thing = getattr(found, names[0], None)
        if getattr(thing, "__module__", None) != module:
            raise WorkerRejected(f"{shown} cannot be run: {module} does not define {names[0]}")
        if len(names) == 1:
            if isinstance(thing, Job) or inspect.isfunction(thing):
                return _target_of(shown, thing)
            raise WorkerRejected(f"{shown} cannot be run: it is no function")
        method = getattr(thing, names[1], None)
        if not inspect.isclass(thing) or not inspect.isroutine(method):
            raise WorkerRejected(f"{shown} cannot be run: {names[0]} has no such method")
        return _method_of(shown, thing, names[1], inspect.iscoroutinefunction(method))


def _split(pattern: str) -> tuple[str, str | None]:
    """The module's part and the name's part; None if the pattern does not tell them apart."""
    module, colon, names = pattern.partition(":")
    return (module, names) if colon else (pattern, None)


def _matches(pattern: tuple[str, str | None], module: str, names: tuple[str, ...]) -> bool:
    first, second = pattern
    if second is None:
        # Without a colon only functions are meant: a star must not reach into classes unasked.
        return len(names) == 1 and fnmatchcase(f"{module}.{names[0]}", first)
    parts = second.split(".")
    if len(parts) == 1 and len(names) == 2:
        # The class itself was named: its methods.
        return "*" not in second and fnmatchcase(module, first) and names[0] == second
    return (
        len(parts) == len(names)
        and fnmatchcase(module, first)
        and all(fnmatchcase(name, part) for name, part in zip(names, parts, strict=True))
    )


def _target_of(name: str, thing: Any) -> Target:
    if isinstance(thing, Job):
        invoke = thing.invoke
        return Target(name, lambda call: invoke(call.args or (), call.kwargs or {}), thing.is_async)
    return Target(
        name,
        lambda call: thing(*(call.args or ()), **(call.kwargs or {})),
        inspect.iscoroutinefunction(thing),
    )


def _method_of(name: str, cls: type, method: str, is_async: bool) -> Target:
    def run(call: Call) -> Any:
        made = cls(*(call.class_args or ()), **(call.class_kwargs or {}))
        return getattr(made, method)(*(call.args or ()), **(call.kwargs or {}))

    return Target(name, run, is_async)
