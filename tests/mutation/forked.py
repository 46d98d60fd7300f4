"""Tries mutants in forks of a process that has already imported everything and collected the tests.

Starting Python, importing and collecting takes over a second; the tests that catch a mutant take a few
milliseconds.  So one pytest collects all tests once and waits (`Server`).  For each mutant it forks; the fork
replaces the code of the one function that the mutant changes, and runs the tests that execute the changed
line until one fails (`_Fork`).  `Forks` is the other end, in the process of `make mutants`.

This works for changes inside functions that no import has called.  All others are tried in a process of
their own (`run.judge`), and so are mutants that survived here: a process that a test starts has the
unmutated sources.  A test is believed only if it passes in a fork without a mutant.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import types
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from mutation.operators import Mutant, apply

# What runs in the fork has nothing to import, so this is much for tests that take milliseconds.
PATIENCE = 8
PATIENCE_S = 15.0
# A mutant that allocates without end is stopped before the machine is.
MEMORY_BYTES = 6 * 1024**3
NOT_APPLIED = "not applied"


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


# -- the process that collects and forks --------------------------------------------------------


class Server:
    """A plugin of pytest: instead of running the tests it answers requests, each in a fork."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = os.fdopen(requests, "r")
        self._answers = os.fdopen(answers, "w")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions = _functions()
        # What exists now is never freed: no fork has to look at it, or to copy its pages.
        gc.collect()
        gc.freeze()
        self._answer({"ready": len(items)})
        for line in self._requests:
            request = json.loads(line)
            self._answer(_in_fork(session, items, functions, request))
        return True

    def _answer(self, answer: dict[str, Any]) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


def _functions() -> dict[tuple[str, str], list[types.FunctionType]]:
    """Every function of polybus by its module and name, also those behind decorators and properties."""
    found: dict[tuple[str, str], list[types.FunctionType]] = defaultdict(list)
    for one in gc.get_objects():
        if type(one) is types.FunctionType and (one.__module__ or "").startswith("polybus."):
            found[one.__module__, one.__qualname__].append(one)
    return found


def _in_fork(
    session: pytest.Session,
    items: dict[str, pytest.Item],
    functions: dict[tuple[str, str], list[types.FunctionType]],
    request: dict[str, Any],
) -> dict[str, Any]:
    result, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(result)
        # A mistake of ours in the fork catches no mutant: it is tried in a process of its own.
        answer: dict[str, Any] = {"by": NOT_APPLIED}
        with contextlib.suppress(BaseException):
            os.setsid()
            answer = _Fork(session, items, functions).run(request)
        os.write(told, json.dumps(answer).encode())
        os._exit(0)
    os.close(told)
    try:
        ready, _, _ = select.select([result], [], [], request["limit_s"])
        said = os.read(result, 65536) if ready else b""
    finally:
        os.close(result)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if said:
        answer = json.loads(said)
        return dict(answer)
    return {"by": f"exit status {status}" if ready else "timeout"}


@dataclass
class _Fork:
    """What happens in a fork."""

    session: pytest.Session
    items: dict[str, pytest.Item]
    functions: dict[tuple[str, str], list[types.FunctionType]]

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        limit_memory()
        os.environ["TMPDIR"] = request["folder"]
        tempfile.tempdir = None
        if request["module"] and not self._change(request):
            return {"by": NOT_APPLIED}
        failed = _Failed()
        self.session.config.pluginmanager.register(failed)
        chosen = [self.items[name] for name in request["tests"]]
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if failed.name:
                # Processes and sockets that fixtures have opened are closed before the process ends.
                with contextlib.suppress(BaseException):
                    self.session._setupstate.teardown_exact(None)
                break
        return {"by": failed.name}

    def _change(self, request: dict[str, Any]) -> bool:
        before, after = request["before"], request["after"]
        for old, new in zip(
            _codes(before, request["function"]), _codes(after, request["function"]), strict=False
        ):
            if old == new:
                continue
            known = self.functions[request["module"], old.co_qualname]
            mine = [one for one in known if one.__code__ == old]
            with contextlib.suppress(ValueError):
                for one in mine:
                    one.__code__ = new
                return bool(mine)
            return False
        return False


class _Failed:
    name: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.name is None:
            self.name = report.nodeid


def _codes(source: str, function: str) -> list[types.CodeType]:
    """The code of the outermost function on the way to this one: what it contains changes with it."""
    found = [compile(source, "<mutant>", "exec", dont_inherit=True)]
    for name in function.split("."):
        found = [
            one
            for code in found
            for one in code.co_consts
            if isinstance(one, types.CodeType) and one.co_name == name
        ]
        if any(one.co_flags & inspect.CO_OPTIMIZED for one in found):
            return found
    return []


# -- the process of `make mutants` --------------------------------------------------------------


class Forks:
    """One server, and what it said about a mutant."""

    def __init__(self, command: list[str], environment: dict[str, str], root: Path) -> None:
        requests, to_server = os.pipe()
        from_server, answers = os.pipe()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            cwd=root,
            env={**environment, "MUTANTS_SERVE": f"{requests} {answers}"},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(requests, answers),
            start_new_session=True,
        )
        os.close(requests)
        os.close(answers)
        self._requests = os.fdopen(to_server, "w")
        self._answers = os.fdopen(from_server, "r")
        self._trusted: dict[str, bool] = {}
        self._read()

    def _read(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            self._log.seek(0)
            said = self._log.read().decode(errors="replace")
            raise RuntimeError(f"the process that collects the tests has ended: {said[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def try_mutant(self, source: bytes, mutant: Mutant, tests: list[str], seconds: float) -> str | None:
        """The test that failed, None if none did, NOT_APPLIED if the change cannot be made in a fork."""
        changed = apply(source, mutant)
        assert changed is not None
        module = "polybus." + mutant.file.removesuffix(".py").replace("/", ".")
        how = {"module": module, "function": mutant.function}
        how |= {"before": source.decode(), "after": changed.decode()}
        waiting = tests
        while waiting:
            by = self._ask(how, waiting, seconds)
            if by is None or "::" not in by or self._is_trusted(by):
                return by
            # It fails without the mutant as well. Those before it have passed; the rest is asked next.
            waiting = waiting[waiting.index(by) + 1 :]
        return None

    def _is_trusted(self, test: str) -> bool:
        if test not in self._trusted:
            self._trusted[test] = self._ask({"module": "", "function": ""}, [test], 5.0) is None
        return self._trusted[test]

    def _ask(self, how: dict[str, str], tests: list[str], seconds: float) -> str | None:
        folder = tempfile.mkdtemp(prefix="mutant-")
        limit_s = PATIENCE_S + PATIENCE * seconds
        request = {**how, "tests": tests, "limit_s": limit_s, "folder": folder}
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            by: str | None = self._read()["by"]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return by

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._answers.close()
        self._log.close()
