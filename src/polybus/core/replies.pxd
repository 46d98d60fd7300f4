from polybus.core.actions cimport Answer
from polybus.core.records cimport Client
from polybus.core.tables cimport Tables
cimport cython

cdef Py_ssize_t _OVERHEAD

cpdef Py_ssize_t body_size(list body) except -1
cpdef keep(Tables bus, Client client, Answer answer, double now)
cpdef _shed(Tables bus)

@cython.locals(client=Client, answer=Answer)
cpdef _drop_oldest_reply(Tables bus)

cpdef release_client(Tables bus, Client client)
