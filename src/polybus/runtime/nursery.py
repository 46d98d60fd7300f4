"""The nursery: a process that does nothing but fork children, signal them and bury them.

Forking a process that has threads or sockets of its own is how locks stay locked for ever and connections get
shared; a supervisor has both.  So before it makes either, it starts this program: one thread, one control
socket, and the modules that every child needs, which are thereby loaded once.  The application itself is not
among them: a child imports it after the fork, so a changed source is what a new child gets.

Over the control socket go records of one size.  Down: fork (with the child's descriptors attached), or a
signal for a child.  Up: the process id of a child that was born, or how one ended.  When the supervisor is
gone, however it ended, the socket closes and everything here is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from typing import Final

# What it is, then two numbers: key and process id, process id and signal, process id and wait status.
_RECORD: Final = struct.Struct("=qqq")
_FORK, _SIGNAL, _BORN, _ENDED = range(1, 5)
# pipe, page, standard output, standard error; the last two only if they go through the supervisor.
_MAX_FDS: Final = 4
_PR_SET_PDEATHSIG: Final = 1

Died = tuple[int, int]


class Nursery:
    """The supervisor's end."""

    def __init__(self, app: str, max_memory: int = 0, watched: bool = False) -> None:
        ours, theirs = socket.socketpair()
        self._control: Final = ours
        with theirs:
            # A session of its own: Ctrl-C in a terminal is for the supervisor to hear.
            self._process: Final = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    __name__,
                    str(theirs.fileno()),
                    app,
                    str(max_memory),
                    str(int(watched)),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._control.fileno()

    def fork(self, key: int, fds: list[int]) -> None:
        """Have a child made; `reports` tells its process id under this key, 0 if that could not be done."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [_RECORD.pack(_FORK, key, len(fds))], fds)

    def kill(self, pid: int, number: int) -> None:
        """A signal for a child; SIGKILL goes to all of its process group."""
        with contextlib.suppress(OSError):
            self._control.sendall(_RECORD.pack(_SIGNAL, pid, number))

    def reports(self) -> tuple[list[tuple[int, int]], list[Died], bool]:
        """Who was born (key, process id), who ended (process id, wait status), and whether it still lives."""
        born: list[tuple[int, int]] = []
        ended: list[Died] = []
        alive = True
        try:
            data = self._control.recv(64 * 1024, socket.MSG_DONTWAIT)
            alive = bool(data)
        except BlockingIOError:
            data = b""
        except OSError:
            data, alive = b"", False
        data = self._rest + data
        whole = len(data) - len(data) % _RECORD.size
        self._rest = data[whole:]
        for what, first, second in _RECORD.iter_unpack(data[:whole]):
            (born if what == _BORN else ended).append((first, second))
        return born, ended, alive

    def close(self) -> None:
        """End it, and with it whatever children there still are."""
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Keeper:
    """The nursery's own end, in its own process."""

    def __init__(self, control: socket.socket, app: str, max_memory: int, watched: bool) -> None:
        self._control = control
        self._app = app
        self._max_memory = max_memory
        self._watched = watched
        self._children: set[int] = set()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)

    def run(self) -> None:
        control = self._control.fileno()
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Only the supervisor ends us, by closing the socket.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        try:
            while True:
                ready, _, _ = select.select([control, self._wake_r], [], [])
                if self._wake_r in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_r, 4096)
                    self._bury()
                if control in ready and not self._obey():
                    break
        finally:
            self._kill_all()

    def _obey(self) -> bool:
        """Do what the supervisor asks; False if it is gone."""
        fds: list[int] = []
        data = b""
        while len(data) < _RECORD.size:
            try:
                piece, more, _, _ = socket.recv_fds(self._control, _RECORD.size - len(data), _MAX_FDS)
            except OSError:
                return False
            if not piece:
                return False
            data += piece
            fds += more
        what, first, second = _RECORD.unpack(data)
        if what == _FORK:
            for fd in fds:
                # Programs that jobs start are not to hold a child's pipe open.
                os.set_inheritable(fd, False)
            self._fork(first, fds)
            for fd in fds:
                os.close(fd)
        elif what == _SIGNAL:
            self._signal(first, second)
        return True

    def _fork(self, key: int, fds: list[int]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError:
            # Too many processes, or no memory: the supervisor tries again later.
            self._say(_BORN, key, 0)
            return
        if pid == 0:
            self._become_child(fds)
        with contextlib.suppress(OSError):
            # Here as well as there, so that it is done whoever is first.
            os.setpgid(pid, pid)
        self._children.add(pid)
        self._say(_BORN, key, pid)

    def _become_child(self, fds: list[int]) -> None:
        """In the child: never returns."""
        status = 1
        try:
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            _die_with_parent()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            self._control.close()
            os.close(self._wake_r)
            os.close(self._wake_w)
            for at, fd in enumerate(fds[2:], 1):
                os.dup2(fd, at)
                os.close(fd)
            from polybus.runtime.child import main

            with socket.socket(fileno=fds[0]) as pipe:
                status = main(pipe, fds[1], self._app, self._max_memory, self._watched)
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _signal(self, pid: int, number: int) -> None:
        # One that was buried may have left its number to a stranger.
        if pid in self._children:
            with contextlib.suppress(OSError):
                os.killpg(pid, number) if number == signal.SIGKILL else os.kill(pid, number)

    def _bury(self) -> None:
        for pid in list(self._children):
            try:
                status = _end_of(pid)
            except ChildProcessError:
                self._children.discard(pid)
                continue
            if status is not None:
                self._children.discard(pid)
                self._say(_ENDED, pid, status)

    def _kill_all(self) -> None:
        for pid in self._children:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        for pid in self._children:
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)

    def _say(self, what: int, first: int, second: int) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(_RECORD.pack(what, first, second))


def _end_of(pid: int) -> int | None:
    """The wait status of a child that has ended, after what is left of its process group was killed."""
    if hasattr(os, "waitid"):
        # Left unburied for a moment: until then the number of the group is certainly its own.
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1]
    found, status = os.waitpid(pid, os.WNOHANG)
    if not found:
        return None
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    return status


def _die_with_parent() -> None:
    """Where the system offers it (Linux): a child does not outlive the nursery, not even a killed one."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    control_fd, app, max_memory, watched = sys.argv[1:]
    # What every child needs; pyzmq is loaded with it, but no context is made, so no thread is started.
    import polybus.runtime.child  # noqa: F401

    with socket.socket(fileno=int(control_fd)) as control:
        control.set_inheritable(False)
        _Keeper(control, app, int(max_memory), watched == "1").run()


if __name__ == "__main__":
    main()
