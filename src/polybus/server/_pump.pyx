# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled pump: whole batches of multipart messages through libzmq, one crossing per batch.

Nothing is linked.  The functions come at import time from the very library that pyzmq loaded
(its file name is hashed and differs from wheel to wheel), so that the handles pyzmq made belong
to the code that gets them.  If they cannot be found the import fails with the reason, and the
caller uses the twin.

Draining and sending never block (ZMQ_DONTWAIT) and therefore keep the GIL: giving it up costs
more than the call.  Only the wait, which does block, runs without it.

To ask a socket for a message it does not have costs a system call, and so does asking zmq_poll, for every
socket.  With many sockets, most of them quiet, that would be nearly all the work.  So we wait on the file
descriptors of the sockets (ZMQ_FD) with one call and touch only those that show something.
Such a descriptor tells of changes, not of messages: a socket must be read until it is empty before it is
waited for, and sending on it may swallow the news that something came in.  `dirty` notes the sockets
of which this is not known to be done; they are read in any case.  Should news be lost all the same (somebody
used a socket behind our back), a wait that timed out makes all of them dirty.

A pump belongs to one thread, the one that uses its sockets: libzmq sockets are not thread-safe,
and closing one while another thread waits in `recv_many` is undefined.  Different pumps in
different threads do not share anything but these function pointers.  `LargeFrame`s may go from
thread to thread: libzmq counts references to their content atomically.
"""

import ctypes
import sys

import zmq

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_AsSsize_t, PyLong_CheckExact
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.sequence cimport PySequence_Fast_GET_SIZE, PySequence_Fast_ITEMS
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, ENOTSOCK
from libc.string cimport memcmp, memcpy

cdef extern from "errno.h" nogil:
    const int ENOTSUP
    int system_errno "errno"

# zmq.h promises this layout: 64 bytes, aligned like a pointer, and these numbers.
ctypedef union zmq_msg_t:
    unsigned char space[64]
    void *alignment

# Waiting for many descriptors: with epoll(7), which knows them already and costs as much as what has come; with
# poll(2), which is told all of them every time, where there is no epoll.
cdef extern from *:
    """
    #include <errno.h>
    #include <poll.h>
    #include <stdlib.h>
    #ifdef __linux__
    #include <sys/epoll.h>
    #include <unistd.h>
    #endif

    typedef struct {
        int n, epoll;
        struct pollfd *fds;      /* revents says what has come */
    #ifdef __linux__
        struct epoll_event *events;
        int n_shown, *shown;     /* whose revents is set */
    #endif
    } watch_t;

    static void watch_close(watch_t *watch) {
    #ifdef __linux__
        if (watch->epoll >= 0) close(watch->epoll);
        free(watch->events);
        free(watch->shown);
    #endif
        free(watch->fds);
    }

    static int watch_open(watch_t *watch, int n) {
        watch->n = n;
        watch->epoll = -1;
        watch->fds = (struct pollfd *) calloc(n, sizeof(struct pollfd));
    #ifdef __linux__
        watch->n_shown = 0;
        watch->events = (struct epoll_event *) calloc(n, sizeof(struct epoll_event));
        watch->shown = (int *) calloc(n, sizeof(int));
        watch->epoll = epoll_create1(EPOLL_CLOEXEC);
        if (!watch->events || !watch->shown || watch->epoll < 0) return -1;
    #endif
        return watch->fds ? 0 : -1;
    }

    static int watch_add(watch_t *watch, int at, int fd) {
        watch->fds[at].fd = fd;
        watch->fds[at].events = POLLIN;
    #ifdef __linux__
        struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = (unsigned) at}};
        return epoll_ctl(watch->epoll, EPOLL_CTL_ADD, fd, &event);
    #else
        return 0;
    #endif
    }

    static void watch_drop(watch_t *watch, int at) {
    #ifdef __linux__
        if (watch->fds[at].fd >= 0) epoll_ctl(watch->epoll, EPOLL_CTL_DEL, watch->fds[at].fd, NULL);
    #endif
        watch->fds[at].fd = -1;
    }

    static int watch_wait(watch_t *watch, int timeout_ms) {
    #ifdef __linux__
        int i, rc = epoll_wait(watch->epoll, watch->events, watch->n, timeout_ms);
        for (i = 0; i < watch->n_shown; i++) watch->fds[watch->shown[i]].revents = 0;
        watch->n_shown = rc < 0 ? 0 : rc;
        for (i = 0; i < watch->n_shown; i++) {
            watch->shown[i] = (int) watch->events[i].data.u32;
            watch->fds[watch->shown[i]].revents = POLLIN;
        }
        return rc;
    #else
        return poll(watch->fds, watch->n, timeout_ms);
    #endif
    }

    static int watch_shows(watch_t *watch, int at) { return watch->fds[at].revents; }
    """
    ctypedef struct watch_t:
        pass
    int watch_open(watch_t *, int) nogil
    void watch_close(watch_t *) nogil
    int watch_add(watch_t *, int, int) nogil
    void watch_drop(watch_t *, int) nogil
    int watch_wait(watch_t *, int) nogil
    int watch_shows(watch_t *, int) nogil

cdef enum:
    FEW_SOCKETS = 4
    # What a full pipe refuses for: one peer of many, or the only one.
    BY_IDENTITY = 1
    BY_SOCKET = 2
    # How many frames at the beginning of a message are compared with those of the last one.
    REMEMBERED = 4
    # How many frames nearly every message has at most.
    GATHERED = 16
    ZMQ_DONTWAIT = 1
    ZMQ_SNDMORE = 2
    ZMQ_HAUSNUMERO = 156384712  # libzmq's own error numbers start here
    EFSM = ZMQ_HAUSNUMERO + 51
    ETERM = ZMQ_HAUSNUMERO + 53
    # From here on sharing the content is cheaper than copying it.
    LARGE_BYTES = 8192

cdef int (*msg_init)(zmq_msg_t *) noexcept nogil
cdef int (*msg_init_size)(zmq_msg_t *, size_t) noexcept nogil
cdef int (*msg_close)(zmq_msg_t *) noexcept nogil
cdef int (*msg_move)(zmq_msg_t *, zmq_msg_t *) noexcept nogil
cdef int (*msg_copy)(zmq_msg_t *, zmq_msg_t *) noexcept nogil
cdef void *(*msg_data)(zmq_msg_t *) noexcept nogil
cdef size_t (*msg_size)(zmq_msg_t *) noexcept nogil
cdef int (*msg_more)(zmq_msg_t *) noexcept nogil
cdef int (*msg_recv)(zmq_msg_t *, void *, int) noexcept nogil
cdef int (*msg_send)(zmq_msg_t *, void *, int) noexcept nogil
cdef int (*buffer_send)(void *, const void *, size_t, int) noexcept nogil
cdef int (*last_errno)() noexcept nogil


def _candidates():
    """Where libzmq may be: first what pyzmq's extension itself sees, then any libzmq in memory."""
    # The dynamic linker looks a symbol up in a library and in what that library was linked with,
    # so this finds libzmq both inside the extension and beside it, and never a stranger's copy.
    path = getattr(sys.modules.get(zmq.backend.Socket.__module__), "__file__", None)
    if path:
        yield path
    try:
        with open("/proc/self/maps") as maps:
            for path in dict.fromkeys(line[line.find("/"):].strip() for line in maps if "libzmq" in line):
                yield path
    except OSError:
        pass  # not Linux


