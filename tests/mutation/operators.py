"""Mutation operators: every small change that can be made to one node of a Python source.

`mutants_of` reads a source and yields its mutants.  Each one replaces a single span of the text, so the rest
of the file keeps its lines and its formatting.  Some spans do not give a valid program (an entry in
parentheses that loses only one of them, for example); `apply` tells, and the sampler takes another one.

What is never mutated, because no test of behaviour could or should notice it: annotations, docstrings,
imports, `assert` statements, `if TYPE_CHECKING`, decorators, f-strings, and words for people: the text of
error messages, and any text with a space in it that is given to a call (`read_name(frame, "service name")`,
`WorkerGone(peer, "it disconnected")`), unless the call is one that reads it (`READS_TEXT`).  A single word is
mutated, because it may be a key or a state, unless the call only names something with it (`NAMES_IN_ERRORS`).
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
}
# Calls that only inform the type checker.
TYPING_CALLS = frozenset({"TypeVar", "NewType", "ParamSpec", "cast", "TypeAliasType"})
# Calls that read a text with spaces in it as a program does: SQL and forms of a date.
READS_TEXT = frozenset({"execute", "executemany", "executescript", "strftime", "strptime"})
# Functions of `wire` that take the name of a field or command only to put it into the error that they raise.
NAMES_IN_ERRORS = frozenset(
    {"read_name", "read_id", "read_text", "read_json_object", "check_name", "check_id", "wrong_length"}
    | {"bare", "_naming", "_named", "_envelope", "_exactly_two", "_between", "_is_long", "_check_joined"}
    | {"_words", "_optional_name", "_optional_frame", "read_json_objects"}
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Mutant:
    """One change of one file. `file` is relative to the package, offsets count bytes."""

    file: str
    function: str
    line: int
    # A test that executes one of these lines (first, last) may notice; (0, 0) is code that runs on import.
    lines: tuple[int, int]
    operator: str
    start: int
    end: int
    replacement: str
    # The statement, or the head of a compound one, before and after.
    before: str
    after: str

    @property
    def key(self) -> str:
        """Stays the same when lines move, and changes with the statement."""
        facts = (self.file, self.function, self.before, self.after)
        return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:12]


def apply(source: bytes, mutant: Mutant) -> bytes | None:
    """The mutated source, or None if it is no program or the same program."""
    mutated = source[: mutant.start] + mutant.replacement.encode() + source[mutant.end :]
    if mutated == source:
        return None
    try:
        ast.parse(mutated)
    except SyntaxError:
        return None
    return mutated


def mutants_of(file: str, source: bytes) -> Iterator[Mutant]:
    yield from _Finder(file, source).module()


@dataclass(frozen=True)
class _Place:
    """Where the finder is: the function, the lines that a test has to execute, the statement's span."""

    function: str
    lines: tuple[int, int]
    start: int
    end: int


