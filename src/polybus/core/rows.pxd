# The lines that every guaranteed job costs, as C structs when they are compiled.

cimport cython

cdef dict _packed_options
cdef object _last_options, _last_raw, _pack

cdef class Accepted:
    cdef public bytes token
    cdef public bytes row
    cdef public bint promised
    cdef public bint is_new
    cdef public object _job
    cpdef bytes packed(self)

@cython.locals(line=Accepted)
cpdef Accepted new_accepted(bytes token, bytes row, bint promised, bint is_new)

cdef class Ended:
    cdef public bytes token
    cdef public bytes row
    cdef public object dead
    cdef public object _outcome
    cpdef bytes packed(self)

@cython.locals(line=Ended)
cpdef Ended new_ended(bytes token, bytes row)

cpdef object pack_options(object options)
cpdef bytes pack_new_job(bytes token, object link, bytes identity, bytes request_id, object voice, bytes service,
                         list body, object options, double accepted_at)
cpdef bytes pack_answer(bytes token, object link, bytes identity, bytes request_id, bytes service, double at,
                        list body)
