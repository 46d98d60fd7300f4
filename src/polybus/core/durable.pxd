from polybus.core.actions cimport Answer
from polybus.core.records cimport Client, Request, Service
from polybus.core.replies cimport KeptOutcome, body_size, new_outcome
from polybus.core.rows cimport new_accepted, new_ended, pack_answer, pack_new_job, pack_options
from polybus.core.tables cimport Tables
cimport cython

@cython.locals(client=Client)
cpdef object entry_of(Tables bus, Request request, double due_at=*)

cpdef list plain_frames(list body)

@cython.locals(client=Client, service=Service)
cpdef bytes _row_of(Tables bus, Request request, double due_at)

@cython.locals(client=Client)
cpdef bytes _answer_row(Tables bus, Request request, Answer answer, double now)

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

@cython.locals(kept=KeptOutcome, client=Client, oldest_at=double, request_id=bytes)
cpdef forget_outcomes(Tables bus, double now)