def _load():
    cdef void **slots[12]
    slots[0], slots[1], slots[2] = <void **> &msg_init, <void **> &msg_init_size, <void **> &msg_close
    slots[3], slots[4], slots[5] = <void **> &msg_move, <void **> &msg_copy, <void **> &msg_data
    slots[6], slots[7], slots[8] = <void **> &msg_size, <void **> &msg_more, <void **> &msg_recv
    slots[9], slots[10], slots[11] = <void **> &msg_send, <void **> &buffer_send, <void **> &last_errno
    names = (
        "zmq_msg_init", "zmq_msg_init_size", "zmq_msg_close", "zmq_msg_move", "zmq_msg_copy", "zmq_msg_data",
        "zmq_msg_size", "zmq_msg_more", "zmq_msg_recv", "zmq_msg_send", "zmq_send", "zmq_errno",
    )
    reasons = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
            numbers = [ctypes.c_int() for _ in range(3)]
            library.zmq_version(*map(ctypes.byref, numbers))
            version = tuple(number.value for number in numbers)
            if version != tuple(zmq.zmq_version_info()):
                raise OSError(f"it is version {version}, not the one pyzmq uses")
            addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names]
            break
        except (OSError, AttributeError) as error:
            reasons.append(f"{path}: {error}")
    else:
        raise ImportError("libzmq's functions were not found in this process: " + ("; ".join(reasons) or "no library"))
    for i, address in enumerate(addresses):
        slots[i][0] = <void *> <size_t> address


