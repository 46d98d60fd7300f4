# What every publication and every subscriber costs at the end of a turn, as C calls when it is compiled.

cimport cython
from polybus.server.audiences cimport Audience
from polybus.server.subscriber cimport Subscriber

cdef class Delivery:
    cdef public Py_ssize_t pipe_messages, pipe_bytes, dropped
    cdef public object pump
    cdef list _busy, _messages, _posted
    cdef dict _waiting, _stuck
    cdef double _retry_at, _pause_s
    @cython.locals(pending=list)
    cpdef note(self, Audience audience, bytes form)
    @cython.locals(pending=list, messages=list, posted=list, count=Py_ssize_t, data=bytes, is_large=bint,
                   peer=Subscriber)
    cpdef deliver(self, Audience audience)
    cpdef push(self, Subscriber peer, bytes data, Py_ssize_t publications)
