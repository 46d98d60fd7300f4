from polybus.core.actions cimport Answer
from polybus.core.records cimport Client
from polybus.core.tables cimport Tables
cimport cython

cdef Py_ssize_t _OVERHEAD

cdef class KeptOutcome:
    cdef public double at
    cdef public Client client
    cdef public bytes token
    cdef public Py_ssize_t size
    cdef public object word

@cython.locals(kept=KeptOutcome)
cpdef KeptOutcome new_outcome(double at, Client client, bytes token, Py_ssize_t size, object word)

cpdef Py_ssize_t body_size(list body) except -1
cpdef keep(Tables bus, Client client, Answer answer, double now)
cpdef _shed(Tables bus)

@cython.locals(client=Client, answer=Answer)
cpdef _drop_oldest_reply(Tables bus)

cpdef release_client(Tables bus, Client client)
