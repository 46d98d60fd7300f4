-- Named queries. {table} is one of the tables of the schema, {rows} and {numbers} are as many places for
-- values as are written at once; places that are not needed are 0.

-- name: put
INSERT OR REPLACE INTO {table} (id, payload, crc)
SELECT column1, column2, column3 FROM (VALUES {rows}) WHERE column1 > 0
-- name: delete
DELETE FROM {table} WHERE id IN ({numbers})
-- name: all
SELECT id, payload, crc FROM {table} ORDER BY id
-- name: one
SELECT id, payload, crc FROM {table} WHERE id = ?
-- name: above
SELECT id, payload, crc FROM {table} WHERE id > ? ORDER BY id LIMIT ?
-- name: below
SELECT id, payload, crc FROM {table} WHERE id < ? ORDER BY id DESC LIMIT ?
-- name: objects
SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name
