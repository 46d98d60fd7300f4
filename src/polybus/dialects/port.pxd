# The ear and the two things that a voice says for every request, as C calls when they are compiled.

cdef class Voice:
    cpdef answer(self, object action)
    cpdef deliver(self, object worker, object request)
    cpdef join(self, list message, object request)

cdef class RouterEar:
    cdef object _bus
    cdef object _name
    cdef dict _hear
    cdef dict _rebuke
    cdef object _rebuke_unknown
    cpdef receive(self, object link, list frames, object now)