class _Finder:
    def __init__(self, file: str, source: bytes) -> None:
        self._file = file
        self._source = source
        self._offsets = [0]
        for line in source.splitlines(keepends=True):
            self._offsets.append(self._offsets[-1] + len(line))

    def module(self) -> Iterator[Mutant]:
        yield from self._block(ast.parse(self._source).body, "", on_import=True)

    # Offsets and spans

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._offsets[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offsets[node.end_lineno - 1] + node.end_col_offset

    def _mutant(self, place: _Place, operator: str, start: int, end: int, replacement: str) -> Mutant:
        text = self._source
        before = text[place.start : place.end].decode()
        after = (text[place.start : start] + replacement.encode() + text[end : place.end]).decode()
        line = text.count(b"\n", 0, start) + 1
        return Mutant(
            self._file, place.function, line, place.lines, operator, start, end, replacement, before, after
        )

    def _replace(self, place: _Place, operator: str, node: ast.expr | ast.stmt, replacement: str) -> Mutant:
        return self._mutant(place, operator, self._start(node), self._end(node), replacement)

    # Statements

    def _block(self, body: list[ast.stmt], function: str, on_import: bool) -> Iterator[Mutant]:
        for index, statement in enumerate(body):
            if index == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            yield from self._statement(statement, function, on_import)

    def _statement(self, node: ast.stmt, function: str, on_import: bool) -> Iterator[Mutant]:
        end = self._head_end(node)
        lines = (0, 0) if on_import else (node.lineno, self._source.count(b"\n", 0, end) + 1)
        place = _Place(function, lines, self._start(node), end)
        if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom) or _is_for_types(node):
            return
        if isinstance(node, FUNCTIONS):
            name = f"{function}.{node.name}" if function else node.name
            own = (node.body[0].lineno, node.end_lineno or node.lineno)
            # A default is evaluated on import, and matters to whoever calls the function.
            head = _Place(name, own, self._start(node), self._start(node.body[0]))
            for default in [*node.args.defaults, *node.args.kw_defaults]:
                if default is not None:
                    yield from self._expression(default, head)
            yield from self._block(node.body, name, on_import=False)
            return
        if isinstance(node, ast.ClassDef):
            name = f"{function}.{node.name}" if function else node.name
            yield from self._block(node.body, name, on_import)
            return
        yield from self._whole(node, place)
        for expression in _expressions(node):
            yield from self._expression(expression, place)
        for block in _blocks(node):
            for inner in block:
                yield from self._statement(inner, function, on_import)

    def _head_end(self, node: ast.stmt) -> int:
        """Where a simple statement ends; of a compound one, its head."""
        body = getattr(node, "body", None)
        if isinstance(body, list) and body:
            return self._source.rfind(b":", self._start(node), self._start(body[0])) + 1
        return self._end(node)

    def _whole(self, node: ast.stmt, place: _Place) -> Iterator[Mutant]:
        match node:
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield self._replace(place, "drop call", node, "pass")
            case ast.AugAssign():
                yield self._replace(place, "drop assignment", node, "pass")
                yield from self._operator(place, node.op, self._end(node.target), self._start(node.value))
            case ast.Assign() if any(isinstance(one, ast.Attribute | ast.Subscript) for one in node.targets):
                yield self._replace(place, "drop assignment", node, "pass")
            case ast.Delete():
                yield self._replace(place, "drop del", node, "pass")
            case ast.Raise():
                yield self._replace(place, "drop raise", node, "pass")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield self._replace(place, "return None", node, "return None")
            case ast.Break():
                yield self._replace(place, "break", node, "continue")
            case ast.Continue():
                yield self._replace(place, "continue", node, "break")
            case ast.If():
                yield from self._condition(place, node.test, ("True", "False"))
            case ast.While() if not isinstance(node.test, ast.Constant):
                yield from self._condition(place, node.test, ("False",))

    def _condition(self, place: _Place, test: ast.expr, values: tuple[str, ...]) -> Iterator[Mutant]:
        for value in values:
            yield self._replace(place, f"condition {value}", test, value)

    # Expressions

    def _expression(self, node: ast.expr, place: _Place) -> Iterator[Mutant]:
        match node:
            case ast.JoinedStr():
                return
            case ast.Call(func=ast.Name(id=name)) if name in TYPING_CALLS:
                return
            case ast.Constant():
                yield from self._constant(node, place)
            case ast.Compare():
                yield from self._compare(node, place)
            case ast.BoolOp():
                word, other = (b"and", b"or") if isinstance(node.op, ast.And) else (b"or", b"and")
                for left, right in zip(node.values, node.values[1:], strict=False):
                    start, end = self._end(left), self._start(right)
                    gap = re.sub(rb"\b%s\b" % word, other, self._source[start:end])
                    yield self._mutant(place, "boolean", start, end, gap.decode())
            case ast.UnaryOp(op=ast.Not()):
                yield self._mutant(place, "drop not", self._start(node), self._start(node.operand), "")
            case ast.UnaryOp(op=ast.USub()):
                yield self._mutant(place, "drop minus", self._start(node), self._start(node.operand), "")
            case ast.BinOp() if not _is_text(node.left) and not _is_text(node.right):
                yield from self._operator(place, node.op, self._end(node.left), self._start(node.right))
            case ast.IfExp():
                yield from self._condition(place, node.test, ("True", "False"))
            case ast.Dict():
                entries = [
                    (self._start(key), self._end(value))
                    for key, value in zip(node.keys, node.values, strict=True)
                    if key is not None
                ]
                if len(entries) == len(node.keys):
                    yield from self._entries(place, entries)
            case ast.Set():
                yield from self._entries(place, [(self._start(one), self._end(one)) for one in node.elts])
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                for generator in node.generators:
                    for test in generator.ifs:
                        yield from self._condition(place, test, ("True", "False"))
        for child in _children(node):
            if not _is_for_people(child, node):
                yield from self._expression(child, place)

    def _constant(self, node: ast.Constant, place: _Place) -> Iterator[Mutant]:
        value = node.value
        if isinstance(value, bool):
            yield self._replace(place, "constant", node, str(not value))
        elif isinstance(value, int):
            yield self._replace(place, "constant", node, str(value + 1))
            if value > 0:
                yield self._replace(place, "constant", node, str(value - 1))
        elif isinstance(value, float):
            yield self._replace(place, "constant", node, repr(value + 1.0))
        elif isinstance(value, bytes):
            yield self._replace(place, "constant", node, repr(b"XX" + value))
        elif isinstance(value, str):
            yield self._replace(place, "constant", node, repr("XX" + value))

    def _compare(self, node: ast.Compare, place: _Place) -> Iterator[Mutant]:
        left: ast.expr = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            token, others = COMPARISONS[type(operator)]
            start, end = self._end(left), self._start(right)
            pattern = re.escape(token).replace(r"\ ", r"\s+")
            for other in others:
                gap = re.sub(pattern, other, self._source[start:end].decode(), count=1)
                yield self._mutant(place, "comparison", start, end, gap)
            left = right

    def _operator(self, place: _Place, operator: ast.operator, start: int, end: int) -> Iterator[Mutant]:
        known = ARITHMETIC.get(type(operator))
        if known is None:
            return
        gap = self._source[start:end].decode()
        if known[0] in gap:
            yield self._mutant(place, "arithmetic", start, end, gap.replace(known[0], known[1], 1))

    def _entries(self, place: _Place, spans: list[tuple[int, int]]) -> Iterator[Mutant]:
        """Drop one entry of a display together with the comma that follows or precedes it."""
        for index, (start, end) in enumerate(spans):
            if index + 1 < len(spans):
                yield self._mutant(place, "drop entry", start, spans[index + 1][0], "")
            elif index:
                yield self._mutant(place, "drop entry", spans[index - 1][1], end, "")


