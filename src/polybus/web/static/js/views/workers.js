// Workers, and whether they still beat.

import { get } from "../api.js";
import { every, h, put, route } from "../dom.js";
import { number, rate, share, span } from "../format.js";
import { live, watch } from "../live.js";
import { badgeKind, card, filterBox, heading, trouble } from "../parts.js";
import { Table } from "../table.js";

export function workerColumns() {
  return [
    { id: "worker", head: "worker", isHead: true, class: "wrap", value: (row) => row.worker },
    { id: "state", head: "state", value: (row) => (row.late ? "late" : row.state), kind: badgeKind },
    { id: "dialect", head: "dialect", minor: true, value: (row) => row.dialect },
    { id: "services", head: "services", node: (row) => serviceLinks(row), refresh: refreshLinks },
    {
      id: "in_flight",
      head: "in flight",
      number: true,
      minor: true,
      value: (row) => row.in_flight,
      show: number,
    },
    { id: "credit", head: "credit", number: true, minor: true, value: (row) => row.credit, show: number },
    { id: "load", head: "load", number: true, minor: true, value: (row) => row.load, show: share },
    { id: "rate", head: "done/s", number: true, value: (row) => row.done_per_s, show: rate },
    { id: "done", head: "done", number: true, minor: true, value: (row) => row.done, show: number },
    { id: "up", head: "up", number: true, minor: true, value: (row) => row.up_s, show: span },
    {
      id: "silent",
      head: "silent for",
      number: true,
      minor: true,
      value: (row) => row.silent_s,
      show: span,
      kind: (_, row) => (row.late || row.state === "silent" ? "amber" : ""),
    },
    {
      id: "missed",
      head: "missed beats",
      number: true,
      minor: true,
      value: (row) => row.missed_beats,
      show: number,
      kind: (value) => (value ? "amber" : ""),
    },
    {
      id: "dead_after",
      head: "lost after",
      number: true,
      minor: true,
      value: (row) => row.dead_after_s,
      show: (value) => (value ? span(value) : "never"),
    },
  ];
}

const SHOWN = 4;

function serviceLinks(row) {
  return refreshLinks(h("span", { class: "wrap" }), row);
}

function refreshLinks(element, row) {
  const names = Object.keys(row.services || {}).sort();
  const key = names.join("\n");
  if (element.dataset.key === key) return element;
  element.dataset.key = key;
  const parts = names
    .slice(0, SHOWN)
    .flatMap((name, index) => [index ? ", " : "", h("a", { href: route("service", name) }, name)]);
  if (names.length > SHOWN) parts.push(` and ${names.length - SHOWN} more`);
  return put(element, parts);
}

export default function workers(root) {
  const table = new Table({
    caption: "Workers",
    columns: workerColumns(),
    key: (row) => row.worker,
    sort: "worker",
    search: (row) =>
      `${row.worker} ${row.dialect} ${row.state} ${row.late ? "late" : ""} ${Object.keys(row.services).join(" ")}`,
    empty: "No workers are connected.",
  });
  const problem = h("div");
  put(
    root,
    heading(
      "Workers",
      "Heartbeats: how long each has said nothing, and how many beats it missed.",
      filterBox("Filter workers", (words) => table.filter(words)),
    ),
    problem,
    card(null, null, table.element),
  );
  let rest = [];
  // Silent workers are listed, too, though they are not connected.
  const known = () => live.look.totals.workers + (live.look.totals.silent_workers || 0);
  const draw = () => {
    if (!live.look) return;
    const seen = new Set(live.look.workers.map((row) => row.worker));
    const isCut = known() > live.look.workers.length;
    table.update([
      ...live.look.workers,
      ...(isCut
        ? rest.filter((row) => !seen.has(row.worker)).map((row) => ({ ...row, done_per_s: null }))
        : []),
    ]);
  };
  const ask = async () => {
    // A look holds the busiest two hundred.
    if (!live.look || known() <= live.look.workers.length) return;
    try {
      rest = await get("/api/workers");
      put(problem);
      draw();
    } catch (error) {
      put(problem, trouble(error));
    }
  };
  const ends = [watch(draw), every(5, ask)];
  return () => ends.forEach((end) => end());
}
