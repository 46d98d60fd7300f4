"""The reference of what `polybus` exports: signatures and docstrings, as they stand in the sources."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from reference_text import MADE, Undocumented, cell, paragraphs, table

import polybus

# Documented for those who work on polybus; a program has no use for them.
INTERNAL: Final = {
    "Call": {"message", "order", "spec", "read"},
    "Chain": {"order", "read"},
    "Group": {"order", "read"},
    "Job": {"check_arguments", "invoke"},
    "JobHandle": {"read"},
    "LogHandler": {"body", "first", "emit"},
    "Request": {"line", "work"},
    "Subscription": {"fd"},
    "AsyncClient": {"abandon"},
    "Bus": {"do", "ado", "adesk", "use", "sending"},
}
# Given by polybus; nobody makes one.
GIVEN: Final = {
    *("Call", "Chain", "CurrentJob", "Group", "Job", "JobHandle", "Pending", "Request", "Schedule"),
    "Subscription",
}


def python() -> str:
    lines = [
        "# Python",
        "",
        f"{MADE} How it is used: [the Python library](../python.md), [jobs](../jobs.md).",
        "",
        "Everything here is imported from `polybus`. Submodules are internal.",
        "",
    ]
    names = [name for name in sorted(polybus.__all__, key=str.lower) if not name.startswith("_")]
    kinds: dict[str, list[str]] = {"Classes": [], "Functions": [], "Errors": []}
    for name in names:
        value = getattr(polybus, name)
        is_class = inspect.isclass(value)
        is_error = is_class and issubclass(value, BaseException)
        kinds["Errors" if is_error else "Classes" if is_class else "Functions"].append(name)
    for title, found in kinds.items():
        # `chain` makes a `Chain`, and a link does not see the difference.
        before = "function-" if title == "Functions" else ""
        lines += [f"{title}: " + " · ".join(f"[`{name}`](#{before}{name.lower()})" for name in found), ""]
    for found in kinds.values():
        for name in found:
            value = getattr(polybus, name)
            lines += _class(name, value) if inspect.isclass(value) else _function(name, value)
    return "\n".join(lines)


def _function(name: str, function: Callable[..., Any]) -> Iterator[str]:
    yield from (f"## function {name}", "", "```text", f"{name}{_signature(function)}", "```", "")
    yield from paragraphs(_doc(name, function))


def _class(name: str, kind: type) -> Iterator[str]:
    yield from (f"## {name}", "")
    if issubclass(kind, BaseException):
        bases = [base.__name__ for base in kind.__mro__[1:] if base not in (BaseException, object)]
        yield from (f"*{' · '.join(bases) or 'BaseException'}*", "")
    init = inspect.getattr_static(kind, "__init__", None)
    fields = getattr(kind, "__struct_fields__", None)
    if name in GIVEN:
        pass
    elif inspect.isfunction(init) and init.__module__.startswith("polybus"):
        yield from ("```text", f"{name}{_signature(init)}", "```", "")
    elif fields:
        yield from ("```text", f"{name}({', '.join(fields)})", "```", "")
    yield from paragraphs(_doc(name, kind))
    rows = list(_members(name, kind))
    if rows:
        yield from (*table("member", "meaning"), *rows, "")


def _members(name: str, kind: type) -> Iterator[str]:
    seen: set[str] = set()
    hidden = INTERNAL.get(name, set())
    for owner in kind.__mro__:
        if not owner.__module__.startswith("polybus"):
            continue
        for member, value in vars(owner).items():
            if member.startswith("_") or member in seen or member in hidden:
                continue
            seen.add(member)
            plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            if inspect.isfunction(plain):
                text = inspect.getdoc(plain)
                if not text and member[0] == "a" and hasattr(kind, member[1:]):
                    text = f"`{member[1:]}` for asyncio."
                if not text and member != "delay":
                    continue
                before = "async " if inspect.iscoroutinefunction(plain) else ""
                yield f"| `{before}{member}{cell(_signature(plain))}` | {cell(text or 'Send it.')} |"
            elif isinstance(value, property):
                hint = inspect.signature(value.fget).return_annotation if value.fget else ""
                yield f"| `{member}`: `{cell(str(hint))}` | {cell(inspect.getdoc(value) or '')} |"
            elif inspect.ismemberdescriptor(value):
                hint = _annotations(kind).get(member, "")
                yield f"| `{member}`{f': `{cell(hint)}`' if hint else ''} | |"


def _annotations(kind: type) -> dict[str, str]:
    return {
        name: str(hint)
        for owner in kind.__mro__
        for name, hint in vars(owner).get("__annotations__", {}).items()
    }


def _doc(name: str, value: Any) -> str:
    text = inspect.getdoc(value)
    if not text:
        raise Undocumented(f"polybus.{name} has no docstring")
    return text


def _signature(function: Callable[..., Any]) -> str:
    """As it is written, but for `self` and with defaults as their values."""
    found = inspect.signature(function)
    words: list[str] = []
    starred = False
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls") and not words:
            continue
        text = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            text, starred = f"*{text}", True
        elif parameter.kind is parameter.VAR_KEYWORD:
            text = f"**{text}"
        elif parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        if parameter.annotation is not parameter.empty:
            text += f": {_plain(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f"{' = ' if ':' in text else '='}{_default(parameter.default)}"
        words.append(text)
    returns = "" if found.return_annotation is found.empty else f" -> {_plain(found.return_annotation)}"
    return f"({', '.join(words)}){returns}"


def _plain(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _default(value: Any) -> str:
    text = repr(value)
    # Something with an address in memory is another one every time.
    return "…" if re.search(r" at 0x[0-9a-f]+>", text) else text
