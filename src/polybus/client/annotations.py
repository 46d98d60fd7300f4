"""JSON back into what a function's annotations say: dataclasses, dates, UUIDs, tuples and so on.

Arguments and results travel as JSON.  Where an annotation names a type that JSON has no word for, the value
is turned into it; everything else is left as it came, at no cost.  An annotation that cannot be resolved, or
that msgspec does not know, is no error: its value stays plain.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from polybus.errors import WorkerRejected

_PLAIN: Final = frozenset({Any, object, str, int, float, bool, list, dict, None, type(None)})
_UNION: Final = (typing.Union, types.UnionType)


def is_plain(hint: Any) -> bool:
    """Whether a value of this type looks the same in JSON."""
    if hint in _PLAIN or isinstance(hint, typing.TypeVar | typing.ParamSpec):
        return True
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNION or origin is list:
        return all(map(is_plain, inner))
    if origin is dict:
        return inner[0] is str and is_plain(inner[1])
    return origin is typing.Literal


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function; none if one of them cannot be found any more."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:
        # A name that exists for type checkers only, or anything else that annotations may contain.
        return {}


class ArgumentReader:
    """Turns the arguments of a call into what the function's annotations say."""

    def __init__(self, job: str, function: Callable[..., Any]) -> None:
        hints = hints_of(function)
        self._job = job
        self._types: dict[str, Any] = {}
        self._positions: list[str] = []
        self._rest = self._named_rest = ""
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._rest = name
            elif parameter.kind is parameter.VAR_KEYWORD:
                self._named_rest = name
            elif parameter.kind is not parameter.KEYWORD_ONLY:
                self._positions.append(name)
            hint = hints.get(name, Any)
            if not is_plain(hint) and _is_known(hint):
                self._types[name] = hint

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Arguments as the function wants them; `WorkerRejected` if they are something else."""
        if not self._types:
            return args, kwargs
        positions = self._positions
        return (
            [
                self._read(positions[at] if at < len(positions) else self._rest, value)
                for at, value in enumerate(args)
            ],
            {
                name: self._read(name if name in self._types else self._named_rest, value)
                for name, value in kwargs.items()
            },
        )

    def _read(self, name: str, value: Any) -> Any:
        hint = self._types.get(name)
        if hint is None:
            return value
        try:
            return msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            raise WorkerRejected(f"argument {name} of {self._job}: {error}") from None


class ResultReader:
    """Turns the body of a result into what the function returned."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        hint = Any if function is None else hints_of(function).get("return", Any)
        self._decoder: msgspec.json.Decoder[Any] | None = None
        if not is_plain(hint) and _is_known(hint):
            self._decoder = msgspec.json.Decoder(hint)

    def read(self, body: bytes) -> Any:
        if not body:
            return None
        try:
            if self._decoder is not None:
                return self._decoder.decode(body)
        except msgspec.MsgspecError:
            # It did not return what it is annotated with, or somebody else's worker answered.
            pass
        try:
            return msgspec.json.decode(body)
        except msgspec.DecodeError:
            # Not a polybus worker's answer; the caller knows what it is.
            return body


def _is_known(hint: Any) -> bool:
    try:
        msgspec.json.Decoder(hint)
    except (TypeError, ValueError, NameError, AttributeError):
        return False
    return True
