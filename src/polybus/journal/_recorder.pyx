# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled recorder: what every request and publication costs in the journal, written straight into a buffer.

The layout is in `record`; the twin in `recorder` writes the same bytes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.string cimport memcpy

from polybus.core.journal cimport Journal
from polybus.core.records cimport Client, Request, Service, Worker

from polybus.journal.record import (
    DETAIL_MAX,
    DIALECT_NUMBERS,
    WHAT_NUMBERS,
    kept_of,
    options_text,
    write_observed,
    write_request,
)

cdef enum:
    HEAD = 48
    TAIL = 17
    FLAG_BODY = 1
    FLAG_DISPATCHED = 2
    NO_LINK = 0xFFFF
    # No text of the six short ones is longer, and the two long ones are bounded by whoever calls.
    SHORT_MAX = 0xFFFF

cdef dict _WHATS = dict(WHAT_NUMBERS)
cdef dict _DIALECTS = dict(DIALECT_NUMBERS)
cdef Py_ssize_t _DETAIL_MAX = DETAIL_MAX
# A literal of this size would be compared as a Python object.
cdef Py_ssize_t _WORD_MAX = 0xFFFFFFFF
cdef int _ACCEPTED = WHAT_NUMBERS["accepted"]
cdef int _DISPATCHED = WHAT_NUMBERS["dispatched"]


cdef inline void _u16(char *at, Py_ssize_t value) noexcept:
    cdef uint16_t narrow = <uint16_t> value
    memcpy(at, &narrow, 2)


cdef inline void _u32(char *at, Py_ssize_t value) noexcept:
    cdef uint32_t narrow = <uint32_t> min(value, _WORD_MAX)
    memcpy(at, &narrow, 4)


cdef inline void _i64(char *at, double seconds) noexcept:
    cdef int64_t wide = <int64_t> (seconds * 1e6 + 0.5)
    memcpy(at, &wide, 8)


