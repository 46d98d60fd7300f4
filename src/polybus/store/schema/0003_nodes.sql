-- Registrations in the catalog.
CREATE TABLE node (id INTEGER PRIMARY KEY, payload BLOB NOT NULL, crc INTEGER NOT NULL);
