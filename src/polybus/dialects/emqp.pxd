# Calls in C when it is compiled; nothing else in it needs a declaration.

from polybus.core.requests cimport finish, give_slots
