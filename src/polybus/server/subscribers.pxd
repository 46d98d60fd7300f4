# What every publication costs, as C calls when it is compiled.

cimport cython
from polybus.core.actions cimport Fanout
from polybus.server.audiences cimport Hall
from polybus.server.delivery cimport Delivery
from polybus.wire.zmtp cimport write_message

cdef class Subscribers:
    cdef object _bus
    cdef public Delivery delivery
    cdef dict _dialects, _halls, _publications
    cdef list _open_halls
    cdef dict _peers
    cdef Py_ssize_t _prefixes, _looked_up
    cdef dict _unread, _strangers, _closing, _mortal
    cdef double _looked_at
    cdef public dict handlers
    @cython.locals(topic=bytes, hall=Hall, delivery=Delivery)
    cpdef fan_out(self, Fanout action)
    cpdef _write(self, Fanout action)