def _expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement that are evaluated and mean something to a caller."""
    match node:
        case ast.Raise(exc=ast.Call() as call):
            # The kind of an error and its facts matter, its wording does not.
            for one in [*call.args, *(keyword.value for keyword in call.keywords)]:
                if not _is_text(one):
                    yield one
        case ast.Raise():
            return
        case ast.AnnAssign():
            if node.value is not None:
                yield node.value
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__" | "__match_args__")]):
            return
        case ast.Try():
            return
        case _:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    yield child
                elif isinstance(child, ast.withitem):
                    yield child.context_expr


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(node, name, None) or []
    for handler in getattr(node, "handlers", ()):
        yield handler.body
    for case in getattr(node, "cases", ()):
        yield case.body


def _children(node: ast.expr) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.keyword):
            yield child.value
        elif isinstance(child, ast.comprehension):
            yield child.iter
            yield from child.ifs


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_for_people(node: ast.expr, parent: ast.expr) -> bool:
    """Whether it is an argument of several words, or the name of something in an error."""
    if not isinstance(parent, ast.Call) or node is parent.func:
        return False
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    called = parent.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in NAMES_IN_ERRORS or (" " in node.value.strip() and name not in READS_TEXT)


def _is_for_types(node: ast.stmt) -> bool:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return True
        case ast.Assign(value=ast.BinOp(op=ast.BitOr(), right=ast.Name() | ast.Subscript())):
            # `Event = Ready | Lost`: a union of types, on the level of a module.
            return node.col_offset == 0
    return False
