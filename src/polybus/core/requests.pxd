from polybus.core.actions cimport Answer, new_answer, new_deliver
from polybus.core.replies cimport body_size, keep, release_client
from polybus.core.records cimport Client, Request, Service, Worker
from polybus.core.tables cimport Tables
cimport cython

cdef dict _DISPATCH, _ANSWER

cpdef dispatch(Tables bus, Request request, Worker worker, double now)

@cython.locals(service=Service)
cpdef feed(Tables bus, Worker worker, double now)

@cython.locals(best=Service, service=Service, best_weight=Py_ssize_t)
cpdef Service _heaviest(Worker worker)

@cython.locals(service=Service)
cpdef refile(Worker worker)

@cython.locals(worker=Worker, request=Request)
cpdef finish(Tables bus, tuple address, bytes token, list body, object now)

@cython.locals(client=Client, service=bytes, request_id=bytes, answer=Answer)
cpdef _end(Tables bus, Request request, object move, object reason, str detail, list body, object now)
