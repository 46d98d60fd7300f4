# The actions that every request and every publication costs, as C structs when they are compiled.

cimport cython

cdef class Deliver:
    cdef public object worker
    cdef public object request

cdef class Answer:
    cdef public tuple client
    cdef public object voice
    cdef public bytes service
    cdef public bytes request_id
    cdef public list body
    cdef public bytes token
    cdef public object kept_for
    cdef public double kept_at

@cython.locals(deliver=Deliver)
cpdef Deliver new_deliver(object worker, object request)

@cython.locals(answer=Answer)
cpdef Answer new_answer(tuple client, object voice, bytes service, bytes request_id, list body, bytes token)

cdef class Fanout:
    cdef public bytes topic
    cdef public list body
    cdef public double at
    cdef public object form
    cdef public Py_ssize_t size
