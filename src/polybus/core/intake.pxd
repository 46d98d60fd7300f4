from polybus.core.records cimport Client, Request, Service, Worker, new_request
from polybus.core.replies cimport body_size
from polybus.core.dispatching cimport dispatch, release
from polybus.core.durable cimport note_accepted
from polybus.core.tables cimport Tables
cimport cython

@cython.locals(client=Client, known=dict, size=Py_ssize_t, held_bytes=Py_ssize_t, service=Service,
               worker=Worker, token=bytes, expires_at=double, request=Request)
cpdef submit(Tables bus, tuple address, object voice, bytes request_id, bytes name, list body, double now,
             object options=*, object ttl_s=*, bint receipt=*, bytes fallback=*)

@cython.locals(token=bytes, size=Py_ssize_t, request=Request, wait_s=double)
cpdef Request accept(Tables bus, Client client, object voice, bytes request_id, Service service, list body,
                     object options, double now, object ttl_s=*, double delay_s=*, bint receipt=*, bint promised=*)

@cython.locals(service=Service, other=Service, waiting=Py_ssize_t)
cpdef tuple admit(Tables bus, Client client, bytes name, bytes fallback, Py_ssize_t size,
                  bint plain=*)

cpdef bint _begins_at_once(Service service) except -1
