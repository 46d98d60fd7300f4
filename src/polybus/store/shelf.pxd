from polybus.store.codec cimport checksum
cimport cython

cdef class Shelf:
    cdef public object name, _codec
    cdef public dict places, _new, _gone, _wrote
    cdef public Py_ssize_t count
    cdef public object total, _last
    cdef public tuple _next
    cpdef put(self, object key, object entry)
    cpdef remove(self, object key)
    @cython.locals(places=dict, gone=dict, wrote=dict, deleted=list, rows=list, replaced=Py_ssize_t, payload=bytes,
                   more=Py_ssize_t, crc=Py_ssize_t)
    cpdef tuple changes(self)
    @cython.locals(places=dict)
    cpdef settle(self)
    cpdef forget(self)
