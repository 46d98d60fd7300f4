// The pipeline: which tables there are, how fresh they are, and how the journal behind them is.

import { get } from "../api.js";
import { every, h, put } from "../dom.js";
import { exact, moment, relative, size, span } from "../format.js";
import { card, facts, heading, Tile, trouble } from "../parts.js";
import { Table } from "../table.js";

const COLUMNS = [
  { id: "table", head: "table", isHead: true, value: (row) => row.name ?? row.table },
  { id: "rows", head: "rows", number: true, value: (row) => row.rows, show: exact },
  {
    id: "batch",
    head: "newest batch",
    number: true,
    minor: true,
    value: (row) => row.batch,
    show: (value) => (value === null || value === undefined ? "–" : String(value)),
  },
  { id: "version", head: "version", number: true, minor: true, value: (row) => row.version },
  {
    id: "committed",
    head: "committed",
    value: (row) => row.committed_at,
    show: (value) => relative(value),
    title: (row) => moment(row.committed_at),
  },
  { id: "bytes", head: "size", number: true, minor: true, value: (row) => row.bytes, show: size },
];

export default function pipeline(root) {
  const tiles = {
    lag: new Tile("lag", "Behind the journal"),
    segments: new Tile("segments", "Segments to take"),
    batch: new Tile("batch", "Newest batch"),
    journal: new Tile("journal", "Journal records"),
  };
  const table = new Table({
    caption: "Tables",
    columns: COLUMNS,
    key: (row) => row.name ?? row.table,
    sort: "table",
    empty: "There are no tables yet.",
  });
  const problem = h("div");
  const known = h("div");
  const where = h("p", { class: "hint" });
  put(
    root,
    heading("Pipeline", "The tables that Spark makes of the journal, and how far they are."),
    problem,
    h(
      "div",
      { class: "tiles" },
      Object.values(tiles).map((tile) => tile.element),
    ),
    card("Tables", null, table.element, where),
    card("Journal and archive", null, known),
  );
  const askTables = async () => {
    try {
      const found = await get("/api/pipeline");
      const tables = found.tables || [];
      put(
        problem,
        !tables.length && found.next
          ? h(
              "p",
              { class: "verdict warn" },
              h(
                "span",
                {},
                "There are no tables yet. ",
                h("code", {}, found.next),
                " makes them, and keeps them up to date.",
              ),
            )
          : null,
      );
      table.update(tables);
      put(where, found.place || found.folder || "");
      tiles.lag.update(
        found.lag_s,
        span(found.lag_s ?? null),
        found.committed_at ? `committed ${relative(found.committed_at)}` : "",
        found.lag_s > 600 ? "warn" : "",
      );
      tiles.segments.update(
        found.lag_segments,
        found.lag_segments === null || found.lag_segments === undefined ? "–" : exact(found.lag_segments),
        "of the archive",
      );
      tiles.batch.update(
        found.batch,
        found.batch === null || found.batch === undefined ? "–" : exact(found.batch),
        "",
      );
    } catch (error) {
      put(problem, trouble(error));
      table.update([]);
    }
  };
  const askJournal = async () => {
    try {
      const status = await get("/api/status");
      tiles.journal.update(
        status.journal_written,
        exact(status.journal_written),
        status.journal_lost ? `${exact(status.journal_lost)} lost` : `journal ${status.journal}`,
        status.journal_lost ? "bad" : "",
      );
      put(
        known,
        facts([
          ["journal", status.journal, "journal"],
          ["records written", exact(status.journal_written)],
          ["records lost", exact(status.journal_lost)],
          ["not on disk yet", size(status.journal_waiting_bytes)],
          ["archiver", status.archiver],
          ["archive behind", span(status.archiver_behind_s ?? null)],
          ["segments", exact(status.archiver_segments)],
          ["rows archived", exact(status.archiver_rows)],
          ["records missing", exact(status.archiver_missing)],
          ["damaged files", exact(status.archiver_damage)],
          ["hours let go", exact(status.archiver_let_go_hours)],
        ]),
      );
    } catch (error) {
      put(known, trouble(error));
    }
  };
  const ends = [every(5, askTables), every(5, askJournal)];
  return () => ends.forEach((end) => end());
}
