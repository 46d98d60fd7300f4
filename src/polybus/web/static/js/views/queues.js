// Queues: what waits for a worker, and the unanswered requests one by one.

import { act, get } from "../api.js";
import { attempt, confirm } from "../dialogs.js";
import { every, h, put, route } from "../dom.js";
import { number, plural, rate, share, size, span } from "../format.js";
import { badgeKind, button, card, filterBox, heading, trouble } from "../parts.js";
import { Table } from "../table.js";

/** Who has a request: the worker that it is with, and silent ones that may still answer it. */
function holders(row) {
  const silent = (row.silent_workers || []).map((name) => `${name} (silent)`);
  return [row.worker, ...silent].filter(Boolean).join(", ") || null;
}

const QUEUES = [
  {
    id: "queue",
    head: "queue",
    isHead: true,
    value: (row) => row.service,
    href: (row) => route("service", row.service),
  },
  { id: "depth", head: "depth", number: true, value: (row) => row.depth, show: number },
  {
    id: "oldest",
    head: "oldest",
    number: true,
    value: (row) => row.oldest_s,
    show: span,
    kind: (value) => (value > 5 ? "amber" : ""),
  },
  { id: "running", head: "running", number: true, value: (row) => row.running, show: number },
  { id: "waiting", head: "waiting", number: true, minor: true, value: (row) => row.waiting, show: number },
  { id: "rate", head: "done/s", number: true, minor: true, value: (row) => row.rate_per_s, show: rate },
  { id: "limits", head: "limits", minor: true, value: limits },
  {
    id: "workers",
    head: "workers",
    number: true,
    minor: true,
    value: (row) => row.workers,
    show: number,
    kind: (value) => (value ? "" : "red"),
  },
  {
    id: "free_slots",
    head: "free slots",
    number: true,
    minor: true,
    value: (row) => row.free_slots,
    show: number,
  },
  { id: "load", head: "load", number: true, minor: true, value: (row) => row.load, show: share },
];

function limits(row) {
  const words = [];
  if (row.limits.concurrency) words.push(`${row.limits.concurrency} at once`);
  if (row.limits.rate_per_s) words.push(`${row.limits.rate_per_s}/s`);
  return words.join(", ");
}

export default function queues(root) {
  const table = new Table({
    caption: "Queues",
    columns: QUEUES,
    key: (row) => row.service,
    sort: "depth",
    descending: true,
    empty: "No queues: nobody offers or asks for a service yet.",
  });
  const cancel = async (row) => {
    const detail = `${row.service}, from ${row.client || "a job"}, ${span(row.age_s)} old. Its client is told that it was cancelled.`;
    if (!(await confirm(`Cancel ${row.token}?`, detail, "Cancel the request"))) return;
    await attempt(
      () => act("POST", `/api/requests/${encodeURIComponent(row.token)}/cancel`),
      () => `cancelled ${row.token}`,
    );
    await ask();
  };
  const requests = new Table({
    caption: "Unanswered requests",
    key: (row) => row.token,
    sort: "age",
    descending: true,
    empty: "Every request is answered.",
    columns: [
      {
        id: "token",
        head: "token",
        isHead: true,
        class: "id",
        value: (row) => row.token,
        href: (row) => route("trace", row.token),
      },
      {
        id: "service",
        head: "service",
        value: (row) => row.service,
        href: (row) => route("service", row.service),
      },
      { id: "state", head: "state", minor: true, value: (row) => row.state, kind: badgeKind },
      { id: "client", head: "client", minor: true, class: "wrap", value: (row) => row.client },
      { id: "dialect", head: "dialect", minor: true, value: (row) => row.dialect },
      { id: "worker", head: "worker", minor: true, class: "wrap", value: holders },
      { id: "attempt", head: "attempt", number: true, minor: true, value: (row) => row.attempt },
      { id: "age", head: "age", number: true, value: (row) => row.age_s, show: span },
      {
        id: "expires",
        head: "expires in",
        number: true,
        minor: true,
        value: (row) => row.expires_in_s,
        show: span,
      },
      { id: "bytes", head: "size", number: true, minor: true, value: (row) => row.bytes, show: size },
      { id: "act", head: "", node: (row) => button("Cancel", () => cancel(row), "small") },
    ],
  });
  const problem = h("div");
  const listed = h("p", { class: "hint" });
  const filter = (words) => {
    table.filter(words);
    requests.filter(words);
  };
  put(
    root,
    heading(
      "Queues",
      "What waits for a worker, runs, or waits for its next attempt.",
      filterBox("Filter queues and requests", filter),
    ),
    problem,
    card(null, null, table.element),
    card("Unanswered requests", "A token leads to its trace.", requests.element, listed),
  );
  const ask = async () => {
    try {
      const [services, unanswered] = await Promise.all([get("/api/services"), get("/api/requests")]);
      put(problem);
      table.update(services);
      requests.update(unanswered);
      put(
        listed,
        unanswered.length >= 1000 ? `The broker lists ${plural(unanswered.length, "request")} at most.` : "",
      );
    } catch (error) {
      put(problem, trouble(error));
    }
  };
  return every(2, ask);
}
