from polybus.core.actions cimport Answer
from polybus.core.records cimport Client, Request, Service
from polybus.core.replies cimport body_size
from polybus.core.tables cimport Tables
cimport cython

@cython.locals(client=Client)
cpdef object entry_of(Tables bus, Request request, double due_at=*)

cpdef after_written(Tables bus, object action, Request request=*)
cpdef when_accepted(Tables bus, object action, Request request)

@cython.locals(client=Client, service=Service)
cpdef note_accepted(Tables bus, Request request, bint receipt, double due_at=*, bint promised=*)

@cython.locals(client=Client)
cpdef conclude(Tables bus, Request request, Answer answer, object refusal, double now)
cpdef _tell(Tables bus, Request request, object word)
cpdef object _outcome_of(Tables bus, Client client, bytes token, object word, double now)

@cython.locals(size=Py_ssize_t)
cpdef keep_outcome(Tables bus, Client client, object word, bytes token, double now)
