// All services: who serves them, what waits, how fast they are.

import { get } from "../api.js";
import { Spark } from "../charts.js";
import { every, put, route } from "../dom.js";
import { number, rate, share, span, took } from "../format.js";
import { live, period, watch } from "../live.js";
import { badgeKind, card, filterBox, heading } from "../parts.js";
import { Table } from "../table.js";

/** Columns of a service: a row is one of a look, with what /api/services knows beside it. */
export function serviceColumns() {
  return [
    {
      id: "service",
      head: "service",
      isHead: true,
      value: (row) => row.service,
      href: (row) => route("service", row.service),
    },
    { id: "state", head: "state", value: (row) => row.state, kind: badgeKind },
    { id: "dialects", head: "dialects", minor: true, value: (row) => (row.dialects || []).join(", ") },
    { id: "workers", head: "workers", number: true, minor: true, value: (row) => row.workers, show: number },
    { id: "load", head: "load", number: true, minor: true, value: (row) => row.load, show: share },
    { id: "queued", head: "queued", number: true, value: (row) => row.queued, show: number },
    {
      id: "oldest",
      head: "oldest",
      number: true,
      minor: true,
      value: (row) => row.oldest_s,
      show: span,
      kind: (value) => (value > 5 ? "amber" : ""),
    },
    { id: "running", head: "running", number: true, minor: true, value: (row) => row.running, show: number },
    { id: "rate", head: "done/s", number: true, minor: true, value: (row) => row.done_per_s, show: rate },
    {
      id: "trend",
      head: "trend",
      minor: true,
      node: (row) => refreshTrend(new Spark(`${row.service}: done per second`), row),
      refresh: (element, row) => refreshTrend(element.spark, row),
    },
    {
      id: "failed",
      head: "failed",
      number: true,
      minor: true,
      value: (row) => row.failed,
      show: number,
      kind: (_, row) => (row.failed_per_s ? "red" : ""),
    },
    { id: "p50", head: "p50", number: true, minor: true, value: (row) => row.p50_s, show: took },
    { id: "p95", head: "p95", number: true, value: (row) => row.p95_s, show: took },
    { id: "p99", head: "p99", number: true, minor: true, value: (row) => row.p99_s, show: took },
  ];
}

function refreshTrend(spark, row) {
  spark.element.spark = spark;
  if (live.look)
    spark.update(live.services.get(row.service) || [], (point) => point.done_per_s, ...period(), rate);
  return spark.element;
}

export default function services(root) {
  const table = new Table({
    caption: "Services",
    columns: serviceColumns(),
    key: (row) => row.service,
    sort: "service",
    search: (row) => `${row.service} ${row.state} ${(row.dialects || []).join(" ")}`,
    empty: "Nobody offers or asks for a service yet.",
  });
  let known = new Map();
  put(
    root,
    heading(
      "Services",
      "Rates of the last second; times of the last ten, from acceptance to reply.",
      filterBox("Filter services", (words) => table.filter(words)),
    ),
    card(null, null, table.element),
  );
  const draw = () => {
    if (!live.look) return;
    const seen = new Set(live.look.services.map((row) => row.service));
    const rows = live.look.services.map((row) => ({ dialects: known.get(row.service)?.dialects, ...row }));
    // A look holds the busiest; the others are told more slowly.
    for (const row of known.values())
      if (!seen.has(row.service) && known.size > live.look.services.length)
        rows.push({ ...row, done_per_s: row.rate_per_s, p50_s: null, p95_s: null, p99_s: null });
    table.update(rows);
  };
  const ask = async () => {
    try {
      known = new Map((await get("/api/services")).map((row) => [row.service, row]));
      draw();
    } catch {
      // The alarm says so.
    }
  };
  const ends = [watch(draw), every(5, ask)];
  return () => ends.forEach((end) => end());
}
