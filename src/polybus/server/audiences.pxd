# The look-up that every publication costs, as a C call when it is compiled.

cimport cython

cdef class Audience:
    cdef public set prefixes
    cdef public bint is_shared
    cdef public dict members
    cdef public list pending

cdef class Hall:
    cdef dict _audiences, _by_prefix, _lengths, _found
    cpdef tuple find(self, bytes topic)
