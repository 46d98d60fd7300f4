from polybus.core.actions cimport new_answer, new_deliver
from polybus.core.replies cimport keep, release_client
from polybus.core.records cimport Client, Request, Service, Worker
from polybus.core.tables cimport Tables
cimport cython

cpdef dispatch(Tables bus, Request request, Worker worker, double now)

@cython.locals(service=Service)
cpdef feed(Tables bus, Worker worker, double now)

@cython.locals(best=Service, service=Service, best_weight=Py_ssize_t)
cpdef Service _heaviest(Worker worker)

@cython.locals(service=Service)
cpdef refile(Worker worker)

cpdef Py_ssize_t _size(list body) except -1

@cython.locals(worker=Worker, request=Request)
cpdef finish(Tables bus, tuple address, bytes token, list body, object now)

@cython.locals(client=Client, service=bytes, request_id=bytes)
cpdef _end(Tables bus, Request request, object move, object reason, str detail, list body, object now)
