cimport cython

cdef unsigned long long _SPREAD

@cython.locals(seed=cython.ulonglong)
cpdef object checksum(unsigned long long tag, unsigned long long number, bytes payload)