_load()


cdef class LargeFrame:
    """A frame of 8 KiB or more, still in libzmq's memory; read-only, forwarded without a copy.

    It is equal only to itself; `bytes(frame)` copies the content, `memoryview(frame)` shows it.
    """

    cdef zmq_msg_t msg

    def __cinit__(self):
        msg_init(&self.msg)

    def __dealloc__(self):
        msg_close(&self.msg)

    def __len__(self):
        return msg_size(&self.msg)

    def __bytes__(self):
        return PyBytes_FromStringAndSize(<char *> msg_data(&self.msg), msg_size(&self.msg))

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, msg_data(&self.msg), msg_size(&self.msg), True, flags)

    def __repr__(self):
        return f"<LargeFrame of {msg_size(&self.msg)} bytes>"


cdef list _as_list(PyObject **items, Py_ssize_t count):
    """A list of these, whose references it takes over."""
    cdef list made = PyList_New(count)
    cdef Py_ssize_t i
    for i in range(count):
        PyList_SET_ITEM(made, i, <object> items[i])
    return made


cdef object _error(int errno):
    return zmq.ContextTerminated(errno) if errno == ETERM else zmq.ZMQError(errno)


cdef object _settled(object frame):
    """Anything bytes-like as one of the two kinds of frame that the send loop knows."""
    cdef Py_buffer view
    cdef LargeFrame large
    if PyBytes_CheckExact(frame) or type(frame) is LargeFrame:
        return frame
    try:
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    except (TypeError, BufferError):
        raise TypeError(f"a frame must be bytes-like, not {type(frame).__name__}") from None
    try:
        if view.len < LARGE_BYTES:
            return PyBytes_FromStringAndSize(<char *> view.buf, view.len)
        large = LargeFrame()
        if msg_init_size(&large.msg, view.len) != 0:
            msg_init(&large.msg)
            raise MemoryError
        memcpy(msg_data(&large.msg), view.buf, view.len)
        return large
    finally:
        PyBuffer_Release(&view)


