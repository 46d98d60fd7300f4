# A subscriber as a C struct when it is compiled.

from polybus.server.audiences cimport Audience, Hall

cdef class Subscriber:
    cdef public Py_ssize_t link
    cdef public bytes identity
    cdef public Hall hall
    cdef public Audience audience
    cdef public object parser
    cdef public list wanted
    cdef public double since, heard_at, ttl_s
    cdef public bint is_ready, is_closing, is_gone, is_posted
    cdef public Py_ssize_t bytes_waiting, publications_waiting, owed, delivered, dropped
    cdef object _behind
    cdef bytes _head
    cdef Py_ssize_t _head_bytes, _head_publications
