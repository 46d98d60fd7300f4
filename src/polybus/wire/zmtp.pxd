# What every publication costs, as C calls when it is compiled.

cimport cython

cdef tuple _MORE, _LAST

@cython.locals(parts=list, last=Py_ssize_t, position=Py_ssize_t, size=Py_ssize_t, data=bytes)
cpdef bytes write_message(list frames)
