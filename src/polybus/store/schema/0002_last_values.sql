-- The newest message of every topic.
CREATE TABLE last_value (id INTEGER PRIMARY KEY, payload BLOB NOT NULL, crc INTEGER NOT NULL);
