from polybus.core.durable cimport after_written, when_accepted
from polybus.core.intake cimport accept, admit
from polybus.core.records cimport Client, Request, Service
from polybus.core.replies cimport body_size
from polybus.core.tables cimport Tables
cimport cython

@cython.locals(known=dict, groups=dict, job_id=bytes, unsure=Request)
cpdef _submit_many(Tables bus, object call, list body, double now)

@cython.locals(desk=Client)
cpdef _take_in(Tables bus, bytes job_id, object submission, list frames, double now, tuple other)

cpdef Service _admit(Tables bus, str name, Py_ssize_t size)

@cython.locals(service=Service)
cpdef _accept_job(Tables bus, bytes job_id, object submission, list frames, double now, tuple other)
