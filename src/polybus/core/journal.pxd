# Declarations that turn the class of journal.py into a C struct when it is compiled.

from polybus.core.records cimport Request

cdef class Journal:
    cpdef note_request(self, str what, Request request, double now, double offset, str reason, str detail, list body)
    cpdef note_published(self, bytes topic, list body, double now, double offset)
