// What the bus does now, and did in the last minutes: looks at the broker, one a second, become rates and times.
//
// The looks come to all who watch from one poller.  Two of them make a difference (as in `polybus top`); times are
// those of the last ten seconds, because a second of a quiet service holds too few requests to speak of.

import { follow } from "./api.js";
import { difference, merge, percentiles } from "./latency.js";

// Five minutes, a point a second.
const MOST_POINTS = 300;
const KEPT_S = 300;
// A page that was just opened shows its first minute.
const LEAST_S = 60;
const WINDOW = 10;
const FRACTIONS = [0.5, 0.95, 0.99];
// After such a pause lines are not drawn through.
const GAP_S = 5;
const TOTALS = ["accepted", "replied", "failed", "expired", "rejected", "published", "retried"];

/** connection: "connecting", "up", "down" (the broker), "lost" (the dashboard's own process), "locked" (no token). */
export const live = {
  connection: "connecting",
  error: "",
  next: "",
  since: Date.now() / 1000,
  look: null,
  points: [],
  /** Service → its points. */
  services: new Map(),
};

const listeners = new Set();
let before = null;
let windows = new Map();

/** From when to when drawings reach: all that is known, at least a minute. */
export function period() {
  const end = live.look.at;
  const first = live.points.find(Boolean)?.at ?? end;
  return [Math.max(end - KEPT_S, Math.min(first, end - LEAST_S)), end];
}

/** Be told of each look and of each change of the connection; gives the function that ends it. */
export function watch(listen) {
  listeners.add(listen);
  listen(live);
  return () => listeners.delete(listen);
}

function tell() {
  for (const listen of [...listeners]) listen(live);
}

function change(connection, error = "", next = "") {
  if (live.connection !== connection) live.since = Date.now() / 1000;
  Object.assign(live, { connection, error, next });
}

export function start() {
  follow("/api/stream", {
    event(name, data) {
      if (name === "top" && data.totals) take(data);
      else if (name === "down" || data.health?.broker === "down") away("down", data);
      tell();
    },
    broken(error) {
      away(error.status === 401 ? "locked" : "lost", { error: error.message, next: error.next });
      tell();
    },
  });
}

function away(connection, data) {
  const error = data.error || data.health?.error || "the broker does not answer";
  change(connection, error, data.next || data.health?.next || "");
}

// -- a look ---------------------------------------------------------------------------------------

function take(now) {
  change("up");
  let span_s = before ? now.clock - before.clock : 0;
  if (before && now.clock === before.clock && now.totals.up_s === before.totals.up_s) return;
  if (span_s <= 0 || now.totals.accepted < before.totals.accepted || now.totals.up_s < before.totals.up_s) {
    // The first look, or another life of the broker.
    before = null;
    span_s = 0;
    windows = new Map();
  }
  const old = new Map((before?.services || []).map((row) => [row.service, row]));
  const done = new Map((before?.workers || []).map((row) => [row.worker, row.done]));
  const everything = [];
  const services = now.services.map((row) => {
    const { times, ...rest } = row;
    const past = old.get(row.service);
    const counts = before ? difference(times, past?.times) : new Map();
    const window = [...(windows.get(row.service) || []), counts].slice(-WINDOW);
    windows.set(row.service, window);
    const merged = merge(window);
    everything.push(merged);
    const [p50_s, p95_s, p99_s] = percentiles(merged, FRACTIONS);
    return {
      ...rest,
      done_per_s: grown(row, past, ["answered", "failed"], span_s),
      failed_per_s: grown(row, past, ["failed"], span_s),
      p50_s,
      p95_s,
      p99_s,
    };
  });
  const rates = Object.fromEntries(
    TOTALS.map((name) => [`${name}_per_s`, grown(now.totals, before?.totals, [name], span_s)]),
  );
  const [p50_s, p95_s, p99_s] = percentiles(merge(everything), FRACTIONS);
  const workers = now.workers.map((row) => ({
    ...row,
    done_per_s: done.has(row.worker) && span_s ? Math.max(0, row.done - done.get(row.worker)) / span_s : null,
  }));
  const totals = {
    ...now.totals,
    ...rates,
    failing_per_s: span_s ? rates.failed_per_s + rates.expired_per_s + rates.rejected_per_s : null,
    queued: sum(now.services, "queued"),
    running: sum(now.services, "running"),
    p50_s,
    p95_s,
    p99_s,
  };
  live.look = { ...now, services, workers, totals, span_s };
  keep(live.look, span_s);
  before = now;
}

function grown(row, past, names, span_s) {
  if (!past || !span_s) return null;
  return (
    Math.max(
      0,
      names.reduce((total, name) => total + (row[name] - past[name]), 0),
    ) / span_s
  );
}

function sum(rows, name) {
  return rows.reduce((total, row) => total + (row[name] || 0), 0);
}

function keep(look, span_s) {
  const at = look.at;
  if (!span_s || span_s > GAP_S) {
    append(live.points, null);
    for (const points of live.services.values()) append(points, null);
  }
  if (!span_s) return;
  append(
    live.points,
    point(at, look.totals, [
      "accepted_per_s",
      "replied_per_s",
      "failing_per_s",
      "published_per_s",
      "requests",
      "queued",
      "running",
      "workers",
    ]),
  );
  for (const row of look.services) {
    if (!live.services.has(row.service)) live.services.set(row.service, []);
    append(
      live.services.get(row.service),
      point(at, row, ["done_per_s", "failed_per_s", "queued", "running"]),
    );
  }
  for (const [name, points] of live.services) {
    // Of a service that is gone nothing is left after a while.
    if ((points.findLast(Boolean)?.at ?? 0) < at - KEPT_S) live.services.delete(name);
  }
  for (const name of windows.keys()) if (!live.services.has(name)) windows.delete(name);
}

function point(at, row, names) {
  const found = { at, p50_s: row.p50_s, p95_s: row.p95_s, p99_s: row.p99_s };
  for (const name of names) found[name] = row[name];
  return found;
}

function append(points, one) {
  if (one === null && (points.length === 0 || points[points.length - 1] === null)) return;
  points.push(one);
  if (points.length > MOST_POINTS) points.shift();
}
