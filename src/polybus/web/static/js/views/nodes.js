// Nodes of the catalog: leases, kept by heartbeats.

import { put } from "../dom.js";
import { number, share, span } from "../format.js";
import { live, watch } from "../live.js";
import { badgeKind, card, filterBox, heading } from "../parts.js";
import { Table } from "../table.js";

const COLUMNS = [
  { id: "node", head: "node", isHead: true, class: "wrap", value: (row) => row.node },
  { id: "state", head: "state", value: (row) => row.state, kind: badgeKind },
  { id: "function", head: "what it does", minor: true, class: "wrap", value: (row) => row.function },
  { id: "address", head: "address", minor: true, value: (row) => row.address },
  { id: "load", head: "load", number: true, minor: true, value: (row) => row.load, show: share },
  { id: "done", head: "done", number: true, minor: true, value: (row) => row.done, show: number },
  { id: "beats", head: "beats over", minor: true, value: (row) => row.beats },
  { id: "every", head: "every", number: true, minor: true, value: (row) => row.heartbeat_s, show: span },
  { id: "up", head: "up", number: true, minor: true, value: (row) => row.up_s, show: span },
  {
    id: "silent",
    head: "silent for",
    number: true,
    value: (row) => row.silent_s,
    show: span,
    kind: (_, row) => (row.state === "alive" ? "" : "amber"),
  },
  {
    id: "missed",
    head: "missed beats",
    number: true,
    value: (row) => row.missed_beats,
    show: number,
    kind: (value) => (value ? "amber" : ""),
  },
];

export default function nodes(root) {
  const table = new Table({
    caption: "Nodes",
    columns: COLUMNS,
    key: (row) => row.node,
    sort: "node",
    search: (row) => `${row.node} ${row.state} ${row.function} ${row.address}`,
    empty: "No nodes are registered (DBP).",
  });
  put(
    root,
    heading(
      "Nodes",
      "Registrations in the catalog (DBP), and whether they still beat.",
      filterBox("Filter nodes", (words) => table.filter(words)),
    ),
    card(null, null, table.element),
  );
  return watch(() => live.look && table.update(live.look.nodes));
}
