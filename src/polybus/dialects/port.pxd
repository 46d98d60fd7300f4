cdef class Voice:
    pass

cdef class RouterEar:
    cdef object _bus
    cdef object _name
    cdef dict _hear
    cdef dict _rebuke
    cpdef receive(self, object link, list frames, object now)
