-- Every table has the same form: a number, an entry (MessagePack, see codec.py) and the checksum of both.
-- No indexes: the store knows in memory where each entry is (see shelf.py).

-- One row: version, number of the last commit, and for each table the count and the sum of its checksums.
CREATE TABLE meta (id INTEGER PRIMARY KEY, payload BLOB NOT NULL, crc INTEGER NOT NULL);

-- Jobs as they were accepted. What happens to them afterwards is in two small tables beside it, because
-- a job may be large and is never written twice.
CREATE TABLE job (id INTEGER PRIMARY KEY, payload BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE started (id INTEGER PRIMARY KEY, payload BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE delay (id INTEGER PRIMARY KEY, payload BLOB NOT NULL, crc INTEGER NOT NULL);

CREATE TABLE outcome (id INTEGER PRIMARY KEY, payload BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE dead (id INTEGER PRIMARY KEY, payload BLOB NOT NULL, crc INTEGER NOT NULL);

CREATE TABLE schedule (id INTEGER PRIMARY KEY, payload BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE run (id INTEGER PRIMARY KEY, payload BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE grouping (id INTEGER PRIMARY KEY, payload BLOB NOT NULL, crc INTEGER NOT NULL);
