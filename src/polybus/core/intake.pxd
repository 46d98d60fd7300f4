from polybus.core.records cimport Client, Request, Service, Worker, new_request
from polybus.core.replies cimport body_size
from polybus.core.dispatching cimport dispatch
from polybus.core.tables cimport Tables
cimport cython

@cython.locals(client=Client, known=dict, size=Py_ssize_t, held_bytes=Py_ssize_t, service=Service,
               worker=Worker, token=bytes, expires_at=double, request=Request)
cpdef submit(Tables bus, tuple address, object voice, bytes request_id, bytes name, list body, double now,
             object options=*, object ttl_s=*, bint receipt=*, bytes fallback=*)
