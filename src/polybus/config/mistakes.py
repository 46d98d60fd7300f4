"""What is wrong with settings, said for the person who wrote them.

Every sentence names the setting, its value, the source of the value (the file, an environment variable, an
option of the command line) and what the setting takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec
from msgspec import Struct, inspect

from polybus.errors import ConfigError

# Longer values are cut: the name of the setting is what the reader looks for.
SHOWN_CHARS: Final = 80
PORT_WORDS: Final = (
    "a port number from 0 to 65535 (0: any free one), -1 to turn it off, "
    "or an endpoint such as tcp://127.0.0.1:5000"
)
# How a number is called whose name ends so; the first that fits counts.
UNITS: Final = (("_per_s", "a second"), ("_s", "seconds"), ("_days", "days"), ("bytes", "bytes"))


class Sources:
    """Where the value of each setting comes from."""

    def __init__(self, tree: Mapping[str, Any], file: str) -> None:
        """`tree` is what the file holds, `file` its name."""
        self._file = file
        self._in_file = {
            f"{section}.{option}"
            for section, part in tree.items()
            if isinstance(part, dict)
            for option in part
        }
        self._nearer: dict[str, str] = {}

    def put(self, name: str, source: str) -> None:
        """A source that counts more than the file."""
        self._nearer[name] = source

    def of(self, name: str) -> str:
        """The source of `section.name`, as it stands in a sentence."""
        if name in self._nearer:
            return self._nearer[name]
        # Of a queue only what the file does not hold has been put.
        is_in_file = name in self._in_file or name.count(".") != 1
        return f"the file {self._file}" if is_in_file else "the default"

    @property
    def file(self) -> str:
        return f"the file {self._file}"


class Section(Struct, frozen=True):
    """A table of settings: how it is called in sentences and in `Sources`, and what may be in it."""

    title: str
    name: str
    kind: type[Struct]


def wrong(name: str, value: object, source: str, takes: str) -> str:
    return f"{name} = {shown(value)}, from {source}, is not allowed: it takes {takes}."


def shown(value: object) -> str:
    """A value as it stands in the file."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def refusal(reasons: Iterable[str]) -> ConfigError:
    """All mistakes at once."""
    found = list(reasons)
    return ConfigError(" ".join(found if len(found) == 1 else [f"{len(found)} settings are wrong.", *found]))


def in_section(section: Section, part: object, sources: Sources, ports: Iterable[str]) -> Iterator[str]:
    """What is wrong in one table of settings."""
    if not isinstance(part, dict):
        yield no_table(section.title, part, sources)
        return
    options = {option.name: option.type for option in msgspec.structs.fields(section.kind)}
    for option, value in part.items():
        title, source = f"{section.title}.{option}", sources.of(f"{section.name}.{option}")
        if option not in options:
            yield _unknown(title, shown(value), source, f"{section.title}.", options)
            continue
        try:
            msgspec.convert(value, options[option], strict=False)
        except msgspec.ValidationError:
            takes = PORT_WORDS if title in ports else allowed(option, inspect.type_info(options[option]))
            yield wrong(title, value, source, takes)


def no_table(title: str, value: object, sources: Sources) -> str:
    return (
        f"{title} = {shown(value)}, from {sources.file}, is not allowed: "
        f"[{title}] must be a table of settings, one line for each."
    )


def no_section(name: str, sources: Sources, known: Iterable[str]) -> str:
    return _unknown(f"[{name}]", "", sources.file, "", known)


def _unknown(title: str, value: str, source: str, prefix: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = get_close_matches(title.removeprefix(prefix).strip("[]"), names, 1)
    hint = f"did you mean {prefix}{near[0]}?" if near else f"there are {', '.join(names)}."
    kind = "setting" if prefix else "section"
    return f"there is no {kind} {title}{' = ' + value if value else ''}, from {source}; {hint}"


def allowed(option: str, kind: inspect.Type) -> str:
    """What a setting takes, in words."""
    match kind:
        case inspect.LiteralType(values):
            return " or ".join(shown(value) for value in sorted(values, key=str))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number{_unit(option)}{_range(kind)}"
        case inspect.FloatType():
            return f"a number{_unit(option)}{_range(kind)}"
        case inspect.StrType():
            return f"text{_length(kind)}"
        case inspect.VarTupleType(item):
            length = allowed("", item).removeprefix("text")
            return f'a list of texts{length}: ["a", "b"] in the file, a,b in the environment and after --set'
        case inspect.UnionType(types):
            words = [allowed(option, one) for one in types if not isinstance(one, inspect.NoneType)]
            return " or ".join(words)
    return "another kind of value"


def _unit(option: str) -> str:
    for ending, unit in UNITS:
        if option.endswith(ending):
            return f" {unit}" if unit == "a second" else f" of {unit}"
    return ""


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    least = f" more than {kind.gt:g}" if kind.gt is not None else ""
    if kind.ge is not None:
        least = f" from {_plain(kind.ge)}"
    most = "" if kind.le is None else _plain(kind.le)
    if kind.gt is not None and most:
        return f",{least} and at most {most}"
    if kind.ge is not None:
        return f"{least} to {most}" if most else f", at least {_plain(kind.ge)}"
    return f",{least}" if least else ""


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


def _length(kind: inspect.StrType) -> str:
    if kind.min_length is None and kind.max_length is None:
        return ""
    return f" of {kind.min_length or 0} to {kind.max_length} characters"
