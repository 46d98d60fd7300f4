# What every publication does to the last values, as C calls when it is compiled.

cimport cython
from polybus.core.actions cimport Fanout

cdef class LastValues:
    cdef public Py_ssize_t count, max_bytes, held_bytes, evicted
    cdef public bint durable
    cdef public object values
    cdef public dict changed
    cdef public double noted_at
    # Public for a test of what they keep.
    cdef public list _sorted
    cdef list _new
    cdef public set _gone
    @cython.locals(topic=bytes, old=Fanout, size=Py_ssize_t)
    cpdef put(self, Fanout value)

@cython.locals(size=Py_ssize_t)
cpdef Py_ssize_t cost(Fanout value) except -1
