# The ear of the publishing socket, as C calls when it is compiled.

from polybus.core.topics cimport receive

cdef class PublishEar:
    cdef object _bus
    cdef object _dialect
    cpdef receive(self, object link, list frames, object now)
