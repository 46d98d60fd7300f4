# Every line is looked at twice here, so that is done in C when it is compiled.

from polybus.core.rows cimport Accepted, Ended
cimport cython

@cython.locals(accepted=Accepted, ended=Ended, row=bytes, size=Py_ssize_t)
cpdef Py_ssize_t _size(object lines) except -1
