cpdef read_error(list body)
