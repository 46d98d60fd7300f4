// Whether the bus is fine, in one sentence, and what is not.

import { exact, plural, rate, span } from "./format.js";

const AWAY = {
  down: "The broker is down",
  lost: "The dashboard's own process is gone",
  locked: "Looking needs the token",
};
// A queue that is older than this is no queue that moves.
const OLD_S = 5;
// A share of failures of the last minute that deserves a word.
const FAILING = 0.01;
const ARCHIVE_BEHIND_S = 60;
const TABLES_BEHIND_S = 600;
// So many dead letters are asked for; of more it is only known that they are more.
export const MOST_DEAD = 200;
// More remarks than these nobody reads.
const MOST = 7;

/** {state: "good" | "warn" | "bad" | "", title, remarks: [{kind, text, place}]} */
export function verdict(live, { status, pipeline, dead }) {
  if (live.connection === "connecting") return { state: "", title: "Looking for the broker …", remarks: [] };
  if (live.connection in AWAY) return { state: "bad", title: AWAY[live.connection], remarks: [] };
  const remarks = [...ofServices(live), ...ofTotals(live.look), ...ofStatus(status), ...ofPipeline(pipeline)];
  if (dead?.length) {
    const count = dead.length >= MOST_DEAD ? `${MOST_DEAD} or more dead letters wait` : "";
    const words = count || plural(dead.length, "dead letter waits", "dead letters wait");
    remarks.push(warn(`${words} for somebody to look at`, "dead"));
  }
  const isBad = remarks.some((remark) => remark.kind === "bad");
  remarks.sort((one, other) => (one.kind === other.kind ? 0 : one.kind === "bad" ? -1 : 1));
  if (!remarks.length) return { state: "good", title: "All is well", remarks };
  const more = remarks.length - MOST;
  const shown = more > 0 ? [...remarks.slice(0, MOST), warn(`and ${more} more`)] : remarks;
  const title =
    remarks.length === 1 ? "One thing needs attention" : `${remarks.length} things need attention`;
  return { state: isBad ? "bad" : "warn", title, remarks: shown };
}

function bad(text, ...place) {
  return { kind: "bad", text, place: place.length ? place : null };
}

function warn(text, ...place) {
  return { kind: "warn", text, place: place.length ? place : null };
}

function ofServices(live) {
  const found = [];
  for (const row of live.look.services) {
    const points = (live.services.get(row.service) || []).filter(
      (point) => point && point.at > live.look.at - 60,
    );
    const failed = points.reduce((total, point) => total + point.failed_per_s, 0);
    const done = points.reduce((total, point) => total + point.done_per_s, 0);
    const place = ["service", row.service];
    if (row.state === "unserved" && row.queued)
      found.push(bad(`${row.service}: ${plural(row.queued, "request")} and nobody to serve`, ...place));
    else if (row.oldest_s > OLD_S)
      found.push(
        warn(
          `${row.service}: ${plural(row.queued, "request waits", "requests wait")}, the oldest for more than ${span(Math.floor(row.oldest_s / OLD_S) * OLD_S)}`,
          ...place,
        ),
      );
    if (done > 0 && failed / done >= FAILING && failed >= 1)
      found.push(
        (failed / done > 0.1 ? bad : warn)(
          `${row.service}: ${Math.round((failed / done) * 100)} % of the attempts failed in the last minute`,
          ...place,
        ),
      );
    if (row.state === "late" || row.state === "gone" || row.state === "silent")
      found.push(warn(`${row.service}: its workers are ${row.state}`, ...place));
  }
  return found;
}

function ofTotals(look) {
  const totals = look.totals;
  const found = [];
  if (totals.state !== "serving") found.push(warn(`the broker is ${totals.state}`));
  if (totals.store !== "well") found.push(bad(`the store: ${totals.store}`));
  if (totals.internal_errors)
    found.push(
      bad(`${plural(totals.internal_errors, "error")} inside the broker; its standard error tells more`),
    );
  if (look.workers_late)
    found.push(warn(`${plural(look.workers_late, "worker misses", "workers miss")} heartbeats`, "workers"));
  if (look.nodes_late)
    found.push(warn(`${plural(look.nodes_late, "node misses", "nodes miss")} heartbeats`, "nodes"));
  if (totals.subscribers_behind)
    found.push(
      warn(`${plural(totals.subscribers_behind, "subscriber does", "subscribers do")} not keep up`, "topics"),
    );
  if (totals.rejected_per_s >= 1)
    found.push(warn(`${rate(totals.rejected_per_s)} requests a second are rejected`, "tap"));
  return found;
}

function ofStatus(status) {
  if (!status) return [];
  const found = [];
  if (status.journal !== "on") found.push(warn(`the journal is ${status.journal}: nothing can be traced`));
  if (status.journal_lost)
    found.push(bad(`the journal lost ${exact(status.journal_lost)} records`, "pipeline"));
  if (status.archiver_behind_s > ARCHIVE_BEHIND_S)
    found.push(warn(`the archive is ${span(status.archiver_behind_s)} behind`, "pipeline"));
  return found;
}

function ofPipeline(pipeline) {
  if (pipeline?.tables?.length && pipeline.lag_s > TABLES_BEHIND_S)
    return [warn(`the tables are ${span(pipeline.lag_s)} behind the journal`, "pipeline")];
  return [];
}
