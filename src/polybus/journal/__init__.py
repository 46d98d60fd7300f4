"""The journal: everything that flows, written down behind the bus, and read again.

The broker's loop notes what happens in a buffer (`recorder`), a thread appends it to a log (`writer`), and
the archiver, a process of its own, turns finished logs into Parquet segments (`archiver`), which are what the
pipeline reads.  The bus never waits for any of it: what cannot be written is counted, and the hole is noted.
"""