cdef class CompiledRecorder(Journal):
    kind = "compiled"

    cdef char *buffer
    cdef Py_ssize_t used, room
    cdef readonly Py_ssize_t count
    cdef public Py_ssize_t body_bytes
    cdef public bint drops_bodies
    cdef readonly Py_ssize_t bodies_dropped
    # Services whose bodies are not to be kept, by name; filled as they are met.
    cdef public object keeps_bodies
    cdef dict kept
    # Whose acceptance was noted last, with nothing after it, and where that record begins.
    cdef Request fresh
    cdef Py_ssize_t fresh_at
    # Nearly all requests have the same two.
    cdef object client_voice, worker_voice
    cdef int client_dialect, worker_dialect

    def __cinit__(self, Py_ssize_t body_bytes=0, keeps_bodies=None):
        self.body_bytes = body_bytes
        self.keeps_bodies = keeps_bodies
        self.kept = {}

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    cdef char *_reserve(self, Py_ssize_t size) except NULL:
        cdef Py_ssize_t room = self.room
        cdef char *larger
        if self.used + size > room:
            room = max(room * 2, self.used + size, 65536)
            larger = <char *> PyMem_Realloc(self.buffer, room)
            if larger == NULL:
                raise MemoryError
            self.buffer = larger
            self.room = room
        return self.buffer + self.used

    cdef bint _keeps(self, bytes service) except -1:
        if self.keeps_bodies is None:
            return True
        found = self.kept.get(service)
        if found is None:
            if len(self.kept) > 10_000:
                self.kept.clear()
            found = self.kept[service] = bool(self.keeps_bodies(service))
        return found

    cpdef note_request(self, str what, Request request, double now, double offset, str reason, str detail, list body):
        """Something that happened to a request; `body` is the answer, if it is one."""
        cdef int number = _WHATS[what]
        if (
            number == _DISPATCHED and request is self.fresh and request.dispatched_at == now
            and not (reason or detail or body)
        ):
            self._note_dispatch(request, now + offset)
            return
        cdef Client client = request.client
        cdef Service service = request.service
        cdef Worker worker = request.worker
        cdef bytes client_name = <bytes> client.address[1]
        cdef bytes worker_name = b"" if worker is None else <bytes> worker.address[1]
        cdef Py_ssize_t link = client.address[0]
        cdef Py_ssize_t worker_link = NO_LINK if worker is None else worker.address[0]
        cdef list kept = body
        cdef Py_ssize_t body_size = 0, size, reason_size = 0, detail_size = 0, i, length
        cdef const char *reason_text = b""
        cdef const char *detail_text = b""
        cdef char *at
        cdef char *begin
        cdef object frame
        if body is not None:
            for frame in body:
                body_size += len(frame)
        if reason:
            reason_text = PyUnicode_AsUTF8AndSize(reason, &reason_size)
            reason_size = min(reason_size, <Py_ssize_t> SHORT_MAX)
        if detail:
            detail_text = PyUnicode_AsUTF8AndSize(detail, &detail_size)
            detail_size = min(detail_size, _DETAIL_MAX)
        if kept is not None and (body_size > self.body_bytes or len(kept) > SHORT_MAX or not self._keeps(service.name)):
            kept = None
        # An empty body takes no room.
        elif kept is not None and self.drops_bodies and body_size:
            kept = None
            self.bodies_dropped += 1
        size = (
            HEAD + 6 * 2 + 2 * 4 + PyBytes_GET_SIZE(request.token) + PyBytes_GET_SIZE(request.request_id)
            + PyBytes_GET_SIZE(service.name) + PyBytes_GET_SIZE(client_name) + PyBytes_GET_SIZE(worker_name)
            + reason_size + detail_size
        )
        if kept is not None:
            size += 2 + 4 * len(kept) + body_size
        begin = at = self._reserve(size)
        at[4] = <char> number
        if request.voice is not self.client_voice:
            self.client_voice = request.voice
            self.client_dialect = _dialect(request.voice)
        at[5] = <char> self.client_dialect
        at[6] = 0 if worker is None else <char> self._worker_dialect(worker)
        at[7] = 0 if kept is None else FLAG_BODY
        _i64(at + 8, now + offset)
        _i64(at + 16, request.accepted_at + offset)
        _i64(at + 24, request.dispatched_at + offset if request.dispatched_at else 0.0)
        _u32(at + 32, request.size)
        _u32(at + 36, body_size)
        _u32(at + 40, request.attempt)
        _u16(at + 44, link if 0 <= link < NO_LINK else NO_LINK)
        _u16(at + 46, worker_link if 0 <= worker_link < NO_LINK else NO_LINK)
        at += HEAD
        at = _text(at, request.token)
        at = _text(at, request.request_id)
        at = _text(at, service.name)
        at = _text(at, client_name)
        at = _text(at, worker_name)
        _u16(at, reason_size)
        memcpy(at + 2, reason_text, reason_size)
        at += 2 + reason_size
        _u32(at, detail_size)
        memcpy(at + 4, detail_text, detail_size)
        at += 4 + detail_size
        _u32(at, 0)
        at += 4
        if kept is not None:
            at = _frames(at, kept)
        # A name that is too long was cut.
        _u32(begin, at - begin - 4)
        self.fresh = request if number == _ACCEPTED else None
        self.fresh_at = self.used
        self.used += at - begin
        self.count += 1

    cdef _note_dispatch(self, Request request, double at_s):
        """It was accepted just now: a tail on that record says the rest."""
        cdef Worker worker = request.worker
        cdef bytes name = b"" if worker is None else <bytes> worker.address[1]
        cdef Py_ssize_t link = NO_LINK if worker is None else worker.address[0]
        cdef char *at = self._reserve(TAIL + PyBytes_GET_SIZE(name))
        cdef char *begin = self.buffer + self.fresh_at
        _i64(at, at_s)
        _u32(at + 8, request.attempt)
        _u16(at + 12, link)
        at[14] = 0 if worker is None else <char> self._worker_dialect(worker)
        at = _text(at + 15, name)
        begin[7] |= FLAG_DISPATCHED
        _u32(begin, at - begin - 4)
        self.used = at - self.buffer
        self.fresh = None
        self.count += 1

    cdef int _worker_dialect(self, Worker worker) except -1:
        if worker.voice is not self.worker_voice:
            self.worker_voice = worker.voice
            self.worker_dialect = _dialect(worker.voice)
        return self.worker_dialect

    cpdef note_published(self, bytes topic, list body, double now, double offset):
        cdef Py_ssize_t body_size = 0, size
        cdef list kept = body
        cdef char *at
        cdef char *begin
        cdef object frame
        for frame in body:
            body_size += len(frame)
        if body_size > self.body_bytes or len(kept) > SHORT_MAX or not self._keeps(topic):
            kept = None
        elif self.drops_bodies and body_size:
            kept = None
            self.bodies_dropped += 1
        size = HEAD + 6 * 2 + 2 * 4 + PyBytes_GET_SIZE(topic)
        if kept is not None:
            size += 2 + 4 * len(kept) + body_size
        begin = at = self._reserve(size)
        at[4] = <char> <int> _WHATS["published"]
        at[5] = at[6] = 0
        at[7] = 0 if kept is None else FLAG_BODY
        _i64(at + 8, now + offset)
        _i64(at + 16, 0.0)
        _i64(at + 24, 0.0)
        _u32(at + 32, 0)
        _u32(at + 36, body_size)
        _u32(at + 40, 0)
        _u16(at + 44, NO_LINK)
        _u16(at + 46, NO_LINK)
        at += HEAD
        at = _text(at, b"")
        at = _text(at, b"")
        at = _text(at, topic)
        at = _text(at, b"")
        at = _text(at, b"")
        at = _text(at, b"")
        _u32(at, 0)
        _u32(at + 4, 0)
        at += 8
        if kept is not None:
            at = _frames(at, kept)
        _u32(begin, at - begin - 4)
        self.fresh = None
        self.used += at - begin
        self.count += 1

    def note(self, observed, double offset):
        """Something else that happened."""
        cdef Py_ssize_t limit = self.body_bytes
        if self.drops_bodies and observed.body is not None:
            self._kept(observed.service, observed.body)
            limit = 0
        self._append(write_observed(observed, offset, limit, self.keeps_bodies))

    def note_dead(self, Request request, double now, double offset, str reason, str detail, list body):
        """A request was given up or expired, which is rare; `body` is its own."""
        kept = self._kept(request.service.name, body)
        text = options_text(request.options)
        self._append(write_request("dead", request, now, offset, reason, detail, body, kept, text))

    cdef object _kept(self, bytes name, object body):
        """What is kept of a body that is noted rarely."""
        kept = kept_of(body, name, self.body_bytes, self.keeps_bodies)
        if self.drops_bodies and kept is not None and any(kept):
            self.bodies_dropped += 1
            return None
        return kept

    cdef _append(self, bytes record):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(record)
        memcpy(self._reserve(size), PyBytes_AS_STRING(record), size)
        self.fresh = None
        self.used += size
        self.count += 1

    cpdef tuple take(self):
        """What was noted since the last call: how many records, and their bytes."""
        cdef tuple taken = (self.count, PyBytes_FromStringAndSize(self.buffer, self.used))
        self.used = self.count = 0
        self.fresh = None
        return taken


cdef int _dialect(object voice) except -1:
    return 0 if voice is None else _DIALECTS.get(voice.dialect, 0)


cdef char *_text(char *at, bytes text) except NULL:
    cdef Py_ssize_t size = min(PyBytes_GET_SIZE(text), <Py_ssize_t> SHORT_MAX)
    _u16(at, size)
    memcpy(at + 2, PyBytes_AS_STRING(text), size)
    return at + 2 + size


cdef char *_frames(char *at, list frames) except NULL:
    cdef object frame
    cdef bytes content
    cdef Py_ssize_t size
    _u16(at, len(frames))
    at += 2
    for frame in frames:
        content = frame if type(frame) is bytes else bytes(frame)
        size = PyBytes_GET_SIZE(content)
        _u32(at, size)
        memcpy(at + 4, PyBytes_AS_STRING(content), size)
        at += 4 + size
    return at
