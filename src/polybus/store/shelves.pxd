from polybus.core.rows cimport Accepted, Ended
from polybus.store.shelf cimport Shelf
cimport cython

cdef class Shelves:
    cdef public Shelf job, started, delay, outcome, dead, schedule, run, grouping, last_value, node
    cdef public dict by_name, _due, _due_next
    cpdef note(self, object lines)
    cpdef _accepted(self, Accepted line)
    @cython.locals(outcome=bytes)
    cpdef _ended(self, Ended line)