cdef class CompiledPump:
    """Batches in, batches out, over some sockets and raw file descriptors; see `polybus.server.pump`."""

    kind = "compiled"

    cdef tuple sockets
    cdef void **handles
    cdef watch_t watch  # the sockets, then the fds
    cdef bint watching
    cdef char *dirty  # sockets that must be read before they are waited for
    cdef char *was_read  # those that were read in this call
    cdef char *ordered  # sockets on which a refused message must not be overtaken, and by what
    # The first frames of the last message of each socket. Identity, tag and service are mostly those of the
    # message before: then nothing is allocated, and look-ups find the hash done and the very same object.
    cdef list recent
    cdef Py_ssize_t n_sockets, n_fds, first

    def __cinit__(self, sockets, fds=()):
        cdef Py_ssize_t i, n
        cdef size_t handle
        self.sockets = tuple(sockets)
        numbers = tuple(fds)
        self.n_sockets = len(self.sockets)
        self.n_fds = len(numbers)
        n = self.n_sockets + self.n_fds
        if not n:
            raise ValueError("a pump needs at least one socket or fd")
        self.recent = [b""] * (self.n_sockets * REMEMBERED)
        self.handles = <void **> PyMem_Calloc(n, sizeof(void *))
        self.dirty = <char *> PyMem_Calloc(n, 1)
        self.was_read = <char *> PyMem_Calloc(n, 1)
        self.ordered = <char *> PyMem_Calloc(n, 1)
        if self.handles == NULL or self.dirty == NULL or self.was_read == NULL or self.ordered == NULL:
            raise MemoryError
        self.watching = True
        if watch_open(&self.watch, <int> n) != 0:
            raise _error(system_errno)
        for i in range(self.n_sockets):
            self._check_open(i)
            handle = self.sockets[i].underlying
            self.handles[i] = <void *> handle
            self._watch(i, self.sockets[i].get(zmq.FD))
            self.dirty[i] = 1
            kind = self.sockets[i].get(zmq.TYPE)
            if kind in (zmq.ROUTER, zmq.STREAM):
                self.ordered[i] = BY_IDENTITY
            elif kind in (zmq.DEALER, zmq.PUSH, zmq.PAIR):
                self.ordered[i] = BY_SOCKET
        for i in range(self.n_fds):
            self._watch(self.n_sockets + i, numbers[i])

    def __dealloc__(self):
        PyMem_Free(self.handles)
        PyMem_Free(self.dirty)
        PyMem_Free(self.was_read)
        PyMem_Free(self.ordered)
        if self.watching:
            watch_close(&self.watch)

    cdef int _watch(self, Py_ssize_t at, int fd) except -1:
        if watch_add(&self.watch, <int> at, fd) != 0:
            raise _error(system_errno)
        return 0

    cdef int _check_open(self, Py_ssize_t at) except -1:
        # A closed socket's handle points to freed memory: libzmq must never see it.
        if self.sockets[at].closed:
            raise zmq.ZMQError(ENOTSOCK)
        return 0

    def close(self):
        """Let go of what the pump itself holds; it is of no use afterwards. The sockets stay as they are."""
        if self.watching:
            self.watching = False
            watch_close(&self.watch)

    def suspect(self, Py_ssize_t at):
        """Somebody used this socket without the pump, and may have taken the news that something came in."""
        if not 0 <= at < self.n_sockets:
            raise IndexError(f"there is no socket {at}; the pump has {self.n_sockets}")
        self.dirty[at] = 1

    def recv_many(self, long timeout_ms, Py_ssize_t limit=1000):
        """Whole messages as `(index, frames)`, at most `limit` per socket; waits only if there are none."""
        cdef list batch = []
        cdef Py_ssize_t i, k
        cdef int rc, errno
        cdef bint waited
        if limit < 1:
            raise ValueError("limit must be 1 or more")
        if not self.watching:
            raise ValueError("the pump is closed")
        if self.n_sockets:
            self.first = (self.first + 1) % self.n_sockets
        # First those of which nothing else would be heard. If they have nothing we wait for all; if they have
        # something, the others are looked at too: busy sockets must not starve them, nor the fds.
        for i in range(self.n_sockets):
            k = (self.first + i) % self.n_sockets
            self.was_read[k] = self.dirty[k]
            if self.dirty[k]:
                self._drain(k, limit, batch)
        waited = not batch and timeout_ms != 0
        if not waited:
            rc = watch_wait(&self.watch, 0)
        else:
            # Nothing would ever be heard of a closed one. Of many sockets, each is looked at when its turn comes.
            if self.n_sockets <= FEW_SOCKETS:
                for i in range(self.n_sockets):
                    self._check_open(i)
            else:
                self._check_open(self.first)
            # A signal that came since the last bytecode has set its flag but will not interrupt the wait.
            PyErr_CheckSignals()
            with nogil:
                rc = watch_wait(&self.watch, <int> timeout_ms)
                errno = system_errno
            if rc < 0:
                if errno != EINTR:
                    raise _error(errno)
                PyErr_CheckSignals()
            elif rc == 0:
                for i in range(self.n_sockets):
                    self.dirty[i] = 1
        if rc > 0:
            for i in range(self.n_sockets):
                k = (self.first + i) % self.n_sockets
                # One that had its turn and shows something new will still show it the next time.
                if watch_shows(&self.watch, <int> k) and (waited or not self.was_read[k]):
                    self._drain(k, limit, batch)
            self._report_fds(batch)
        return batch

    cdef int _report_fds(self, list batch) except -1:
        cdef Py_ssize_t i
        for i in range(self.n_sockets, self.n_sockets + self.n_fds):
            # An error or a hang-up counts as readable: the owner's read tells which.
            if watch_shows(&self.watch, <int> i):
                batch.append((i, []))
        return 0

    cdef int _drain(self, Py_ssize_t at, Py_ssize_t limit, list batch) except -1:
        cdef zmq_msg_t msg
        cdef void *handle = self.handles[at]
        cdef object index = at
        cdef list frames
        cdef LargeFrame large
        cdef object frame
        # The first frames of a message, gathered here: a list that grows is moved twice.
        cdef PyObject *first[GATHERED]
        cdef Py_ssize_t n, count
        cdef int rc, errno, more
        self._check_open(at)
        self.dirty[at] = 1
        msg_init(&msg)
        try:
            for n in range(limit):
                count = 0
                frames = None
                while True:
                    rc = msg_recv(&msg, handle, ZMQ_DONTWAIT)
                    if rc < 0:
                        errno = last_errno()
                        if errno == EINTR:
                            continue  # nothing blocks here; Python runs the handler when we return
                        if count and frames is None:
                            _as_list(first, count)  # cut short by the end of the context: let go of it
                        if errno == EAGAIN:
                            self.dirty[at] = 0  # empty, and whatever comes now will show
                            return 0
                        if errno == ENOTSUP:
                            watch_drop(&self.watch, <int> at)  # it can never receive (PUB)
                            self.dirty[at] = 0
                            return 0
                        if errno == EFSM:
                            # REQ before it asked. What its descriptor shows is only taken note of by asking.
                            self.sockets[at].get(zmq.EVENTS)
                            return 0
                        # Other errors last, so what was received goes out first and the next call raises.
                        if batch:
                            return 0
                        raise _error(errno)
                    more = msg_more(&msg)
                    if rc >= LARGE_BYTES:
                        large = LargeFrame.__new__(LargeFrame)
                        msg_move(&large.msg, &msg)
                        frame = large
                    elif count < REMEMBERED:
                        frame = self._same_or_new(at, count, <char *> msg_data(&msg), rc)
                    else:
                        frame = PyBytes_FromStringAndSize(<char *> msg_data(&msg), rc)
                    if count < GATHERED:
                        Py_INCREF(frame)
                        first[count] = <PyObject *> frame
                        count += 1
                    else:
                        if frames is None:
                            frames = _as_list(first, count)
                        frames.append(frame)
                    if not more:
                        break
                batch.append((index, _as_list(first, count) if frames is None else frames))
        finally:
            msg_close(&msg)
        return 0

    cdef object _same_or_new(self, Py_ssize_t at, Py_ssize_t place, char *data, Py_ssize_t length):
        """The frame as bytes: the very object of the last message, if it has the same frame there."""
        cdef object known = <object> PyList_GET_ITEM(self.recent, at * REMEMBERED + place)
        if PyBytes_GET_SIZE(known) == length and memcmp(PyBytes_AS_STRING(known), data, length) == 0:
            return known
        known = PyBytes_FromStringAndSize(data, length)
        self.recent[at * REMEMBERED + place] = known
        return known

    def send_many(self, messages):
        """Send what goes without waiting; returns `(position, errno)` of every message that did not. After a
        message that found its peer's pipe full, all further ones for that peer are refused as well."""
        cdef list refused = []
        cdef list batch
        cdef PyObject *message
        cdef Py_ssize_t position, at, before = -1
        cdef int errno
        cdef set full = None  # peers whose pipe was found full in this call
        batch = messages if self._is_plain(messages) else self._plain(messages)
        for position in range(PyList_GET_SIZE(batch)):
            message = PyList_GET_ITEM(batch, position)
            at = PyLong_AsSsize_t(<object> PyTuple_GET_ITEM(<tuple> message, 0))
            if at != before:
                # Nothing here runs Python code, so one that is open now stays open for its whole run.
                self._check_open(at)
                before = at
            self.dirty[at] = 1
            frames = <object> PyTuple_GET_ITEM(<tuple> message, 1)
            if full is not None and self.ordered[at] and self._peer(at, frames) in full:
                # Room may have come up meanwhile; what follows must not overtake what was refused.
                refused.append((position, EAGAIN))
                continue
            errno = self._send(self.handles[at], frames)
            if errno:
                refused.append((position, errno))
                if errno == EAGAIN and self.ordered[at]:
                    if full is None:
                        full = set()
                    full.add(self._peer(at, frames))
        return refused

    cdef object _peer(self, Py_ssize_t at, object frames):
        """Who a message is for: the identity on sockets that have many peers, else the socket itself."""
        if self.ordered[at] == BY_IDENTITY:
            return at, bytes(<object> PySequence_Fast_ITEMS(frames)[0])
        return at

    cdef int _send(self, void *handle, object frames) noexcept:
        """Send one message; 0, or the errno of its first refusal.  Runs no Python code."""
        cdef PyObject **items = PySequence_Fast_ITEMS(frames)
        cdef Py_ssize_t last = PySequence_Fast_GET_SIZE(frames) - 1
        cdef Py_ssize_t i
        cdef int rc, errno, flags, refusal = 0
        cdef zmq_msg_t msg
        for i in range(last + 1):
            flags = ZMQ_DONTWAIT if i == last else ZMQ_DONTWAIT | ZMQ_SNDMORE
            while True:
                if PyBytes_CheckExact(<object> items[i]):
                    rc = buffer_send(
                        handle, PyBytes_AS_STRING(<object> items[i]), PyBytes_GET_SIZE(<object> items[i]), flags
                    )
                else:
                    msg_init(&msg)
                    msg_copy(&msg, &(<LargeFrame> items[i]).msg)
                    rc = msg_send(&msg, handle, flags)
                    if rc < 0:
                        msg_close(&msg)  # leaves errno alone: it only lowers a count
                if rc >= 0:
                    break
                errno = last_errno()
                if errno == EINTR:
                    continue
                if i == 0:
                    return errno
                # The peer went away in the middle.  libzmq now drops frames up to and including the next
                # one without SNDMORE: the others must follow, or the next message would be cut.
                if not refusal:
                    refusal = errno
                break
        return refusal

    cdef bint _is_plain(self, object messages) except -1:
        """Whether the send loop can take the batch as it is: true for nearly every batch, and quick to see."""
        cdef PyObject *message
        cdef PyObject *frames
        cdef PyObject **items
        cdef Py_ssize_t i, n, at
        if not PyList_CheckExact(messages):
            return False
        for i in range(PyList_GET_SIZE(messages)):
            message = PyList_GET_ITEM(messages, i)
            if not PyTuple_CheckExact(<object> message) or PyTuple_GET_SIZE(<object> message) != 2:
                return False
            if not PyLong_CheckExact(<object> PyTuple_GET_ITEM(<object> message, 0)):
                return False
            at = PyLong_AsSsize_t(<object> PyTuple_GET_ITEM(<object> message, 0))
            frames = PyTuple_GET_ITEM(<object> message, 1)
            if not (PyList_CheckExact(<object> frames) or PyTuple_CheckExact(<object> frames)):
                return False
            n = PySequence_Fast_GET_SIZE(<object> frames)
            if n == 0 or at < 0 or at >= self.n_sockets:
                return False
            items = PySequence_Fast_ITEMS(<object> frames)
            for n in range(n):
                if not PyBytes_CheckExact(<object> items[n]) and type(<object> items[n]) is not LargeFrame:
                    return False
        return True

    cdef list _plain(self, object messages):
        """The batch with every frame bytes or LargeFrame; raises for what cannot be sent, before any is."""
        cdef list batch = []
        for index, frames in messages:
            if not 0 <= index < self.n_sockets:
                raise IndexError(f"there is no socket {index}; the pump has {self.n_sockets}")
            settled = [_settled(frame) for frame in frames]
            if not settled:
                raise ValueError("a message needs at least one frame")
            batch.append((int(index), settled))
        return batch
