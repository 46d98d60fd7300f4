from polybus.core.actions cimport Answer, new_answer
from polybus.core.dispatching cimport feed, flow, refile
from polybus.core.replies cimport body_size, keep, release_client
from polybus.core.records cimport Client, Request, Service, Worker
from polybus.core.tables cimport Tables
cimport cython

cdef dict _ANSWER, _STATE_NAMES

@cython.locals(worker=Worker, request=Request)
cpdef bint finish(Tables bus, tuple address, bytes token, list body, object now, bint more_follow=*) except -1

@cython.locals(worker=Worker)
cpdef give_slots(Tables bus, tuple address, Py_ssize_t slots, object now)

@cython.locals(client=Client, service=bytes, request_id=bytes, answer=Answer)
cpdef end(Tables bus, Request request, object move, object reason, str detail, list body, object now)
