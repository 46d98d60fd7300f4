from polybus.core.dispatching cimport release
from polybus.core.records cimport Request
from polybus.core.tables cimport Tables
cimport cython

@cython.locals(request=Request)
cpdef on_written(Tables bus, object event, double now)
