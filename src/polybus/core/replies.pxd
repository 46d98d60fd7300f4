from polybus.core.records cimport Client
from polybus.core.tables cimport Tables
cimport cython

@cython.locals(body=list, size=Py_ssize_t)
cpdef keep(Tables bus, Client client, bytes request_id, object answer, object now)

@cython.locals(client=Client)
cpdef _drop_oldest_reply(Tables bus)

cpdef release_client(Tables bus, Client client)
